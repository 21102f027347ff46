"""Objects of queues and workloads, as Kueue stores them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from tests.jobs.objects import jobset
from xpk.api.base import Obj, Objs
from xpk.jobs.output.roots import OutputRoots
from xpk.jobs.simulation.scenario import Objects
from xpk.jobs.status.fields import Snapshot
from xpk.jobs.status.reader import read
from xpk.model import names
from xpk.model.errors import AuthorizationError
from xpk.model.specs import Target
from xpk.model.status import Phase, WorkloadStatus

NOW = 1_800_000_000.0
TYPE, RESOURCE, CHIPS = "v5litepod-8", "google.com/tpu", 8
ROOTS = OutputRoots(lambda: Target(emulated=False, sets_slice_environment=False, output_root=""))
_SELECTOR = {
    "cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice",
    "cloud.google.com/gke-tpu-topology": "2x4",
}


def stamp(seconds: float) -> str:
    """Return the time `seconds` after NOW."""
    return datetime.fromtimestamp(NOW + seconds, UTC).isoformat().replace("+00:00", "Z")


def cluster_queue(name: str, slices: int, *, cohort: str = names.COHORT, **spec: Any) -> Obj:
    """Return a ClusterQueue of xpk."""
    quota = {"name": RESOURCE, "nominalQuota": slices * CHIPS}
    group = {"coveredResources": [RESOURCE], "flavors": [{"name": TYPE, "resources": [quota]}]}
    preemption = {"withinClusterQueue": "LowerPriority", "reclaimWithinCohort": "Any"}
    return {
        "metadata": {"name": name},
        "spec": {"cohortName": cohort, "preemption": preemption, "resourceGroups": [group], **spec},
    }


def local_queue(name: str, namespace: str, place: str) -> Obj:
    """Return a LocalQueue."""
    return {"metadata": {"name": name, "namespace": namespace}, "spec": {"clusterQueue": place}}


def workload(
    name: str,
    slices: int,
    *,
    namespace: str = "default",
    queue: str = names.QUEUE,
    priority: int = 500,
    created: float = -7200.0,
    admitted: float | None = None,
    place: str = names.CLUSTER_QUEUE,
    **spec: Any,
) -> Obj:
    """Return a Workload: pending, or admitted since a time relative to NOW."""
    pod = {
        "nodeSelector": _SELECTOR,
        "containers": [{"resources": {"requests": {RESOURCE: str(CHIPS)}}}],
    }
    status: Obj = {}
    if admitted is not None:
        assignment = {
            "name": "slice-job",
            "flavors": {RESOURCE: TYPE},
            "resourceUsage": {RESOURCE: str(slices * CHIPS)},
            "count": slices,
        }
        conditions = [
            {"type": kind, "status": "True", "reason": kind, "message": "", "lastTransitionTime": stamp(admitted)}
            for kind in ("QuotaReserved", "Admitted")
        ]
        status = {"admission": {"clusterQueue": place, "podSetAssignments": [assignment]}, "conditions": conditions}
    return {
        "metadata": {
            "name": f"jobset-{name}",
            "namespace": namespace,
            "uid": f"uid-{name}",
            "creationTimestamp": stamp(created),
            "ownerReferences": [{"name": name, "uid": f"jobset-uid-{name}"}],
        },
        "spec": {
            "queueName": queue,
            "priority": priority,
            "podSets": [{"name": "slice-job", "count": slices, "template": {"spec": pod}}],
            **spec,
        },
        "status": status,
    }


def cluster(*workloads: Obj, own: int = 2, red: int = 2, more: tuple[Obj, ...] = (), **objects: Any) -> Objects:
    """Return a cluster with its own queue and one of team-red."""
    return Objects(
        cluster_queues=[cluster_queue(names.CLUSTER_QUEUE, own), cluster_queue("red", red), *more],
        local_queues=[
            local_queue(names.QUEUE, "default", names.CLUSTER_QUEUE),
            local_queue("red", "team-red", "red"),
        ],
        workloads=[*workloads],
        jobsets=[],
        **objects,
    )


class Stored:
    """An API of fixed objects, of which some kinds may not be listed."""

    def __init__(self, objects: Objects, denied: tuple[str, ...] = ()) -> None:
        self._denied = denied
        self.calls = Counter[str]()  # by kind
        self._objects: dict[str, Objs] = {
            "ClusterQueue": objects.cluster_queues, "LocalQueue": objects.local_queues, "Workload": objects.workloads,
        }  # fmt: skip

    def list(self, kind: str, namespace: str | None) -> Objs:
        """Return the objects of a kind."""
        self.calls[kind] += 1
        if kind in self._denied:
            raise AuthorizationError(f"permission denied: {kind}")
        return self._objects.get(kind, [])


def queued_status(**fields: Any) -> WorkloadStatus:
    """Return the status of a workload that is next in the cluster's own queue."""
    waiting = read(jobset(suspend=True), Snapshot(jobsets=[]))
    values = {"name": "next", "phase": Phase.QUEUED, "position": 1, "cluster_queue": "cluster-queue", **fields}
    return replace(waiting, **values)
