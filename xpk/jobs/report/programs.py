"""Record of a run of any program: of the bundled trainer's files, or of what another program has logged.

The log of another program has lines of steps and, for each attempt, at most its start and the step from which it
resumed. What is not known is left out; events stand for what is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path

from xpk.jobs.output.event_files import all_scalars
from xpk.jobs.output.program_log import FILE, ProgramAttempt, ProgramLog, ProgramStep, read_lines
from xpk.jobs.report.record import EvalRecord, Event, HostId, Reader, RunRecord, StepRecord, read_record, split_lost
from xpk.storage import open_folder

_HOST = HostId(0, 0)  # only this host has a log
_MAX_SCALAR_BYTES = 1 << 30


def read_folder(url: str | Path) -> RunRecord:
    """Read a run's folder, on a disk or in a bucket. Raises as `xpk.storage.Folder` does."""
    folder = open_folder(str(url))
    return read_run(folder, lambda: all_scalars(folder, _MAX_SCALAR_BYTES))


def read_run(reader: Reader, scalars: Callable[[], ProgramLog]) -> RunRecord:
    """Read a run's files; `scalars` reads those of TensorBoard, where there are no others."""
    record = read_record(reader)
    if not record.empty:
        return record
    log = read_lines(reader.read(FILE) or b"")
    other = program_record(log if log.steps else scalars())
    return other if record.damaged_lines == 0 or not other.empty else record


def program_record(log: ProgramLog) -> RunRecord:
    """Return what a program has logged as the record of a run. Lines without a time are left out, and counted."""
    events: list[Event] = []
    steps: list[StepRecord] = []
    evals: list[EvalRecord] = []
    for number, attempt in enumerate(log.attempts):
        after = log.attempts[number + 1] if number + 1 < len(log.attempts) else None
        events += _events(number, attempt, after)
        steps += filter(None, (_step_record(number, step) for step in attempt.steps))
        evals += [
            EvalRecord(time=one.time, attempt=number, step=one.step, loss=math.nan if one.loss is None else one.loss)
            for one in attempt.evals
            if one.time is not None
        ]
    restored = {event.attempt: event.step for event in events if event.name == "restore" and event.step is not None}
    counting_steps, lost_steps = split_lost(steps, restored)
    counting_evals, lost_evals = split_lost(evals, restored)
    return RunRecord(
        steps=counting_steps,
        lost_steps=lost_steps,
        evals=counting_evals,
        lost_evals=lost_evals,
        events={_HOST: tuple(events)} if events else {},
        restart_counts={
            number: number if attempt.number is None else attempt.number for number, attempt in enumerate(log.attempts)
        },
        damaged_lines=log.ignored_lines + len(log.steps) - len(steps),
    )


def _events(number: int, attempt: ProgramAttempt, after: ProgramAttempt | None) -> Iterator[Event]:
    """Yield the start of an attempt, its first step's begin, and its stop if the next one is not a restart."""
    timed = [step for step in attempt.steps if step.time is not None]
    if attempt.started is not None:
        yield Event(time=attempt.started, name="start", host=_HOST, attempt=number)
    if not timed or timed[0].time is None or timed[-1].time is None:
        return
    first = timed[0]
    begun = timed[0].time - (first.seconds or 0.0) * first.count
    if attempt.started is not None:
        seconds = max(0.0, begun - attempt.started)
        yield Event(time=max(begun, attempt.started), name="init", host=_HOST, attempt=number, seconds=seconds)
    resumed = attempt.resumed_step
    if resumed is None and number > 0:
        resumed = max(0, first.step - first.count)
    if resumed is not None:
        yield Event(time=begun, name="restore", host=_HOST, attempt=number, step=resumed)
    numbers = (attempt.number, after.number if after else None)
    if numbers[0] is not None and numbers[1] is not None and numbers[1] <= numbers[0]:
        yield Event(time=timed[-1].time, name="preempt", host=_HOST, attempt=number, step=timed[-1].step)


def _step_record(number: int, step: ProgramStep) -> StepRecord | None:
    if step.time is None:
        return None
    numbers = dict(step.numbers)
    rates = {step.unit: step.throughput}
    if (examples := rates.get("examples/s")) is not None:
        numbers["examples per second"] = examples
    return StepRecord(
        time=step.time,
        attempt=number,
        step=step.step,
        loss=math.nan if step.loss is None else step.loss,
        seconds=step.seconds or 0.0,
        grad_norm=numbers.pop("grad_norm", None),
        learning_rate=numbers.pop("learning_rate", None),
        tokens_per_second=rates.get("tokens/s"),
        mfu=numbers.pop("mfu", None),
        count=step.count,
        has_loss=step.has_loss,
        numbers=numbers,
    )
