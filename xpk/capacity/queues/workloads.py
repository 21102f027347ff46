"""Workloads in queues, from Kueue's objects alone, which more users may list than pods."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from xpk.api.base import Obj, ObjectApi, Objs
from xpk.api.quantities import requests


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedWorkload:
    """A workload in a queue: `Admitted`, `Pending` or `Suspended`, and its requests."""

    namespace: str  # Kubernetes namespace
    name: str  # name of the workload
    state: str  # state: Admitted, Pending or Suspended
    priority: str  # very-low, low, medium, high or very-high, or a class of another tool
    requests: dict[str, float]  # requested amount of each resource
    created: str  # time of the request


def workloads_in(api: ObjectApi, local_queues: Objs) -> Objs:
    """Return Kueue's Workloads in these LocalQueues that have not finished."""
    keys = {_key(queue["metadata"].get("namespace"), queue["metadata"]["name"]) for queue in local_queues}
    all_workloads = api.list("Workload", None)
    return [workload for workload in all_workloads if _is_in(workload, keys) and not _is_true(workload, "Finished")]


def summary_of(workload: Obj) -> QueuedWorkload:
    """Return a Workload's summary."""
    meta, spec = workload["metadata"], workload["spec"]
    amounts: dict[str, float] = {}
    for pod_set in spec.get("podSets") or []:
        for resource, amount in requests(pod_set["template"]["spec"]).items():
            amounts[resource] = amounts.get(resource, 0) + amount * int(pod_set.get("count", 1))
    admitted = _is_true(workload, "Admitted") and not _is_true(workload, "Evicted")
    return QueuedWorkload(
        namespace=meta.get("namespace", "default"),
        name=owner_of(workload)["name"],
        state="Admitted" if admitted else "Pending" if spec.get("active", True) else "Suspended",
        priority=(spec.get("priorityClassRef") or {}).get("name", str(spec.get("priority") or "")),
        requests=amounts,
        created=str(meta.get("creationTimestamp", "")),
    )


def owner_of(workload: Obj) -> Obj:
    """Return the reference to a Workload's owner, or at least its own name."""
    owner: Obj = next(iter(workload["metadata"].get("ownerReferences") or []), {"name": workload["metadata"]["name"]})
    return owner


def _key(namespace: object, name: object) -> tuple[str, str]:
    return str(namespace or "default"), str(name)


def _is_in(workload: Obj, keys: Collection[tuple[str, str]]) -> bool:
    return _key(workload["metadata"].get("namespace"), workload["spec"].get("queueName")) in keys


def _is_true(workload: Obj, kind: str) -> bool:
    conditions = workload.get("status", {}).get("conditions") or []
    return any(condition["type"] == kind and condition["status"] == "True" for condition in conditions)
