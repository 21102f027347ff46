"""Forecast of the end of a run, from the rate at which it has advanced with its restarts. Pure functions."""

from __future__ import annotations

from xpk.jobs.report.goodput import Cause, goodput
from xpk.jobs.report.record import RunRecord


def run_pace(record: RunRecord, *, end: float | None = None) -> float | None:
    """Return the seconds for which a run has needed one step, None before its second step.

    They are counted from the first finished step to `end` [default: the last one]: with lost steps and the time of
    restarts, without the time in which the run was suspended, and without the start of its first attempt.
    """
    finished = [*record.steps, *record.lost_steps]
    if not finished:
        return None
    first, last = min(finished, key=lambda line: line.time), record.steps[-1] if record.steps else None
    if last is None or last.step <= first.step:
        return None
    seconds = (last.time if end is None else end) - first.time - goodput(record).seconds(Cause.SUSPENDED)
    return seconds / (last.step - first.step) if seconds > 0 else None
