"""Causes of a workload's time, from the records that the bundled trainer leaves in its output folder."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from xpk.jobs.report.goodput import Attempt, Cause, attempts, stretches
from xpk.jobs.report.record import RunRecord
from xpk.model.usage import MICROSECONDS, Causes, Piece

HANG = "hang"
# Time in which no process of the run worked: the state of the workload tells more about it.
ABSENT = frozenset({Cause.DOWN.value, Cause.SUSPENDED.value, HANG})
_LONGEST = 3600 * MICROSECONDS  # of a piece, so that parts of a run are nearly exact


def causes_of(uid: str, record: RunRecord, *, begin: int, end: int) -> Causes:
    """Return the causes of a workload's time from `begin` to `end`, in Unix microseconds; no pieces without records.

    An output folder may hold the runs of several workloads, one after the other.
    """
    hangs = [
        (round(attempt.last_work * MICROSECONDS), round(attempt.end * MICROSECONDS))
        for attempt in attempts(record)
        if _hung(attempt)
    ]
    parts = []
    for cause, first, last in stretches(record):
        first, last = max(first, begin), min(last, end)
        if first < last:
            parts += _without_hangs(cause, first, last, hangs)
    return Causes(uid=uid, end=end, pieces=tuple(_merged(parts)))


def _hung(attempt: Attempt) -> bool:
    return "timed out waiting for" in attempt.reason or "did not answer" in attempt.reason


def _without_hangs(cause: Cause, begin: int, end: int, hangs: Iterable[tuple[int, int]]) -> list[tuple[str, int, int]]:
    """Return a stretch of down time with the part in which hosts waited for one that hung as a cause of its own."""
    if cause is not Cause.DOWN:
        return [(str(cause), begin, end)]
    parts = []
    for first, last in hangs:
        first, last = max(first, begin), min(last, end)
        if first < last:
            parts += [(str(cause), begin, first), (HANG, first, last)]
            begin = last
    return [(name, one, other) for name, one, other in [*parts, (str(cause), begin, end)] if one < other]


def _merged(parts: Iterable[tuple[str, int, int]]) -> Iterator[Piece]:
    """Yield pieces of at most an hour; time without a process is not merged with other time."""
    causes: dict[str, int] = {}
    begin = end = 0
    for cause, first, last in parts:
        while first < last:
            hour_end = (first // _LONGEST + 1) * _LONGEST
            stop = min(last, hour_end)
            is_apart = cause in ABSENT or not ABSENT.isdisjoint(causes)
            if causes and (
                first != end or begin // _LONGEST != first // _LONGEST or (is_apart and cause not in causes)
            ):
                yield Piece(begin, end, causes)
                causes = {}
            if not causes:
                begin = first
            causes[cause] = causes.get(cause, 0) + stop - first
            first = end = stop
    if causes:
        yield Piece(begin, end, causes)
