"""Traces of submitted workloads as JSON Lines, replayed under the quotas of a cluster."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from xpk.api.text import rfc3339
from xpk.jobs.simulation.estimates import STOP_SECONDS, loop_lines, refused_lines
from xpk.jobs.simulation.scenario import Entry, Scenario
from xpk.jobs.simulation.what_if import NewWorkload, entry_of, priority_of
from xpk.local.simulation import Course, Job, Simulation
from xpk.model import names
from xpk.model.errors import UsageError, XpkError
from xpk.model.forecast import QueueForecast, ReplayedQueue

_FIELDS = {
    "name": str,
    "namespace": str,
    "queue": str,
    "type": str,
    "slices": int,
    "priority": (str, int),
    "submit": (int, float),
}
_REQUIRED = ("name", "slices", "submit", "seconds")
_SHOWN = 10


def read_trace(path: Path, scenario: Scenario) -> tuple[Scenario, dict[str, float]]:
    """Return the scenario with a trace's workloads instead of its own, and their durations in seconds, by turn.

    Raises XpkError if the file cannot be read, UsageError with the problems of its first invalid lines.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        hint = "pass a file of JSON Lines; `xpk docs queues` shows the format"
        raise XpkError(f"cannot read '{path}': {reason}", hint=hint) from error
    problems, entries, durations = list[str](), list[Entry](), dict[str, float]()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            entry, seconds = _entry(scenario, _row(line), number)
        except UsageError as error:
            problems.append(f"line {number}: {error.message}")
            continue
        entries.append(entry)
        durations[entry.turn] = seconds
    if problems:
        more = [f"and {len(problems) - _SHOWN} more lines"] if len(problems) > _SHOWN else []
        raise UsageError(f"'{path}' is not a trace", problems=[*problems[:_SHOWN], *more], hint="`xpk docs queues`")
    if not entries:
        raise UsageError(f"'{path}' has no workloads", hint="`xpk docs queues` shows the format")
    return replace(scenario, entries=tuple(entries)), durations


def replay(scenario: Scenario, durations: dict[str, float]) -> QueueForecast:
    """Return waits and preemptions of a trace's workloads."""
    jobs = [
        Job(
            uid=entry.turn,
            queue=entry.queue,
            priority=entry.priority,
            needs=entry.needs,
            seconds=durations[entry.turn],
            arrival=entry.arrival,
        )
        for entry in scenario.entries
    ]
    simulation = Simulation(scenario.queues, jobs, shared=scenario.shared, stop_seconds=STOP_SECONDS)
    courses = simulation.run()
    ends = [course.end for course in courses.values() if course.end is not None]
    begin = min(entry.arrival for entry in scenario.entries)
    return QueueForecast(
        time=rfc3339(datetime.fromtimestamp(scenario.time, UTC)),
        pending=(),
        preemptions=(),
        durations={},
        changes=scenario.changes,
        refused=tuple(refused_lines(scenario)),
        replayed=tuple(_queue(name, scenario.entries, courses) for name in sorted(scenario.queues)),
        loops=loop_lines(simulation, {entry.turn: entry.label for entry in scenario.entries}),
        replayed_seconds=round(max(ends, default=begin) - begin, 1),
    )


def _queue(name: str, entries: Iterable[Entry], courses: Mapping[str, Course]) -> ReplayedQueue:
    own = [(entry, courses[entry.turn]) for entry in entries if entry.queue == name]
    waits = sorted(course.starts[0].time - entry.arrival for entry, course in own if course.starts)
    return ReplayedQueue(
        queue=names.QUEUE if name == names.CLUSTER_QUEUE else name,
        workloads=len(own),
        started=len(waits),
        wait_mean=round(statistics.fmean(waits), 1) if waits else None,
        wait_50=_percentile(waits, 50),
        wait_90=_percentile(waits, 90),
        wait_max=_percentile(waits, 100),
        preemptions=sum(len(course.stops) for _, course in own),
    )


def _percentile(values: Sequence[float], percent: int) -> float | None:
    """Return the smallest of the sorted values that `percent` of them do not exceed."""
    return round(values[max(0, -(-len(values) * percent // 100) - 1)], 1) if values else None


def _row(line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        raise UsageError("not a JSON object") from None
    if not isinstance(row, dict):
        raise UsageError("not a JSON object")
    kinds: dict[str, Any] = {**_FIELDS, "seconds": (int, float)}
    if unknown := [key for key in row if key not in kinds]:
        raise UsageError(f"unknown field '{unknown[0]}'; fields are {', '.join(kinds)}")
    if missing := [key for key in _REQUIRED if key not in row]:
        raise UsageError(f"missing {', '.join(missing)}")
    for key, value in row.items():
        if not isinstance(value, kinds[key]) or isinstance(value, bool):
            raise UsageError(f"{key} has a wrong type: {json.dumps(value)[:40]}")
    for key in ("submit", "seconds", "slices"):
        if not 0 <= row[key] < 1e12 or (key == "slices" and row[key] < 1):
            raise UsageError(f"{key} must be at least {int(key == 'slices')} and less than 1e12, got {row[key]}")
    return row


def _entry(scenario: Scenario, row: dict[str, Any], number: int) -> tuple[Entry, float]:
    workload = NewWorkload(
        name=row["name"],
        namespace=row.get("namespace", ""),
        slices=row["slices"],
        queue=row.get("queue", names.QUEUE),
        type=row.get("type", ""),
        priority=priority_of(str(row.get("priority", "medium"))),
        arrival=float(row["submit"]),
    )
    entry = entry_of(scenario, workload)
    return replace(entry, turn=f"{workload.arrival:017.3f}/{number:09d}/{workload.name}"), float(row["seconds"])
