"""How long a run's steps took, and which hosts kept the others waiting."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from xpk.jobs.report.record import RunRecord, StepRecord

REASONS = {"data": "waits for its data", "host": "is busy with other things", "chip": "has slow chips"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowHost:
    """A host that was slower than the median one in `times` of the `comparisons` of all hosts.

    `seconds`: what it cost a step on average over these times, and `share`: of a step.
    """

    host: str
    reason: str
    times: int
    comparisons: int
    seconds: float
    share: float


def percentiles(steps: Iterable[StepRecord]) -> dict[str, float]:
    """Return p50, p90, p99 (nearest rank) and max of the seconds that steps took; nothing of no steps."""
    ordered = sorted(line.seconds for line in steps)
    if not ordered:
        return {}
    ranks = {f"p{n}": ordered[max(0, math.ceil(n / 100 * len(ordered)) - 1)] for n in (50, 90, 99)}
    return {name: round(value, 4) for name, value in (ranks | {"max": ordered[-1]}).items()}


def slow_hosts(record: RunRecord) -> list[SlowHost]:
    """Return the hosts that process 0 named in its comparisons (event `pace`), those that cost most in all first."""
    told = [event for events in record.events.values() for event in events if event.name == "pace"]
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for event in told:
        step_seconds = _number(event.details.get("step_seconds"))
        named = event.details.get("slow")
        for one in named if isinstance(named, list) else []:
            host, reason, seconds = one.get("host"), one.get("reason"), _number(one.get("seconds"))
            if isinstance(host, str) and reason in REASONS and seconds > 0:
                share = seconds / step_seconds if step_seconds else 0.0
                found.setdefault((host, reason), []).append((seconds, share))
    lines = [
        SlowHost(
            host=host,
            reason=reason,
            times=len(costs),
            comparisons=len(told),
            seconds=sum(seconds for seconds, _ in costs) / len(costs),
            share=sum(share for _, share in costs) / len(costs),
        )
        for (host, reason), costs in found.items()
    ]
    return sorted(lines, key=lambda line: -line.seconds * line.times)


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else 0.0
