"""Transformer and GNMT: equal to references, the same on every mesh, searched exhaustively, and measured by BLEU."""

# mypy: disallow-untyped-calls=False

import dataclasses
import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.trainer import reference_translation as reference
from tests.trainer.emulated import Trainer, pairs
from trainer import config
from trainer.data.records import END, FIRST_TOKEN, PADDING
from trainer.estimate import flops
from trainer.models import beam_search, gnmt, registry, transformer
from trainer.models import pairs as pair_records
from trainer.models.family import Context

TRANSFORMER = ("model.family=transformer",)
GNMT = ("model.family=gnmt", "model.layers=3")
BOTH = pytest.mark.parametrize("settings", [TRANSFORMER, GNMT], ids=["transformer", "gnmt"])
GNMT_SLOW = pytest.mark.parametrize(
    "settings", [pytest.param(GNMT, marks=pytest.mark.slow), TRANSFORMER], ids=["gnmt", "transformer"]
)
LOGITS = {"transformer": reference.transformer_logits, "gnmt": reference.gnmt_logits}


@functools.cache
def trainer(settings: tuple[str, ...], dp: int = 1, fsdp: int = 1, tp: int = 1) -> Trainer:
    return Trainer(dp, fsdp, tp, *settings)


def real(numbers: Any) -> list[int]:
    return [int(number) for number in numbers if number != PADDING]


def network(translator: Trainer, params: Any) -> Any:
    kind = gnmt.Network if translator.config.model.family == "gnmt" else transformer.Network
    return kind(translator.config.model, translator.how, params)


@GNMT_SLOW
def test_logits_and_losses_equal_the_reference(settings: tuple[str, ...]) -> None:
    translator = trainer(settings)
    model, records = translator.config.model, jnp.asarray(pairs(16)(np.arange(6)))
    params = jax.tree.map(
        lambda w: w * 1.5 + 0.02, jax.device_get(registry.family(model).init(model, jax.random.key(3)))
    )

    @jax.jit
    def run(params: Any, record_BS: Any) -> Any:
        source_BT, target_BT = pair_records.halves(record_BS)
        model_network = network(translator, params)
        memory_BTE = model_network.encode(source_BT)
        y_BTE = model_network.decode(memory_BTE, source_BT, pair_records.shifted(target_BT))
        of = functools.partial(registry.family(model).sums, model, translator.how, params)
        weight_B = jnp.ones(6).at[5].set(0)
        losses = [of(Context({}, step, None), record_BS, weight_B).loss for step in (jnp.int32(0), None)]
        return model_network.project(y_BTE), losses

    logits_BTV, losses = jax.device_get(run(params, records))
    expected = np.zeros(2)
    for n, row in enumerate(np.asarray(records)):
        source, target = (real(half) for half in np.split(row, 2))
        logits = LOGITS[model.family](params, source, [END, *target[:-1]])
        np.testing.assert_allclose(logits_BTV[n, : len(target)], logits, atol=1e-4)
        if n < 5:
            expected += [reference.loss(logits, target, smoothing) for smoothing in (0.1, 0.0)]
    np.testing.assert_allclose(losses, expected, rtol=1e-5)


@pytest.mark.slow
@BOTH
@pytest.mark.parametrize(
    "mesh",
    [
        pytest.param((2, 1, 1), id="dp2", marks=pytest.mark.extended),
        pytest.param((2, 2, 1), id="dp2-fsdp2"),
        pytest.param((1, 2, 2), id="fsdp2-tp2"),
    ],
)
def test_losses_are_the_same_on_any_mesh(settings: tuple[str, ...], mesh: tuple[int, int, int]) -> None:
    np.testing.assert_allclose(trainer(settings, *mesh).losses(3), trainer(settings).losses(3), rtol=1e-5)


STATES = 6  # of the model below: padding, END and four letters
EVERY = [(*body, END) for tokens in range(4) for body in itertools.product(range(FIRST_TOKEN, STATES), repeat=tokens)]


@pytest.mark.parametrize("penalty", [0.0, 2.0])
def test_a_wide_beam_finds_the_best_of_all_translations(penalty: float) -> None:
    """The model is random probabilities of a letter after each letter; every translation of up to four is tried."""

    @jax.jit
    def search(logits_VV: Any) -> Any:
        def step(state: Any, number_BK: Any, time: Any) -> Any:
            return logits_VV[number_BK], state

        source_BT, weight_B = jnp.full((2, 4), 7), jnp.array([1.0, 0.0])
        return beam_search.search(step, jnp.zeros((2, 1)), source_BT, weight_B, 100, penalty)

    lengths = set()
    for seed in range(10):
        logits_VV = np.random.default_rng(seed).normal(size=(STATES, STATES)).astype(np.float32) * 2
        log_VV = logits_VV - np.log(np.exp(logits_VV).sum(1, keepdims=True))
        results = search(logits_VV)
        scores = [
            sum(log_VV[pair] for pair in itertools.pairwise((END, *one))) / ((5 + len(one)) / 6) ** penalty
            for one in EVERY
        ]
        best = EVERY[int(np.argmax(scores))]
        assert real(results[0]) == list(best)
        assert results[1].tolist() == [PADDING] * 4, "an example of padding"
        lengths.add(len(best))
    assert len(lengths) > 1


@GNMT_SLOW
def test_a_beam_of_one_follows_the_most_probable_token(settings: tuple[str, ...]) -> None:
    """The decoder of one more token agrees with the decoder of all tokens.

    A translation may end anywhere: the best of those that ended is returned.
    """
    translator = trainer(settings)
    model, records = translator.config.model, jnp.asarray(pairs(16)(np.arange(2)))
    params = jax.tree.map(lambda w: w * 2.0, registry.family(model).init(model, jax.random.key(5)))
    source_BT, _ = pair_records.halves(records)
    translate = gnmt.translate if model.family == "gnmt" else transformer.translate
    narrow = dataclasses.replace(model, beam=1)
    translations = jax.jit(functools.partial(translate, narrow, translator.how))(params, source_BT, jnp.ones(2))
    for source, numbers in zip(np.asarray(source_BT), np.asarray(translations), strict=True):
        inputs = [END]
        for number in real(numbers):
            logits = LOGITS[model.family](params, real(source), inputs)[-1]
            logits[[PADDING, END]] = -np.inf
            assert number in (END, int(np.argmax(logits))), (inputs, number)
            inputs.append(number)
        assert len(inputs) > 2, "several tokens were compared"


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings", [pytest.param(TRANSFORMER, id="transformer"), pytest.param(GNMT, id="gnmt", marks=pytest.mark.extended)]
)
def test_batches_of_several_lengths_train_the_same_with_sharded_updates_and_explicit_sums(
    settings: tuple[str, ...],
) -> None:
    plain = trainer(settings).losses(3)
    lengths = ("model.batch_lengths=4,8,14", "optim.update_axes=fsdp,dp")
    spread = Trainer(2, 2, 1, *settings, *lengths, num_slices=2)
    np.testing.assert_allclose(spread.losses(3), plain, rtol=1e-5)
    assert "conditional" in spread.train().as_text()
    moments = jax.tree.leaves(spread.programs.state["opt"])
    assert any(leaf.size == 4 * np.prod(leaf.sharding.shard_shape(leaf.shape)) for leaf in moments)
    sums = ("mesh.grad_reduction=explicit", "mesh.grad_reduction_dtype=bfloat16")
    explicit = Trainer(2, 2, 1, *settings, *lengths, *sums, num_slices=2)
    np.testing.assert_allclose(explicit.losses(3), plain, rtol=2e-3)
    assert "conditional" in explicit.train().as_text(), "the replicas agree on one length"


def test_models_have_their_parameters_and_flops() -> None:
    big = config.load("transformer", ["model.vocab=37000"]).model
    assert registry.parameters(big) == pytest.approx(213e6, rel=0.01)  # Vaswani et al., table 3
    model = config.load("gnmt", ["model.vocab=32320"]).model
    assert registry.parameters(model) == pytest.approx(160.7e6, rel=0.01)  # MLPerf's reference
    for settings in (TRANSFORMER, GNMT):
        small = config.load("tiny", ["model.seq_len=32", *settings])
        counted = sum(flops.training_flops(small).values())
        assert registry.family(small.model).flops_per_item(small.model) == pytest.approx(counted, rel=0.02)
