"""Admission and preemption: all scheduling decisions, as a pure function.

Queues of one cohort lend to each other as Kueue's do without fair sharing (0.19, pkg/scheduler/preemption).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from xpk.local.ledger import Claim, Kind, Ledger, Queue

IN_QUEUE, RECLAIMED, RECLAIMED_BORROWING = "InClusterQueue", "InCohortReclamation", "InCohortReclaimWhileBorrowing"
_POLICIES: Mapping[str, Callable[[int, int], bool]] = {
    "Never": lambda own, other: False,
    "LowerPriority": lambda own, other: other < own,
    "Any": lambda own, other: True,
}


@dataclass(slots=True)
class Decision:
    """Workloads to admit, workloads to preempt with cause and reason (as in Kueue), and what the others lack.

    `refused`: what each kind of claim lacks that neither fits nor may preempt; it can wait until quota is released.
    `preemptors`: by queue, the workload that waits until those that it preempts have stopped.
    """

    admit: list[str] = field(default_factory=list)
    preempt: dict[str, str] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    lacking: dict[str, dict[str, int]] = field(default_factory=dict)
    refused: dict[Kind, dict[str, int]] = field(default_factory=dict)
    preemptors: dict[str, str] = field(default_factory=dict)


def decide(
    queues: Mapping[str, Queue],
    shared: Mapping[str, int],
    running: Sequence[Claim],
    leaving: Sequence[Claim],
    waiting: Sequence[Claim],
    *,
    ending: Sequence[Claim] = (),
    preemptors: Collection[str] = (),
) -> Decision:
    """Decide in cycles, each on the head of every queue; in a cycle, those that do not borrow are first.

    A queue is sorted by priority, then by age; its workload of `preemptors`, for which others were preempted, is before
    all. `leaving` workloads were preempted but still hold their quota; `ending` ones have none, but still use it.

    A workload admitted here is only preempted by the next call, for which it is a running one.
    """
    cycles = _Cycles(queues, shared, running, leaving, ending)
    lines = {name: list[Claim]() for name in queues}
    for claim in sorted(waiting, key=lambda c: (c.uid not in preemptors, *_rank(c)), reverse=True):
        if claim.queue in lines:
            lines[claim.queue].append(claim)
    while heads := [line[-1] for line in lines.values() if line]:
        if not cycles.run(heads):
            break
        for line in lines.values():
            while line and cycles.has_decided(line[-1]):
                line.pop()
    cycles.explain(claim for claim in waiting if claim.queue in lines)
    return cycles.decision


@dataclass(frozen=True, slots=True, kw_only=True)
class _Nominee:
    """The head of a queue at the beginning of a cycle.

    `borrows`: whether its queue borrows with it, once its victims have stopped. `lacks`: None if it fits.
    """

    claim: Claim
    borrows: bool
    victims: Sequence[tuple[Claim, str]] = ()
    lacks: dict[str, int] | None = None
    may_preempt: bool = False

    @property
    def is_refused(self) -> bool:
        return self.lacks is not None and not self.victims


class _Cycles:
    """Cycles of a scheduler like Kueue's: each decides on the heads of all queues."""

    def __init__(
        self,
        queues: Mapping[str, Queue],
        shared: Mapping[str, int],
        running: Sequence[Claim],
        leaving: Sequence[Claim],
        ending: Sequence[Claim],
    ) -> None:
        self.decision = Decision()
        self._ledger = Ledger(queues, shared, [*running, *leaving])
        self._leaving, self._ending = {claim.uid for claim in leaving}, ending
        self._admitted = set[str]()
        self._held: list[Claim] = []  # quota that others cannot have until the end of the cycle
        self._preempted: dict[str, Claim] = {}  # in this cycle

    def run(self, heads: Sequence[Claim]) -> bool:
        """Decide on the heads of all queues; return whether another cycle may change something."""
        nominees = sorted(map(self._nominate, heads), key=lambda n: (n.borrows, *_rank(n.claim)))
        if any(victim.uid in self._admitted for nominee in nominees for victim, _ in nominee.victims):
            return False
        decision = self.decision
        before = len(decision.admit), len(decision.refused), len(decision.preempt)
        for nominee in nominees:
            self._process(nominee)
        self._count(self._held, -1)
        self._held.clear()
        self._preempted.clear()
        return before != (len(decision.admit), len(decision.refused), len(decision.preempt))

    def has_decided(self, claim: Claim) -> bool:
        """Return whether a claim was admitted, or one of its kind refused."""
        return claim.uid in self._admitted or claim.kind in self.decision.refused

    def explain(self, claims: Iterable[Claim]) -> None:
        """Record what those of `claims` lack that were not admitted."""
        known = dict(self.decision.refused)
        for claim in claims:
            if claim.uid not in self._admitted:
                if claim.kind not in known:
                    known[claim.kind] = self._shortfall(claim)
                self.decision.lacking[claim.uid] = known[claim.kind]

    def _nominate(self, claim: Claim) -> _Nominee:
        ledger = self._ledger
        if ledger.fits(claim):
            return _Nominee(claim=claim, borrows=ledger.borrows(claim))
        may_preempt = _may_preempt(claim, ledger)
        victims = _victims(claim, ledger, self._leaving) if may_preempt else []
        self._count((victim for victim, _ in victims), -1)
        borrows = ledger.borrows(claim)
        self._count((victim for victim, _ in victims), 1)
        lacks = self._shortfall(claim)
        return _Nominee(claim=claim, borrows=borrows, victims=victims, lacks=lacks, may_preempt=may_preempt)

    def _process(self, nominee: _Nominee) -> None:
        """Admit a nominee, preempt others for it, or refuse it, unless another one of the cycle came first."""
        claim, decision = nominee.claim, self.decision
        if nominee.is_refused:
            decision.refused[claim.kind] = nominee.lacks or {}
            if nominee.may_preempt and (quota := _kept_quota(nominee, self._ledger)):
                self._hold(quota)
            return
        victims = {victim.uid: victim for victim, _ in nominee.victims}
        if not self._preempted.keys().isdisjoint(victims) or not self._fits(claim, victims):
            return
        if victims or not self._fits_now(claim):
            self._hold(claim)
            self._preempt(claim, nominee.victims)
        else:
            decision.admit.append(claim.uid)
            self._admitted.add(claim.uid)
            self._ledger.add(claim)

    def _preempt(self, claim: Claim, victims: Sequence[tuple[Claim, str]]) -> None:
        for victim, reason in victims:
            self._preempted[victim.uid] = victim
            self.decision.preemptors[claim.queue] = claim.uid
            if victim.uid not in self._leaving:
                self._leaving.add(victim.uid)
                self.decision.preempt[victim.uid], self.decision.reasons[victim.uid] = claim.uid, reason

    def _fits(self, claim: Claim, victims: dict[str, Claim]) -> bool:
        """Return whether a claim fits once its victims, and those of others in this cycle, have stopped."""
        stopped = (self._preempted | victims).values()
        self._count(stopped, -1)
        fits = self._ledger.fits(claim)
        self._count(stopped, 1)
        return fits

    def _fits_now(self, claim: Claim) -> bool:
        """Return whether a claim fits although those that have no quota still use it."""
        self._count(self._ending, 1)
        fits = self._ledger.fits(claim)
        self._count(self._ending, -1)
        return fits

    def _hold(self, quota: Claim) -> None:
        self._count([quota], 1)
        self._held.append(quota)

    def _count(self, claims: Iterable[Claim], sign: int) -> None:
        for claim in claims:
            self._ledger.keep(claim, sign)

    def _shortfall(self, claim: Claim) -> dict[str, int]:
        self._count(self._ending, 1)
        rooms = {name: self._ledger.room(claim.queue, name) for name in claim.needs}
        self._count(self._ending, -1)
        return {name: amount - max(0, rooms[name]) for name, amount in claim.needs.items()}


def _may_preempt(claim: Claim, ledger: Ledger) -> bool:
    """Return whether a claim that does not fit could fit if others were preempted."""
    queue = ledger.queues[claim.queue]
    for name, amount in claim.needs.items():
        if name in ledger.shared or ledger.room(claim.queue, name) >= amount:
            continue
        allotment = ledger.allotment(claim.queue, name)
        if allotment is None or amount > ledger.most(claim.queue, name):
            return False
        if amount > allotment.nominal and queue.while_borrowing == "Never":
            return False
    return True


def _kept_quota(nominee: _Nominee, ledger: Ledger) -> Claim | None:
    """Return the quota that a queue keeps from others in this cycle for a claim that waits, None if it keeps none.

    A queue that can always reclaim what it lends keeps none (Kueue's reserveCapacityForUnreclaimablePreempt).
    """
    claim, needs = nominee.claim, dict[str, int]()
    queue = ledger.queues[claim.queue]
    if queue.reclaim == "Any" or not queue.cohort:
        return None
    for name, amount in claim.needs.items():
        if allotment := ledger.allotment(claim.queue, name):
            room = allotment.nominal - allotment.used
            if nominee.borrows:
                room = amount if allotment.borrowing_limit is None else room + allotment.borrowing_limit
            needs[name] = int(max(0, min(amount, room)))
    return Claim("", claim.priority, needs, claim.queue) if any(needs.values()) else None


def _rank(claim: Claim) -> tuple[int, str]:
    return -claim.priority, claim.uid


def _victims(claim: Claim, ledger: Ledger, leaving: Collection[str]) -> list[tuple[Claim, str]]:
    """Return workloads to preempt so that `claim` fits, with reasons: those that leave first, then other queues'."""
    queue = ledger.queues[claim.queue]
    short_resources = [name for name, amount in claim.needs.items() if ledger.room(claim.queue, name) < amount]
    quotas = [name for name in short_resources if name not in ledger.shared]
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
        candidates = [c for c in (*allowed, *own_claims) if reasons[c.uid] == RECLAIMED or c.uid not in claim.spares]
        candidates.sort(key=lambda c: c.uid not in leaving)
        if victims := _fewest(claim, ledger, candidates, quotas, borrowing=borrowing):
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
