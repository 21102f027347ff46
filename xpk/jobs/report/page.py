"""Report page of a run: loss, goodput, hosts and restarts in one self-contained HTML file.

The page fetches no scripts, styles or fonts, so that the file can be mailed. All text from users and runs is escaped.
The template (page.html.j2) draws the values computed here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from xpk.jobs.report.charts import HALF, LOW, NARROW, WIDE, Chart, Frame, Plot, draw
from xpk.jobs.report.comparison import ComparedRun, compared_figures, comparison_plots
from xpk.jobs.report.curves import Run, active_slices, failure_rules, gaps, loss_by_step, loss_by_time
from xpk.jobs.report.goodput import Attempt, Cause, Goodput, Recovery, attempts, goodput, recoveries
from xpk.jobs.report.key_figures import Figure, key_figures
from xpk.jobs.report.record import RunRecord
from xpk.jobs.report.restart_lines import RestartFact, restart_lines
from xpk.jobs.report.signals import signal_plots
from xpk.jobs.report.slice_losses import seconds_on_fewer, slice_losses
from xpk.jobs.report.stragglers import slow_hosts
from xpk.jobs.report.timeline import Timeline, draw_timeline, lives
from xpk.jobs.report.wording import CAUSE_EXPLANATIONS, CAUSE_NAMES, clock, count, duration, percent


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportFacts:
    """Facts that are not in the run's own files. Times are Unix seconds."""

    workload: str
    cluster: str
    accelerator: str
    slices: int
    hosts_per_slice: int
    chips_per_host: int
    state: str
    command: Sequence[str] = ()
    config: Mapping[str, str] = field(default_factory=dict)  # settings by name
    restarts: Sequence[RestartFact] = ()  # in order
    kill_time: float | None = None  # the time at which a drill killed a host
    end: float | None = None  # now, for a running workload
    written: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One line of the goodput or of the recovery table; `share` is of the whole, 0 to 1."""

    meaning: str
    name: str
    seconds: str
    share: float
    percent: str
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryView:
    """One recovery and its phases."""

    title: str
    seconds: str
    parts: tuple[Part, ...]


def render_report(record: RunRecord, facts: ReportFacts, others: Sequence[tuple[RunRecord, ReportFacts]] = ()) -> str:
    """Return the page for a run, compared with others."""
    run = derive(record, end=facts.end, kill_time=facts.kill_time)
    runs = [(run, facts), *((derive(one, end=more.end), more) for one, more in others)]
    compared = _comparison(runs) if others else {"compared": (), "overlaid": ()}
    return _page().render(_view(run, facts) | compared)


@cache
def _page() -> Template:
    return templates().get_template("page.html.j2")


def derive(record: RunRecord, *, end: float | None, kill_time: float | None = None) -> Run:
    """Return a record with its attempts, goodput up to `end` and recoveries; `kill_time` as in `ReportFacts`."""
    all_attempts = attempts(record)
    return Run(
        record,
        all_attempts,
        goodput(record, end=end),
        recoveries(record, kill_time=kill_time),
        min((attempt.start for attempt in all_attempts), default=0.0),
        slice_losses(record),
    )


def templates(*folders: Path) -> Environment:
    """Return the environment of the report's templates, with those of more folders."""
    return Environment(
        loader=FileSystemLoader([*folders, Path(__file__).parent]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _view(run: Run, facts: ReportFacts) -> dict[str, Any]:
    record = run.record
    return {
        "facts": facts,
        "empty": record.empty,
        "badge": _badge(facts.state),
        "shape": _shape(facts),
        "began": clock(run.origin) if run.attempts else "",
        "wall": duration(run.wall),
        "figures": key_figures(run, len(facts.restarts)) + _slices(run, facts.end),
        "by_step": _both(loss_by_step(run)) if record.steps or record.lost_steps else (),
        "by_time": _both(loss_by_time(run)) if record.steps or record.lost_steps else (),
        "active": _both(active_slices(run)) if record.is_elastic else (),
        "signals": [_both(plot, HALF, LOW) for plot in signal_plots(run)],
        "legend": {
            "lost": bool(record.lost_steps),
            "eval": bool(record.evals),
            "failure": bool(failure_rules(run)),
            "suspension": any(one.waiting for one in run.attempts[:-1]),
        },
        "account": account_parts(run.account),
        "goodput": percent(run.account.goodput),
        "timelines": timelines(run, facts.kill_time),
        "causes": timeline_causes(run.account),
        "slow": slow_hosts(record),
        "recoveries": [_recovery(recovery, run.attempts) for recovery in run.recoveries],
        "restarts": restart_lines(run, facts.restarts),
        "command": " ".join(_shown(part) for part in facts.command),
        "written": clock(facts.written) if facts.written is not None else "",
        "hosts": count(len(record.events), "host"),
        "damaged": count(record.damaged_lines, "damaged line") if record.damaged_lines else "",
    }


def _comparison(runs: Sequence[tuple[Run, ReportFacts]]) -> dict[str, Any]:
    """Return the curves of several runs over each other, and their figures side by side."""
    return {
        "compared": [
            {
                "name": facts.workload,
                "state": facts.state,
                "badge": _badge(facts.state),
                "figures": [("Size", _shape(facts)), *compared_figures(run, len(facts.restarts))],
            }
            for run, facts in runs
        ],
        "overlaid": [
            _both(plot) for plot in comparison_plots([ComparedRun(facts.workload, run) for run, facts in runs])
        ],
    }


def _badge(state: str) -> str:
    return {"Succeeded": "good", "Failed": "bad"}.get(state, "neutral")


def timeline_causes(account: Goodput) -> list[tuple[str, str]]:
    """Return the causes of a timeline's legend: each with its class and its name."""
    return [
        (cause.value, CAUSE_NAMES[cause])
        for cause, spent in account.microseconds.items()
        if spent and cause is not Cause.IDLE
    ]


def _shape(facts: ReportFacts) -> str:
    chips = facts.slices * facts.hosts_per_slice * facts.chips_per_host
    per_host = count(facts.chips_per_host, "chip")
    return (
        f"{count(facts.slices, 'slice')} × {count(facts.hosts_per_slice, 'host')} × {per_host} = {count(chips, 'chip')}"
    )


def _shown(part: str) -> str:
    """Return an argument, quoted if it is empty or contains spaces."""
    return f"'{part}'" if not part or any(char.isspace() for char in part) else part


def _slices(run: Run, end: float | None) -> list[Figure]:
    """Return how many of the elastic slices are active, and the time on fewer."""
    if not run.record.is_elastic:
        return []
    last = run.record.changes[-1]
    fewer = duration(seconds_on_fewer(run.record, run.attempts, end=end))
    return [Figure("Slices", f"{len(last.slices)} of {last.num_slices}", f"{fewer} on fewer")]


def _both(plot: Plot, *frames: Frame) -> tuple[Chart, ...]:
    return tuple(draw(plot, frame) for frame in frames or (WIDE, NARROW))


def account_parts(account: Goodput) -> list[Part]:
    """Return the goodput by cause, without causes of no time."""
    return [
        Part(
            meaning=cause.value,
            name=CAUSE_NAMES[cause],
            seconds=duration(account.seconds(cause)),
            share=account.share(cause),
            percent=percent(account.share(cause)),
            note=CAUSE_EXPLANATIONS[cause],
        )
        for cause in Cause
        if account.microseconds[cause]
    ]


def timelines(
    run: Run, kill_time: float | None = None, frames: Sequence[Frame] = (WIDE, NARROW)
) -> tuple[Timeline, ...]:
    """Return the hosts over wall time, in each frame."""
    rows = lives(run.record, run.attempts, kill_time)
    if not rows:
        return ()
    rules, bands = failure_rules(run), gaps(run)
    return tuple(draw_timeline(rows, run.wall, frame, rules=rules, bands=bands) for frame in frames)


_LEGS: Mapping[str, tuple[str, str, str]] = {
    "detection": ("down", "Detection", "until the first host detected the failure"),
    "teardown": ("down", "Teardown", "until the last host of the failed attempt ended"),
    "start": ("down", "Start", "until all processes of the next attempt had started"),
    "init": ("init", "Initialization", "until all hosts were connected"),
    "data": ("data", "Data", "until the data set was ready"),
    "restore": ("restore", "Restore", "choosing and reading a checkpoint, beyond the time of the compilation"),
    "compile": ("compile", "Compilation", "of the training step and of the broadcast of the state"),
    "first step": ("steps", "First step", "until the first step finished"),
}


_NOTICE_AND_SAVE = ("save", "Notice and save", "until all hosts had received the signal and the checkpoint was saved")


def _recovery(recovery: Recovery, all_attempts: Sequence[Attempt]) -> RecoveryView:
    preempted = any(one.number == recovery.failed_attempt and one.ended == "preempted" for one in all_attempts)
    legs = {**_LEGS, "detection": _NOTICE_AND_SAVE} if preempted else _LEGS
    parts = []
    untold = ""
    for part in recovery.parts:
        meaning, name, note = legs[part.name]
        if part.seconds is None:
            untold += f"{name}, "
            continue
        share = part.seconds / recovery.seconds if recovery.seconds else 0.0
        parts.append(
            Part(
                meaning=meaning,
                name=(untold + name).capitalize() if untold else name,
                seconds=duration(part.seconds),
                share=share,
                percent=percent(share),
                note=note,
            )
        )
        untold = ""
    return RecoveryView(title=f"Restart {recovery.attempt}", seconds=duration(recovery.seconds), parts=tuple(parts))
