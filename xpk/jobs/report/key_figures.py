"""Key figures of a run, as the report page, the console and comparisons show them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from xpk.jobs.report.curves import Run
from xpk.jobs.report.goodput import lost_steps
from xpk.jobs.report.intervals import chosen_intervals
from xpk.jobs.report.record import StepRecord
from xpk.jobs.report.wording import count, duration, loss, percent
from xpk_shared.percentiles import percentiles


@dataclass(frozen=True, slots=True)
class Figure:
    """A key figure: name, value, and a note for comparison."""

    name: str
    value: str
    note: str


def key_figures(run: Run, restarts: int) -> list[Figure]:
    """Return the key figures of a run; `restarts` is the number that its objects show."""
    record, steps = run.record, run.record.steps
    figures = []
    if losses := [line for line in steps if line.has_loss]:
        figures.append(Figure("Loss", loss(losses[-1].loss), f"from {loss(losses[0].loss)} at step {losses[0].step}"))
    if record.evals:
        last = record.evals[-1]
        tokens = f", {last.tokens:,} tokens" if last.tokens else ""
        figures.append(Figure("Evaluation loss", loss(last.loss), f"at step {last.step:,}{tokens}"))
    if steps:
        repeated = sum(line.count for line in record.lost_steps)
        executed = f"{sum(line.count for line in steps) + repeated:,} executed" + (
            f", {repeated:,} repeated" if repeated else ""
        )
        figures.append(Figure("Steps", f"{steps[-1].step:,}", executed))
        took = percentiles(line.seconds for line in steps)
        rest = ", ".join(f"{name} {duration(took[name])}" for name in ("p90", "p99", "max"))
        figures.append(Figure("Median step", duration(took["p50"]), rest))
        figures += _speed(steps)
    figures.append(Figure("Goodput", percent(run.account.goodput), f"of {duration(run.wall)} wall time"))
    lost = lost_steps(record)
    note = "undone by a restart and repeated" if lost else "no step was repeated"
    waits = sum(one.waiting for one in run.attempts[:-1])
    lives = count(len(run.attempts), "attempt") + (f", {waits} suspended" if waits else "")
    lives += f", {len(run.losses)} of single slices" if run.losses else ""
    figures.append(Figure("Restarts", str(max(restarts, len(run.attempts) - 1 - waits + len(run.losses))), lives))
    figures.append(Figure("Lost steps", f"{lost:,}", note))
    if run.recoveries:
        slowest = max(run.recoveries, key=lambda recovery: recovery.seconds)
        which = "" if len(run.recoveries) == 1 else "slowest: "
        figures.append(Figure("Recovery", duration(slowest.seconds), f"{which}from failure to next step"))
    return figures + _intervals(run)


def _intervals(run: Run) -> list[Figure]:
    """Return the checkpoint interval that the run has chosen."""
    chosen = chosen_intervals(run.record)
    if chosen is None:
        return []
    long = f", {duration(chosen.every_seconds)}" if chosen.every_seconds is not None else ""
    local = f", local ones every {chosen.local_every:,}" if chosen.local_every else ""
    value = f"{chosen.every:,} steps"
    return [Figure("Checkpoint interval", value, f"chosen after step {chosen.step:,}{long}{local}")]


def _speed(steps: Sequence[StepRecord]) -> list[Figure]:
    speeds = [line.tokens_per_second for line in steps if line.tokens_per_second is not None]
    if not speeds:
        return []
    # On CPUs the MFU is 0 or relative to an assumed peak, which is not worth showing.
    shares = [line.mfu for line in steps if line.mfu is not None and line.mfu >= 0.001]
    note = f"MFU {percent(statistics.median(shares))}; medians" if shares else "median over the steps"
    return [Figure("Tokens per second", f"{statistics.median(speeds):,.0f}", note)]
