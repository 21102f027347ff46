"""What the queues' objects say of slices whose nodes GKE makes when a workload's ProvisioningRequest is granted."""

from __future__ import annotations

from collections.abc import Iterable

from xpk.model import names
from xpk.model.specs import ClusterSpec


def flavor_labels(spec: ClusterSpec) -> dict[str, str]:
    """Return the labels of the nodes of a flavor: Kueue gives pods that it admits a selector for them."""
    queued = {names.QUEUED_LABEL: "true"} if spec.queued else {}
    return {**spec.shape.node_labels, **queued}


def managed_resources(specs: Iterable[ClusterSpec]) -> list[str]:
    """Return the resources that are to be asked for, none if no slice comes so."""
    return sorted({spec.shape.resource for spec in specs if spec.queued})
