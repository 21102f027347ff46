"""Quota of queues that lend to each other, and the claims that use it."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from xpk.model.quotas import Allotment, available_of, ceiling, share_of_pool

Kind = tuple[object, ...]  # what decides on a claim, apart from its turn


@dataclass(frozen=True, slots=True)
class Claim:
    """A workload's requests, and the queue whose quota it uses. UIDs sort by creation time.

    `reserved`: time since which it has its quota, in Unix seconds. `spares`: UIDs of claims that it only
    preempts to reclaim the quota of its queue.
    """

    uid: str
    priority: int
    needs: Mapping[str, int]
    queue: str = ""
    reserved: float = 0.0
    spares: tuple[str, ...] = ()
    kind: Kind = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "kind", (self.queue, self.priority, self.spares, *self.needs.items()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """A queue's quota by resource, its cohort, and its preemption policies, named as in Kueue."""

    allotments: Mapping[str, Allotment]
    cohort: str = ""
    within_queue: str = "LowerPriority"
    reclaim: str = "Never"
    while_borrowing: str = "Never"


class Ledger:
    """The used part of each queue's quota, and of the capacity that all queues share (`shared`, by name)."""

    def __init__(self, queues: Mapping[str, Queue], shared: Mapping[str, int], claims: Iterable[Claim]) -> None:
        self.queues, self.shared = queues, shared
        self._claims: dict[str, list[Claim]] = {}  # by queue
        self._shared_used = dict.fromkeys(shared, 0)
        self._most: dict[str, Mapping[str, int]] = {}
        self._allotments: dict[tuple[str, str], Allotment] = {}  # by queue and resource, with the use
        self._pooled: dict[tuple[str, str], float] = {}  # what the queues of a cohort leave to it, by resource
        for name, queue in queues.items():
            for resource, allotment in queue.allotments.items():
                self._allotments[name, resource] = unused = replace(allotment, used=0)
                pool = queue.cohort or _alone(name), resource
                self._pooled[pool] = self._pooled.get(pool, 0) + share_of_pool(unused)
        for claim in claims:
            self.add(claim)

    def claims_of(self, queue: str) -> Sequence[Claim]:
        """Return the claims of a queue."""
        return self._claims.get(queue, ())

    def copy(self) -> Ledger:
        """Return an independent copy."""
        ledger = copy.copy(self)
        ledger._claims = {queue: [*claims] for queue, claims in self._claims.items()}
        ledger._shared_used, ledger._pooled = dict(self._shared_used), dict(self._pooled)
        ledger._allotments = dict(self._allotments)
        return ledger

    def add(self, claim: Claim) -> None:
        """Add a claim's requests to the use."""
        self._claims.setdefault(claim.queue, []).append(claim)
        self._count(claim, 1)

    def remove(self, claim: Claim) -> None:
        """Subtract a claim's requests from the use."""
        self._claims[claim.queue].remove(claim)
        self._count(claim, -1)

    def keep(self, quota: Claim, sign: int) -> None:
        """Add quota to the use for a while, or subtract it, without a change of the claims."""
        self._count(quota, sign)

    def allotment(self, queue: str, name: str) -> Allotment | None:
        """Return a queue's quota of a resource with its use, None if it has none."""
        return self._allotments.get((queue, name))

    def most(self, queue: str, name: str) -> int:
        """Return the quota of a resource available to a queue if nothing were in use."""
        if queue not in self._most:
            self._most[queue] = ceilings(queue, self.queues)
        return self._most[queue][name]

    def room(self, queue: str, name: str) -> int:
        """Return the available amount of a resource for a queue, including borrowing."""
        if name in self.shared:
            return self.shared[name] - self._shared_used[name]
        allotment = self._allotments.get((queue, name))
        if allotment is None:
            return 0
        return int(available_of(allotment, self._pooled[self.queues[queue].cohort or _alone(queue), name]))

    def fits(self, claim: Claim) -> bool:
        """Return whether all requests of a claim are available."""
        return all(self.room(claim.queue, name) >= amount for name, amount in claim.needs.items())

    def is_over(self, queue: str, names: Collection[str]) -> bool:
        """Return whether a queue uses more than its own quota of any of these resources."""
        allotments = (self.allotment(queue, name) for name in names)
        return any(allotment.used > allotment.nominal for allotment in allotments if allotment)

    def is_under(self, queue: str, names: Collection[str]) -> bool:
        """Return whether a queue uses less than its own quota of all of these resources."""
        allotments = (self.allotment(queue, name) for name in names)
        return all(allotment.used < allotment.nominal for allotment in allotments if allotment)

    def borrows(self, claim: Claim) -> bool:
        """Return whether its queue would exceed its own quota with a claim."""
        needs = ((self.allotment(claim.queue, name), amount) for name, amount in claim.needs.items())
        return any(allotment.used + amount > allotment.nominal for allotment, amount in needs if allotment)

    def _count(self, claim: Claim, sign: int) -> None:
        for name, amount in claim.needs.items():
            if name in self.shared:
                self._shared_used[name] += sign * amount
            elif before := self._allotments.get((claim.queue, name)):
                after = Allotment(
                    nominal=before.nominal,
                    borrowing_limit=before.borrowing_limit,
                    lending_limit=before.lending_limit,
                    used=before.used + sign * amount,
                )
                self._allotments[claim.queue, name] = after
                pool = self.queues[claim.queue].cohort or _alone(claim.queue), name
                self._pooled[pool] += share_of_pool(after) - share_of_pool(before)


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


def _alone(queue: str) -> str:
    """Return the name of the pool of a queue without a cohort; no cohort has it."""
    return f"/{queue}"
