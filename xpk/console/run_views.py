"""The page of a run, and the comparison of several, as parts of HTML."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from xpk.console.run_reader import RunView
from xpk.jobs.report import page
from xpk.jobs.report.charts import HALF, LOW, NARROW, WIDE, Frame, draw
from xpk.jobs.report.comparison import ComparedRun, compared_figures, comparison_plots
from xpk.jobs.report.curves import Run, loss_by_step
from xpk.jobs.report.key_figures import key_figures
from xpk.jobs.report.restart_lines import RestartFact, restart_lines
from xpk.jobs.report.signals import signal_plots
from xpk.jobs.report.stragglers import slow_hosts
from xpk.jobs.report.wording import count, duration, percent
from xpk.jobs.status.elastic import waiting_words
from xpk.jobs.status.fields import when
from xpk.model.status import Restart, WorkloadStatus
from xpk.model.terminal import printable

_LOG_WIDTH = 500  # characters of a log line
_NAMED_HOSTS = 12  # that are not up
_RECORD_PARTS = ("loss", "signals", "hosts", "goodput", "slow", "restarts")  # of a page, which records tell


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonRow:
    """Figures of a run among those that it is compared with; `number`: of its curve."""

    number: int
    key: str
    name: str
    status: WorkloadStatus | None
    problem: str
    figures: tuple[tuple[str, str], ...]


def run_parts(markup: Any, view: RunView, is_narrow: bool) -> dict[str, Any]:
    """Return the parts of the page of one run."""
    if view.status is None:
        return {"head": markup.missing(str(view.key), view.problem)}
    run = _derive(view)
    figures = key_figures(run, view.status.restarts) if run else []
    parts = {
        "head": markup.head(view, view.status, figures, _facts(markup, view, view.status)),
        "log": markup.log(view, [printable(line.text, limit=_LOG_WIDTH) for line in view.log]),
    }
    if run is None:  # those of an earlier workload of this name would stay on the page
        return parts | dict.fromkeys(_RECORD_PARTS, "")
    wide, small = (NARROW, LOW) if is_narrow else (WIDE, HALF)
    has_steps = bool(run.record.steps or run.record.lost_steps)
    hosts = count(len(run.record.events), "host")
    restarts = restart_lines(run, [_restart(item) for item in view.status.restart_history])
    return parts | {
        "loss": markup.loss(draw(loss_by_step(run), _few(wide, 300, 100)), run.record) if has_steps else "",
        "signals": markup.signals([draw(plot, _few(small, 120, 40)) for plot in signal_plots(run)]),
        "hosts": markup.hosts(page.timelines(run, frames=(wide,)), page.timeline_causes(run.account), hosts),
        "goodput": markup.goodput(page.account_parts(run.account), percent(run.account.goodput))
        if not view.is_partial
        else markup.too_large(view.key),
        "slow": markup.slow(slow_hosts(run.record)),
        "restarts": markup.restarts(restarts),
    }


def comparison_parts(markup: Any, views: Sequence[RunView], is_narrow: bool) -> dict[str, Any]:
    """Return the curves of several runs over each other, and their figures side by side."""
    runs = [_derive(view) for view in views]
    rows = [
        ComparisonRow(
            number=number,
            key=str(view.key),
            name=view.key.name,
            status=view.status,
            problem=view.problem,
            figures=tuple(_figures(view, run)),
        )
        for number, (view, run) in enumerate(zip(views, runs, strict=True))
    ]
    frame = _few(NARROW if is_narrow else WIDE, 600, 160)
    plots = comparison_plots([ComparedRun(view.key.name, run) for view, run in zip(views, runs, strict=True)])
    return {"comparison": markup.comparison(rows, [draw(plot, frame) for plot in plots])}


def _derive(view: RunView) -> Run | None:
    if view.status is None or view.record is None or view.record.empty:
        return None
    return page.derive(view.record, end=None if view.status.phase.is_final else view.time)


def _few(frame: Frame, points: int, hover_points: int) -> Frame:
    """Return a frame with fewer points, since a chart is sent again after each step."""
    return replace(frame, points=points, hover_points=hover_points)


def _restart(item: Restart) -> RestartFact:
    return RestartFact(cause=item.cause, time=when(item.time).timestamp() if item.time else None, slice=item.slice)


def _facts(markup: Any, view: RunView, status: WorkloadStatus) -> Iterator[tuple[str, str]]:
    """Yield facts of the status: each with its title."""
    size = f"{count(status.num_slices, 'slice')} of {status.accelerator_type or 'unknown type'}"
    yield "Size", f"{size}, {count(status.num_hosts, 'host')}"
    yield "Hosts up", f"{status.num_hosts_up:,} of {status.num_hosts:,}"
    down = [host for host in status.hosts if host.phase not in ("Running", "Succeeded")]
    if down and not status.phase.is_final:
        named = ", ".join(f"{host.label} {host.reason or host.phase}" for host in down[:_NAMED_HOSTS])
        yield "Not up", named + (f" and {len(down) - _NAMED_HOSTS:,} more" if len(down) > _NAMED_HOSTS else "")
    if status.queue:
        place = f", position {status.position}" if status.position else ""
        behind = f" behind {', '.join(status.ahead[:5])}" if status.ahead else ""
        yield "Queue", f"{status.queue}{place}{behind}"
    yield from _start_facts(markup, status)
    for quota in status.quota:
        use = f"{quota.used:g} of {quota.quota:g} {quota.resource} in use"
        yield f"Quota of {quota.flavor}", f"{use}; {quota.needed:g} needed, {quota.free:g} free"
    for trouble in status.troubles[:5]:
        yield "Trouble", str(trouble)
    if view.progress and (slices := view.progress.slices):
        numbers = slices.count, slices.num_slices
        is_waiting = slices.count < slices.min_slices
        yield "Slices", waiting_words(*numbers, slices.min_slices) if is_waiting else "{} of {} active".format(*numbers)
    if view.progress and view.progress.eta_seconds and not status.phase.is_final:
        yield "ETA", duration(view.progress.eta_seconds)
    if view.problem:
        yield "Output", view.problem
    if status.user:
        yield "User", status.user


def _start_facts(markup: Any, status: WorkloadStatus) -> Iterator[tuple[str, str]]:
    start = status.start
    if start is None:
        return
    if start.expected is None:
        yield "Estimated start", f"none: {start.reason}"
        return
    yield "Estimated start", markup.start(start)
    if start.rests_on:
        yield "It rests on", "; ".join(start.rests_on)
    if start.preempts:
        yield "It preempts", ", ".join(start.preempts)


def _figures(view: RunView, run: Run | None) -> Iterator[tuple[str, str]]:
    """Yield the figures in which runs are compared."""
    if view.status is None:
        return
    yield "Hosts", f"{view.status.num_hosts_up:,} of {view.status.num_hosts:,}"
    if run is None:
        yield "Restarts", f"{view.status.restarts:,}"
    else:
        yield from compared_figures(run, view.status.restarts)
