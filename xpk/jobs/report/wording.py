"""Labels and number formats of the report."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime

from xpk.jobs.report.goodput import Cause

CAUSE_NAMES: Mapping[Cause, str] = {
    Cause.STEPS: "Productive steps",
    Cause.LOST: "Lost steps",
    Cause.INIT: "Initialization",
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
# Labels of the timeline's bars, so that phases are not distinguished by color alone.
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
    Cause.STEPS: "training steps that are part of the final state",
    Cause.LOST: "steps undone by a restart and repeated",
    Cause.INIT: "from process start until all hosts are connected",
    Cause.DATA: "preparing the data set",
    Cause.DATA_WAIT: "steps delayed until all hosts had read their part of the batch",
    Cause.RESTORE: "initializing the state, or restoring it from a checkpoint",
    Cause.COMPILE: "compiling the training step, or loading it from the cache",
    Cause.SAVE: "training blocked by saving a checkpoint",
    Cause.EVAL: "evaluation on held-out data",
    Cause.DOWN: "from the last progress before a restart to the next start",
    Cause.SUSPENDED: "suspended, preempted or not yet resumed; not an error",
    Cause.IDLE: "chips held without any of the above: between phases, and shutdown",
}


def duration(seconds: float) -> str:
    """Format a duration with two or three significant digits: 340 ms, 9.8 s, 1 min 23 s, 3 h 12 min."""
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
    """Format Unix seconds as a date and time in UTC."""
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def loss(value: float) -> str:
    """Format a loss with four decimals, from 10 on with two."""
    if not math.isfinite(value):
        return "not finite"
    return f"{value:.4f}" if abs(value) < 10 else f"{value:,.2f}"


def percent(share: float) -> str:
    """Format a share of 0 to 1 in percent with one decimal."""
    return f"{share * 100:.1f} %"


def count(number: int, one: str, many: str = "") -> str:
    """Format a number with its noun: 1 slice, 2 slices."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"
