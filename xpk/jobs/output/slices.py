"""Record of the active slices of an elastic run: slices.jsonl, one line for each change (docs/environment.md).

Its content is untrusted: any program may have written it. An invalid line is omitted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from xpk.api.text import rfc3339
from xpk.jobs.output.json_lines import TIMES, parse, read_number, read_whole
from xpk.model.specs import MAX_SLICES

FILE = "slices.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlicesChange:
    """A change of the active slices. `time`: Unix seconds; `step`: the last finished step."""

    time: float
    step: int
    slices: frozenset[int]
    num_slices: int
    min_slices: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InactiveSlice:
    """A slice that is not active. `since` and `step` are null if it has never been active."""

    slice: int  # number of the slice
    since: str | None  # time at which it was lost; null if it has not been active
    step: int | None  # last finished step before it was lost; null if it has not been active


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveSlices:
    """The slices of an elastic run that train now."""

    active: tuple[int, ...]  # numbers of the active slices
    count: int  # number of active slices
    num_slices: int  # number of slices with which the run was created
    min_slices: int  # slices that are required; with fewer the run waits
    since: str  # time of the last change
    inactive: tuple[InactiveSlice, ...]  # slices that are not active


def read_changes(content: bytes) -> list[SlicesChange]:
    """Return the changes in the order of writing."""
    return list(filter(None, map(_change, content.split(b"\n"))))


def active_slices(changes: Sequence[SlicesChange]) -> ActiveSlices | None:
    """Return the active slices after the last of the changes, None without one."""
    if not changes:
        return None
    last, lost = changes[-1], dict[int, SlicesChange]()
    before: frozenset[int] = frozenset()
    for change in changes:
        lost |= dict.fromkeys(before - change.slices, change)
        before = change.slices
    inactive = [(number, lost.get(number)) for number in range(last.num_slices) if number not in last.slices]
    return ActiveSlices(
        active=tuple(sorted(last.slices)),
        count=len(last.slices),
        num_slices=last.num_slices,
        min_slices=last.min_slices,
        since=_date(last.time),
        inactive=tuple(_inactive(number, change) for number, change in inactive),
    )


def _inactive(number: int, loss: SlicesChange | None) -> InactiveSlice:
    if loss is None:
        return InactiveSlice(slice=number, since=None, step=None)
    return InactiveSlice(slice=number, since=_date(loss.time), step=loss.step)


def _change(line: bytes) -> SlicesChange | None:
    row = parse(line) or {}
    time, step = read_number(row, "time", TIMES), read_whole(row, "step")
    count, minimum = read_whole(row, "num_slices", MAX_SLICES), read_whole(row, "min_slices", MAX_SLICES)
    listed = row.get("slices")
    if time is None or step is None or not count or not minimum or minimum > count or not isinstance(listed, list):
        return None
    numbers = [read_whole({"slice": number}, "slice", count - 1) for number in listed[: count + 1]]
    valid = frozenset(number for number in numbers if number is not None)
    if len(valid) != len(listed):
        return None
    return SlicesChange(time=time, step=step, slices=valid, num_slices=count, min_slices=minimum)


def _date(seconds: float) -> str:
    return rfc3339(datetime.fromtimestamp(seconds, UTC))
