"""Golden files of the sharding of every parameter, moment and batch row, for each model on each mesh."""

import math
import os
from pathlib import Path
from typing import Any

import jax
import pytest
from jax.sharding import AbstractMesh, NamedSharding

from trainer import config
from trainer.data import batches
from trainer.parallel import layout
from trainer.parallel.mesh import ALL
from trainer.step import programs as step

GOLDEN = Path(__file__).parent / "golden"
# name -> (slices, hosts of a slice, settings that change shardings)
MESHES: dict[str, tuple[int, int, tuple[str, ...]]] = {
    "1-slice": (1, 64, ()),
    "2-slices": (2, 64, ()),
    "199-slices": (199, 64, ()),
    "4-slices-2-stages": (4, 64, ("mesh.stages=2", "mesh.microbatches=2")),
    "2-slices-spread-updates": (2, 64, ("optim.update_axes=fsdp,dp",)),
}
SMALL: dict[str, tuple[int, int, tuple[str, ...]]] = {
    "1-slice": (1, 2, ()),
    "2-slices": (2, 2, ("mesh.tp=2",)),
    "2-slices-2-stages": (2, 2, ("mesh.stages=2", "mesh.microbatches=2", "mesh.tp=2")),
}
TABLES: dict[str, tuple[int, int, tuple[str, ...]]] = {
    "1-slice": (1, 2, ()),
    "2-slices": (2, 2, ()),
    "2-slices-spread-updates": (2, 2, ("optim.update_axes=fsdp,dp",)),
}


def meshes(model: str) -> dict[str, tuple[int, int, tuple[str, ...]]]:
    """Return the meshes that a model is described on."""
    if model[0].isdigit():
        return MESHES
    return TABLES if model.startswith("dlrm") else SMALL


IMAGES = ("resnet", "ssd", "mask-rcnn")
MODELS = sorted(file.stem for file in config.CONFIG_FOLDER.glob("*.yaml"))
CASES = [
    (model, mesh)
    for model in MODELS
    for mesh in meshes(model)
    if not (model.startswith((*IMAGES, "transformer", "gnmt")) and mesh.endswith("stages"))
]
# The parameters of models of images are replicated on purpose; in a model this small, the biases are too large a part,
# and of a DLRM the MLPs and the tables that are replicated.
SMALLEST = ("bert-tiny", "transformer-tiny", "gnmt-tiny", "dlrm-tiny")
SPREAD = [case for case in CASES if not case[0].startswith((*IMAGES, *SMALLEST))]


def programs(model: str, mesh: str) -> tuple[layout.Layout, step.Programs]:
    """Return a step's programs for described chips; only shapes are traced."""
    num_slices, hosts, settings = meshes(model)[mesh]
    made, chips = config.load(model, settings), layout.Chips(num_slices, hosts, 4)
    assert layout.check(made, chips) == []
    sizes = layout.layout(made, chips)
    described: Any = AbstractMesh((sizes.dp, sizes.stages, sizes.fsdp, sizes.tp), ALL)
    slots = batches.Slots(chips.total, tuple(range(chips.total)), -(-sizes.global_batch // chips.total))
    return sizes, step.build(made, described, slots, sizes)


def lines(sizes: layout.Layout, built: step.Programs) -> list[str]:
    """Return a line for the mesh and one for every array: its shape, axes, and the part on one chip."""
    output = [f"dp {sizes.dp}   stage {sizes.stages}   fsdp {sizes.fsdp}   tp {sizes.tp}   batch {sizes.global_batch}"]
    arrays = {"state": built.state, "blocks": built.blocks._asdict(), "flags": built.flags}
    for path, leaf in jax.tree_util.tree_leaves_with_path(arrays):
        name = "/".join(str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", key)))) for key in path)
        assert isinstance(leaf.sharding, NamedSharding)
        spec = ", ".join(_axes(axes) for axes in leaf.sharding.spec)
        piece = leaf.sharding.shard_shape(leaf.shape)
        output.append(f"{name}   {leaf.dtype}{list(leaf.shape)}   ({spec})   {list(piece)}")
    return output


def _axes(axes: Any) -> str:
    return "-" if axes is None else axes if isinstance(axes, str) else "+".join(axes)


@pytest.mark.parametrize(("model", "mesh"), CASES)
def test_shardings_equal_the_golden_ones(model: str, mesh: str) -> None:
    sizes, built = programs(model, mesh)
    text = "\n".join(lines(sizes, built)) + "\n"
    file = GOLDEN / f"{model}-{mesh}.txt"
    if os.environ.get("XPK_UPDATE_GOLDEN"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8"), "run `make golden` and review the difference"


@pytest.mark.parametrize(("model", "mesh"), SPREAD)
def test_most_arrays_are_fully_sharded_within_a_replica(model: str, mesh: str) -> None:
    sizes, built = programs(model, mesh)
    leaves = jax.tree.leaves(built.state)
    whole = sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)
    held = sum(math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in leaves)
    # Every stage has the table, or everything around BERT's layers, and two moments of it.
    around = [leaf for name, leaf in built.state["params"].items() if name in ("embed", "inputs", "head")]
    copies = (sizes.stages - 1) * 3 * 4 * sum(leaf.size for leaf in jax.tree.leaves(around))
    assert held * sizes.stages * sizes.fsdp * sizes.tp <= 1.02 * (whole + copies)
