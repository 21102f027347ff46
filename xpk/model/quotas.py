"""Available quota of queues in a cohort: Kueue's arithmetic (0.19, pkg/cache/scheduler/resource_node.go).

One flavor and one resource at a time, in units of the resource. A queue without a cohort is a cohort of one.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Allotment:
    """A queue's own quota, how much it may borrow beyond that, and how much of its own it lends; None is unlimited."""

    nominal: float
    borrowing_limit: float | None = None
    lending_limit: float | None = None
    used: float = 0

    @property
    def kept(self) -> float:
        """Return the quota that is never lent."""
        return 0 if self.lending_limit is None else max(0, self.nominal - self.lending_limit)


def available(allotment: Allotment, cohort: Collection[Allotment]) -> float:
    """Return the quota available to a queue now; `cohort` includes `allotment`.

    It is negative if more is used than the quota, after a quota was reduced.
    """
    return available_of(allotment, sum(map(share_of_pool, cohort)))


def share_of_pool(allotment: Allotment) -> float:
    """Return what a queue leaves to its cohort; negative if it borrows."""
    kept = allotment.kept
    return allotment.nominal - kept - max(0, allotment.used - kept)


def available_of(allotment: Allotment, pooled: float) -> float:
    """Return the quota available to a queue; `pooled`: sum of the shares of its cohort, its own included."""
    if allotment.borrowing_limit is not None:
        pooled = min(pooled, share_of_pool(allotment) + allotment.borrowing_limit)
    return max(0, allotment.kept - allotment.used) + pooled


def ceiling(allotment: Allotment, cohort: Collection[Allotment]) -> float:
    """Return the quota available to a queue if nothing were in use."""
    maximum = allotment.kept + sum(queue.nominal - queue.kept for queue in cohort)
    return maximum if allotment.borrowing_limit is None else min(maximum, allotment.nominal + allotment.borrowing_limit)
