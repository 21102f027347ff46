"""The device mesh: "dp" over slices (DCN), "fsdp" and "tp" inside a slice (ICI)."""

# mypy: disallow-untyped-calls=False

from collections.abc import Sequence

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from trainer.layout import Layout

BATCH = ("dp", "fsdp")  # the axes that the examples of a batch are spread over
ALL = ("dp", "fsdp", "tp")


def slice_of(device: jax.Device, hosts_per_slice: int) -> int:
    """Return the slice that a device belongs to.

    Every CPU device says it is in slice 0, so emulated slices go by the process that owns the device.
    """
    if device.platform == "cpu":
        return int(device.process_index) // hosts_per_slice
    return int(getattr(device, "slice_index", 0))


def make_mesh(layout: Layout, devices: Sequence[jax.Device], num_slices: int, hosts_per_slice: int) -> Mesh:
    """Lay out all devices of the job so that neighbours on "fsdp" and "tp" are in one slice.

    Where the hardware has a topology (TPU) JAX's own placement is used, elsewhere the devices' order.
    """
    sizes = (layout.dp, layout.fsdp, layout.tp)
    if devices[0].platform != "tpu":
        ordered = sorted(devices, key=lambda d: (slice_of(d, hosts_per_slice), d.process_index, d.id))
        return Mesh(np.array(ordered).reshape(sizes), ALL)
    if num_slices == 1:
        return Mesh(mesh_utils.create_device_mesh(sizes, devices, allow_split_physical_axes=True), ALL)
    inside = (layout.dp // num_slices, layout.fsdp, layout.tp)
    across = (num_slices, 1, 1)
    placed = mesh_utils.create_hybrid_device_mesh(inside, across, devices, allow_split_physical_axes=True)
    return Mesh(placed, ALL)


def sharding(mesh: Mesh, *axes: str | tuple[str, ...] | None) -> NamedSharding:
    """Shorthand for the sharding of an array whose dimensions lie along `axes`."""
    return NamedSharding(mesh, P(*axes))
