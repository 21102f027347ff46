"""Account of a workload, from its objects and its output folder."""

from __future__ import annotations

import itertools
import math
import shlex
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from xpk.jobs.output.intervals import ChosenIntervals
from xpk.jobs.output.roots import OutputRoots
from xpk.jobs.report.goodput import attempts, goodput, lost_steps, recovery_seconds
from xpk.jobs.report.intervals import chosen_intervals
from xpk.jobs.report.page import ReportFacts, render_report
from xpk.jobs.report.programs import read_folder
from xpk.jobs.report.record import RunRecord
from xpk.jobs.report.restart_lines import RestartFact
from xpk.jobs.report.slice_losses import seconds_on_fewer
from xpk.jobs.report.stragglers import SlowHost, slow_hosts
from xpk.model.accelerators import find_shape
from xpk.model.errors import NotFoundError, XpkError
from xpk.model.status import WorkloadStatus
from xpk_shared.percentiles import percentiles


@dataclass(frozen=True, slots=True)
class Account:
    """A run and its key figures; `-o json` prints `figures`."""

    record: RunRecord
    facts: ReportFacts
    figures: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Key figures of a run."""

    workload: str  # name of the workload
    state: str  # phase of the workload
    slices: int  # number of requested slices
    hosts: int  # hosts of all slices
    steps: int  # number of the newest step
    step_seconds: dict[str, float]  # p50, p90, p99 and max seconds of a step; empty before the first step
    slow_hosts: list[SlowHost]  # stragglers, the greatest delay first
    restarts: int  # restarts of the JobSet, of single slices and in place
    lost_steps: int  # finished steps undone by restarts
    recovery_seconds: float | None  # seconds of the slowest recovery; with --kill-time, of the one from that time
    initial_loss: float | None  # loss of the first recorded step
    final_loss: float | None  # loss of the newest step
    eval_loss: float | None  # loss of the newest evaluation
    goodput: float  # share of the wall time in productive steps, 0 to 1
    wall_seconds: float  # seconds since the first start
    seconds_by_cause: dict[str, float]  # seconds by cause; they sum to `wall_seconds`
    chosen_intervals: ChosenIntervals | None  # checkpoint intervals that the run has chosen; null if they are fixed
    fewer_slices_seconds: float | None  # seconds of training on fewer slices; null unless slices are elastic


def account(status: WorkloadStatus, cluster: str, roots: OutputRoots, *, kill_time: float | None = None) -> Account:
    """Return the account of a workload. `kill_time` (Unix seconds): the time at which a drill killed a host.

    Raises NotFoundError if there is no output yet, or if it is not accessible from here, ConflictError if the folder is
    not the workload's, XpkError if it cannot be read.
    """
    folder = roots.to_read(status)
    record = read_folder(folder) if folder else RunRecord()
    if record.empty:
        problem = f"has logged no step to {status.output_dir} yet" if status.output_dir else "has no output folder"
        if record.damaged_lines:
            problem = f"has logged no step with a time: {record.damaged_lines} lines have none, or are damaged"
        raise NotFoundError(
            f"workload '{status.name}' {problem}",
            hint="`xpk docs how-to/show-progress` shows how a program logs its steps",
            resource=f"JobSet '{status.name}'",
        )
    shape = find_shape(status.accelerator_type)
    facts = ReportFacts(
        workload=status.name,
        cluster=cluster,
        accelerator=status.accelerator_type,
        slices=status.num_slices,
        hosts_per_slice=status.hosts_per_slice,
        chips_per_host=shape.chips_per_host,
        state=str(status.phase),
        command=status.command,
        config=_settings(status.command),
        restarts=tuple(
            RestartFact(cause=item.cause, time=_unix(item.time), slice=item.slice) for item in status.restart_history
        ),
        kill_time=kill_time,
        end=None if status.phase.is_final else time.time(),
        written=time.time(),
    )
    return Account(record, facts, asdict(_figures(status, record, facts)))


def write_page(account: Account, file: Path, others: Sequence[Account] = ()) -> Path:
    """Write the report, compared with other runs, and return its path. Raises XpkError if it cannot be written."""
    try:
        text = render_report(account.record, account.facts, [(one.record, one.facts) for one in others])
        file.write_text(text, encoding="utf-8")
    except (OSError, ValueError) as error:
        raise XpkError(
            f"cannot write {file}: {getattr(error, 'strerror', None) or error}", hint="choose another --file"
        ) from error
    return file


def _figures(status: WorkloadStatus, record: RunRecord, facts: ReportFacts) -> Figures:
    steps, evals = record.steps, record.evals
    losses = [line.loss for line in steps if line.has_loss]
    spent = goodput(record, end=facts.end)
    return Figures(
        workload=status.name,
        state=str(status.phase),
        slices=status.num_slices,
        hosts=status.num_hosts,
        steps=steps[-1].step if steps else 0,
        step_seconds=percentiles(line.seconds for line in steps),
        slow_hosts=slow_hosts(record),
        restarts=status.restarts,
        lost_steps=lost_steps(record),
        recovery_seconds=recovery_seconds(record, kill_time=facts.kill_time),
        initial_loss=_finite(losses[0]) if losses else None,
        final_loss=_finite(losses[-1]) if losses else None,
        eval_loss=_finite(evals[-1].loss) if evals else None,
        goodput=round(spent.goodput, 4),
        wall_seconds=spent.wall / 1e6,
        seconds_by_cause={str(cause): spent.seconds(cause) for cause in spent.microseconds},
        chosen_intervals=chosen_intervals(record),
        fewer_slices_seconds=round(seconds_on_fewer(record, attempts(record), end=facts.end), 3)
        if record.is_elastic
        else None,
    )


def _finite(loss: float) -> float | None:
    """Return a loss for JSON: None unless it is finite."""
    return loss if math.isfinite(loss) else None


def _settings(command: tuple[str, ...]) -> dict[str, str]:
    """Return the trainer's `--config` and `--set` values from its command line."""
    settings: dict[str, str] = {}
    for flag, value in itertools.pairwise(command):
        if flag == "--config":
            settings["config"] = value
        elif flag == "--set":
            key, _, setting = value.partition("=")
            settings[key] = setting
    return settings or {"command": shlex.join(command)}


def _unix(stamp: str) -> float | None:
    try:
        return datetime.fromisoformat(stamp).timestamp()
    except ValueError:
        return None
