"""Admission and preemption: all scheduling decisions, as a pure function.

Queues of one cohort lend to each other as Kueue's do without fair sharing (0.19, pkg/scheduler/preemption).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from xpk.model.quotas import Allotment, available

IN_QUEUE, RECLAIMED, RECLAIMED_BORROWING = "InClusterQueue", "InCohortReclamation", "InCohortReclaimWhileBorrowing"
_POLICIES: Mapping[str, Callable[[int, int], bool]] = {
    "Never": lambda own, other: False,
    "LowerPriority": lambda own, other: other < own,
    "Any": lambda own, other: True,
}


@dataclass(frozen=True, slots=True)
class Claim:
    """A workload's requests, and the queue whose quota it uses. UIDs sort by creation time."""

    uid: str
    priority: int
    needs: Mapping[str, int]
    queue: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """A queue's quota by resource, its cohort, and its preemption policies, named as in Kueue."""

    allotments: Mapping[str, Allotment]
    cohort: str = ""
    within_queue: str = "LowerPriority"
    reclaim: str = "Never"
    while_borrowing: str = "Never"


@dataclass(slots=True)
class Decision:
    """Workloads to admit, workloads to preempt with cause and reason (as in Kueue), and what the others lack."""

    admit: list[str] = field(default_factory=list)
    preempt: dict[str, str] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    lacking: dict[str, dict[str, int]] = field(default_factory=dict)


class Ledger:
    """The used part of each queue's quota, and of the capacity that all queues share (`shared`, by name)."""

    def __init__(self, queues: Mapping[str, Queue], shared: Mapping[str, int], claims: Collection[Claim]) -> None:
        self.queues, self.shared, self.claims = queues, shared, list(claims)
        self._used: dict[tuple[str, str], int] = {}
        for claim in claims:
            self._count(claim, 1)

    def copy(self) -> Ledger:
        """Return an independent copy."""
        return Ledger(self.queues, self.shared, self.claims)

    def add(self, claim: Claim) -> None:
        """Add a claim's requests to the use."""
        self.claims.append(claim)
        self._count(claim, 1)

    def remove(self, claim: Claim) -> None:
        """Subtract a claim's requests from the use."""
        self.claims.remove(claim)
        self._count(claim, -1)

    def room(self, queue: str, name: str) -> int:
        """Return the available amount of a resource for a queue, including borrowing."""
        if name in self.shared:
            return self.shared[name] - sum(used for (_, resource), used in self._used.items() if resource == name)
        allotment = self._allotment(queue, name)
        if allotment is None:
            return 0
        cohort = self.queues[queue].cohort
        others = [key for key, other in self.queues.items() if key != queue and cohort and other.cohort == cohort]
        return int(available(allotment, [allotment, *filter(None, (self._allotment(key, name) for key in others))]))

    def fits(self, claim: Claim) -> bool:
        """Return whether all requests of a claim are available."""
        return all(self.room(claim.queue, name) >= amount for name, amount in claim.needs.items())

    def is_over(self, queue: str, names: Collection[str]) -> bool:
        """Return whether a queue uses more than its own quota of any of these resources."""
        allotments = (self._allotment(queue, name) for name in names)
        return any(allotment.used > allotment.nominal for allotment in allotments if allotment)

    def is_under(self, queue: str, names: Collection[str]) -> bool:
        """Return whether a queue uses less than its own quota of all of these resources."""
        allotments = (self._allotment(queue, name) for name in names)
        return all(allotment.used < allotment.nominal for allotment in allotments if allotment)

    def borrows(self, claim: Claim) -> bool:
        """Return whether its queue would exceed its own quota with a claim."""
        needs = ((self._allotment(claim.queue, name), amount) for name, amount in claim.needs.items())
        return any(allotment.used + amount > allotment.nominal for allotment, amount in needs if allotment)

    def _allotment(self, queue: str, name: str) -> Allotment | None:
        allotment = self.queues[queue].allotments.get(name) if queue in self.queues else None
        return replace(allotment, used=self._used.get((queue, name), 0)) if allotment else None

    def _count(self, claim: Claim, sign: int) -> None:
        for name, amount in claim.needs.items():
            key = (claim.queue, name)
            self._used[key] = self._used.get(key, 0) + sign * amount


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
    decision = Decision()
    future, free = Ledger(queues, shared, running), Ledger(queues, shared, [*running, *leaving])
    lines = {name: sorted((c for c in waiting if c.queue == name), key=_rank) for name in queues}
    while heads := [line.pop(0) for line in lines.values() if line]:
        for claim in sorted(heads, key=lambda c: (future.borrows(c), *_rank(c))):
            room = {k: min(free.room(claim.queue, k), future.room(claim.queue, k)) for k in claim.needs}
            for victim, reason in [] if future.fits(claim) else _victims(claim, future):
                future.remove(victim)
                if victim in running:
                    decision.preempt[victim.uid], decision.reasons[victim.uid] = claim.uid, reason
                elif victim.uid in decision.admit:  # admitted in this round, so it has not started
                    decision.admit.remove(victim.uid)
                    decision.lacking[victim.uid] = dict(victim.needs)
                    free.remove(victim)
            has_to_wait = claim.uid in decision.preempt.values() or not free.fits(claim) or not future.fits(claim)
            if has_to_wait:
                decision.lacking[claim.uid] = {k: amount - max(0, room[k]) for k, amount in claim.needs.items()}
            else:
                decision.admit.append(claim.uid)
                free.add(claim)
            if future.fits(claim):
                future.add(claim)
    return decision


def _rank(claim: Claim) -> tuple[int, str]:
    return -claim.priority, claim.uid


def _victims(claim: Claim, ledger: Ledger) -> list[tuple[Claim, str]]:
    """Return workloads to preempt so that `claim` fits, with reasons: other queues' first, then lowest, then newest."""
    queue = ledger.queues[claim.queue]
    short_resources = [name for name, amount in claim.needs.items() if ledger.room(claim.queue, name) < amount]
    quotas = [name for name in short_resources if name not in ledger.shared]
    too_large = any(claim.needs[name] > queue.allotments[name].nominal for name in quotas if name in queue.allotments)
    if too_large and queue.while_borrowing == "Never":
        return []
    own_claims, others = _candidates(claim, ledger, short_resources, quotas)
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
    """Return workloads that a claim may preempt: in its own queue, and borrowing ones in its cohort."""
    queue = ledger.queues[claim.queue]
    newest = sorted(ledger.claims, key=lambda c: c.uid, reverse=True)
    ordered = [
        c for c in sorted(newest, key=lambda c: c.priority) if any(c.needs.get(name) for name in short_resources)
    ]
    own_claims = [
        c for c in ordered if c.queue == claim.queue and _POLICIES[queue.within_queue](claim.priority, c.priority)
    ]
    others = [
        c
        for c in ordered
        if c.queue != claim.queue
        and c.queue in ledger.queues
        and queue.cohort
        and ledger.queues[c.queue].cohort == queue.cohort
        and ledger.is_over(c.queue, quotas)
        and _POLICIES[queue.reclaim](claim.priority, c.priority)
    ]
    return own_claims, others


def _fewest(
    claim: Claim, ledger: Ledger, candidates: Sequence[Claim], quotas: Sequence[str], *, borrowing: bool
) -> list[Claim]:
    """Return a sufficient prefix of the candidates, without those that are not needed."""
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
