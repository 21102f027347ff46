"""ClusterQueues as the admission sees them: quota by resource, cohort, and rules of preemption."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from xpk.api.base import Obj
from xpk.api.cluster_queues import Key, allotments, cohort_of
from xpk.local.ledger import Queue
from xpk.model.quotas import ceiling


def model_of(cluster_queue: Obj, name_of: Callable[[Key], str] = lambda key: key[1]) -> Queue:
    """Return a ClusterQueue as an `admission.Queue`.

    `name_of`: name of a flavor's resource; by default that of the resource, for queues with one flavor.
    """
    preemption = cluster_queue["spec"].get("preemption") or {}
    return Queue(
        allotments={name_of(key): allotment for key, allotment in allotments(cluster_queue).items()},
        cohort=cohort_of(cluster_queue),
        within_queue=preemption.get("withinClusterQueue", "Never"),
        reclaim=preemption.get("reclaimWithinCohort", "Never"),
        while_borrowing=(preemption.get("borrowWithinCohort") or {}).get("policy", "Never"),
    )


def ceilings(name: str, queues: Mapping[str, Queue]) -> dict[str, int]:
    """Return the quota of each resource available to a queue if nothing were in use."""
    queue = queues[name]
    cohort = [
        member for other, member in queues.items() if other == name or (queue.cohort and member.cohort == queue.cohort)
    ]
    return {
        resource: int(
            ceiling(allotment, [member.allotments[resource] for member in cohort if resource in member.allotments])
        )
        for resource, allotment in queue.allotments.items()
    }
