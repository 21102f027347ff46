"""Step times of a run, and its stragglers: hosts that slow down the others."""

from __future__ import annotations

import math
from dataclasses import dataclass

from xpk.jobs.report.record import RunRecord

REASONS = {"data": "waits for its data", "host": "is slow to dispatch steps", "chip": "has slow chips"}
_MEASURED = {"data": "data", "host": "Python", "chip": "chips"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowHost:
    """A host that was slower than the median host in `times` of `comparisons` comparisons.

    `own` and `median`: average seconds of this and the median host over these times, of a step, or (chip) of equal
    matrix products. `conclusive`: the trainer found it slow in most comparisons.
    """

    host: str  # host, such as `s1/h0`
    reason: str  # cause of the delay: data, host or chip
    times: int  # number of comparisons in which it was slower
    comparisons: int  # number of all comparisons
    own: float  # average seconds of this host
    median: float  # average seconds of the median host
    conclusive: bool  # whether the trainer found it slow in most comparisons

    @property
    def finding(self) -> str:
        """The finding in words."""
        if self.conclusive:
            return REASONS[self.reason]
        times = "once" if self.times == 1 else f"{self.times} times"
        return f"measured slower {times} ({_MEASURED[self.reason]}); not conclusive"


def slow_hosts(record: RunRecord) -> list[SlowHost]:
    """Return the hosts that process 0 found slower in its comparisons (event `pace`), conclusive findings first."""
    paces = [event for events in record.events.values() for event in events if event.name == "pace"]
    comparisons: dict[tuple[str, str], list[tuple[float, float, bool]]] = {}
    for event in paces:
        named = event.details.get("slow")
        for one in named if isinstance(named, list) else []:
            host, reason = one.get("host"), one.get("reason")
            if isinstance(host, str) and reason in REASONS:
                measured = _number(one.get("own")), _number(one.get("median"))
                comparisons.setdefault((host, reason), []).append((*measured, one.get("conclusive") is True))
    lines = [
        SlowHost(
            host=host,
            reason=reason,
            times=len(times),
            comparisons=len(paces),
            own=sum(own for own, _, _ in times) / len(times),
            median=sum(median for _, median, _ in times) / len(times),
            conclusive=any(conclusive for _, _, conclusive in times),
        )
        for (host, reason), times in comparisons.items()
    ]
    return sorted(lines, key=lambda line: (not line.conclusive, (line.median - line.own) * line.times))


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else 0.0
