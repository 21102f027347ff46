"""The kinds of objects that we read and write, and where an API server keeps them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind: its name, its API version, its plural in the URL, and whether it lives in a namespace."""

    name: str
    api_version: str
    plural: str
    namespaced: bool = True


_JOBSET = "jobset.x-k8s.io/v1alpha2"
_KUEUE = "kueue.x-k8s.io/v1beta2"

KINDS = {
    kind.name: kind
    for kind in (
        Kind("JobSet", _JOBSET, "jobsets"),
        Kind("Job", "batch/v1", "jobs"),
        Kind("Pod", "v1", "pods"),
        Kind("Event", "v1", "events"),
        Kind("Node", "v1", "nodes", namespaced=False),
        Kind("Workload", _KUEUE, "workloads"),
        Kind("LocalQueue", _KUEUE, "localqueues"),
        Kind("ClusterQueue", _KUEUE, "clusterqueues", namespaced=False),
        Kind("ResourceFlavor", _KUEUE, "resourceflavors", namespaced=False),
        Kind("WorkloadPriorityClass", _KUEUE, "workloadpriorityclasses", namespaced=False),
    )
}


def kind_of(obj: dict[str, object]) -> Kind:
    """Return the kind of an object. Raises KeyError for one that we do not handle."""
    return KINDS[str(obj.get("kind"))]
