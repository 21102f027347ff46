"""The workloads of a ledger as a trace, which `xpk queue simulate --replay` reads."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from xpk.api.text import counted
from xpk.jobs.usage.ledger import Ledger
from xpk.model.accelerators import find_shape
from xpk.model.errors import UsageError
from xpk.model.usage import MICROSECONDS, Hold, State

WAITING_SECONDS = 86400.0  # assumed duration of workloads that have not started yet
_DIGITS = 3  # of times in seconds
_LEFT_OUT = {
    "canceled": "canceled while queued",
    "queue": "without a queue",
    "type": "without a known accelerator type",
}


@dataclass(frozen=True, slots=True)
class Trace:
    """A trace as JSON Lines. `assumptions`: one line each."""

    lines: tuple[str, ...]
    assumptions: tuple[str, ...]


def trace_of(ledger: Ledger, since: int, until: int) -> Trace:
    """Return the workloads of [since, until], in Unix microseconds: those on chips first, then in order of creation."""
    rows, reasons = list[tuple[tuple[bool, int, str], str]](), dict[str, int]()
    num_cut = num_waiting = 0
    for uid, holds in ledger.holds_of().items():
        part = [hold for hold in holds if hold.begin < until and hold.end > since]
        if not part:
            continue
        held = [hold for hold in part if hold.state is not State.QUEUED]
        is_waiting = not held and part[-1].end >= until - MICROSECONDS
        slices = _slices(holds)
        reason = "" if held or is_waiting else "canceled"
        reason = "queue" if not part[-1].queue else "type" if not slices else reason
        if reason:
            reasons[reason] = reasons.get(reason, 0) + 1
            continue
        num_waiting += is_waiting
        num_cut += bool(held) and (held[0].begin < since or held[-1].end >= until - MICROSECONDS)
        is_first = bool(held) and held[0].begin <= since
        rows.append(((not is_first, part[0].created, uid), _line(part[0], slices, held, since, until)))
    lines = tuple(line for _, line in sorted(rows))
    return Trace(lines, tuple(_assumptions(num_cut, num_waiting, reasons)) if lines else ())


def _line(first: Hold, slices: int, held: Sequence[Hold], since: int, until: int) -> str:
    """Return a workload as a line; its time on chips outside of the interval does not count."""
    microseconds = sum(min(hold.end, until) - max(hold.begin, since) for hold in held)
    row = {
        "name": first.workload,
        "namespace": first.namespace,
        "queue": first.queue,
        "type": first.accelerator_type,
        "slices": slices,
        "submit": round(max(0, first.created - since) / MICROSECONDS, _DIGITS),
        "seconds": round(microseconds / MICROSECONDS, _DIGITS) if held else WAITING_SECONDS,
    }
    return json.dumps(row)


def _slices(holds: Sequence[Hold]) -> int:
    """Return the slices of a workload, 0 for an unknown accelerator type. While it stops, it holds fewer and fewer."""
    largest = max(holds, key=lambda hold: hold.chips)
    try:
        return largest.chips // find_shape(largest.accelerator_type).chips
    except UsageError:
        return 0


def _assumptions(num_cut: int, num_waiting: int, reasons: dict[str, int]) -> list[str]:
    lines = ["the ledger has no priorities: all workloads have the default, medium"]
    if num_cut:
        lines.append(f"{counted(num_cut, 'workload')} also ran outside of the interval: that time does not count")
    if num_waiting:
        lines.append(f"{counted(num_waiting, 'queued workload')}: assumed to run for 1d")
    return lines + [f"left out: {counted(number, 'workload')} {_LEFT_OUT[key]}" for key, number in reasons.items()]
