"""Weight-update sharding: every chip updates a part of the parameters, instead of every chip updating all of them.

Without it, chips that hold the same parameters keep the same optimizer state and compute the same update. With it, the
state is sharded over them as well: gradients are scattered, each chip updates its part, and the new parameters are
gathered (Xu et al., Automatic Cross-Replica Sharding of Weight Update in Data-Parallel Training, 2020; first used for
the MLPerf 0.6 results). Rajbhandari et al. call it ZeRO stage 1.
"""

# mypy: disallow-untyped-calls=False

from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from trainer.config import Model
from trainer.models.family import Family

_ORDER = ("fsdp", "dp")  # dp last, as the minor axis: in the other order XLA sends whole tensors over DCN


def update_shardings(mesh: Mesh, family: Family, model: Model, axes: Sequence[str]) -> Any:
    """Return the shardings of the optimizer's state and update: like the parameters, and over `axes`.

    A parameter that is not divisible by an axis keeps its sharding, and so do gains and biases, which are too small to
    be worth a message.
    """
    used_axes = [axis for axis in _ORDER if axis in axes and mesh.shape[axis] > 1]

    def leaf(path: tuple[Any, ...], spec: P, shape: tuple[int, ...]) -> NamedSharding:
        for axis in () if family.is_gain(path) else used_axes:
            spec = add_axis(spec, shape, axis, mesh.shape)
        return NamedSharding(mesh, spec)

    specs = family.specs(model)
    return jax.tree_util.tree_map_with_path(leaf, specs, family.shapes(model), is_leaf=lambda x: isinstance(x, P))


def add_axis(spec: P, shape: tuple[int, ...], axis: str, sizes: Mapping[str, int]) -> P:
    """Return `spec` with `axis` as the minor axis of a dimension that it divides, if there is one.

    A dimension that is already sharded over "fsdp" is preferred, so that the parts of one chip stay on its neighbors;
    then the longest one.
    """
    names = [_names(entry) for entry in (*spec, *[None] * (len(shape) - len(spec)))]
    if any(axis in used for used in names):
        return spec

    def parts(dim: int) -> int:
        size = sizes[axis]
        for name in names[dim]:
            size *= sizes[name]
        return size

    fits = [dim for dim in range(len(shape)) if shape[dim] % parts(dim) == 0]
    if not fits:
        return spec
    best = max(fits, key=lambda dim: ("fsdp" in names[dim], shape[dim]))
    names[best] = (*names[best], axis)
    return _spec(names)


def dimension_of(spec: P, axis: str) -> int | None:
    """Return the dimension that `spec` shards over `axis`, if there is one."""
    return next((dim for dim, entry in enumerate(spec) if axis in _names(entry)), None)


def without_axis(spec: P, axis: str) -> P:
    """Return `spec` without `axis`."""
    kept = [tuple(name for name in _names(entry) if name != axis) for entry in spec]
    return _spec(kept)


def _names(entry: Any) -> tuple[str, ...]:
    if entry is None:
        return ()
    return (entry,) if isinstance(entry, str) else tuple(entry)


def _spec(names: Sequence[tuple[str, ...]]) -> P:
    return P(*(used if len(used) > 1 else (used[0] if used else None) for used in names))
