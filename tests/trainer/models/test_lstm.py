"""A layer of LSTM: its gradients, reading backwards over padding, and weight gradients that chips add once."""

# mypy: disallow-untyped-calls=False

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from tests.trainer import reference_translation as reference
from trainer.estimate.hlo_program import array_bytes, parse
from trainer.estimate.hlo_transfers import slice_collectives
from trainer.models import lstm
from trainer.parallel.mesh import ALL
from trainer.parallel.partitioning import Execution

WIDTH, INPUTS = 8, 6


def execution(fsdp: int = 1) -> Execution:
    return Execution(Mesh(np.array(jax.devices()[:fsdp]).reshape(1, 1, fsdp, 1), ALL))


def weights(scale: float = 1.0) -> dict[str, Any]:
    random = np.random.default_rng(0)
    shapes = lstm.shapes(INPUTS, WIDTH)
    return {name: np.asarray(random.normal(size=shape) * scale, np.float32) for name, shape in shapes.items()}


def plain_layer(how: Execution, x_BTD: Array, w: Any, real_BT: Array) -> Array:
    """A layer as one would write it: everything in the loop, differentiated by JAX."""

    def step(state: Any, inputs: Any) -> Any:
        (h_BE, c_BE), (x_BD, real_B) = state, inputs
        gates = jnp.einsum("BD,DGE->BGE", x_BD, w["input"]) + jnp.einsum("BE,EGF->BGF", h_BE, w["state"])
        h_BE, c_BE, _ = lstm.cell(gates + w["gates_bias"], c_BE)
        state = h_BE * real_B[:, None], c_BE * real_B[:, None]
        return state, state[0]

    zeros_BE = jnp.zeros((x_BTD.shape[0], WIDTH))
    _, h_TBE = jax.lax.scan(step, (zeros_BE, zeros_BE), (x_BTD.swapaxes(0, 1), real_BT.swapaxes(0, 1)))
    return jnp.asarray(h_TBE.swapaxes(0, 1))


def gradients(layer: Callable[..., Array], x_BTD: Any, w: Any, real_BT: Any) -> Any:
    def loss(x_BTD: Array, w: Any) -> Array:
        h_BTE = layer(execution(), x_BTD, w, real_BT)
        return jnp.sum(jnp.sin(h_BTE * jnp.arange(1, WIDTH + 1)))

    return jax.jit(jax.grad(loss, argnums=(0, 1)))(x_BTD, w)


def example(batch: int = 3, time: int = 5) -> tuple[Any, Any]:
    x_BTD = np.random.default_rng(1).normal(size=(batch, time, INPUTS)).astype(np.float32)
    real_BT = np.arange(time) < np.arange(time, time - batch, -1)[:, None]
    return x_BTD, real_BT.astype(np.float32)


def test_gradients_equal_those_of_the_differentiated_loop() -> None:
    x_BTD, real_BT = example()
    expected, result = (gradients(layer, x_BTD, weights(), real_BT) for layer in (plain_layer, lstm.layer))
    for path, leaf in jax.tree_util.tree_leaves_with_path(expected):
        same = dict(jax.tree_util.tree_leaves_with_path(result))[path]
        assert float(np.abs(leaf).max()) > 0.1
        np.testing.assert_allclose(same, leaf, rtol=1e-4, atol=1e-5, err_msg=jax.tree_util.keystr(path))


def test_a_sentence_is_read_backwards_from_its_end() -> None:
    x_BTD, real_BT = example()
    run = jax.jit(functools.partial(lstm.layer, execution(), backwards=True))
    h_BTE = run(x_BTD, weights(), real_BT)
    for n, length in enumerate((5, 4, 3)):
        alone = reference.lstm(x_BTD[n, :length][::-1], reference.as_float64(weights()))[::-1]
        np.testing.assert_allclose(h_BTE[n, :length], alone, atol=1e-5)
        assert not np.asarray(h_BTE[n, length:]).any()


def gradient_bytes(layer: Callable[..., Array], time: int) -> int:
    """Return the bytes that a chip sends in reductions for the gradient of a layer on two chips."""
    how = execution(2)
    x_BTD, real_BT = example(4, time)
    placed = functools.partial(NamedSharding, how.mesh)
    rows = placed(P(("dp", "fsdp")))
    specs = {"input": placed(lstm.WEIGHT), "state": placed(lstm.WEIGHT), "gates_bias": placed(P())}

    def loss(w: Any, x_BTD: Array, real_BT: Array) -> Array:
        return jnp.sum(layer(how, x_BTD, w, real_BT) ** 2)

    jitted = jax.jit(jax.grad(loss), in_shardings=(specs, rows, rows), out_shardings=specs)
    hlo = jitted.lower(weights(), x_BTD, real_BT).compile().as_text() or ""
    assert max(parse(hlo)[1].values()) >= time, "the loop runs once per time step"
    return sum(one.bytes for one in slice_collectives(hlo) if one.kind in ("all-reduce", "reduce-scatter"))


@pytest.mark.slow
def test_weight_gradients_are_added_over_the_chips_once_for_all_time_steps() -> None:
    once = sum(array_bytes("f32", ",".join(map(str, shape))) for shape in lstm.shapes(INPUTS, WIDTH).values())
    assert gradient_bytes(lstm.layer, 12) == gradient_bytes(lstm.layer, 24) == once
    assert gradient_bytes(plain_layer, 24) > 10 * once
