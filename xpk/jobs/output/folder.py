"""Output folder of a workload, on a disk or in a bucket: progress, removal, and moving aside.

The progress of the bundled trainer is in metrics.jsonl, that of other programs in progress.jsonl or in event files.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from xpk.api.text import rfc3339
from xpk.jobs.output import event_files, slices
from xpk.jobs.output.intervals import ChosenIntervals
from xpk.jobs.output.json_lines import TIMES, parse, read_number, read_whole
from xpk.jobs.output.program_log import FILE as PROGRESS_FILE
from xpk.jobs.output.program_log import ProgramLog, median, read_lines
from xpk.model import names
from xpk.model.errors import OutputExists, TimedOutError, UsageError, XpkError
from xpk.model.specs import Target
from xpk.storage import Folder, address_problems, in_bucket, open_folder

Found = TypeVar("Found")

_TAIL = 16 * 1024  # bytes that always contain the last step's line
_LONG_TAIL = 2 << 20  # bytes: more than a line may have
_SLICES_TAIL = 64 * 1024  # bytes: hundreds of changes of the active slices
_FEW_FILES = 1000
_PATIENCE = 3.0  # seconds that a command waits for a bucket that is not its main purpose


@dataclass(frozen=True, slots=True)
class Progress:
    """The newest recorded step of a run. Rates are medians over the newest steps."""

    step: int  # number of the step
    loss: float | None  # loss; null if it is not finite, or if the program logs none
    step_seconds: float | None = None  # seconds of a step
    replacements: int = 0  # restarts of all trainers by Ray's driver, without the JobSet
    total_steps: int | None = None  # number of steps of the run
    throughput: float | None = None  # throughput of all hosts, in `throughput_unit`
    throughput_unit: str | None = None  # unit: tokens/s, images/s or examples/s
    eta_seconds: float | None = None  # seconds until step `total_steps`, at the recent rate
    ignored_lines: int = 0  # number of damaged or foreign lines among the newest
    goodput: float | None = None  # share of the run's wall time in productive steps; null if its records were not read
    slices: slices.ActiveSlices | None = None  # active slices; null unless slices are elastic
    has_loss: bool = True  # whether a loss is logged
    time: str | None = None  # time of the end of the step
    ends: str | None = None  # time at which the last step will be done, at the recent rate; null unless it runs
    ends_latest: str | None = None  # the same at the rate of the whole run, with its restarts; null if not later
    intervals: ChosenIntervals | None = None  # checkpoint intervals that the run has chosen; null if they are fixed


def at_root(target: Target, root: str | None) -> Target:
    """Return a target whose workloads write below `root`; None keeps its own output root.

    Raises UsageError for a root that its hosts cannot reach.
    """
    if root is None:
        return target
    if problems := address_problems(root):
        raise UsageError(
            problems[0], problems=[f"--output-root: {problem}" for problem in problems], hint="use gs://BUCKET/PATH"
        )
    if in_bucket(root):
        return replace(target, output_root=root.rstrip("/"))
    folder = Path(os.path.abspath(Path(root).expanduser()))
    shared = target.shared_folder
    if not target.on_this_machine and not (shared and folder.is_relative_to(shared)):
        raise UsageError(
            f"--output-root: hosts of this cluster cannot access {folder}",
            hint=f"use gs://BUCKET/PATH, or a folder below {shared}" if shared else "use gs://BUCKET/PATH",
        )
    return replace(target, output_root=str(folder))


def existing_output(folder: Folder, name: str) -> OutputExists:
    """Return the error for existing output, which a new workload of the same name would resume by accident."""
    progress = _progress(folder)
    reached = f" (it reached step {progress.step})" if progress else ""
    return OutputExists(
        f"output of an earlier workload '{name}' already exists{reached}: {folder.url}",
        hint="--resume continues from its newest checkpoint, --fresh moves it aside; or choose another name",
        resource=folder.url,
    )


def has_only_lease(folder: Folder) -> bool:
    """Return whether the lease of a workload that never ran is all that is in a folder."""
    files = folder.find("", _FEW_FILES)
    return bool(files) and all(file.name.startswith(names.LEASE_FILE) for file in files)


def move_aside(folder: Folder, name: str) -> str:
    """Rename a workload's output folder and return the new name. Raises XpkError if it cannot be moved."""
    aside = f"{name}.{time.strftime('%Y%m%d-%H%M%S')}"
    folder.rename(aside)
    return aside


def remove_output(url: str) -> None:
    """Delete a workload's output, including checkpoints. Raises XpkError if that fails."""
    open_folder(url).remove()


def latest_progress(url: str, *, ray: bool = False, elastic_since: float | None = None) -> Progress | None:
    """Return the newest step in `metrics.jsonl`, None if there is none or it is not accessible from here.

    `ray`: include the replacements of its trainers. `elastic_since`: include the active slices, of a workload with
    elastic slices that was created at this time in Unix seconds. Raises XpkError if it cannot be read, or if a bucket
    does not respond in time.
    """

    def look(folder: Folder) -> Progress | None:
        if elastic_since is not None:
            return _progress_of_slices(folder, elastic_since)
        return _progress_under_ray(folder) if ray else _progress(folder)

    return with_time_limit(url, look)


def with_time_limit(url: str, look: Callable[[Folder], Found]) -> Found:
    """Return the result of `look` on a folder. Raises TimedOutError if a bucket does not respond in a few seconds.

    For commands whose main purpose is not the output, and which an unreachable storage service must not block.
    """
    folder = open_folder(url)
    if not in_bucket(url):
        return look(folder)
    results: list[Found] = []
    failed: list[XpkError] = []

    def ask() -> None:
        try:
            results.append(look(folder))
        except XpkError as error:
            failed.append(error)

    # Finding credentials, or a broken connection, may take minutes: the thread is abandoned then.
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(_PATIENCE)
    if results:
        return results[0]
    raise failed[0] if failed else TimedOutError(f"cannot read {url}: no answer after {_PATIENCE:g} s")


def _progress_under_ray(folder: Folder) -> Progress | None:
    progress = _progress(folder)
    if progress is None:
        return None
    record = parse(folder.read_end("ray.json", _TAIL) or b"") or {}  # may be incomplete while it is written
    return replace(progress, replacements=read_whole(record, "replaced") or 0)


def _progress_of_slices(folder: Folder, since: float) -> Progress | None:
    progress = _progress(folder, is_elastic=True)
    if progress is None:
        return None
    changes = slices.read_changes(folder.read_end(slices.FILE, _SLICES_TAIL) or b"")
    return replace(progress, slices=slices.active_slices([change for change in changes if change.time >= since]))


def _progress(folder: Folder, *, is_elastic: bool = False) -> Progress | None:
    tail = folder.read_end("metrics.jsonl", _TAIL) or b""
    lines = tail.split(b"\n")
    whole = lines[len(tail) == _TAIL : -1]  # the first may be cut by the tail, the last may be incomplete
    rows = [row for row in map(_step_row, lines) if row]
    if not rows:
        return _progress_of_program(folder)
    last = rows[-1]
    step, total = last["step"], read_whole(last, "total_steps")
    unit = next((unit for unit in ("tokens", "images", "pairs", "examples") if f"{unit}_per_second" in last), None)
    newest = _since_restore(rows) if is_elastic else [row for row in rows if row.get("attempt") == last.get("attempt")]
    seconds, pace = _median(rows, "step_seconds"), _pace(newest)
    remaining = None if total is None else max(0, total - step)
    return Progress(
        step=step,
        loss=read_number(last, "loss"),
        step_seconds=seconds,
        total_steps=total,
        throughput=_median(rows, f"{unit}_per_second"),
        throughput_unit=f"{unit}/s" if unit else None,
        eta_seconds=None if remaining is None or pace is None else round(remaining * pace, 1),
        ignored_lines=sum(not _is_usable(line) for line in whole),
        time=_date(read_number(last, "time", TIMES)),
    )


def _progress_of_program(folder: Folder) -> Progress | None:
    """Return the newest step that a program other than the bundled trainer has logged."""
    log = _newest_lines(folder)
    if not log.steps:
        log = event_files.newest_scalars(folder)
    if not log.steps:
        return None
    steps, last = log.steps, log.steps[-1]
    total = next((step.steps for step in reversed(steps) if step.steps is not None), None)
    newest_loss = next((step for step in reversed(steps) if step.has_loss), None)
    newest_rate = next((step for step in reversed(steps) if step.throughput is not None), None)
    unit = newest_rate.unit if newest_rate else None
    seconds = median([step.seconds for step in steps if step.seconds is not None])
    pace = log.pace or seconds
    return Progress(
        step=last.step,
        loss=newest_loss.loss if newest_loss else None,
        step_seconds=seconds,
        total_steps=total,
        throughput=median([step.throughput for step in steps if step.throughput is not None and step.unit == unit]),
        throughput_unit=unit,
        eta_seconds=None if total is None or pace is None else round(max(0, total - last.step) * pace, 1),
        ignored_lines=log.ignored_lines,
        has_loss=newest_loss is not None,
        time=_date(last.time),
    )


def _newest_lines(folder: Folder) -> ProgramLog:
    """Return what the last lines of progress.jsonl say; a very long line may hide those before it."""
    log = ProgramLog()
    for size in (_TAIL, _LONG_TAIL):
        tail = folder.read_end(PROGRESS_FILE, size) or b""
        cut = tail.partition(b"\n")[2] if len(tail) == size else tail
        log = read_lines(cut)
        if log.steps or len(tail) < size:
            break
    return log


def _step_row(line: bytes) -> dict[str, Any] | None:
    """Return a parsed line of a finished step, None for other lines."""
    row = parse(line)
    return row if row and "loss" in row and read_whole(row, "step") is not None else None


def _is_usable(line: bytes) -> bool:
    """Return True if a complete line is valid, for a step or for something else."""
    row = parse(line)
    return row is not None and ("loss" not in row or read_whole(row, "step") is not None)


def _median(rows: list[dict[str, Any]], key: str) -> float | None:
    return median([value for row in rows if (value := read_number(row, key)) is not None])


def _date(seconds: float | None) -> str | None:
    return None if seconds is None else rfc3339(datetime.fromtimestamp(seconds, UTC))


def _since_restore(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the newest rows without a repeated step; attempts of different slices, which may lead, are unrelated."""
    begin = max((index for index in range(1, len(rows)) if rows[index]["step"] <= rows[index - 1]["step"]), default=0)
    return rows[begin:]


def _pace(newest: list[dict[str, Any]]) -> float | None:
    """Return the seconds from one step to the next in the newest attempt, evaluations and saves included."""
    begun, ended = read_number(newest[0], "time"), read_number(newest[-1], "time")
    steps: int = newest[-1]["step"] - newest[0]["step"]
    if begun is None or ended is None or steps < 1 or ended <= begun:
        return _median(newest, "step_seconds")
    return (ended - begun) / steps
