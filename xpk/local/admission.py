"""Admission and preemption: all scheduling decisions, as a pure function.

Queues of one cohort lend to each other as Kueue's do without fair sharing (0.19, pkg/scheduler/preemption).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from xpk.local.ledger import Claim, Ledger, Queue

IN_QUEUE, RECLAIMED, RECLAIMED_BORROWING = "InClusterQueue", "InCohortReclamation", "InCohortReclaimWhileBorrowing"
_POLICIES: Mapping[str, Callable[[int, int], bool]] = {
    "Never": lambda own, other: False,
    "LowerPriority": lambda own, other: other < own,
    "Any": lambda own, other: True,
}


@dataclass(slots=True)
class Decision:
    """Workloads to admit, workloads to preempt with cause and reason (as in Kueue), and what the others lack.

    `reserved`: those of the others for which quota is about to become free. `is_final`: whether the rest waits until
    something changes.
    """

    admit: list[str] = field(default_factory=list)
    preempt: dict[str, str] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    lacking: dict[str, dict[str, int]] = field(default_factory=dict)
    reserved: set[str] = field(default_factory=set)
    is_final: bool = True


def decide(
    queues: Mapping[str, Queue],
    shared: Mapping[str, int],
    running: Sequence[Claim],
    leaving: Sequence[Claim],
    waiting: Sequence[Claim],
) -> Decision:
    """Decide one round: the head of every queue, those first that do not borrow; then the next of each.

    A queue is sorted by priority, then by age. `running` workloads are running; `leaving` ones were told to stop but
    still hold their quota. Quota that is about to become free is reserved for the workload it was freed for.
    """
    cycle = _Cycles(queues, shared, running, leaving)
    lines = {name: list[Claim]() for name in queues}
    for claim in sorted(waiting, key=_rank, reverse=True):
        if claim.queue in lines:
            lines[claim.queue].append(claim)
    while heads := [line[-1] for line in lines.values() if line]:
        retried = cycle.run(heads)
        for line in lines.values():
            if line and line[-1].uid not in retried:
                line.pop()
    return cycle.decision


class _Cycles:
    """Cycles of a scheduler like Kueue's: each decides on the heads of all queues."""

    def __init__(
        self, queues: Mapping[str, Queue], shared: Mapping[str, int], running: Sequence[Claim], leaving: Sequence[Claim]
    ) -> None:
        self.decision = Decision()
        self._running = {claim.uid for claim in running}
        self._future = Ledger(queues, shared, running)
        self._free = self._future.copy()
        for claim in leaving:
            self._free.add(claim)
        self._kept: list[Claim] = []  # quota that queues keep from others until the end of the cycle
        self._refused: dict[tuple[object, ...], dict[str, int]] = {}  # what each kind of claim lacks, until a change
        self._changes = 0

    def run(self, heads: list[Claim]) -> set[str]:
        """Decide on the heads of all queues; return the UIDs of those that the next cycle must decide on again."""
        retried = set[str]()
        known = [self._refused.get(claim.kind) for claim in heads]
        if all(known) and self._changes == self._future.changes + self._free.changes:
            self.decision.lacking |= {claim.uid: lacks for claim, lacks in zip(heads, known, strict=True) if lacks}
            return retried
        heads.sort(key=lambda c: (self._borrows(c), *_rank(c)))
        for claim in heads:
            if self._changes != self._future.changes + self._free.changes:
                self._changes = self._future.changes + self._free.changes
                self._refused.clear()
            shortfall = self._refused.get(claim.kind)
            if shortfall is None and self._kept and (shortfall := self._lacks_without_kept(claim)):
                self._refused[claim.kind] = shortfall
            if shortfall is None:
                shortfall = self._decide(claim)
                if self._changes == self._future.changes + self._free.changes:
                    if self._kept:
                        retried.add(claim.uid)
                    else:
                        self._refused[claim.kind] = shortfall
            if shortfall:
                self.decision.lacking[claim.uid] = shortfall
            if claim.kind in self._refused and claim is not heads[-1] and (quota := _kept_quota(claim, self._future)):
                self._keep([quota], 1)
                self._kept.append(quota)
        self._keep(self._kept, -1)
        self._kept.clear()
        return retried

    def _borrows(self, claim: Claim) -> bool:
        """Return whether a claim's queue would borrow with it, once those that it preempts have stopped."""
        ledger = self._future
        if ledger.borrows(claim) and not ledger.fits(claim) and (victims := _victims(claim, ledger)):
            ledger = ledger.copy()
            for victim, _ in victims:
                ledger.remove(victim)
        return ledger.borrows(claim)

    def _keep(self, quotas: Iterable[Claim], sign: int) -> None:
        for quota in quotas:
            self._future.keep(quota, sign)
            self._free.keep(quota, sign)

    def _lacks_without_kept(self, claim: Claim) -> dict[str, int] | None:
        """Return what a claim lacks that would be refused without the quota that is kept, too."""
        self._keep(self._kept, -1)
        is_refused = not self._future.fits(claim) and not _victims(claim, self._future)
        shortfall = self._shortfall(claim, self._rooms(claim)) if is_refused else None
        self._keep(self._kept, 1)
        return shortfall

    def _decide(self, claim: Claim) -> dict[str, int]:
        """Admit a claim, or preempt others for it, in the ledgers; return what it lacks if it has to wait."""
        decision, future, free, room = self.decision, self._future, self._free, self._rooms(claim)
        for victim, reason in [] if future.fits(claim) else _victims(claim, future):
            future.remove(victim)
            if victim.uid in self._running:
                decision.preempt[victim.uid], decision.reasons[victim.uid] = claim.uid, reason
            elif victim.uid in decision.admit:  # admitted in this round, so it has not started
                decision.admit.remove(victim.uid)
                decision.lacking[victim.uid], decision.is_final = dict(victim.needs), False
                free.remove(victim)
        has_to_wait = claim.uid in decision.preempt.values() or not free.fits(claim) or not future.fits(claim)
        if not has_to_wait:
            decision.admit.append(claim.uid)
            decision.lacking.pop(claim.uid, None)  # of an earlier cycle of this round
            free.add(claim)
        if future.fits(claim):
            future.add(claim)
            decision.reserved |= {claim.uid} if has_to_wait else set()
        return self._shortfall(claim, room) if has_to_wait else {}

    def _rooms(self, claim: Claim) -> dict[str, int]:
        return {k: min(self._free.room(claim.queue, k), self._future.room(claim.queue, k)) for k in claim.needs}

    @staticmethod
    def _shortfall(claim: Claim, room: Mapping[str, int]) -> dict[str, int]:
        return {k: amount - max(0, room[k]) for k, amount in claim.needs.items()}


def _kept_quota(claim: Claim, ledger: Ledger) -> Claim | None:
    """Return the quota that a queue keeps from others in this cycle for a claim that waits, None if it keeps none.

    A queue that can always reclaim what it lends keeps none (Kueue's reserveCapacityForUnreclaimablePreempt).
    """
    queue, needs = ledger.queues[claim.queue], dict[str, int]()
    if queue.reclaim == "Any" or not queue.cohort:
        return None
    borrows = ledger.borrows(claim)
    for name, amount in claim.needs.items():
        if name in ledger.shared:
            continue
        allotment = ledger.allotment(claim.queue, name)
        if allotment is None or amount > ledger.most(claim.queue, name):
            return None  # preemption would not help
        if amount > allotment.nominal and queue.while_borrowing == "Never" and ledger.room(claim.queue, name) < amount:
            return None
        room = allotment.nominal - allotment.used
        if borrows:
            room = amount if allotment.borrowing_limit is None else room + allotment.borrowing_limit
        needs[name] = int(max(0, min(amount, room)))
    return Claim("", claim.priority, needs, claim.queue) if any(needs.values()) else None


def _rank(claim: Claim) -> tuple[int, str]:
    return -claim.priority, claim.uid


def _victims(claim: Claim, ledger: Ledger) -> list[tuple[Claim, str]]:
    """Return workloads to preempt so that `claim` fits, with reasons, other queues' first."""
    queue = ledger.queues[claim.queue]
    short_resources = [name for name, amount in claim.needs.items() if ledger.room(claim.queue, name) < amount]
    quotas = [name for name in short_resources if name not in ledger.shared]
    too_large = any(claim.needs[name] > queue.allotments[name].nominal for name in quotas if name in queue.allotments)
    if too_large and queue.while_borrowing == "Never":
        return []
    own_claims, others = _candidates(claim, ledger, short_resources, quotas)
    if not own_claims and not others:
        return []
    entitled = not ledger.borrows(claim)  # within its own quota, it reclaims loans regardless of priority
    if not others or (queue.while_borrowing == "Never" and not ledger.is_under(claim.queue, quotas)):
        attempts = [True]
    else:
        attempts = [False, True] if queue.while_borrowing == "Never" and not entitled else [True, False]
    reasons = {victim.uid: IN_QUEUE for victim in own_claims}
    for victim in others:
        stronger = queue.while_borrowing != "Never" and victim.priority < claim.priority
        reasons[victim.uid] = RECLAIMED_BORROWING if stronger and not entitled else RECLAIMED
    for borrowing in attempts:
        allowed = [c for c in others if entitled or not borrowing or reasons[c.uid] == RECLAIMED_BORROWING]
        if victims := _fewest(claim, ledger, [*allowed, *own_claims], quotas, borrowing=borrowing):
            return [(victim, reasons[victim.uid]) for victim in victims]
    return []


def _candidates(
    claim: Claim, ledger: Ledger, short_resources: Sequence[str], quotas: Sequence[str]
) -> tuple[list[Claim], list[Claim]]:
    """Return workloads that a claim may preempt: in its own queue, and borrowing ones in its cohort.

    In Kueue's order: the lowest priority first, then the last to get quota; then the newest, where Kueue's order is
    that of random UIDs.
    """
    queue = ledger.queues[claim.queue]

    def preemptible(name: str, policy: str) -> list[Claim]:
        may = _POLICIES[policy]
        return [
            c
            for c in ledger.claims_of(name)
            if may(claim.priority, c.priority) and any(c.needs.get(resource) for resource in short_resources)
        ]

    borrowers = [
        name
        for name, other in ledger.queues.items()
        if name != claim.queue and queue.cohort and other.cohort == queue.cohort and ledger.is_over(name, quotas)
    ]
    own_claims = preemptible(claim.queue, queue.within_queue)
    others = [c for name in borrowers for c in preemptible(name, queue.reclaim)]
    for claims in (own_claims, others):
        claims.sort(key=lambda c: (c.reserved, c.uid), reverse=True)
        claims.sort(key=lambda c: c.priority)
    return own_claims, others


def _fewest(
    claim: Claim, ledger: Ledger, candidates: Sequence[Claim], quotas: Sequence[str], *, borrowing: bool
) -> list[Claim]:
    """Return a sufficient prefix of the candidates, without those that are not needed."""
    for name, amount in claim.needs.items():
        if ledger.room(claim.queue, name) + sum(c.needs.get(name, 0) for c in candidates) < amount:
            return []  # not even without all of them
    trial, victims = ledger.copy(), list[Claim]()

    def fits() -> bool:
        return trial.fits(claim) and (borrowing or not trial.borrows(claim))

    for candidate in candidates:
        if fits():
            break
        if candidate.queue != claim.queue and not trial.is_over(candidate.queue, quotas):
            continue  # the rest is within its queue's own quota
        trial.remove(candidate)
        victims.append(candidate)
    if not fits():
        return []
    for candidate in victims[::-1]:  # spare unneeded candidates, the highest first
        trial.add(candidate)
        if fits():
            victims.remove(candidate)
        else:
            trial.remove(candidate)
    return victims
