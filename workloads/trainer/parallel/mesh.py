"""The device mesh: axes "dp" and "stage" across slices (DCN), "fsdp" and "tp" within a slice (ICI)."""

# mypy: disallow-untyped-calls=False

import itertools
import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import numpy.typing as npt
from jax.experimental import mesh_utils
from jax.sharding import AbstractMesh, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from trainer.errors import ChipsError
from trainer.parallel.layout import Layout

BATCH = ("dp", "fsdp")  # the axes that a batch is sharded over
ALL = ("dp", "stage", "fsdp", "tp")


def slice_of(device: Any, hosts_per_slice: int) -> int:
    """Return the slice of a device.

    TPU devices, real or described, have a slice index. Other devices (every CPU device reports slice 0) are assigned by
    their process.
    """
    if device.platform == "tpu":
        return int(getattr(device, "slice_index", 0))
    return int(device.process_index) // hosts_per_slice


def group_by_slice(devices: Sequence[Any], num_slices: int, hosts_per_slice: int) -> list[list[Any]]:
    """Return the devices of each slice, ordered by host and chip.

    One process may emulate several slices; then its devices are divided equally. Raises ChipsError if the slices do not
    have the same number of devices.
    """
    ordered = sorted(devices, key=lambda d: (slice_of(d, hosts_per_slice), d.process_index, d.id))
    size, remainder = divmod(len(ordered), num_slices)
    slices = [ordered[n * size : (n + 1) * size] for n in range(num_slices)]
    slice_ids = {slice_of(device, hosts_per_slice) for device in ordered}
    are_separate = all(
        len({slice_of(device, hosts_per_slice) for device in slice_devices}) == 1 for slice_devices in slices
    )
    if remainder or not are_separate or len(slice_ids) not in (1, num_slices):
        counts = ", ".join(str(sum(slice_of(d, hosts_per_slice) == n for d in ordered)) for n in sorted(slice_ids))
        raise ChipsError(f"slices have different numbers of devices: {counts}, expected {num_slices} equal slices")
    return slices


def arrange(layout: Layout, devices: Sequence[Any], hosts_per_slice: int) -> npt.NDArray[Any]:
    """Return the devices as an array [dp, stage, fsdp, tp] whose last two axes never leave a slice.

    Uses JAX's own placement where the hardware has a topology (TPU), elsewhere the order of the devices.
    """
    slices = group_by_slice(devices, layout.num_slices, hosts_per_slice)
    dp, stages = layout.dp_slices, layout.stage_slices
    slice_shape = (layout.dp // dp, layout.stages // stages, layout.fsdp, layout.tp)
    if devices[0].platform != "tpu":
        placed = np.array(slices).reshape(dp, stages, *slice_shape)
        return placed.swapaxes(1, 2).reshape(layout.dp, layout.stages, layout.fsdp, layout.tp)
    if layout.num_slices == 1:
        return mesh_utils.create_device_mesh(slice_shape, devices, allow_split_physical_axes=True)
    return mesh_utils.create_hybrid_device_mesh(
        slice_shape, (dp, stages, 1, 1), devices, allow_split_physical_axes=True
    )


def make_mesh(layout: Layout, devices: Sequence[jax.Device], hosts_per_slice: int) -> Mesh:
    """Return the mesh of all devices of the job, arranged as by `arrange`."""
    return Mesh(arrange(layout, devices, hosts_per_slice), ALL)


def platform(mesh: Mesh | AbstractMesh) -> str:
    """Return the platform of a mesh's devices, "" for a mesh without devices."""
    return "" if isinstance(mesh, AbstractMesh) else str(mesh.devices.flat[0].platform)


def torus_sides(mesh: Mesh, axis: str) -> tuple[int, ...]:
    """Return the sides of the part of a slice's torus that an axis spans, in the order of the axis.

    Chips that do not fill a part of a torus are one side; devices other than TPUs have none.
    """
    if platform(mesh) != "tpu":
        return ()
    size = mesh.shape[axis]
    chips = np.moveaxis(mesh.devices, mesh.axis_names.index(axis), 0).reshape(size, -1)[:, 0]
    places = np.array([chip.coords for chip in chips])
    places -= places[0]
    for order in itertools.permutations(np.flatnonzero(places.any(axis=0))):
        sides = tuple(int(side) + 1 for side in places[:, order].max(axis=0))
        if math.prod(sides) == size and (places[:, order] == np.indices(sides).reshape(len(sides), -1).T).all():
            return sides
    return (size,)


def sharding(mesh: Mesh, *axes: str | tuple[str, ...] | None) -> NamedSharding:
    """Return the sharding of an array whose dimensions lie along `axes`."""
    return NamedSharding(mesh, P(*axes))
