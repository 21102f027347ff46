"""Reduction of gradients over replicas: equal values, over the right chips, in the configured dtype."""

# mypy: disallow-untyped-calls=False

import functools
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from tests.trainer.collectives import Collective, collectives
from tests.trainer.emulated import Trainer, on, same_gradients
from trainer.models import decoder
from trainer.models.family import Context, Sums
from trainer.parallel.partitioning import Execution
from trainer.step.gradient_reduction import Explicit

SLICES = ((0, 1, 2, 3), (4, 5, 6, 7))  # two slices of four chips: dp = 2 x 2, fsdp = 2
CHIPS_OF_A_PIECE = ((0, 4), (1, 5), (2, 6), (3, 7))  # the same position in every slice


@functools.cache
def trainer(*settings: str) -> Trainer:
    return Trainer(4, 2, 1, *settings, num_slices=2)


def over_dcn(made: Trainer) -> list[Collective]:
    """Return the collectives between slices, without those of the hosts' flags."""
    message = made.programs.flags.shape[1]
    return [c for c in collectives(made.train().as_text()) if c.crosses(SLICES) and max(c.sizes) > message]


@pytest.mark.slow
def test_explicit_reduction_trains_the_same() -> None:
    explicit = trainer("mesh.grad_reduction=explicit", "mesh.grad_reduction_dtype=float32")
    np.testing.assert_allclose(explicit.losses(5), on(1, 1, 1).losses(5), atol=1e-5)
    same_gradients(explicit, on(1, 1, 1))


@pytest.mark.slow
def test_explicit_reduction_in_bfloat16_trains_nearly_the_same() -> None:
    np.testing.assert_allclose(trainer("mesh.grad_reduction=explicit").losses(5), on(1, 1, 1).losses(5), rtol=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    "setting",
    [
        pytest.param("optim.grad_accum_steps=2", marks=pytest.mark.extended),
        "optim.update_axes=fsdp,dp",
        pytest.param("quant.matmuls=forward", marks=pytest.mark.extended),
    ],
)
def test_explicit_reduction_trains_the_same_with_other_settings(setting: str) -> None:
    explicit = Trainer(
        2, 2, 2, "mesh.grad_reduction=explicit", "mesh.grad_reduction_dtype=float32", setting, num_slices=2
    )
    automatic = Trainer(2, 2, 2, setting, num_slices=2)
    np.testing.assert_allclose(explicit.losses(3), automatic.losses(3), atol=1e-5)


@pytest.mark.slow
def test_explicit_reduction_sends_each_gradient_over_dcn_once_and_scattered() -> None:
    explicit = over_dcn(trainer("mesh.grad_reduction=explicit", "mesh.grad_reduction_dtype=float32"))
    shapes = jax.tree.leaves(decoder.shapes(trainer().config.model), is_leaf=lambda x: isinstance(x, tuple))
    # A chip has 1/fsdp of a matrix and sends the part of it that its replica scattered to it; gains are complete.
    pieces = sorted(int(np.prod(shape)) // (2 if len(shape) == 1 or shape == (2, 32) else 4) for shape in shapes)
    assert sorted(size for one in explicit for size in one.sizes) == pieces
    for one in explicit:
        assert (one.kind, sorted(one.groups)) == ("all-reduce", sorted(CHIPS_OF_A_PIECE))
    automatic = over_dcn(trainer())
    # XLA reduces over all replicas at once, so that chips of one slice send the same sums.
    assert any(len(group) > 2 for one in automatic for group in one.groups)
    assert sum(one.bytes for one in explicit) < sum(one.bytes for one in automatic) / 2


@pytest.mark.slow
def test_dcn_traffic_is_bfloat16() -> None:
    programs = trainer("mesh.grad_reduction=explicit").programs
    text = programs.train.lower(programs.state, programs.blocks, programs.flags).as_text()
    types = re.findall(
        r'"stablehlo.(all_reduce|reduce_scatter|all_gather)".*?: \(tensor<\d*x?(\w+)>\)', text, re.DOTALL
    )
    assert {kind for kind, _ in types} == {"all_reduce", "reduce_scatter", "all_gather"}
    assert {dtype for _, dtype in types} == {"bf16"}


@pytest.mark.slow
def test_the_hierarchical_reduction_adds_every_replica_once() -> None:
    mesh = trainer().mesh
    specs = {"matrix": P("fsdp", None), "odd": P(None)}
    random = np.random.default_rng(0)
    grads = {"matrix": random.normal(size=(4, 6, 5)), "odd": random.normal(size=(4, 7))}
    placed = {
        name: jax.device_put(np.float32(x), NamedSharding(mesh, P("dp", *specs[name]))) for name, x in grads.items()
    }
    for slices in (1, 2, 4):
        for dtype, error in (("float32", 1e-6), ("bfloat16", 2e-2)):
            explicit = Explicit(
                Execution(mesh), lambda *_: Sums(jnp.zeros(()), jnp.zeros(()), None, {}), specs, slices, dtype
            )
            added = jax.jit(explicit.add)(placed)
            for name, x in grads.items():
                assert added[name].dtype == jnp.float32
                np.testing.assert_allclose(added[name], x.sum(0), atol=error * float(np.abs(x).sum(0).max()))


@pytest.mark.slow
def test_replicas_use_their_own_rows() -> None:
    explicit = trainer("mesh.grad_reduction=explicit", "mesh.grad_reduction_dtype=float32")
    how = Execution(explicit.mesh)

    def sums(how: Execution, params: Any, context: Context, record_BS: Array, weight_B: Array) -> Sums:
        assert how.batch == ("fsdp",)
        return Sums(jnp.sum(params * record_BS * weight_B[:, None]), jnp.sum(weight_B), None, {})

    made = Explicit(how, sums, P(None), 2, "float32")
    tokens, weight = jnp.arange(16.0).reshape(8, 2), jnp.array([1.0, 0, 1, 1, 1, 1, 1, 1])
    grads = jax.grad(lambda params: made.sums(params, Context({}, None, None), tokens, weight).loss)(jnp.ones((4, 2)))
    expected = (tokens * weight[:, None]).reshape(4, 2, 2).sum(1)
    np.testing.assert_allclose(grads, expected)
