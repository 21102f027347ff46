"""Record of a run: its output files, read into one frozen `RunRecord` (files: docs/environment.md).

Hosts may be killed while they write: a line may be incomplete, a file or the whole folder may be missing.
Unreadable lines are counted in `damaged_lines`, never guessed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

from xpk.jobs.output import slices
from xpk.jobs.output.json_lines import TIMES, parse, read_number, read_whole
from xpk.jobs.report import foundings
from xpk.jobs.report.incarnations import Life, number_lives

# Limits of valid values: a line beyond these is counted as damaged.
_SECONDS = (-1e9, 1e9)
_MAX_ATTEMPTS = 1_000_000
_MAX_HOSTS = 1_000_000


class Reader(Protocol):
    """Access to the files of one run, such as a `xpk.storage.Folder`."""

    def read(self, path: str) -> bytes | None:
        """Return a file's content; None when there is no such file."""
        ...

    def read_all(self, folder: str) -> dict[str, bytes]:
        """Return name and content of the files right inside a folder, by name."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One finished step. `time`: Unix seconds at its end; `seconds`: its duration."""

    time: float
    attempt: int
    step: int
    loss: float
    seconds: float
    grad_norm: float | None = None
    learning_rate: float | None = None
    tokens_per_second: float | None = None
    images_per_second: float | None = None
    pairs_per_second: float | None = None
    examples_per_second: float | None = None
    mfu: float | None = None
    chip_gib: float | None = None  # peak memory of a chip of slice 0 host 0
    host_gib: float | None = None  # resident memory of the process of slice 0 host 0
    data_seconds: float = 0.0  # part of `seconds` in which the slowest host waited for its batch
    count: int = 1  # steps since the line before; only programs other than the trainer do not log each step
    has_loss: bool = True
    numbers: Mapping[str, float] = field(default_factory=dict)  # other quantities that such a program has logged


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalRecord:
    """One evaluation. `time` is Unix seconds at its end."""

    time: float
    attempt: int
    step: int
    loss: float
    tokens: int | None = None


Line = TypeVar("Line", StepRecord, EvalRecord)


@dataclass(frozen=True, slots=True, order=True)
class HostId:
    """A host: its slice and its index in that slice, both from 0."""

    slice: int
    host: int

    def __str__(self) -> str:
        return f"slice {self.slice} host {self.host}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """An event of one host. `time`: Unix seconds at its end; `seconds`: its duration, if it has one."""

    time: float
    name: str
    host: HostId
    attempt: int
    step: int | None = None
    seconds: float | None = None
    details: Mapping[str, Any] = field(default_factory=dict)
    life: int = 0  # with elastic slices: number of the process among those of its slice


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """All records of a run.

    An `attempt` here is one incarnation of the whole job; its number increases with time. The trainer's own number
    (`restart_counts`, by attempt) stays the same after a suspension and restarts at 0 after a deletion and a resume.
    With elastic slices, an attempt lasts as long as any slice is active (foundings.py).

    `steps` and `evals` are those in effect, by step; `lost_steps` are finished steps undone by a restart, in the order
    of writing: a step is lost once a later attempt restored from an earlier step, or finished it again.
    """

    steps: tuple[StepRecord, ...] = ()
    lost_steps: tuple[StepRecord, ...] = ()
    evals: tuple[EvalRecord, ...] = ()
    lost_evals: tuple[EvalRecord, ...] = ()
    events: Mapping[HostId, tuple[Event, ...]] = field(default_factory=dict)
    restart_counts: Mapping[int, int] = field(default_factory=dict)
    result: Mapping[str, Any] | None = None
    damaged_lines: int = 0
    changes: tuple[slices.SlicesChange, ...] = ()  # of the active slices, in the order of time

    @property
    def is_elastic(self) -> bool:
        """True if slices join and leave while the others continue."""
        return bool(self.changes)

    def restart_count(self, attempt: int) -> int:
        """Return the trainer's own number of an attempt."""
        return self.restart_counts.get(attempt, attempt)

    @property
    def attempts(self) -> tuple[int, ...]:
        """Numbers of the attempts with any record, ascending."""
        numbers = {line.attempt for line in (*self.steps, *self.lost_steps)}
        numbers.update(event.attempt for events in self.events.values() for event in events)
        return tuple(sorted(numbers))

    @property
    def finished(self) -> bool:
        """True if the result belongs to the last attempt, and not to an earlier one whose run was extended."""
        if self.result is None or not self.steps:
            return False
        newest = self.steps[-1]
        return newest.attempt == self.attempts[-1] and newest.step == self.result.get("steps")

    @property
    def empty(self) -> bool:
        """True if nothing has been recorded."""
        return not self.attempts and not self.evals


def read_record(reader: Reader) -> RunRecord:
    """Read a run's files; any of them may be missing."""
    lines, damaged = _lines(reader.read("metrics.jsonl"))
    steps = list(filter(None, map(_step, lines)))
    evals = list(filter(None, map(_eval, lines)))
    damaged += sum(("loss" in line) + ("eval_loss" in line) for line in lines) - len(steps) - len(evals)
    events: dict[HostId, list[Event]] = {}
    for name, content in sorted(reader.read_all("events").items()):
        if name.endswith(".jsonl"):
            host_lines, host_damaged = _lines(content)
            host_events = list(filter(None, map(_event, host_lines)))
            damaged += host_damaged + sum("event" in line for line in host_lines) - len(host_events)
            for event in host_events:
                events.setdefault(event.host, []).append(event)
    events = {host: _without_replaced(listed) for host, listed in events.items()}
    changes = slices.read_changes(reader.read(slices.FILE) or b"") if foundings.is_elastic(events) else []
    if changes:
        lives = {host: lives_of_host(listed) for host, listed in events.items()}
        restart_counts, events, steps, evals = foundings.renumbered(events, lives, steps, evals)
    else:
        restart_counts, events, steps, evals = _renumbered(events, steps, evals)
    restored = _restored_steps(events)
    counting_steps, lost_steps = split_lost(steps, restored)
    counting_evals, lost_evals = split_lost(evals, restored)
    return RunRecord(
        steps=counting_steps,
        lost_steps=lost_steps,
        evals=counting_evals,
        lost_evals=lost_evals,
        events={host: tuple(events[host]) for host in sorted(events)},
        restart_counts=restart_counts,
        result=_result(reader.read("result.json")),
        damaged_lines=damaged,
        changes=tuple(sorted(changes, key=lambda change: change.time)),
    )


def _lines(content: bytes | None) -> tuple[list[dict[str, Any]], int]:
    """Return the objects of a JSON-lines file and the number of damaged lines."""
    objects, damaged = [], 0
    for line in (content or b"").split(b"\n"):
        if not line.strip():
            continue
        parsed = parse(line)
        if parsed is None:
            damaged += 1
            # The next attempt appends to an incomplete line: its own first line is complete.
            parsed = parse(line[line.rfind(b'{"') :])
        if parsed is not None:
            objects.append(parsed)
    return objects, damaged


def _result(content: bytes | None) -> Mapping[str, Any] | None:
    return None if content is None else parse(content)


def _loss(line: Mapping[str, Any], key: str) -> float | None:
    """Return the loss of a line, NaN if it is not finite, None if the line has none."""
    if key not in line:
        return None
    value = read_number(line, key)
    return float("nan") if value is None else value


def _step(line: Mapping[str, Any]) -> StepRecord | None:
    time, step, loss = read_number(line, "time", TIMES), read_whole(line, "step"), _loss(line, "loss")
    if time is None or step is None or loss is None:
        return None
    usage = line.get("memory")
    memory: Mapping[str, Any] = usage if isinstance(usage, dict) else {}
    return StepRecord(
        time=time,
        attempt=read_whole(line, "attempt", _MAX_ATTEMPTS) or 0,
        step=step,
        loss=loss,
        seconds=max(0.0, read_number(line, "step_seconds", _SECONDS) or 0.0),
        grad_norm=read_number(line, "grad_norm"),
        learning_rate=read_number(line, "learning_rate"),
        tokens_per_second=read_number(line, "tokens_per_second"),
        images_per_second=read_number(line, "images_per_second"),
        pairs_per_second=read_number(line, "pairs_per_second"),
        examples_per_second=read_number(line, "examples_per_second"),
        mfu=read_number(line, "mfu"),
        chip_gib=read_number(memory, "chip_gib"),
        host_gib=read_number(memory, "host_gib"),
        data_seconds=max(0.0, read_number(line, "data_seconds", _SECONDS) or 0.0),
    )


def _eval(line: Mapping[str, Any]) -> EvalRecord | None:
    time, step, loss = read_number(line, "time", TIMES), read_whole(line, "step"), _loss(line, "eval_loss")
    if time is None or step is None or loss is None:
        return None
    return EvalRecord(
        time=time,
        attempt=read_whole(line, "attempt", _MAX_ATTEMPTS) or 0,
        step=step,
        loss=loss,
        tokens=read_whole(line, "eval_tokens"),
    )


_EVENT_KEYS = frozenset({"time", "event", "slice", "host", "attempt", "step", "seconds"})


def _event(line: Mapping[str, Any]) -> Event | None:
    time, name = read_number(line, "time", TIMES), line.get("event")
    slice_id, host = read_whole(line, "slice", _MAX_HOSTS), read_whole(line, "host", _MAX_HOSTS)
    if time is None or not isinstance(name, str) or slice_id is None or host is None:
        return None
    return Event(
        time=time,
        name=name,
        host=HostId(slice_id, host),
        attempt=read_whole(line, "attempt", _MAX_ATTEMPTS) or 0,
        step=read_whole(line, "step"),
        seconds=read_number(line, "seconds", _SECONDS),
        details={key: value for key, value in line.items() if key not in _EVENT_KEYS},
    )


_Begins = Mapping[int, Life]  # by attempt: its begin and the trainer's number


def _renumbered(
    events: Mapping[HostId, list[Event]], steps: list[StepRecord], evals: list[EvalRecord]
) -> tuple[dict[int, int], dict[HostId, list[Event]], list[StepRecord], list[EvalRecord]]:
    """Return the trainer's numbers by attempt, and all records with the attempt in place of the trainer's number."""
    lives_of = {host: lives_of_host(host_events) for host, host_events in events.items()}
    attempts = {life.attempt for lives, _ in lives_of.values() for life in lives}
    hosts = [*(lives for lives, _ in lives_of.values()), _lives_without_events(attempts, steps, evals)]
    numbers = number_lives(hosts)
    numbered = [
        pair
        for lives, life_numbers in zip(hosts, numbers, strict=True)
        for pair in zip(life_numbers, lives, strict=True)
    ]
    first: dict[int, Life] = {}
    for number, life in sorted(numbered, key=lambda pair: (pair[0], pair[1].begin)):
        first.setdefault(number, life)
    # The trainer's own numbers are kept as long as they increase.
    names: list[int] = []
    for life in first.values():
        names.append(max(life.attempt, names[-1] + 1 if names else 0))
    begins = dict(zip(names, first.values(), strict=True))
    renumbered = {
        host: [
            replace(event, attempt=names[life_numbers[life]]) for event, life in zip(events[host], life_of, strict=True)
        ]
        for (host, (_, life_of)), life_numbers in zip(lives_of.items(), numbers, strict=False)
    }
    counts = {name: life.attempt for name, life in begins.items()}
    return counts, renumbered, _placed(steps, begins), _placed(evals, begins)


def _lives_without_events(
    known_attempts: Set[int], steps: Sequence[StepRecord], evals: Sequence[EvalRecord]
) -> list[Life]:
    """Return attempts that only the metrics have, since their events are lost, as lives of one more host."""
    begins: dict[int, float] = {}
    attempts = [(line.attempt, line.time - line.seconds) for line in steps]
    for attempt, begin in attempts + [(line.attempt, line.time) for line in evals]:
        begins[attempt] = min(begin, begins.get(attempt, begin))
    in_time = sorted(begins.items(), key=lambda item: item[1])
    return [Life(begin=begin, attempt=attempt) for attempt, begin in in_time if attempt not in known_attempts]


def _without_replaced(events: list[Event]) -> list[Event]:
    """Return a host's events without those of a process that had already been replaced.

    A node that was considered dead may return; its processes then detect that the others have gone.
    """
    newest, live = -1, []
    for event, life in zip(events, lives_of_host(events)[1], strict=True):
        newest = max(newest, life)
        if life == newest:
            live.append(event)
    return live


def lives_of_host(events: Sequence[Event]) -> tuple[list[Life], list[int]]:
    """Return the processes of a host and, for each event in the order of writing, the index of its process.

    A process begins with its `start` event; without a readable start, with a new attempt number.
    """
    lives: list[Life] = []
    life_of: list[int] = []
    for event in events:
        candidates = [index for index, life in enumerate(lives) if life.attempt == event.attempt]
        if event.name == "start" or not candidates:
            lives.append(Life(begin=event.time - (event.seconds or 0.0), attempt=event.attempt))
            candidates.append(len(lives) - 1)
        index = candidates[-1]
        life_of.append(index)
        if event.name == "init" and lives[index].up is None:
            lives[index] = replace(lives[index], up=event.time)
    return lives, life_of


def _placed(lines: Sequence[Line], begins: _Begins) -> list[Line]:
    """Return metrics with their attempt: the last that had begun, among those with the same number of the trainer."""
    same: dict[int, list[int]] = {}
    for number, life in begins.items():
        same.setdefault(life.attempt, []).append(number)
    placed = []
    for line in lines:
        numbers = same[line.attempt]
        start = [number for number in numbers if begins[number].begin <= line.time]
        placed.append(replace(line, attempt=max(start, default=numbers[0])))
    return placed


def _restored_steps(events: Mapping[HostId, Sequence[Event]]) -> dict[int, int]:
    """Return, for each attempt that restored, the step from which it resumed."""
    restored: dict[int, int] = {}
    for event in (event for host_events in events.values() for event in host_events):
        if event.name == "restore" and event.step is not None:
            restored[event.attempt] = min(event.step, restored.get(event.attempt, event.step))
    return restored


def _later_restore(restored: Mapping[int, int]) -> dict[int, int]:
    """Return, for each attempt, the lowest step from which a later one resumed, if any."""
    lowest: dict[int, int] = {}
    low: int | None = None
    for attempt in range(max(restored, default=-1), -1, -1):
        if low is not None:
            lowest[attempt] = low
        if attempt in restored:
            low = restored[attempt] if low is None else min(low, restored[attempt])
    return lowest


def split_lost(lines: list[Line], restored: Mapping[int, int]) -> tuple[tuple[Line, ...], tuple[Line, ...]]:
    """Split lines, in the order of writing, into those in effect (by step) and lost ones."""
    later = _later_restore(restored)
    last_line = {line.step: index for index, line in enumerate(lines)}
    counting: list[Line] = []
    lost: list[Line] = []
    for index, line in enumerate(lines):
        counts = last_line[line.step] == index and line.step <= later.get(line.attempt, line.step)
        (counting if counts else lost).append(line)
    return tuple(sorted(counting, key=lambda line: line.step)), tuple(lost)
