"""Who may start and who must stop: the whole of the scheduling, as a pure function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Claim:
    """What one workload needs. A UID sorts by time of creation."""

    uid: str
    priority: int
    needs: Mapping[str, int]


@dataclass(slots=True)
class Decision:
    """Whom to admit, whom to stop for whom, and what the others lack."""

    admit: list[str] = field(default_factory=list)
    preempt: dict[str, str] = field(default_factory=dict)
    lacking: dict[str, dict[str, int]] = field(default_factory=dict)


def _minus(amounts: Mapping[str, int], claims: Sequence[Claim]) -> dict[str, int]:
    return {name: have - sum(c.needs.get(name, 0) for c in claims) for name, have in amounts.items()}


def _victims(claim: Claim, future: Mapping[str, int], held: Sequence[Claim]) -> list[Claim]:
    """Return the fewest lower claims whose end lets `claim` fit: lowest first, newest first."""

    def fits(victims: Sequence[Claim]) -> bool:
        room = {name: have + sum(v.needs.get(name, 0) for v in victims) for name, have in future.items()}
        return all(room.get(name, 0) >= amount for name, amount in claim.needs.items())

    lower = sorted((c for c in held if c.priority < claim.priority), key=lambda c: c.uid, reverse=True)
    chosen: list[Claim] = []
    for candidate in sorted(lower, key=lambda c: c.priority):
        if fits(chosen):
            break
        chosen.append(candidate)
    if not fits(chosen):
        return []
    for candidate in chosen[::-1]:  # spare the highest that turn out not to be needed
        rest = [c for c in chosen if c is not candidate]
        if fits(rest):
            chosen = rest
    return chosen


def decide(
    quota: Mapping[str, int],
    held: Sequence[Claim],
    leaving: Sequence[Claim],
    waiting: Sequence[Claim],
    *,
    preemption: bool = True,
) -> Decision:
    """Decide one round: highest priority first, then oldest first, the best effort.

    `held` runs on; `leaving` has been told to stop but still holds its share. What is about to become free is
    kept for the one it was freed for.
    """
    decision, held = Decision(), list(held)
    future = _minus(quota, held)
    free = _minus(future, leaving)
    for claim in sorted(waiting, key=lambda c: (-c.priority, c.uid)):
        needs = claim.needs.items()
        if all(min(free.get(k, 0), future.get(k, 0)) >= amount for k, amount in needs):
            decision.admit.append(claim.uid)
            free = _minus(free, [claim])
            future = _minus(future, [claim])
            continue
        decision.lacking[claim.uid] = {k: n - max(0, min(free.get(k, 0), future.get(k, 0))) for k, n in needs}
        reserve = all(future.get(k, 0) >= amount for k, amount in needs)
        if not reserve and preemption:
            victims = _victims(claim, future, held)
            for victim in victims:
                decision.preempt[victim.uid] = claim.uid
                held.remove(victim)
                future = {k: have + victim.needs.get(k, 0) for k, have in future.items()}
            reserve = bool(victims)
        if reserve:
            future = _minus(future, [claim])
    return decision
