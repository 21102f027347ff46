"""Weights shared by the chips of a batch: their gradients are reduce-scattered, and equal to those of one chip."""

# mypy: disallow-untyped-calls=False

import math

import jax
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from tests.trainer.collectives import collectives
from tests.trainer.emulated import Trainer
from trainer.models import decoder
from trainer.parallel.mesh import ALL, BATCH
from trainer.parallel.shared_weight import SharedWeight


@pytest.mark.parametrize(("dp", "fsdp", "tp"), [(1, 8, 1), (2, 4, 1), (1, 4, 2), (2, 2, 2)])
def test_no_gradient_of_a_weight_is_all_reduced_in_full(dp: int, fsdp: int, tp: int) -> None:
    trainer = Trainer(dp, fsdp, tp, "model.vocab=512")
    specs, shapes = decoder.specs(), decoder.shapes(trainer.config.model)
    matrices = {"embed": shapes["embed"]} | {name: shapes["layers"][name][1:] for name in decoder.MATRICES}
    assert all("fsdp" in spec for spec in (specs["embed"], *decoder.MATRICES.values()))
    whole = {math.prod(shape) // tp for shape in matrices.values()}
    over_fsdp = [
        one
        for one in collectives(trainer.train().as_text())
        if any(len({chip // tp % fsdp for chip in group}) > 1 for group in one.groups)
    ]
    assert not [one for one in over_fsdp if one.kind == "all-reduce" and whole & set(one.sizes)]
    scattered = {size for one in over_fsdp if one.kind == "reduce-scatter" for size in one.sizes}
    assert {size // fsdp for size in whole} <= scattered


@pytest.mark.parametrize("sides", [(8,), (2, 4), (4, 2), (2, 2, 2)])
@pytest.mark.parametrize("spec", [P("fsdp", None, "tp"), P(None, "fsdp"), P(None, None, "fsdp")])
def test_parts_are_added_along_each_side_of_a_torus(sides: tuple[int, ...], spec: P) -> None:
    mesh = Mesh(np.array(jax.devices()[:8]).reshape(1, 1, 8, 1), ALL)
    parts_S = np.random.default_rng(0).normal(size=(8, 16, 8, 24)).astype(np.float32)
    total = jax.jit(SharedWeight(mesh, BATCH, spec, sides).add)(parts_S)
    assert {shard.data.size for shard in total.addressable_shards} == {total.size // 8}
    np.testing.assert_allclose(total, parts_S.sum(0), atol=1e-5)
