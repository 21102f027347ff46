"""Progress of programs other than the bundled trainer: what lines of progress.jsonl or scalars say about steps.

docs/environment.md describes the lines. Their content is untrusted: any program may have written them. A line that is
invalid is left out and counted.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from xpk.jobs.output.json_lines import TIMES, parse, read_number, read_whole
from xpk.model.terminal import printable

FILE = "progress.jsonl"
_SECONDS = (0.0, 1e9)
_MAX_ATTEMPTS = 1_000_000
_MAX_NAMES, _MAX_NAME = 12, 40  # other numbers of a run; characters of a name
_UNITS = ("tokens", "examples")
_OWN = {"time", "attempt", "started", "resumed_step", "step", "steps", "loss", "eval_loss", "step_seconds", *_UNITS}


@dataclass(slots=True, kw_only=True)
class ProgramStep:
    """A line about a finished step. It stands for all steps since the line before, which are `count`.

    `time`: Unix seconds at its end, None if the line has none. `seconds`: of one step. `throughput`: in units a second.
    """

    step: int
    time: float | None
    count: int = 1
    seconds: float | None = None
    steps: int | None = None  # of the whole run
    loss: float | None = None  # None if it is not finite, or if there is none
    has_loss: bool = False
    throughput: float | None = None
    unit: str | None = None
    numbers: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramEval:
    """A line about an evaluation. `loss`: None if it is not finite."""

    step: int
    time: float | None
    loss: float | None


@dataclass(slots=True, kw_only=True)
class ProgramAttempt:
    """An attempt: its own number, which need not increase, and what it has logged."""

    number: int | None = None
    started: float | None = None  # Unix seconds
    resumed_step: int | None = None
    steps: list[ProgramStep] = field(default_factory=list)
    evals: list[ProgramEval] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramLog:
    """Everything that a program has logged, by attempts in the order of writing."""

    attempts: tuple[ProgramAttempt, ...] = ()
    ignored_lines: int = 0

    @property
    def steps(self) -> list[ProgramStep]:
        """All steps in the order of writing."""
        return [step for attempt in self.attempts for step in attempt.steps]

    @property
    def pace(self) -> float | None:
        """Seconds from one step to the next in the newest attempt with steps, None if it has too few."""
        for attempt in reversed(self.attempts):
            timed = [step for step in attempt.steps if step.time is not None]
            if not timed:
                continue
            begun, ended, steps = timed[0].time, timed[-1].time, timed[-1].step - timed[0].step
            if begun is None or ended is None or steps < 1 or ended <= begun:
                return None
            return (ended - begun) / steps
        return None


def read_lines(content: bytes) -> ProgramLog:
    """Return what the lines of a progress file say. The last line may be incomplete."""
    lines, ignored = list[dict[str, Any]](), 0
    *whole, last = content.split(b"\n")
    for text in whole:
        line = parse(text)
        if line is not None:
            lines.append(line)
        elif text.strip():
            ignored += 1
    if (line := parse(last)) is not None:
        lines.append(line)
    return program_log(lines, ignored)


def program_log(lines: Iterable[Mapping[str, Any]], ignored: int = 0) -> ProgramLog:
    """Return what lines say, which have the keys of a progress file; `ignored`: number of other lines."""
    attempts, names = list[ProgramAttempt](), set[str]()
    for line in lines:
        step = _whole(line, "step")
        if not attempts or _begins_attempt(attempts[-1], line, step):
            attempts.append(ProgramAttempt())
        attempt, number = attempts[-1], read_whole(line, "attempt", _MAX_ATTEMPTS)
        attempt.number = attempt.number if number is None else number
        if attempt.started is None:
            attempt.started = read_number(line, "started", TIMES)
        resumed = _whole(line, "resumed_step")
        attempt.resumed_step = attempt.resumed_step if resumed is None else resumed
        if step is None:
            ignored += resumed is None and "started" not in line
            continue
        if "eval_loss" in line:
            evaluation = ProgramEval(step=step, time=_time(line), loss=read_number(line, "eval_loss"))
            attempt.evals.append(evaluation)
        if "loss" in line or "eval_loss" not in line:
            _add_step(attempt, line, step, names)
    _complete_first_lines(attempts)
    return ProgramLog(attempts=tuple(attempts), ignored_lines=ignored)


def median(values: Sequence[float]) -> float | None:
    """Return the median, None of no values."""
    return statistics.median(values) if values else None


def _begins_attempt(attempt: ProgramAttempt, line: Mapping[str, Any], step: int | None) -> bool:
    """Return whether a line is of the attempt after `attempt`: by its number or start, without them by its step."""
    number, started = read_whole(line, "attempt", _MAX_ATTEMPTS), read_number(line, "started", TIMES)
    if number is not None and attempt.number is not None:
        is_other_start = None not in (started, attempt.started) and started != attempt.started
        return number != attempt.number or is_other_start
    if started is not None:
        return attempt.started is not None and started != attempt.started
    return bool(number is None and step is not None and attempt.steps and step < attempt.steps[-1].step)


def _add_step(attempt: ProgramAttempt, line: Mapping[str, Any], step: int, names: set[str]) -> None:
    before = attempt.steps[-1] if attempt.steps else None
    if before is not None and before.step == step:  # several lines about one step
        _merge(before, line, names)
        return
    added = ProgramStep(step=step, time=_time(line))
    if before is not None:
        added.count = max(1, step - before.step)
        if before.time is not None and added.time is not None and added.time >= before.time:
            added.seconds = (added.time - before.time) / added.count
    _merge(added, line, names)
    attempt.steps.append(added)


def _merge(step: ProgramStep, line: Mapping[str, Any], names: set[str]) -> None:
    """Add the numbers of a line to its step."""
    stated = read_number(line, "step_seconds", _SECONDS)
    step.seconds = step.seconds if stated is None else stated
    total = _whole(line, "steps")
    step.steps = step.steps if total is None else total
    if "loss" in line:
        step.loss, step.has_loss = read_number(line, "loss"), True
    for unit in _UNITS:
        amount = read_number(line, unit, (0.0, 1e18))
        if amount is not None and step.seconds:
            step.throughput, step.unit = amount / step.seconds, f"{unit}/s"
    for name in line:
        if name in _OWN or (value := read_number(line, name)) is None:
            continue
        shown = printable(name, limit=_MAX_NAME)
        if shown in names or len(names) < _MAX_NAMES:
            names.add(shown)
            step.numbers[shown] = value


def _complete_first_lines(attempts: list[ProgramAttempt]) -> None:
    """Estimate how many steps the first line of each attempt stands for, and their duration: as the other lines do."""
    later = [step for attempt in attempts for step in attempt.steps[1:]]
    stride = round(median([step.count for step in later]) or 1)
    typical = median([step.seconds for step in later if step.seconds is not None])
    for attempt in attempts:
        if not attempt.steps:
            continue
        first, resumed = attempt.steps[0], attempt.resumed_step
        since_resumed = first.step - resumed if resumed is not None and resumed < first.step else stride
        first.count = max(1, min(since_resumed, first.step))
        if first.seconds is None and typical is not None:
            elapsed = None if first.time is None or attempt.started is None else first.time - attempt.started
            first.seconds = typical if elapsed is None else max(0.0, min(typical, elapsed / first.count))


def _time(line: Mapping[str, Any]) -> float | None:
    return read_number(line, "time", TIMES)


def _whole(line: Mapping[str, Any], key: str) -> int | None:
    """Return an integer from 0, which may be written as a float such as 10.0, None for anything else."""
    value = line.get(key)
    return read_whole({key: int(value)} if isinstance(value, float) and value.is_integer() else line, key)
