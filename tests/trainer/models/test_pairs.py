"""Batches that are padded to one of several lengths: gradients are those of the length, and only it needs memory."""

# mypy: disallow-untyped-calls=False

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from trainer.config import Model
from trainer.models import pairs
from trainer.models.family import Sums
from trainer.parallel.mesh import ALL
from trainer.parallel.partitioning import Execution

MODEL = Model(family="transformer", seq_len=16, batch_lengths="4,8")
SPECS = {"weight": P(None)}


def sums(params: Any, shared: Any, source_BT: jax.Array, target_BT: jax.Array) -> Sums:
    """Return sums whose loss depends on the parameters, the shared weights and the padded length."""
    hidden_BTW = jnp.sin(source_BT[..., None] * params["weight"])
    loss_B = jnp.sum(hidden_BTW**2, axis=(1, 2)) + source_BT.shape[1] * jnp.sum(params["weight"])
    weight = jnp.sum(shared) * jnp.sum(target_BT != 0)
    return Sums(jnp.sum(loss_B * shared), weight.astype(jnp.float32), None, {})


def loss(params: Any, shared_B: jax.Array, record_BS: jax.Array, replicas: str | None = None) -> jax.Array:
    execution = Execution(Mesh(np.array(jax.devices()[:1]).reshape(1, 1, 1, 1), ALL), replicas=replicas)
    result = pairs.padded_sums(MODEL, execution, sums, params, SPECS, shared_B, record_BS)
    return result.loss / result.weight


def records(longest: int) -> jax.Array:
    half = np.zeros((3, MODEL.seq_len), np.int32)
    half[1, :longest] = np.arange(2, longest + 2)
    half[0, :2] = 2
    return jnp.asarray(np.concatenate([half, half], axis=1))


@pytest.mark.parametrize(("longest", "length"), [(3, 4), (4, 4), (5, 8), (9, 16)])
def test_gradients_are_those_of_the_shortest_length_that_fits(longest: int, length: int) -> None:
    params, shared_B, record_BS = {"weight": jnp.array([0.3, -0.7])}, jnp.array([1.0, 0.5, 2.0]), records(longest)
    source_BT, target_BT = pairs.halves(record_BS)

    def plain(params: Any) -> jax.Array:
        result = sums(params, shared_B, source_BT[:, :length], target_BT[:, :length])
        return result.loss / result.weight

    value, grads = jax.jit(jax.value_and_grad(loss))(params, shared_B, record_BS)
    expected, gradients = jax.value_and_grad(plain)(params)
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    np.testing.assert_allclose(grads["weight"], gradients["weight"], rtol=1e-5)


def test_replicas_take_the_length_of_the_longest_pair_of_all() -> None:
    params_R, shared_B = {"weight": jnp.array([[0.3, -0.7], [0.1, 0.2]])}, jnp.array([1.0, 0.5, 2.0])
    records_RBS = jnp.stack([records(3), records(7)])
    gradient = jax.grad(lambda params, record_BS: loss(params, shared_B, record_BS, "replica"))
    mapped = jax.vmap(gradient, axis_name="replica", spmd_axis_name="dp")
    grads = jax.jit(mapped)(params_R, records_RBS)["weight"]
    assert "cond" in str(jax.make_jaxpr(mapped)(params_R, records_RBS)), "not both branches with a selection"
    for n, (params, record_BS) in enumerate(zip(params_R["weight"], records_RBS, strict=True)):
        halves = [half[:, :8] for half in pairs.halves(record_BS)]

        def plain(params: Any, halves: Any = halves) -> jax.Array:
            result = sums(params, shared_B, *halves)
            return result.loss / result.weight

        np.testing.assert_allclose(grads[n], jax.grad(plain)({"weight": params})["weight"], rtol=1e-5)


def test_branches_return_gradients_instead_of_activations() -> None:
    params, shared_B = {"weight": jnp.ones(2)}, jnp.ones(3)
    program = jax.make_jaxpr(jax.grad(loss))(params, shared_B, records(9)).jaxpr
    (switch,) = [equation for equation in program.eqns if equation.primitive.name == "cond"]
    assert sorted(result.aval.shape for result in switch.outvars) == [(), (), (2,)]
