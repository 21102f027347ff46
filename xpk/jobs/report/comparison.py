"""Several runs over each other and side by side, in the report page and in the console."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from xpk.jobs.report.charts import Plot, Series
from xpk.jobs.report.curves import Run
from xpk.jobs.report.goodput import lost_steps
from xpk.jobs.report.key_figures import key_figures
from xpk.jobs.report.signals import SIGNALS
from xpk.jobs.report.wording import duration, loss, percent

MAX_RUNS = 4  # that are compared with each other: so many curves can be told apart
_STEP_TIME = SIGNALS[0]

_Points = Sequence[tuple[int, float, str]]  # step, value, and the value in words


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """A run with its name; None for one without records."""

    name: str
    run: Run | None


def comparison_plots(runs: Sequence[ComparedRun]) -> list[Plot]:
    """Return loss and step time of the runs over steps, those plots in which a run has two points."""
    plots = [
        _overlaid("Loss over steps", "loss", [(one.name, _losses(one.run)) for one in runs]),
        _overlaid(_STEP_TIME.label, "step time", [(one.name, _step_times(one.run)) for one in runs]),
    ]
    return [plot for plot in plots if plot.series]


def compared_figures(run: Run, restarts: int) -> Iterator[tuple[str, str]]:
    """Yield the figures in which runs are compared, with their names; `restarts`: as the run's objects show."""
    yield "Restarts", f"{restarts:,}"
    for figure in key_figures(run, restarts):
        if figure.name not in ("Restarts", "Recovery"):
            is_speed = figure.name == "Tokens per second" and figure.note.startswith("MFU")
            yield figure.name, figure.value + (f" ({figure.note.partition(';')[0]})" if is_speed else "")
    if lost_steps(run.record):
        causes = [cause for cause in run.account.microseconds if cause in ("lost", "down")]
        yield "Time lost", percent(sum(map(run.account.share, causes)))


def _losses(run: Run | None) -> _Points:
    steps = run.record.steps if run else ()
    return [(step.step, step.loss, loss(step.loss)) for step in steps if math.isfinite(step.loss)]


def _step_times(run: Run | None) -> _Points:
    return [
        (step.step, step.seconds, duration(step.seconds)) for step in (run.record.steps if run else ()) if step.seconds
    ]


def _overlaid(label: str, noun: str, curves: Sequence[tuple[str, _Points]]) -> Plot:
    """Return the curves of several runs in one plot, which is empty unless one of them has two points."""
    hover = [
        (step, value, f"{name} · step {step:,} · {noun} {text}")
        for name, points in curves
        for step, value, text in points
    ]
    return Plot(
        label=label,
        x_title="step",
        series=[
            Series(f"run-{number}", [(step, value) for step, value, _ in points])
            for number, (_, points) in enumerate(curves)
            if len(points) > 1
        ],
        hover=sorted(hover),
    )
