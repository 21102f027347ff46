"""Stragglers of a run: hosts that slow down the others."""

from __future__ import annotations

import math
from dataclasses import dataclass

from xpk.jobs.report.record import RunRecord

REASONS = {"data": "waits for its data", "host": "is slow to dispatch steps", "chip": "has slow chips"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowHost:
    """A host that the trainer found slower than the median host by a statistical test.

    The test names no host in 999 of 1,000 attempts without a slow one. `own` and `median`: seconds of this and the
    median host, of a step, or (chip) of equal matrix products; medians of the last 20 comparisons when last named.
    """

    host: str  # host, such as `s1/h0`
    reason: str  # cause of the delay: data, host or chip
    times: int  # number of comparisons in which it was named
    comparisons: int  # number of all comparisons
    own: float  # median seconds of this host
    median: float  # median seconds of the median host

    @property
    def finding(self) -> str:
        """The finding in words."""
        return REASONS[self.reason]


def slow_hosts(record: RunRecord) -> list[SlowHost]:
    """Return the hosts that process 0 named as slow (event `pace`), the greatest total delay first."""
    paces = [event for events in record.events.values() for event in events if event.name == "pace"]
    named: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for event in paces:
        slow = event.details.get("slow")
        for one in slow if isinstance(slow, list) else []:
            if not isinstance(one, dict) or one.get("conclusive") is False:  # earlier versions noted every slower host
                continue
            host, reason = one.get("host"), one.get("reason")
            if isinstance(host, str) and reason in REASONS:
                measured = _number(one.get("own")), _number(one.get("median"))
                named.setdefault((host, reason), []).append(measured)
    lines = [
        SlowHost(
            host=host, reason=reason, times=len(times), comparisons=len(paces), own=times[-1][0], median=times[-1][1]
        )
        for (host, reason), times in named.items()
    ]
    return sorted(lines, key=lambda line: (line.median - line.own) * line.times)


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else 0.0
