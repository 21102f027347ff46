"""The device mesh: "dp" and "stage" over slices (DCN) first, "fsdp" and "tp" inside a slice (ICI)."""

# mypy: disallow-untyped-calls=False

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import numpy.typing as npt
from jax.experimental import mesh_utils
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from trainer.errors import ChipsError
from trainer.parallel.layout import Layout

BATCH = ("dp", "fsdp")  # the axes that the examples of a batch are spread over
ALL = ("dp", "stage", "fsdp", "tp")


def slice_of(device: Any, hosts_per_slice: int) -> int:
    """Return the slice that a device belongs to.

    TPUs, real or described, know it. Others (every CPU device says slice 0) go by the process that owns them.
    """
    if device.platform == "tpu":
        return int(getattr(device, "slice_index", 0))
    return int(device.process_index) // hosts_per_slice


def by_slice(devices: Sequence[Any], num_slices: int, hosts_per_slice: int) -> list[list[Any]]:
    """Return the devices of each slice, in order of host and chip.

    One process may stand for several slices: its devices are then cut in equal parts.
    Raises ChipsError if the slices do not have the same number of devices.
    """
    ordered = sorted(devices, key=lambda d: (slice_of(d, hosts_per_slice), d.process_index, d.id))
    each, rest = divmod(len(ordered), num_slices)
    slices = [ordered[n * each : (n + 1) * each] for n in range(num_slices)]
    found = {slice_of(device, hosts_per_slice) for device in ordered}
    whole = all(len({slice_of(device, hosts_per_slice) for device in one}) == 1 for one in slices)
    if rest or not whole or len(found) not in (1, num_slices):
        counts = ", ".join(str(sum(slice_of(d, hosts_per_slice) == n for d in ordered)) for n in sorted(found))
        raise ChipsError(f"{num_slices} equal slices cannot be made of slices of {counts} devices")
    return slices


def arrange(layout: Layout, devices: Sequence[Any], hosts_per_slice: int) -> npt.NDArray[Any]:
    """Return the devices as an array [dp, stage, fsdp, tp] whose last two axes never leave a slice.

    Where the hardware has a topology (TPU) JAX's own placement is used, elsewhere the devices' order.
    """
    slices = by_slice(devices, layout.num_slices, hosts_per_slice)
    dp, stages = layout.dp_slices, layout.stage_slices
    inside = (layout.dp // dp, layout.stages // stages, layout.fsdp, layout.tp)
    if devices[0].platform != "tpu":
        placed = np.array(slices).reshape(dp, stages, *inside)
        return placed.swapaxes(1, 2).reshape(layout.dp, layout.stages, layout.fsdp, layout.tp)
    if layout.num_slices == 1:
        return mesh_utils.create_device_mesh(inside, devices, allow_split_physical_axes=True)
    return mesh_utils.create_hybrid_device_mesh(inside, (dp, stages, 1, 1), devices, allow_split_physical_axes=True)


def make_mesh(layout: Layout, devices: Sequence[jax.Device], hosts_per_slice: int) -> Mesh:
    """Lay out all devices of the job as `arrange` does."""
    return Mesh(arrange(layout, devices, hosts_per_slice), ALL)


def sharding(mesh: Mesh, *axes: str | tuple[str, ...] | None) -> NamedSharding:
    """Shorthand for the sharding of an array whose dimensions lie along `axes`."""
    return NamedSharding(mesh, P(*axes))
