"""Weights shared by the chips of a batch: their gradients are reduce-scattered, and equal to those of one chip."""

# mypy: disallow-untyped-calls=False

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from tests.trainer.collectives import collectives
from tests.trainer.emulated import Trainer, read
from trainer.models import decoder
from trainer.parallel.mesh import ALL, BATCH
from trainer.parallel.partitioning import Execution
from trainer.parallel.shared_weight import SharedWeight


def gradients(trainer: Trainer, torus: tuple[int, ...]) -> Any:
    """Return the jitted gradients of the loss of a batch, sharded like the parameters."""
    execution = Execution(trainer.mesh, torus=torus)
    shardings = jax.tree.map(lambda leaf: leaf.sharding, trainer.programs.state["params"])

    def loss(params: Any) -> jax.Array:
        records, weights = jnp.asarray(read(np.arange(8))), jnp.ones(8)
        return decoder.loss_sums(trainer.config.model, execution, params, records, weights)[0]

    return jax.jit(jax.grad(loss), out_shardings=shardings)


@pytest.mark.parametrize(
    ("dp", "fsdp", "tp", "torus"),
    [
        pytest.param(1, 8, 1, (2, 4), marks=pytest.mark.slow),
        pytest.param(2, 4, 1, (4,), marks=pytest.mark.slow),
        pytest.param(1, 4, 2, (4,), marks=pytest.mark.slow),
        (2, 2, 2, (2,)),
    ],
)
def test_on_a_torus_no_gradient_of_a_weight_is_all_reduced(dp: int, fsdp: int, tp: int, torus: tuple[int, ...]) -> None:
    trainer = Trainer(dp, fsdp, tp, "model.vocab=512")
    specs, shapes = decoder.specs(trainer.config.model), decoder.shapes(trainer.config.model)
    matrices = {"embed": shapes["embed"]} | {name: shapes["layers"][name][1:] for name in decoder.MATRICES}
    assert all("fsdp" in spec for spec in (specs["embed"], *decoder.MATRICES.values()))
    whole = {math.prod(shape) // tp for shape in matrices.values()}
    params = trainer.init(np.uint32(0))["params"]
    scattering = gradients(trainer, torus)
    over_fsdp = [
        one
        for one in collectives(scattering.lower(params).compile().as_text())
        if any(len({chip // tp % fsdp for chip in group}) > 1 for group in one.groups)
    ]
    assert not [one for one in over_fsdp if one.kind == "all-reduce" and whole & set(one.sizes)]
    scattered = {size for one in over_fsdp if one.kind == "reduce-scatter" for size in one.sizes}
    assert {size // fsdp for size in whole} <= scattered
    plain = gradients(trainer, ())(params)
    for one, other in zip(jax.tree.leaves(scattering(params)), jax.tree.leaves(plain), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5 * float(np.abs(other).max()))


@pytest.mark.parametrize("sides", [(8,), (2, 4), (4, 2), (2, 2, 2)])
@pytest.mark.parametrize("spec", [P("fsdp", None, "tp"), P(None, "fsdp"), P(None, None, "fsdp")])
def test_parts_are_added_along_each_side_of_a_torus(sides: tuple[int, ...], spec: P) -> None:
    mesh = Mesh(np.array(jax.devices()[:8]).reshape(1, 1, 8, 1), ALL)
    parts_S = np.random.default_rng(0).normal(size=(8, 16, 8, 24)).astype(np.float32)
    total = jax.jit(SharedWeight(mesh, BATCH, spec, sides).add)(parts_S)
    assert {shard.data.size for shard in total.addressable_shards} == {total.size // 8}
    np.testing.assert_allclose(total, parts_S.sum(0), atol=1e-5)
