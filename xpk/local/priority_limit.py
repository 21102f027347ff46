"""A queue's priority limit, enforced as the policies of `xpk queue create` do on an API server."""

from __future__ import annotations

from xpk.api.base import Obj
from xpk.api.cluster_queues import max_priority_of
from xpk.local.store import Transaction
from xpk.model import names
from xpk.model.errors import UsageError


def check_priority(tx: Transaction, new: Obj, old: Obj | None) -> None:
    """Raise UsageError for a JobSet or a Workload whose priority exceeds the limit of its queue.

    A workload that is already in the queue may keep its priority.
    """
    if new["kind"] not in ("JobSet", "Workload"):
        return
    queue, priority = _queue(new), _priority(tx, new)
    if old is not None and _queue(old) == queue and priority <= _priority(tx, old):
        return
    local_queue = tx.get("LocalQueue", new["metadata"].get("namespace", "default"), queue) if queue else None
    cluster_queue = tx.get("ClusterQueue", "", local_queue["spec"]["clusterQueue"]) if local_queue else None
    limit = max_priority_of(cluster_queue) if cluster_queue else None
    if limit and priority > names.PRIORITIES[limit]:
        raise UsageError(names.limit_message(queue, limit), hint=f"--priority {limit}")


def _queue(obj: Obj) -> str:
    if obj["kind"] == "Workload":
        return str(obj["spec"].get("queueName", ""))
    return str((obj["metadata"].get("labels") or {}).get(names.QUEUE_LABEL, ""))


def _priority(tx: Transaction, obj: Obj) -> int:
    if obj["kind"] == "Workload":
        return int(obj["spec"].get("priority", 0))
    priority_class = tx.get(
        "WorkloadPriorityClass", "", str((obj["metadata"].get("labels") or {}).get(names.PRIORITY_LABEL))
    )
    return int(priority_class["value"]) if priority_class else 0
