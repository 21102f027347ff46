"""ClusterQueues as the admission sees them: quota by resource, cohort, and rules of preemption."""

from __future__ import annotations

from collections.abc import Callable

from xpk.api.base import Obj
from xpk.api.cluster_queues import Key, allotments, cohort_of
from xpk.local.ledger import Queue


def model_of(cluster_queue: Obj, name_of: Callable[[Key], str] = lambda key: key[1]) -> Queue:
    """Return a ClusterQueue as a `Queue`.

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
