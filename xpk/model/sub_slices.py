"""Sub-slicing: parts of a TPU slice for single workloads, placed by Kueue. Pure.

GKE labels the nodes of a v6e slice in a Cluster Director reservation with the part of each size that they are in;
Kueue finds free parts by these labels. The sizes and labels are those of Google's xpk (docs/gke.md, "Sub-slicing").
"""

from __future__ import annotations

import itertools

from xpk.model.accelerators import SliceShape, all_shapes

FAMILIES = ("v6e",)
TOPOLOGY = "sub-slice-topology"  # the Topology object, as Google's xpk names it
LABEL = "xpk.dev/sub-slicing"  # on nodes of slices that are shared by parts
TOPOLOGY_ANNOTATION = "cloud.google.com/gke-tpu-slice-topology"  # GKE's webhook reads a part's topology from it
_FEWEST_CHIPS = 8
HOST = "kubernetes.io/hostname"


def parts(shape: SliceShape) -> list[SliceShape]:
    """Return the types of a slice's parts, the whole slice first; none if it cannot be shared."""
    if shape.family not in FAMILIES or shape.chips < _FEWEST_CHIPS:
        return []
    shapes = [
        candidate for candidate in all_shapes() if candidate.family == shape.family and candidate.chips >= _FEWEST_CHIPS
    ]
    return sorted((part for part in shapes if _fits(part, shape)), key=lambda part: -part.chips)


def level(part: SliceShape) -> str:
    """Return the node label that groups the hosts of a part."""
    return f"cloud.google.com/gke-tpu-slice-{part.topology}-id"


def levels(shape: SliceShape) -> list[str]:
    """Return the node labels from the whole slice to a host: the levels of a Kueue Topology."""
    return [*map(level, parts(shape)), HOST]


def placement(part: SliceShape) -> dict[str, str]:
    """Return the pod annotations with which Kueue places each slice of a workload onto one part."""
    return {
        "kueue.x-k8s.io/podset-slice-required-topology": level(part),
        "kueue.x-k8s.io/podset-slice-size": str(part.hosts),
        TOPOLOGY_ANNOTATION: str(part.topology),
    }


def _fits(part: SliceShape, whole: SliceShape) -> bool:
    sides = [sorted(map(int, str(shape.topology).split("x"))) for shape in (part, whole)]
    return all(one <= other for one, other in itertools.zip_longest(*sides, fillvalue=1))
