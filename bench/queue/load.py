"""The submitted workloads, and what was observed of each.

The classes are those of one queue of Kueue's own scalability test (test/performance/scheduler): their numbers,
intervals, durations, priorities and sizes, and a quota of 20.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

QUOTA = 20  # slices of one host
CHIPS = 4  # of each slice


@dataclass(frozen=True, slots=True)
class Class:
    """Equal workloads. `interval`: seconds between two of them; `slices`: of each; `seconds`: how long each runs."""

    name: str
    count: int
    interval: float
    seconds: float
    priority: int
    slices: int


CLASSES = (
    Class("small", 350, 0.1, 0.2, 50, 1),
    Class("medium", 100, 0.5, 0.5, 100, 5),
    Class("large", 50, 1.2, 1.0, 200, QUOTA),
)


@dataclass(slots=True)
class Entry:
    """One workload, with times of time.monotonic."""

    name: str
    kind: Class
    due: float  # seconds after the start at which it is submitted
    created: float = 0.0
    admitted: list[float] = field(default_factory=list)
    evicted: list[float] = field(default_factory=list)
    finished: float = 0.0

    @property
    def runs(self) -> bool:
        """Return whether it is admitted now."""
        return len(self.admitted) > len(self.evicted) and not self.finished


class Log:
    """All workloads by name, in order of submission. Any thread may write."""

    def __init__(self, share: float) -> None:
        self.lock = threading.Lock()
        entries = [
            Entry(f"{kind.name}-{number}", kind, number * kind.interval)
            for kind in CLASSES
            for number in range(max(1, round(kind.count * share)))
        ]
        self.entries = {entry.name: entry for entry in sorted(entries, key=lambda entry: entry.due)}

    @property
    def is_done(self) -> bool:
        """Return whether every workload has finished."""
        return all(entry.finished for entry in self.entries.values())

    def note(self, name: str, *, admitted: bool) -> bool:
        """Record whether a workload is admitted now; return whether that has changed."""
        entry = self.entries[name]
        with self.lock:
            if entry.finished or entry.runs == admitted:
                return False
            (entry.admitted if admitted else entry.evicted).append(time.monotonic())
            return True

    def summary(self) -> dict[str, Any]:
        """Return the measurements; seconds."""
        entries = list(self.entries.values())
        start = min(entry.created for entry in entries)
        makespan = max(entry.finished for entry in entries) - start
        used = sum(entry.kind.slices * _held(entry) for entry in entries)
        admissions = sum(len(entry.admitted) for entry in entries)
        return {
            "workloads": len(entries),
            "makespan": round(makespan, 2),
            "admissions": admissions,
            "admissions_per_second": round(admissions / makespan, 2),
            "preemptions": sum(len(entry.evicted) for entry in entries),
            "average_use_of_quota": round(used / (QUOTA * makespan), 3),
            "classes": {kind.name: _waits([e for e in entries if e.kind is kind]) for kind in CLASSES},
        }


def shortest(share: float) -> float:
    """Return the seconds that the workloads need at least: the quota is in use without a gap."""
    return sum(max(1, round(kind.count * share)) * kind.seconds * kind.slices for kind in CLASSES) / QUOTA


def _held(entry: Entry) -> float:
    ends = [*entry.evicted, entry.finished]
    return sum(end - begin for begin, end in zip(entry.admitted, ends, strict=True))


def _waits(entries: Iterable[Entry]) -> dict[str, Any]:
    """Return the times until the first admission, and how many workloads started again after a preemption."""
    items = list(entries)
    waits = sorted(entry.admitted[0] - entry.created for entry in items)
    return {
        "workloads": len(items),
        "wait_mean": round(statistics.fmean(waits), 2),
        "wait_median": round(statistics.median(waits), 2),
        "wait_95": round(waits[min(len(waits) - 1, int(0.95 * len(waits)))], 2),
        "wait_most": round(waits[-1], 2),
        "preempted": sum(bool(entry.evicted) for entry in items),
    }
