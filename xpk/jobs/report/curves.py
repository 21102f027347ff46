"""Loss curves of the report: steps, failures and gaps in data units."""

from __future__ import annotations

import math
from dataclasses import dataclass

from xpk.jobs.report.charts import Plot, Point, Series
from xpk.jobs.report.goodput import Attempt, Goodput, Recovery
from xpk.jobs.report.record import RunRecord, StepRecord
from xpk.jobs.report.slice_losses import SliceLoss
from xpk.jobs.report.wording import duration, loss


@dataclass(frozen=True, slots=True)
class Run:
    """A record and the values derived from it. `origin`: the first start in Unix seconds, 0 of all relative times."""

    record: RunRecord
    attempts: tuple[Attempt, ...]
    account: Goodput
    recoveries: tuple[Recovery, ...]
    origin: float
    losses: tuple[SliceLoss, ...] = ()  # of elastic slices, while others continued

    @property
    def wall(self) -> float:
        """Seconds from the first start to the end."""
        return self.account.wall / 1_000_000


def _lost_runs(run: Run) -> list[list[StepRecord]]:
    """Return the lost steps of each attempt, preceded by the last step that the curves share."""
    productive = {line.step: line for line in run.record.steps}
    by_attempt: dict[int, list[StepRecord]] = {}
    for line in run.record.lost_steps:
        by_attempt.setdefault(line.attempt, []).append(line)
    runs = []
    for lines in by_attempt.values():
        before = productive.get(lines[0].step - 1)
        runs.append([before, *lines] if before and before.attempt == lines[0].attempt else lines)
    return runs


def _failures(run: Run) -> list[tuple[Attempt, str]]:
    """Return the attempts that failed and were restarted, with labels for the charts."""
    words = {"preempted": "SIGTERM", "failed": "failed", "host lost": "lost"}
    return [
        (
            attempt,
            f"{attempt.cause_host} {words[attempt.ended]}"
            if attempt.cause_host
            else {"preempted": "SIGTERM"}.get(attempt.ended, "failure"),
        )
        for attempt in run.attempts[:-1]
        if attempt.ended in words
    ]


def _step_text(line: StepRecord, *, lost: bool = False) -> str:
    return f"step {line.step:,} · loss {loss(line.loss)}{' · lost' if lost else ''}"


def loss_by_step(run: Run) -> Plot:
    """Return the loss over steps: productive steps as one curve, lost steps behind it."""
    steps = run.record.steps
    lost = _lost_runs(run)
    series = [Series("lost-halo", [(line.step, line.loss) for line in lines]) for lines in lost]
    series.append(Series("steps", [(line.step, line.loss) for line in steps]))
    series += [Series("lost", [(line.step, line.loss) for line in lines]) for lines in lost]
    return Plot(
        label="Loss over steps",
        x_title="step",
        series=series,
        marks=[
            ("eval", one.step, one.loss, f"evaluation at step {one.step:,}: {loss(one.loss)}")
            for one in run.record.evals
            if math.isfinite(one.loss)
        ],
        rules=[
            *((float(one.last_step), f"✕ {text}") for one, text in _failures(run) if one.last_step is not None),
            *((float(loss.step), _loss_label(loss)) for loss in run.losses if loss.step is not None),
        ],
        hover=[(line.step, line.loss, _step_text(line)) for line in steps if math.isfinite(line.loss)],
    )


def loss_by_time(run: Run) -> Plot:
    """Return the loss over wall time, with gaps without a finished step."""

    def point(line: StepRecord) -> Point:
        """Return the point of a step: seconds since the first start, loss."""
        return line.time - run.origin, line.loss

    productive: dict[int, list[StepRecord]] = {}
    for line in run.record.steps:
        productive.setdefault(line.attempt, []).append(line)
    lost = _lost_runs(run)
    series = [Series("lost-halo", [point(line) for line in lines]) for lines in lost]
    series += [Series("steps", [point(line) for line in lines]) for lines in productive.values()]
    series += [Series("lost", [point(line) for line in lines]) for lines in lost]
    hover = [(line, False) for line in run.record.steps] + [(line, True) for line in run.record.lost_steps]
    return Plot(
        label="Loss over wall time",
        x_title="time since the first start",
        times=True,
        series=series,
        marks=[
            ("eval", one.time - run.origin, one.loss, f"evaluation at step {one.step:,}: {loss(one.loss)}")
            for one in run.record.evals
            if math.isfinite(one.loss)
        ],
        rules=failure_rules(run),
        bands=gaps(run),
        hover=[
            (*point(line), f"{duration(line.time - run.origin)} · {_step_text(line, lost=is_lost)}")
            for line, is_lost in sorted(hover, key=lambda pair: pair[0].time)
            if math.isfinite(line.loss)
        ],
    )


def failure_time(run: Run, attempt: Attempt) -> float:
    """Return the time of an attempt's failure in seconds since the first start."""
    for recovery in run.recoveries:
        if recovery.failed_attempt == attempt.number:
            return recovery.since - run.origin
    return attempt.last_work - run.origin


def failure_rules(run: Run) -> list[tuple[float, str]]:
    """Return the time of each attempt's failure in seconds since the first start, with its label."""
    failures = [(failure_time(run, attempt), f"✕ {text}") for attempt, text in _failures(run)]
    return failures + [(loss.since - run.origin, _loss_label(loss)) for loss in run.losses]


def active_slices(run: Run) -> Plot:
    """Return the number of active slices over wall time."""
    changes = run.record.changes
    times = [change.time - run.origin for change in changes]
    until = max([*times, run.attempts[-1].last_work - run.origin] if run.attempts else times)
    counts = [len(change.slices) for change in changes]
    corners = [
        point for at, end, count in zip(times, [*times[1:], until], counts, strict=True)
        for point in ((at, count), (end, count))
    ]  # fmt: skip
    return Plot(
        label="Active slices over wall time",
        x_title="time since the first start",
        times=True,
        counts=True,
        series=[Series("steps", [(0.0, 0), (times[0], 0), *corners])],
        hover=[
            (at, count, f"{duration(at)} · {count} of {change.num_slices} slices active after step {change.step:,}")
            for at, count, change in zip(times, counts, changes, strict=True)
        ],
    )


def _loss_label(loss: SliceLoss) -> str:
    return f"✕ slice {loss.slice} " + ("stopped" if loss.ended == "preempted" else "lost")


def gaps(run: Run) -> list[tuple[float, float, str, str]]:
    """Return begin and end of each gap in seconds since the first start, with a label and a title."""
    return [
        (
            one.since - run.origin,
            one.until - run.origin,
            duration(one.seconds),
            f"no step finished for {duration(one.seconds)}",
        )
        for one in run.recoveries
    ]
