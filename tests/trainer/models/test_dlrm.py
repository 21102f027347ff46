"""DLRM: its outputs and lookups against plain ones, on every mesh and with every placement of tables."""

# mypy: disallow-untyped-calls=False

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.trainer.clicks import ClickTrainer, clicks_on, log_losses, reference_logits
from tests.trainer.collectives import collectives
from tests.trainer.emulated import same_gradients
from trainer import config
from trainer.data import batches, synthetic_clicks
from trainer.data.clicks import click_format
from trainer.models import dlrm, registry
from trainer.models.embedding import RowExchange, look_up, row_of
from trainer.models.family import Context
from trainer.parallel import table_placement
from trainer.parallel.table_placement import COLUMNS, REPLICATED, ROWS

MESHES = {"one chip": (1, 1), "dp 2": (2, 1), "dp 2 x fsdp 2": (2, 2)}


@functools.cache
def losses(dp: int, fsdp: int, *settings: str) -> tuple[float, ...]:
    return tuple(clicks_on(dp, fsdp, *settings).losses(4))


@pytest.mark.slow
def test_a_dlrm_has_the_outputs_of_the_reference() -> None:
    trainer = clicks_on(2, 2)
    model, records = table_placement.place(trainer.config.model, 2, 2), trainer.records(np.arange(8))
    params = jax.device_get(trainer.init(np.uint32(0))["params"])
    expected = reference_logits(model, params, records)
    label_B, dense_BD, rows = dlrm.examples(model, jnp.asarray(records.astype(np.int32)))
    logit_B = jax.jit(functools.partial(dlrm.logits, model, trainer.how))(params, dense_BD, rows)
    np.testing.assert_allclose(logit_B, expected, atol=1e-4, rtol=0)
    assert trainer.losses(1)[0] == pytest.approx(float(np.mean(log_losses(expected, label_B))), abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("mesh", MESHES.values(), ids=MESHES.keys())
def test_a_dlrm_trains_the_same_on_any_mesh(mesh: tuple[int, int]) -> None:
    np.testing.assert_allclose(losses(*mesh), losses(1, 1, "model.placements=replicated"), rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        ("model.rows_per_exchange=1",),
        ("mesh.grad_reduction=explicit", "mesh.grad_reduction_dtype=float32"),
        ("optim.update_axes=fsdp,dp",),
        ("optim.grad_accum_steps=2",),
    ],
    ids=["several exchanges", "explicit reduction", "sharded updates", "parts"],
)
def test_a_dlrm_trains_the_same_in_any_way(settings: tuple[str, ...]) -> None:
    np.testing.assert_allclose(losses(2, 2, *settings), losses(1, 1), rtol=1e-5)


@pytest.mark.slow
def test_a_batch_of_65_536_clicks_trains_the_same_on_four_chips() -> None:
    """The batch of the configuration `dlrm`, with distinct examples; tables are smaller."""
    big = "data.global_batch=65536"
    trainers = [ClickTrainer(2, 2, big), ClickTrainer(1, 1, big, "model.placements=replicated")]
    form = click_format(trainers[0].config.model)
    records = np.concatenate([synthetic_clicks.draw(form, chunk)[0] for chunk in range(48)]).astype(np.uint32)
    for trainer in trainers:
        trainer.read = lambda ids_N: records[ids_N]
    split, whole = (trainer.losses(3) for trainer in trainers)
    np.testing.assert_allclose(split, whole, rtol=1e-5)
    assert split[2] < split[0]


@pytest.mark.slow
def test_a_dlrm_has_the_same_gradients_with_any_placement() -> None:
    same_gradients(clicks_on(2, 2), clicks_on(1, 1))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lamb", "lars"])
def test_a_dlrm_trains_the_same_with_any_optimizer(name: str) -> None:
    settings = (f"optim.name={name}", "optim.update_axes=fsdp")
    np.testing.assert_allclose(losses(2, 2, *settings), losses(1, 1, f"optim.name={name}"), rtol=1e-5)


def check_lookup(dp: int, fsdp: int, placement: str, rows_BH: Any, capacity: int = 0) -> None:
    """Assert the sums of rows of a table of 2,048 rows, and the gradient of the sum of their squares."""
    table = np.random.default_rng(0).normal(size=(2048, 8)).astype(np.float32)

    def loss(table: Any) -> Any:
        (sums,) = look_up(clicks_on(dp, fsdp).how, [placement], [table], [rows_BH], jnp.float32, capacity)
        return jnp.sum(sums**2), sums

    (_, sums), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(table)
    expected = np.where(rows_BH[..., None] < 0, 0, table[np.maximum(rows_BH, 0)]).sum(1)
    expected_gradient = np.zeros_like(table)
    for rows, total in zip(rows_BH, expected, strict=True):
        for row in rows[rows >= 0]:
            expected_gradient[row] += 2 * total
    np.testing.assert_allclose(sums, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("placement", [REPLICATED, COLUMNS, ROWS])
def test_a_lookup_is_the_sum_of_the_rows_of_all_ids(placement: str) -> None:
    rows_BH = np.random.default_rng(1).integers(-1, 2048, (16, 3)).astype(np.int32)
    rows_BH[3] = 7  # three times the same row
    rows_BH[5] = -1  # no row
    check_lookup(2, 2, placement, rows_BH)


@pytest.mark.parametrize("capacity", [0, 1, 3])
def test_no_lookup_is_dropped_if_all_rows_are_of_one_chip(capacity: int) -> None:
    rows_BH = np.arange(64, dtype=np.int32).reshape(16, 4)  # of the first of two chips
    check_lookup(2, 2, ROWS, rows_BH, capacity)


def test_rows_are_a_permutation_that_separates_neighbors() -> None:
    rows = np.asarray(row_of(jnp.arange(3000), 3000))
    assert len(set(rows.tolist())) == 3000 and rows.max() < table_placement.padded_rows(3000) == 3072
    owners = row_of(jnp.arange(64), 3000) // (3072 // 8)
    assert np.bincount(np.asarray(owners)).tolist() == [8] * 8
    assert row_of(jnp.asarray([-1]), 3000).tolist() == [-1] and row_of(jnp.asarray([5]), 900).tolist() == [5]


def test_duplicates_are_removed_before_rows_are_exchanged() -> None:
    rows_BH = np.tile(np.array([[3, 2000]], np.int32), (16, 32))  # 64 lookups of each chip, of two rows
    trainer = clicks_on(1, 4)
    exchange = RowExchange(trainer.mesh, trainer.how.batch, (2048,), "float32", capacity=1)
    spec = jax.sharding.PartitionSpec(trainer.how.batch)

    def exchanges(rows_BH: Any) -> int:
        """Return the number of exchanges; each sends one row of an owner."""
        count = exchange.on_chips(
            lambda rows_bH: exchange.exchanges([exchange.requests(rows_bH, 2048)])[None], (spec,), spec
        )
        return int(jax.jit(count)(rows_BH)[0])

    assert exchanges(rows_BH) == 1
    assert exchanges(np.arange(1024, dtype=np.int32).reshape(16, 64)) == 4 * 64


def test_the_exchange_sends_at_most_its_buffers_over_the_chips_of_a_slice() -> None:
    trainer = clicks_on(2, 2)
    swaps = [one for one in collectives(trainer.train().as_text()) if one.kind == "all-to-all"]
    model, chip_examples, owners = trainer.config.model, 2, 2
    capacity = [table_placement.row_capacity(chip_examples * hots, owners) for hots in (1, 3)]
    rows = 4 * model.embed * owners * sum(capacity)
    columns = 4 * model.embed * chip_examples
    ids = 4 * owners * sum(capacity)
    assert sorted(one.bytes for one in swaps) == sorted([ids, rows, ids, rows, columns, columns])
    assert not any(one.crosses([(0, 1), (2, 3)]) for one in swaps)
    ideal = 4 * model.embed * chip_examples * (1 + 3)  # every lookup of a chip once
    assert rows <= 2.5 * ideal and table_placement.row_capacity(4096, 8) * 8 < 1.2 * 4096


def test_gradients_of_sharded_tables_cross_slices_as_rows() -> None:
    trainer = clicks_on(2, 2)
    crossing = [one for one in collectives(trainer.train().as_text()) if one.crosses([(0, 1), (2, 3)])]
    table = 2048 // 2 * trainer.config.model.embed
    assert max(max(one.sizes, default=0) for one in crossing) < table


def evaluation(trainer: ClickTrainer, weigh: Any = lambda weight: weight) -> tuple[float, float]:
    """Return the mean loss and AUC of 21 examples in batches of 8."""
    state, total, weights, predictions = trainer.init(np.uint32(0)), 0.0, 0.0, []
    for ids in batches.eval_ids(8, 100, 21):
        blocks = trainer.blocks(ids)
        sums = trainer.programs.evaluate(state["params"], blocks._replace(weight=weigh(blocks.weight)))
        total, weights = total + float(sums.loss), weights + float(sums.weight)
        predictions.append(sums.predictions)
    return total / weights, jax.device_get(trainer.programs.rank(predictions)).area


@pytest.mark.slow
def test_padding_does_not_change_an_evaluation_of_clicks() -> None:
    from sklearn.metrics import roc_auc_score

    trainer = clicks_on(2, 2)
    records, params = trainer.records(100 + np.arange(21)), jax.device_get(trainer.init(np.uint32(0))["params"])
    logits = reference_logits(trainer.config.model, params, records)
    loss, area = evaluation(trainer)
    assert loss == pytest.approx(float(np.mean(log_losses(logits, records[:, 0]))), rel=1e-5)
    assert area == pytest.approx(roc_auc_score(records[:, 0], logits), abs=1e-9)
    assert evaluation(trainer, jnp.ones_like) != pytest.approx((loss, area), rel=1e-5)


@pytest.mark.slow
def test_predictions_belong_only_to_evaluations() -> None:
    trainer = clicks_on(1, 1)
    params = trainer.init(np.uint32(0))["params"]
    record_BS = jnp.asarray(trainer.records(np.arange(8)).astype(np.int32))
    context = Context({}, jnp.int32(3), None)
    sums = dlrm.sums(trainer.config.model, trainer.how, params, context, record_BS, jnp.ones(8))
    assert sums.predictions is None


def test_mlperfs_dlrm_has_its_parameters_and_flops() -> None:
    model = config.load("dlrm").model
    matrices = 13 * 512 + 512 * 256 + 256 * 128 + 479 * 1024 + 1024 * 1024 + 1024 * 512 + 512 * 256 + 256
    biases = 512 + 256 + 128 + 1024 + 1024 + 512 + 256 + 1
    rows = sum(map(table_placement.padded_rows, model.table_rows))
    assert sum(model.table_rows) == 187_767_399 and rows - 187_767_399 < 20 * 1024
    assert registry.parameters(model) == rows * 128 + matrices + biases
    assert dlrm.flops_per_item(model) == 6 * (matrices + 27 * 27 * 128)


def test_the_placement_that_sends_the_fewest_bytes_is_chosen() -> None:
    model = dataclasses.replace(config.load("dlrm").model, tables="100,2000,2000,5000000,900", hots="1,1,40,1,1")
    few = table_placement.place(model, 8, 32)
    assert table_placement.placements(few) == (COLUMNS, ROWS, COLUMNS, ROWS, COLUMNS)
    many = table_placement.place(model, 8, 8192)
    assert table_placement.placements(many) == (REPLICATED, REPLICATED, REPLICATED, ROWS, REPLICATED)
    assert table_placement.place(many, 8, 32) is many  # as set
    assert set(table_placement.placements(table_placement.place(model, 1, 32))) == {REPLICATED}


@pytest.mark.slow
def test_a_few_clicks_can_be_overfitted() -> None:
    trainer = clicks_on(1, 1)
    state, blocks, result = trainer.init(np.uint32(0)), trainer.blocks(np.arange(8)), []
    for _ in range(60):
        state, out = trainer.train()(state, blocks, trainer.flags)
        result.append(float(out["loss"]))
    assert result[-1] < 0.2 * result[0]
