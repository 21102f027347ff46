"""Int8 products: as exact as eight bits allow, really computed in int8, and counted correctly."""

# mypy: disallow-untyped-calls=False

import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as nps
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from tests.trainer.emulated import Trainer, on
from trainer import config
from trainer.config import Quant
from trainer.estimate import flops
from trainer.models.mfu import flops_per_token, parameters
from trainer.parallel import layout
from trainer.parallel.mesh import ALL as ALL_AXES
from trainer.parallel.mesh import BATCH
from trainer.parallel.quantization import product, quantize
from trainer.parallel.shared_weight import SharedWeight

ALL = "forward,dgrad,wgrad"
finite = st.floats(-(2.0**100), 2.0**100, width=32, allow_subnormal=False)
by_rows = jax.jit(functools.partial(quantize, axes=(1,)))


def shared(chips: int) -> SharedWeight:
    """Return a replicated weight of a batch that is sharded over this many chips."""
    mesh = Mesh(np.array(jax.devices()[:chips]).reshape(chips, 1, 1, 1), ALL_AXES)
    return SharedWeight(mesh, BATCH, P())


@given(nps.arrays(np.float32, (3, 4), elements=finite))
def test_rounding_error_is_at_most_half_a_step(x: npt.NDArray[np.float32]) -> None:
    numbers, scale = by_rows(x)
    assert numbers.dtype == jnp.int8 and scale.shape == (3, 1)
    error = np.abs(np.float64(np.asarray(numbers)) * np.float64(np.asarray(scale)) - np.float64(x))
    assert (error <= np.asarray(scale) * 0.501 + 1e-37).all()
    assert (np.asarray(numbers)[x == 0] == 0).all()


def test_stochastic_rounding_has_no_bias_and_nearest_has() -> None:
    x = jnp.full((20_000,), 0.3).at[0].set(127.0)
    nearest, _ = quantize(x, (0,))
    stochastic, _ = quantize(x, (0,), jax.random.key(0))
    assert float(jnp.mean(nearest[1:])) == 0
    assert float(jnp.mean(stochastic[1:].astype(jnp.float32))) == pytest.approx(0.3, abs=0.015)
    assert set(np.unique(stochastic[1:])) == {0, 1}


@pytest.mark.slow
def test_products_and_gradients_are_close_to_the_unrounded_ones() -> None:
    keys = jax.random.split(jax.random.key(1), 3)
    x, w = jax.random.normal(keys[0], (4, 6, 2, 8)), jax.random.normal(keys[1], (2, 8, 3, 5))
    g = jax.random.normal(keys[2], (4, 6, 3, 5))
    exact, exact_back = jax.vjp(lambda x, w: jnp.einsum("btij,ijcd->btcd", x, w), x, w)
    for names, scale in (("forward", "channel"), ("dgrad", "channel"), ("wgrad", "channel"), (ALL, "tensor")):
        quant = Quant(matmuls=names, scale=scale)

        def both(x: jax.Array, w: jax.Array, g: jax.Array, quant: Quant = quant) -> tuple[jax.Array, ...]:
            made, back = jax.vjp(lambda x, w: product(quant, x, w, 2, shared(2)), x, w)
            return made, *back(g)

        for name, y, true in zip(ALL.split(","), jax.jit(both)(x, w, g), (exact, *exact_back(g)), strict=True):
            error = float(jnp.linalg.norm(y - true) / jnp.linalg.norm(true))
            low, high = (1e-4, 0.03) if name in names else (0, 1e-6)
            assert low <= error < high, (name, names, scale)


def test_channel_scales_preserve_small_rows() -> None:
    x, w = jnp.eye(2) * jnp.array([1.0, 1e-4]), jnp.ones((2, 1))
    item = product(Quant(matmuls="forward"), x, w, 1, shared(1))
    together = product(Quant(matmuls="forward", scale="tensor"), x, w, 1, shared(1))
    np.testing.assert_allclose(item, [[1.0], [1e-4]], rtol=1e-5)
    np.testing.assert_allclose(together, [[1.0], [0.0]], rtol=1e-5)


def test_zeros_give_zeros_and_nan_is_not_hidden() -> None:
    x, scale = by_rows(np.array([[0, 0, 0, 0], [1, np.nan, 1, 1], [1, 2, 3, 4]], np.float32))
    rows = np.asarray(x) * np.asarray(scale)
    assert not rows[0].any() and np.isnan(rows[1]).all() and not np.isnan(rows[2]).any()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("names", "share"), [("", 0), ("forward", 1 / 3), ("forward,dgrad", 2 / 3), ("forward,dgrad,wgrad", 1)]
)
def test_only_real_int8_products_are_counted(names: str, share: float) -> None:
    made = config.load("tiny", [f"quant.matmuls={names}"])
    counted = flops.training_flops(made)
    assert sum(counted.values()) == flops_per_token(made.model) * made.model.seq_len
    weights = 6 * parameters(made.model) - 6 * made.model.embed * (made.model.vocab + 2 * made.model.layers + 1)
    assert counted.get("int8", 0) == pytest.approx(share * weights * made.model.seq_len)
    assert flops.int8_share(made) == pytest.approx(counted.get("int8", 0) / sum(counted.values()))


def test_recomputation_is_not_counted() -> None:
    quant = ["quant.matmuls=forward,dgrad,wgrad"]
    chunks = [*quant, "model.attention_chunk=32", "model.loss_chunk=32", "model.remat=full"]
    assert flops.training_flops(config.load("tiny", chunks)) == flops.training_flops(config.load("tiny", quant))


def test_loops_and_branches_are_counted() -> None:
    def program(x: jax.Array) -> jax.Array:
        def body(c: jax.Array, _: None) -> tuple[jax.Array, None]:
            return jax.lax.cond(c[0, 0] > 0, lambda c: c @ c @ c, lambda c: c, c), None

        return jax.lax.scan(body, x, length=5)[0]

    assert flops.flops(jax.make_jaxpr(program)(jnp.ones((4, 4))).jaxpr) == {"float32": 5 * 2 * 2 * 4**3}


@pytest.mark.slow
def test_the_compiled_step_uses_int8_and_trains_like_without() -> None:
    quantized = Trainer(2, 2, 2, f"quant.matmuls={ALL}", "optim.lr=0.01")
    types = re.findall(r"s32\[[\d,]*\]\S* dot\(", quantized.train().as_text())
    assert len(types) >= 4 * 3  # four weights of a layer, each multiplied three times
    losses = quantized.losses(5)
    assert losses == quantized.losses(5)  # random rounding depends on the step
    np.testing.assert_allclose(losses[:1], on(1, 1, 1).losses(1), atol=0.01)
    assert losses[-1] < losses[0] and all(map(math.isfinite, losses))


@pytest.mark.slow
def test_the_loss_decreases_in_int8_like_without() -> None:
    plain, quantized = (
        Trainer(1, 1, 1, f"quant.matmuls={chosen}", "optim.lr=0.003").losses(30) for chosen in ("", ALL)
    )
    assert plain[-1] < 0.9 * plain[0]
    np.testing.assert_allclose(quantized, plain, rtol=0.01)  # bench/int8.py: on real text, with other seeds


def test_sums_that_may_overflow_int32_are_rejected() -> None:
    chips = layout.Chips(1, 1, 1)
    large = config.load("tiny", ["quant.matmuls=forward, wgrad", "model.mlp=200000", "data.global_batch=2000"])
    messages = [problem.message for problem in layout.check(large, chips)]
    assert len(messages) == 2 and "forward" in messages[0] and "wgrad" in messages[1]
    parts = [f"optim.grad_accum_steps={n}" for n in (1, 2)]  # each part has its own sums
    whole, halved = (config.load("tiny", ["quant.matmuls=wgrad", "data.global_batch=2000", part]) for part in parts)
    assert ["wgrad" in p.message for p in layout.check(whole, chips)] == [True]
    assert layout.check(halved, chips) == []
    unknown = layout.check(config.load("tiny", ["quant.matmuls=foward", "quant.scale=row"]), chips)
    assert ["which is not a product" in p.message for p in unknown] == [False, True]
