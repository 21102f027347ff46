"""Fields of queue objects for slices that GKE provides when a workload needs them: their nodes, or their links."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from xpk.model import names, sub_slices, super_slices
from xpk.model.specs import ClusterSpec, SliceQuota


def flavor_labels(spec: ClusterSpec) -> dict[str, str]:
    """Return the node labels of a flavor: Kueue adds them as a selector to pods that it admits."""
    if spec.super_slicing:
        return super_slices.flavor_labels()
    queued = {names.QUEUED_LABEL: "true"} if spec.queued else {}
    return {**spec.shape.node_labels, **queued}


def managed_resources(specs: Iterable[ClusterSpec]) -> list[str]:
    """Return the resources to request by ProvisioningRequest; none if no slice is provisioned that way."""
    return sorted({spec.shape.resource for spec in specs if spec.queued})


def topology_of(spec: ClusterSpec) -> str | None:
    """Return the Topology object of a flavor; None if its hosts are not placed by topology."""
    if spec.super_slicing:
        return super_slices.TOPOLOGY
    return sub_slices.TOPOLOGY if spec.sub_slicing else None


def topologies(specs: Iterable[ClusterSpec]) -> Iterator[dict[str, Any]]:
    """Yield the Topology objects of flavors: their names and the node labels of their levels."""
    for spec in specs:
        if spec.super_slicing:
            yield {"name": super_slices.TOPOLOGY, "levels": super_slices.levels(parts=spec.sub_slicing)}
        elif spec.sub_slicing:
            yield {"name": sub_slices.TOPOLOGY, "levels": sub_slices.levels(spec.shape)}


def admission_checks(quotas: Sequence[SliceQuota]) -> list[dict[str, Any]]:
    """Return the admission checks of a ClusterQueue, each for its flavors."""
    flavors = {
        names.PROVISIONING_CHECK: [quota.shape.name for quota in quotas if quota.queued],
        names.SLICE_CHECK: [quota.shape.name for quota in quotas if quota.super_slicing],
    }
    return [{"name": check, "onFlavors": on} for check, on in flavors.items() if on]
