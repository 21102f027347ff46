"""Position of a workload in its queue, and the reason why it waits. Pure functions over objects."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Any

from xpk.api.base import Obj
from xpk.api.cluster_queues import Key, allotments, members, type_of
from xpk.api.quantities import quantity, requests
from xpk.api.text import short
from xpk.jobs.status.admission_checks import eviction_reason, pending_checks_reason
from xpk.jobs.status.fields import Snapshot, condition, is_true, when
from xpk.model.quotas import available, ceiling
from xpk.model.status import Condition, Quota, Share

_KUEUES = ("QuotaReserved", "Admitted", "Evicted", "Preempted", "PodsReady")
_BACK_OF_THE_QUEUE = (
    "PodsReadyTimeout",
    "AdmissionCheck",
)  # evictions after which the position counts from the eviction
_UNTYPED = ("Pending", "Inadmissible", "Waiting")  # reasons that stand for several causes
_PREEMPTOR = re.compile(r"\(UID: ([-0-9a-f]+)")


def conditions(workload: Obj | None) -> tuple[Condition, ...]:
    """Return Kueue's conditions of a workload."""
    items = ((workload or {}).get("status", {}).get("conditions")) or []
    return tuple(
        Condition(
            type=item["type"],
            status=str(item.get("status", "")),
            reason=str(item.get("reason", "")),
            message=str(item.get("message", "")),
            time=str(item.get("lastTransitionTime", "")),
        )
        for item in items
        if item.get("type") in _KUEUES
    )


def pending_reason(workload: Obj) -> str:
    """Return Kueue's typed reason why a workload has no quota; "" if it gives none.

    Kueue 0.19 gives one with the feature gate UnadmittedWorkloadsObservability, else only `Pending`.
    """
    reserved = condition(workload, "QuotaReserved")
    reason = str(reserved.get("reason", "")) if reserved.get("status") == "False" else ""
    return "" if reason in _UNTYPED else reason


def waiting_reason(workload: Obj, snapshot: Snapshot) -> str:
    """Return the reason why a workload is not admitted, in words."""
    evicted, reserved = condition(workload, "Evicted"), condition(workload, "QuotaReserved")
    if reserved.get("status") != "True":
        text = _with_cause(short(reserved.get("message"), 300), cluster_queue_of(workload, snapshot), snapshot)
    else:
        text = pending_checks_reason(workload, snapshot.slices) or "quota reserved, about to be admitted"
    if evicted.get("status") != "True":
        return text or "waiting for the queue"
    if unready := eviction_reason(workload):
        return unready
    if evicted.get("reason") == "Preempted":
        match = _PREEMPTOR.search(str(evicted.get("message")))
        winner = next((item for item in snapshot.workloads if match and item["metadata"].get("uid") == match[1]), None)
        why = f"preempted by {_name(winner, workload)}" if winner else "preempted by a workload of a higher priority"
    else:
        why = f"evicted, {evicted.get('reason')}: {short(evicted.get('message'))}"
    if is_true(workload, "QuotaReserved"):
        return f"{why}; its hosts are terminating"
    return why if not text or text == short(evicted.get("message"), 300) else f"{why}; {text}"


def _with_cause(text: str, name: str | None, snapshot: Snapshot) -> str:
    """Return Kueue's message; if the queue is inactive, with the cause, such as a check that no controller answers."""
    queue = next((item for item in snapshot.cluster_queues if item["metadata"]["name"] == name), None)
    active = condition(queue, "Active")
    if active.get("status") != "False" or "inactive" not in text:
        return text
    return f"{text}: {short(active.get('message'), 200)}"


def cluster_queue_of(workload: Obj, snapshot: Snapshot) -> str | None:
    """Return the ClusterQueue of a workload; None if it is not readable."""
    admitted = workload.get("status", {}).get("admission") or {}
    if admitted.get("clusterQueue"):
        return str(admitted["clusterQueue"])
    key = (workload["metadata"].get("namespace", "default"), workload["spec"].get("queueName"))
    for queue in snapshot.local_queues:
        if (queue["metadata"].get("namespace", "default"), queue["metadata"]["name"]) == key:
            return str(queue["spec"].get("clusterQueue", "")) or None
    return None


def ahead_of(workload: Obj, snapshot: Snapshot) -> tuple[str, ...] | None:
    """Return the workloads ahead of a workload in its ClusterQueue; None if it is not waiting."""
    if not _waits(workload):
        return None
    queue = _place(workload, snapshot)
    others = [item for item in snapshot.workloads if _waits(item) and _place(item, snapshot) == queue]
    names = [_name(item, workload) for item in sorted(others, key=rank) if rank(item) < rank(workload)]
    return tuple(names)


def quota_for(workload: Obj, snapshot: Snapshot, kind: str) -> tuple[Quota, ...]:
    """Return quota, use and free amounts of the flavors that a workload may use, for each resource that it needs.

    `kind`: its accelerator type; if a flavor has this name, the others are omitted.
    """
    name = cluster_queue_of(workload, snapshot)
    queue = next((item for item in snapshot.cluster_queues if item["metadata"]["name"] == name), None)
    if queue is None:
        return ()
    needs = needs_of(workload)
    cohort = members(queue, snapshot.cluster_queues)
    lenders = {item["metadata"]["name"] for item in cohort}
    everybody = [allotments(item) for item in cohort]
    quotas = []
    for (item, resource), allotment in allotments(queue).items():
        if resource in needs:
            lent = [shares[item, resource] for shares in everybody if (item, resource) in shares]
            quotas.append(
                Quota(
                    flavor=item,
                    resource=resource,
                    quota=_whole(allotment.nominal),
                    used=_whole(allotment.used),
                    needed=_whole(needs[resource]),
                    free=_whole(max(0, available(allotment, lent))),
                    most=_whole(ceiling(allotment, lent)),
                    holders=_holders(workload, snapshot, lenders, (item, resource)),
                )
            )
    return tuple([quota for quota in quotas if type_of(quota.flavor) == kind] or quotas)


def _holders(workload: Obj, snapshot: Snapshot, lenders: Collection[str], key: Key) -> tuple[Share, ...]:
    """Return the workloads with a share of a flavor's resource in these ClusterQueues, the largest first."""
    flavor, resource = key
    shares = []
    for item in snapshot.workloads:
        admission = item.get("status", {}).get("admission") or {}
        if (
            admission.get("clusterQueue") not in lenders
            or not is_true(item, "QuotaReserved")
            or is_true(item, "Finished")
        ):
            continue
        amount = sum(
            quantity((assignment.get("resourceUsage") or {}).get(resource, 0))
            for assignment in admission.get("podSetAssignments") or []
            if (assignment.get("flavors") or {}).get(resource) == flavor
        )
        if amount:
            shares.append(Share(workload=_name(item, workload), amount=_whole(amount)))
    return tuple(sorted(shares, key=lambda share: (-share.amount, share.workload)))


def needs_of(workload: Obj) -> dict[str, float]:
    """Return the total requests of a workload's hosts by resource."""
    total: dict[str, float] = {}
    resource_requests = workload.get("status", {}).get("resourceRequests") or []
    amounts: Iterator[tuple[str, float]] = (
        (name, quantity(amount)) for item in resource_requests for name, amount in (item.get("resources") or {}).items()
    )
    if not resource_requests:  # Kueue reports requests only while the workload waits
        pod_sets: list[dict[str, Any]] = workload["spec"].get("podSets") or []
        amounts = (
            (name, amount * int(item.get("count", 1)))
            for item in pod_sets
            for name, amount in requests(item["template"]["spec"]).items()
        )
    for name, amount in amounts:
        total[name] = total.get(name, 0) + amount
    return total


def _waits(workload: Obj) -> bool:
    active: bool = workload["spec"].get("active", True)
    # An evicted workload keeps its quota until its last host has ended.
    placed = is_true(workload, "QuotaReserved") and not is_true(workload, "Evicted")
    return active and not placed and not is_true(workload, "Finished")


def rank(workload: Obj) -> tuple[int, Any, str]:
    """Return Kueue's sort key: priority, then the time of creation, or of the eviction for some reasons."""
    evicted = condition(workload, "Evicted")
    is_requeued = evicted.get("status") == "True" and evicted.get("reason") in _BACK_OF_THE_QUEUE
    since = evicted.get("lastTransitionTime") if is_requeued else workload["metadata"]["creationTimestamp"]
    return -int(workload["spec"].get("priority") or 0), when(since), str(workload["metadata"].get("uid", ""))


def _place(workload: Obj, snapshot: Snapshot) -> tuple[str | None, ...]:
    """Return the ClusterQueue or, if it is not readable, the namespace and its queue."""
    if name := cluster_queue_of(workload, snapshot):
        return (name,)
    return workload["metadata"].get("namespace", "default"), workload["spec"].get("queueName")


def _name(workload: Obj, asking: Obj) -> str:
    """Return the name of a workload's owner, with its namespace if that differs from the one of `asking`."""
    meta = workload["metadata"]
    owner = next(iter(meta.get("ownerReferences") or []), {"name": meta["name"]})
    own_namespace, asking_namespace = meta.get("namespace", "default"), asking["metadata"].get("namespace", "default")
    return str(owner["name"]) if own_namespace == asking_namespace else f"{own_namespace}/{owner['name']}"


def _whole(amount: float) -> float:
    return int(amount) if amount == int(amount) else amount
