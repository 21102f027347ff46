"""The verdict on slices: which ones to quarantine, as a pure function of the evidence and of the budget."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from xpk.model.evidence import THRESHOLD, Evidence, decayed, scores

Action = Literal["quarantine", "return", "defer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceState:
    """A slice as the verdict sees it. Slices are quarantined as a whole."""

    name: str
    accelerator_type: str
    nodes: tuple[str, ...]
    is_idle: bool  # whether a workload could start on it now
    is_quarantined: bool = False


@dataclass(frozen=True, slots=True)
class Budget:
    """At most `percent` of all slices are quarantined, but always one may be."""

    percent: float = 5.0

    def slices(self, total: int) -> int:
        """Return the number of slices out of `total` that may be quarantined at the same time."""
        return max(1, int(total * self.percent / 100))


DEFAULT_BUDGET = Budget()


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Action on a slice because of one of its nodes."""

    node: str  # node that the evidence speaks against
    slice: str  # its slice, which is quarantined as a whole
    action: Action  # quarantine, return, or defer: the budget is used up, or no other slice is free
    reason: str  # evidence, or reason for the deferral
    nodes: tuple[str, ...] = ()  # nodes of the slice


def judge(
    slices: Sequence[SliceState],
    evidence: Sequence[Evidence],
    now: datetime,
    budget: Budget = DEFAULT_BUDGET,
    others: Sequence[Evidence] = (),
) -> list[Verdict]:
    """Return the verdicts on slices with a suspect, the highest score first. `others`: see `scores`.

    Deferred are those beyond the budget, and those without another idle slice of their type: a workload could not move
    there, or the last spare slice would be lost.
    """
    score_of = scores(evidence, now, others)
    suspects = [
        (max(score_of.get(node, 0.0) for node in item.nodes), item)
        for item in slices
        if item.nodes and not item.is_quarantined
    ]
    room = budget.slices(len(slices)) - sum(item.is_quarantined for item in slices)
    idle = Counter(item.accelerator_type for item in slices if item.is_idle and not item.is_quarantined)
    verdicts = []
    for score, item in sorted(suspects, key=lambda pair: (-pair[0], pair[1].name)):
        if score < THRESHOLD:
            break
        node = max(item.nodes, key=lambda name: score_of.get(name, 0.0))
        reason = words(evidence, node, now)
        action: Action = "quarantine"
        if room <= 0:
            reason, action = f"the budget of {budget.slices(len(slices))} slices is used up; {reason}", "defer"
        elif idle[item.accelerator_type] - item.is_idle < 1:
            reason, action = f"no other {item.accelerator_type} slice is free; {reason}", "defer"
        else:
            room -= 1
            idle[item.accelerator_type] -= 1  # itself, or the one to which its workload moves
        verdicts.append(Verdict(node=node, slice=item.name, action=action, reason=reason, nodes=item.nodes))
    return verdicts


def words(evidence: Sequence[Evidence], node: str, now: datetime) -> str:
    """Return the evidence against a node in one line: the number of each kind, and the newest in words."""
    own = [one for one in evidence if one.node == node]
    if not own:
        return "no evidence"
    counts = Counter(str(one.kind) for one in own)
    newest = max(own, key=lambda one: (decayed(one, now), one.time))
    return f"{', '.join(f'{number} {kind}' for kind, number in sorted(counts.items()))}; {newest.message}"
