"""Super-slicing: slices of tpu7x that GKE forms from cubes when a workload is admitted. Pure.

A cube has 4x4x4 chips and is a node pool of its own, whose chips are not connected with those of others. Kueue finds
cubes by the labels of their nodes; the slice controller then creates a Slice object, by which GKE connects them. The
labels, topologies and objects are those of Google's documents and of Google's xpk (docs/gke.md, "Super-slicing").
"""

from __future__ import annotations

import math
import re

from xpk.model.accelerators import ACCELERATOR_LABEL, SliceShape, all_shapes, find_shape
from xpk.model.sub_slices import HOST, TOPOLOGY_ANNOTATION

FAMILY = "tpu7x"
CUBE = "tpu7x-128"  # the type of a cube
TOPOLOGY = "super-slice-topology"  # the Topology object, as Google's xpk names it
LABEL = "xpk.dev/super-slicing"  # on nodes of cubes
BLOCK = "cloud.google.com/gce-topology-block"  # cubes of one slice belong to one block of a reservation
MODE_LABEL, MODE = "cloud.google.com/gke-accelerator-topology-mode", "PROVISION_ONLY"  # of a cube's nodes, set by GKE
HEALTHY = "HEALTHY"
OWNER_NAMESPACE = "slice.accelerator.gke.io/owner-workload-namespace"  # annotations of a Slice: its Kueue Workload
OWNER_NAME = "slice.accelerator.gke.io/owner-workload-name"
LEAST_VERSION = "1.35.2-gke.1842000"  # of GKE
LEAST_VERSION_FOR_PARTS = "1.36.0-gke.3712000"
_PARTS = ("2x4x4", "2x2x4", "2x2x2", "2x2x1")  # that GKE divides a cube into
_MOST_CUBES = 144
_SIDES = re.compile(r"[1-9]\d*x[1-9]\d*x[1-9]\d*")
_RULE = (
    "cubes form slices whose sides are multiples of 4 in ascending order, such as tpu7x-4x4x8, "
    f"of at most {_MOST_CUBES} cubes"
)


def formable(*, parts: bool) -> list[SliceShape]:
    """Return the types of slices that cubes form, smallest first; `parts`: those of parts of a cube too."""
    cube = find_shape(CUBE)
    return [
        shape
        for shape in all_shapes()
        if shape.family == FAMILY and (shape.chips >= cube.chips or (parts and shape.topology in _PARTS))
    ]


def is_formable(shape: SliceShape, *, parts: bool) -> bool:
    """Return whether cubes, or parts of one, form a slice of this type."""
    return shape in formable(parts=parts)


def topology_problem(name: str) -> str:
    """Return why cubes cannot form the slice that a type's name asks for, "" if the name asks for none."""
    family, _, size = name.partition("-")
    if family != FAMILY or not _SIDES.fullmatch(size) or size in _PARTS:
        return ""
    sides = [int(side) for side in size.split("x")]
    if any(side % 4 for side in sides):
        why = "a side is not a multiple of 4"
    elif sides != sorted(sides):
        why = f"its sides are not in ascending order; use {family}-{'x'.join(map(str, sorted(sides)))}"
    elif math.prod(sides) > _MOST_CUBES * 64:
        why = f"it has {math.prod(sides) // 64} cubes"
    else:
        return ""
    return f"cubes cannot form a slice of {size}: {why} ({_RULE})"


def level(shape: SliceShape) -> str:
    """Return the node label that groups the hosts of a cube, or of a part of one."""
    return f"cloud.google.com/gke-tpu-partition-{_partition(shape)}-id"


def levels(*, parts: bool) -> list[str]:
    """Return the node labels from a block to a host: the levels of a Kueue Topology."""
    partitions = [find_shape(f"{FAMILY}-{topology}") for topology in ("4x4x4", *(_PARTS if parts else ()))]
    return [BLOCK, *map(level, partitions), HOST]


def flavor_labels() -> dict[str, str]:
    """Return the labels of the nodes of all cubes, healthy or not: a slice's topology is a label of its nodes too."""
    return {ACCELERATOR_LABEL: find_shape(CUBE).accelerator, MODE_LABEL: MODE}


def node_selector(shape: SliceShape) -> dict[str, str]:
    """Return the node selector of a workload's hosts: healthy cubes, or healthy parts.

    The slice controller adds the topology once the slice is formed.
    """
    return {**flavor_labels(), f"cloud.google.com/gke-tpu-partition-{_partition(shape)}-state": HEALTHY}


def placement(shape: SliceShape) -> dict[str, str]:
    """Return the pod annotations with which Kueue places the hosts of each slice on whole cubes of one block."""
    return {
        "kueue.x-k8s.io/podset-required-topology": BLOCK,
        "kueue.x-k8s.io/podset-slice-required-topology": level(shape),
        "kueue.x-k8s.io/podset-slice-size": str(min(shape.hosts, find_shape(CUBE).hosts)),
        TOPOLOGY_ANNOTATION: str(shape.topology),
    }


def _partition(shape: SliceShape) -> str:
    return str(shape.topology) if shape.topology in _PARTS else str(find_shape(CUBE).topology)
