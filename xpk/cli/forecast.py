"""Estimated starts of queued workloads as text."""

from __future__ import annotations

from datetime import UTC, datetime

from xpk.cli.terminal.output import duration
from xpk.model.forecast import StartEstimate


def start_words(start: StartEstimate) -> list[str]:
    """Return an estimated start in lines: the time with its interval, the assumptions, and who is preempted."""
    if start.expected is None:
        return [f"no estimate: {start.reason}"]
    lines = [interval(start), *start.rests_on]
    if start.preempts:
        lines.append(f"preempts {', '.join(start.preempts)}")
    return lines


def interval(start: StartEstimate) -> str:
    """Return the time until a start with its bounds: `in 2h00m (1h36m to 2h30m)`; `-` if it does not start."""
    if start.expected is None:
        return "-"
    latest = _until(start.latest) if start.latest else "never"
    bounds = (_until(start.earliest), latest)
    expected = _until(start.expected)
    text = "now" if expected == "now" else f"in {expected}"
    return text if set(bounds) == {expected} else f"{text} ({bounds[0]} to {bounds[1]})"


def _until(time: str | None) -> str:
    """Return the time until an RFC 3339 time."""
    seconds = datetime.fromisoformat(time or "").timestamp() - datetime.now(UTC).timestamp()
    return duration(seconds) if seconds > 1.5 else "now"
