"""Fields of queue objects for slices whose nodes GKE creates when a ProvisioningRequest is granted."""

from __future__ import annotations

from collections.abc import Iterable

from xpk.model import names
from xpk.model.specs import ClusterSpec


def flavor_labels(spec: ClusterSpec) -> dict[str, str]:
    """Return the node labels of a flavor: Kueue adds them as a selector to pods that it admits."""
    queued = {names.QUEUED_LABEL: "true"} if spec.queued else {}
    return {**spec.shape.node_labels, **queued}


def managed_resources(specs: Iterable[ClusterSpec]) -> list[str]:
    """Return the resources to request by ProvisioningRequest; none if no slice is provisioned that way."""
    return sorted({spec.shape.resource for spec in specs if spec.queued})
