"""The output folder of a workload, on a disk or in a bucket: what is in it, and moving it aside."""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from xpk.jobs.output.json_lines import parse, read_number, read_whole
from xpk.model.errors import OutputExists, TimedOutError, UsageError, XpkError
from xpk.model.specs import Target
from xpk.storage import Folder, in_bucket, open_folder, url_problems

Found = TypeVar("Found")

_TAIL = 16 * 1024  # bytes that hold the last step's line for certain
_PATIENCE = 3.0  # seconds for a bucket to answer somebody who wants to know something else


@dataclass(frozen=True, slots=True)
class Progress:
    """The newest finished step that the trainer wrote down. Rates are medians over the newest steps.

    `eta_seconds`: until step `total_steps`, at the pace of the newest steps with all that went on between them.
    """

    step: int
    loss: float | None  # None: it is not finite
    step_seconds: float | None = None
    replacements: int = 0  # how often Ray's driver has started all trainers anew, without the JobSet
    total_steps: int | None = None
    throughput: float | None = None
    throughput_unit: str | None = None  # tokens/s or images/s
    eta_seconds: float | None = None
    ignored_lines: int = 0  # of the newest, which are damaged or hold what no trainer writes


def at_root(target: Target, root: str | None) -> Target:
    """Return a target whose workloads write below `root`, its own place if that is None.

    Raises UsageError for what its hosts cannot see.
    """
    if root is None:
        return target
    if problems := url_problems(root):
        raise UsageError(problems[0], problems=[f"--output-root: {each}" for each in problems], hint="gs://BUCKET/PATH")
    if in_bucket(root):
        return replace(target, output_root=root.rstrip("/"))
    folder = Path(os.path.abspath(Path(root).expanduser()))
    shared = target.shared_folder
    if not target.on_this_machine and not (shared and folder.is_relative_to(shared)):
        raise UsageError(
            f"--output-root: hosts of this cluster do not see {folder}",
            hint=f"gs://BUCKET/PATH, or a folder below {shared}" if shared else "gs://BUCKET/PATH",
        )
    return replace(target, output_root=str(folder))


def in_the_way(folder: Folder, name: str) -> OutputExists:
    """Return the error for output of an earlier workload, which a new one would continue by accident."""
    progress = _progress(folder)
    reached = f" (it reached step {progress.step})" if progress else ""
    return OutputExists(
        f"the output of an earlier workload '{name}' is still there{reached}: {folder.url}",
        hint="--resume continues from its newest checkpoint, --fresh moves it aside; or choose another name",
        resource=folder.url,
    )


def move_aside(folder: Folder, name: str) -> str:
    """Move a workload's output to a name beside its own and return that. Raises XpkError if it cannot be moved."""
    aside = f"{name}.{time.strftime('%Y%m%d-%H%M%S')}"
    folder.rename(aside)
    return aside


def remove_output(url: str) -> None:
    """Remove a workload's output, checkpoints and all. Raises XpkError if that fails."""
    open_folder(url).remove()


def latest_progress(url: str, *, ray: bool = False) -> Progress | None:
    """Return the newest step in `metrics.jsonl`, None if there is none or it cannot be seen from here.

    With `ray` the replacements of its trainers, too.

    Raises XpkError if it cannot be read, or if a bucket does not answer soon.
    """
    return promptly(url, _progress_under_ray if ray else _progress)


def promptly(url: str, look: Callable[[Folder], Found]) -> Found:
    """Return what `look` finds in a folder. Raises TimedOutError if that takes a bucket more than seconds.

    For commands about something else, which a storage service that is away must not hold up.
    """
    folder = open_folder(url)
    if not in_bucket(url):
        return look(folder)
    found: list[Found] = []
    failed: list[XpkError] = []

    def ask() -> None:
        try:
            found.append(look(folder))
        except XpkError as error:
            failed.append(error)

    # Looking for credentials, or a connection that is cut, may take minutes: the thread is left behind then.
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(_PATIENCE)
    if found:
        return found[0]
    raise failed[0] if failed else TimedOutError(f"cannot read {url}: no answer after {_PATIENCE:g} s")


def _progress_under_ray(folder: Folder) -> Progress | None:
    found = _progress(folder)
    if found is None:
        return None
    kept = parse(folder.read_end("ray.json", _TAIL) or b"") or {}  # it may be written just now
    return replace(found, replacements=read_whole(kept, "replaced") or 0)


def _progress(folder: Folder) -> Progress | None:
    tail = folder.read_end("metrics.jsonl", _TAIL) or b""
    lines = tail.split(b"\n")
    whole = lines[len(tail) == _TAIL : -1]  # the first may begin before the tail, and the last be written just now
    rows = [row for row in map(_step_row, lines) if row]
    if not rows:
        return None
    last = rows[-1]
    step, total = last["step"], read_whole(last, "total_steps")
    unit = next((unit for unit in ("tokens", "images") if f"{unit}_per_second" in last), None)
    seconds, pace = _median(rows, "step_seconds"), _pace(rows)
    left = None if total is None else max(0, total - step)
    return Progress(
        step=step,
        loss=read_number(last, "loss"),
        step_seconds=seconds,
        total_steps=total,
        throughput=_median(rows, f"{unit}_per_second"),
        throughput_unit=f"{unit}/s" if unit else None,
        eta_seconds=None if left is None or pace is None else round(left * pace, 1),
        ignored_lines=sum(not _is_usable(line) for line in whole),
    )


def _step_row(line: bytes) -> dict[str, Any] | None:
    """Return the line of a finished step, None for any other."""
    row = parse(line)
    return row if row and "loss" in row and read_whole(row, "step") is not None else None


def _is_usable(line: bytes) -> bool:
    """Tell whether a whole line is one of a step, or of something else."""
    row = parse(line)
    return row is not None and ("loss" not in row or read_whole(row, "step") is not None)


def _median(rows: list[dict[str, Any]], key: str) -> float | None:
    values = [value for row in rows if (value := read_number(row, key)) is not None]
    return statistics.median(values) if values else None


def _pace(rows: list[dict[str, Any]]) -> float | None:
    """Return the seconds from one step to the next in the newest attempt, evaluations and saves included."""
    newest = [row for row in rows if row.get("attempt") == rows[-1].get("attempt")]
    begun, ended = read_number(newest[0], "time"), read_number(newest[-1], "time")
    steps: int = newest[-1]["step"] - newest[0]["step"]
    if begun is None or ended is None or steps < 1 or ended <= begun:
        return _median(newest, "step_seconds")
    return (ended - begun) / steps
