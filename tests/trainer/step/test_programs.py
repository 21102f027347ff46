"""The mathematics: the same on every mesh, and properties of a language model."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.trainer.emulated import TEXT, Trainer, on, read, same_gradients
from trainer import config
from trainer.data import batches
from trainer.models import decoder
from trainer.models.mfu import flops_per_token, mfu, parameters
from trainer.parallel.partitioning import Execution
from trainer.step import programs


@functools.cache
def on_one_chip() -> list[float]:
    return on(1, 1, 1).losses(5)


@pytest.mark.parametrize(
    "mesh", [*(pytest.param(mesh, marks=pytest.mark.slow) for mesh in ((2, 1, 1), (1, 4, 1), (2, 2, 1))), (2, 2, 2)]
)
def test_every_mesh_trains_the_same(mesh: tuple[int, int, int]) -> None:
    np.testing.assert_allclose(on(*mesh).losses(5), on_one_chip(), atol=1e-5)
    same_gradients(on(*mesh), on(1, 1, 1))


def test_initial_parameters_are_bit_equal_on_every_mesh() -> None:
    alone, spread = (jax.tree.leaves(on(*mesh).init(np.uint32(0))) for mesh in ((1, 1, 1), (2, 2, 2)))
    for one, other in zip(alone, spread, strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


@pytest.mark.slow
def test_a_pipeline_over_slices_trains_like_one_stage() -> None:
    made = Trainer(2, 1, 2, "mesh.stages=2", "mesh.microbatches=4", "model.remat=full", num_slices=2)
    assert [len({chip.id // 4 for chip in made.mesh.devices[:, stage].flat}) for stage in (0, 1)] == [1, 1]
    np.testing.assert_allclose(made.losses(3), on_one_chip()[:3], atol=1e-5)
    same_gradients(made, on(1, 1, 1))


@pytest.mark.slow
def test_a_subset_of_readers_trains_the_same() -> None:
    np.testing.assert_allclose(Trainer(2, 2, 1, readers=(0, 2)).losses(5), on_one_chip(), atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mesh", "settings"),
    [
        ((1, 1, 1), ["model.remat=full"]),
        ((1, 1, 1), ["model.remat=dots", "model.attention_chunk=4"]),
        ((1, 2, 2), ["model.remat=attention"]),
        ((2, 2, 2), ["model.remat=full", "model.attention_chunk=8", "model.loss_chunk=4"]),
        ((2, 2, 2), ["model.remat=full", "model.unroll=0"]),
        ((1, 1, 1), ["model.unroll=3"]),
    ],
)
def test_rematerialization_does_not_change_results(mesh: tuple[int, int, int], settings: list[str]) -> None:
    made = Trainer(*mesh, *settings)
    np.testing.assert_allclose(made.losses(3), on_one_chip()[:3], atol=1e-5)
    same_gradients(made, on(1, 1, 1))


@pytest.mark.slow
def test_unrolled_layers_recompute_only_what_the_policy_says() -> None:
    looped, saved, again = (
        Trainer(1, 1, 1, *settings).train().as_text()
        for settings in ([], ["model.unroll=0"], ["model.unroll=0", "model.remat=full"])
    )
    assert looped.count(" while(") - saved.count(" while(") == 2, "forward and backward"
    assert saved.count(" dot(") < again.count(" dot(")


@pytest.mark.slow
def test_accumulated_gradients_equal_those_of_the_batch() -> None:
    made = Trainer(1, 1, 1, "optim.grad_accum_steps=4")
    np.testing.assert_allclose(made.losses(3), on_one_chip()[:3], atol=1e-5)
    same_gradients(made, on(1, 1, 1))


def test_an_initial_model_has_uniform_loss_and_can_overfit_a_batch() -> None:
    trainer = Trainer(1, 1, 1, "optim.lr=0.01", "run.steps=100", "data.global_batch=4")
    state, blocks = trainer.init(np.uint32(0)), trainer.blocks(np.arange(4))
    first = None
    for _ in range(100):
        state, out = trainer.train()(state, blocks, trainer.flags)
        first = first if first is not None else float(out["loss"])
    assert first == pytest.approx(math.log(256), abs=0.1)
    assert float(out["loss"]) < 0.1


def test_attention_is_causal() -> None:
    trainer = on(1, 1, 1)
    params = trainer.init(np.uint32(0))["params"]
    look = jax.jit(functools.partial(decoder.logits, trainer.config.model, Execution(trainer.mesh)))
    before, after = np.array(TEXT[:1, :16]), np.array(TEXT[:1, :16])
    after[0, 9] = 1
    difference = np.abs(np.asarray(look(params, before) - look(params, after))).max(axis=(0, 2))
    assert (difference[:9] == 0).all()
    assert (difference[9:] > 0).all()


def test_a_token_is_predicted_only_from_earlier_tokens() -> None:
    trainer = on(1, 1, 1)
    params, tokens = trainer.init(np.uint32(0))["params"], np.array(TEXT[:8, :17])
    asked = trainer.config.model, Execution(trainer.mesh)
    logits = np.asarray(jax.jit(functools.partial(decoder.logits, *asked))(params, tokens[:, :-1]), np.float64)
    total, weight = jax.jit(functools.partial(decoder.loss_sums, *asked))(params, tokens, np.ones(8, np.float32))
    guess = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    following, itself = (
        -np.take_along_axis(guess, target[..., None], -1).mean() for target in (tokens[:, 1:], tokens[:, :-1])
    )
    assert float(total / weight) == pytest.approx(following, rel=1e-5)
    assert abs(following - itself) > 0.01, "otherwise the test would not detect it"


def test_padding_does_not_change_an_evaluation() -> None:
    trainer = on(2, 2, 2)
    params = trainer.init(np.uint32(0))["params"]
    total = weight = 0.0
    steps = list(batches.eval_ids(8, 10, 37))
    for ids in steps:
        sums = jax.device_get(trainer.programs.evaluate(params, trainer.blocks(ids)))
        total, weight = total + float(sums[0]), weight + float(sums[1])
    assert (len(steps), weight) == (5, 37 * 16)
    look = functools.partial(decoder.loss_sums, trainer.config.model, Execution(trainer.mesh))
    one = jax.jit(look)
    rows = [read(np.full(8, 10 + n)) for n in range(37)]
    expected = [float(one(params, row, np.ones(8, np.float32))[0]) / 8 for row in rows]
    assert total / weight == pytest.approx(sum(expected) / (37 * 16), rel=1e-5)


def test_a_flag_of_one_host_reaches_all() -> None:
    trainer = on(2, 2, 2)
    flags = np.zeros((8, programs.FLAGS), np.int32)
    flags[3, 0] = 1
    placed = jax.device_put(flags, trainer.programs.flags.sharding)
    _, out = trainer.train()(trainer.init(np.uint32(0)), trainer.blocks(np.arange(8)), placed)
    assert np.asarray(out["flags"]).tolist() == [1, 0]


def test_parameters_and_moments_are_sharded() -> None:
    trainer = on(2, 2, 2)
    for leaf in jax.tree.leaves(trainer.programs.state):
        if leaf.size > 1000:
            assert math.prod(leaf.sharding.shard_shape(leaf.shape)) == leaf.size // 4, leaf


def test_parameter_count_and_flops_formula() -> None:
    tiny = config.load("tiny").model
    made = jax.tree.leaves(decoder.shapes(tiny), is_leaf=lambda x: isinstance(x, tuple))
    assert parameters(tiny) == sum(math.prod(shape) for shape in made)
    # PaLM, appendix B, by hand: 6 x (matrices and the tied table) + 12 x 2 layers x 4 heads x 32 x 128 tokens
    matrices = 256 * 128 + 2 * (4 * 128 * 128 + 2 * 128 * 512)
    assert flops_per_token(tiny) == 6 * matrices + 12 * 2 * 4 * 32 * 128
    assert mfu(2e9, 1000.0, 4, 1e12) == pytest.approx(0.5)
    assert mfu(2e9, 1000.0, 4, None) is None
    # Int8 products have twice the peak here: if they are half, the ideal time is three quarters.
    assert mfu(2e9, 1000.0, 4, 1e12, 0.5, 2e12) == pytest.approx(0.75 * 0.5)
    assert mfu(2e9, 1000.0, 4, 1e12, 0.5, None) is None


@pytest.mark.slow
def test_bfloat16_stays_close_to_float32() -> None:
    rounded = Trainer(1, 1, 1, "model.compute_dtype=bfloat16").losses(2)
    assert rounded == pytest.approx(on_one_chip()[:2], abs=0.02)
    assert jnp.dtype("bfloat16").itemsize == 2
