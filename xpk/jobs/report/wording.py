"""The words and numbers that people read in a report."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime

from xpk.jobs.report.goodput import Cause

CAUSE_NAMES: Mapping[Cause, str] = {
    Cause.STEPS: "Steps that count",
    Cause.LOST: "Lost steps",
    Cause.INIT: "Initialisation",
    Cause.DATA: "Data",
    Cause.DATA_WAIT: "Waiting for data",
    Cause.RESTORE: "Restore",
    Cause.COMPILE: "Compilation",
    Cause.SAVE: "Saving",
    Cause.EVAL: "Evaluation",
    Cause.DOWN: "Down",
    Cause.SUSPENDED: "Suspended",
    Cause.IDLE: "Idle",
}
# Written into the bars of the timeline, so that no phase is told by its colour alone.
SHORT_NAMES: Mapping[Cause, str] = {
    Cause.STEPS: "steps",
    Cause.LOST: "lost",
    Cause.INIT: "init",
    Cause.DATA: "data",
    Cause.RESTORE: "restore",
    Cause.COMPILE: "compile",
    Cause.SAVE: "save",
    Cause.EVAL: "eval",
    Cause.DOWN: "down",
    Cause.SUSPENDED: "suspended",
}
CAUSE_EXPLANATIONS: Mapping[Cause, str] = {
    Cause.STEPS: "training that is in the final state",
    Cause.LOST: "steps that a restart undid and that were finished again",
    Cause.INIT: "from process start until all hosts are connected",
    Cause.DATA: "making the corpus ready",
    Cause.DATA_WAIT: "steps that could not begin: some host had not read its part of the batch yet",
    Cause.RESTORE: "putting the state in place, fresh or from a checkpoint",
    Cause.COMPILE: "compiling the step, or loading it from the cache",
    Cause.SAVE: "training stood still for a checkpoint",
    Cause.EVAL: "evaluation on held-out data",
    Cause.DOWN: "from the last sign of work before a restart to the next start",
    Cause.SUSPENDED: "waiting while suspended, preempted or not yet resumed: nothing was broken",
    Cause.IDLE: "chips were held and none of the above went on: between phases, and the shutdown",
}


def duration(seconds: float) -> str:
    """Write a duration with two or three significant digits: 340 ms, 9.8 s, 1 min 23 s, 3 h 12 min."""
    if seconds < 0:
        return "−" + duration(-seconds)
    if round(seconds, 3) < 1:
        return f"{seconds * 1000:.0f} ms" if seconds >= 0.0005 else "0 s"
    if round(seconds, 1) < 60:
        return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 48 * 3600:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def clock(time: float) -> str:
    """Write Unix seconds as a date and time in UTC."""
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def loss(value: float) -> str:
    """Write a loss with four significant digits at least two of them decimals."""
    if not math.isfinite(value):
        return "not finite"
    return f"{value:.4f}" if abs(value) < 10 else f"{value:,.2f}"


def percent(share: float) -> str:
    """Write a share of 0 to 1 in percent with one decimal."""
    return f"{share * 100:.1f} %"


def count(number: int, one: str, many: str = "") -> str:
    """Write a number with its noun: 1 slice, 2 slices."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"
