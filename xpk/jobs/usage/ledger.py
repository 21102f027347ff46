"""The usage ledger: files that are written once, in a folder for each month.

A file is named after the newest time in it, so that a reading skips the months before. Writers never change a file of
another one. Records of two writers may overlap; each moment of a workload, and of the capacity, counts once.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TypeVar

from xpk.model.usage import (
    MICROSECONDS,
    Capacity,
    Causes,
    DamagedError,
    Hold,
    Record,
    State,
    decode,
    encode,
    file_name,
    time_name,
)
from xpk.storage import Folder

_FIRST = (2025, 1)  # no version has written a ledger before
_DAY = 86400 * MICROSECONDS  # by which the clock of a writer may be ahead
_SHOWN = 3  # damaged files that a problem names

Interval = TypeVar("Interval", Hold, Capacity)


@dataclass(slots=True)
class Ledger:
    """Records in the order of their times, without overlaps. `problems`: one line for each kind of damage.

    `quota_names`: see `xpk.api.usage.quota_names`.
    """

    holds: list[Hold] = field(default_factory=list)
    capacities: list[Capacity] = field(default_factory=list)
    causes: dict[str, Causes] = field(default_factory=dict)  # by the UID of the workload
    problems: list[str] = field(default_factory=list)
    quota_names: dict[tuple[str, str], str] = field(default_factory=dict)

    def quota_of(self, hold: Hold) -> str:
        """Return the name of the quota that a workload uses."""
        return self.quota_names.get((hold.namespace, hold.queue), hold.queue)

    def holds_of(self) -> dict[str, list[Hold]]:
        """Return the holds of each workload, by its UID."""
        by_uid: dict[str, list[Hold]] = {}
        for hold in self.holds:
            by_uid.setdefault(hold.uid, []).append(hold)
        return by_uid


def read(folder: Folder, *, since: int, until: int, more: Iterable[Record] = ()) -> Ledger:
    """Return the records that may overlap an interval, in Unix microseconds, and `more` that are not in files yet.

    Files that are damaged or newer than this version are left out and reported in `problems`. Raises XpkError if the
    folder cannot be read.
    """
    records, damaged = list[Record](), dict[str, list[str]]()
    for month in _months(since, until):
        for name, content in folder.read_all(month, first=time_name(since)).items():
            if not name.endswith(".json"):
                continue
            try:
                records += decode(content)
            except DamagedError as error:
                damaged.setdefault(error.message, []).append(f"{month}/{name}")
    return assemble([*records, *more], [_problem(folder, why, files) for why, files in damaged.items()])


def assemble(records: Iterable[Record], problems: Sequence[str] = ()) -> Ledger:
    """Return a ledger of these records, in the order in which they were written: an earlier one is better informed."""
    ledger = Ledger(problems=list(problems))
    holds: dict[str, list[Hold]] = {}
    capacities: list[Capacity] = []
    for record in records:
        if isinstance(record, Hold):
            holds.setdefault(record.uid, []).append(record)
        elif isinstance(record, Capacity):
            capacities.append(record)
        elif record.uid not in ledger.causes or record.end > ledger.causes[record.uid].end:
            ledger.causes[record.uid] = record
    ledger.holds = [hold for of_workload in holds.values() for hold in _of_workload(of_workload)]
    ledger.holds.sort(key=lambda hold: (hold.begin, hold.uid))
    ledger.capacities = without_overlaps(capacities)
    return ledger


def write(folder: Folder, records: Sequence[Record], *, now: int) -> None:
    """Write records into a new file. Raises XpkError if it cannot be written."""
    if records:
        folder.write(file_name(max(now, *(record.end for record in records)), secrets.token_hex(6)), encode(records))


def without_overlaps(intervals: Iterable[Interval]) -> list[Interval]:
    """Return intervals of one thing in order of time; of overlapping ones, the first of the argument keeps its time."""
    kept: list[Interval] = []
    for interval in intervals:
        if not kept or kept[-1].end <= interval.begin:
            kept += [interval] if interval.begin < interval.end else []
            continue
        parts = list(gaps(interval.begin, interval.end, kept))
        if parts:
            kept += [replace(interval, begin=begin, end=end) for begin, end in parts]
            kept.sort(key=lambda one: one.begin)
    return kept


def gaps(begin: int, end: int, intervals: Iterable[Interval]) -> Iterator[tuple[int, int]]:
    """Yield the parts of [begin, end] outside of intervals, which are in order."""
    at = begin
    for interval in intervals:
        if at < min(interval.begin, end):
            yield at, min(interval.begin, end)
        at = max(at, interval.end)
    if at < end:
        yield at, end


def _of_workload(holds: Iterable[Hold]) -> list[Hold]:
    """Return the holds of one workload without overlaps. A writer may have missed that it left the queue."""
    by_state: dict[bool, list[Hold]] = {True: [], False: []}
    for hold in holds:
        by_state[hold.state is State.QUEUED].append(hold)
    held = without_overlaps(by_state[False])
    queued = [
        replace(hold, begin=begin, end=end)
        for hold in without_overlaps(by_state[True])
        for begin, end in gaps(hold.begin, hold.end, held)
    ]
    return sorted([*held, *queued], key=lambda hold: hold.begin)


def _months(since: int, until: int) -> list[str]:
    """Return the folders with records that may overlap an interval; those that end later are in the next months."""
    first, last = (datetime.fromtimestamp(time / MICROSECONDS, UTC) for time in (since, until + _DAY))
    year, month = max((first.year, first.month), _FIRST)
    months = []
    while (year, month) <= (last.year, last.month):
        months.append(f"{year}-{month:02d}")
        year, month = (year, month + 1) if month < 12 else (year + 1, 1)
    return months


def _problem(folder: Folder, why: str, files: Sequence[str]) -> str:
    shown = ", ".join(files[:_SHOWN]) + (f" and {len(files) - _SHOWN} more" if len(files) > _SHOWN else "")
    records = "a usage record is" if len(files) == 1 else f"{len(files)} usage records are"
    return f"{records} left out: {why} ({shown} in {folder.url})"
