"""The output folder of a workload, where this machine can see it: what is in it, and moving it aside."""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from xpk.model.errors import ConflictError, XpkError

_TAIL = 16 * 1024  # bytes that hold the last step's line for certain


@dataclass(frozen=True, slots=True)
class Progress:
    """The newest finished step that the trainer wrote down."""

    step: int
    loss: float


def check_output(folder: Path, name: str, *, resume: bool, fresh: bool) -> None:
    """Make sure that a new workload does not continue an old one's run by accident.

    `fresh` moves what is there aside, `resume` leaves it. Raises ConflictError if it is there and neither
    was asked for, XpkError if it cannot be moved.
    """
    if resume or not folder.is_dir() or not any(folder.iterdir()):
        return
    if not fresh:
        progress = latest_progress(folder)
        reached = f" (it reached step {progress.step})" if progress else ""
        raise ConflictError(
            f"the output of an earlier workload '{name}' is still there{reached}: {folder}",
            hint="--resume continues from its newest checkpoint, --fresh moves it aside; or choose another name",
        )
    aside = folder.with_name(f"{folder.name}.{time.strftime('%Y%m%d-%H%M%S')}")
    try:
        folder.rename(aside)
    except OSError as error:
        raise XpkError(f"cannot move {folder} aside: {error.strerror}", hint="choose another name") from error


def remove_output(folder: Path) -> None:
    """Remove a workload's output, checkpoints and all. Raises XpkError if that fails."""
    try:
        shutil.rmtree(folder)
    except FileNotFoundError:
        return
    except OSError as error:
        raise XpkError(f"cannot remove {folder}: {error.strerror}", hint="remove it by hand") from error


def latest_progress(folder: Path) -> Progress | None:
    """Return the newest step in `metrics.jsonl`, None if there is none or it cannot be seen from here."""
    try:
        with (folder / "metrics.jsonl").open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - _TAIL))
            lines = file.read().splitlines()
    except OSError:
        return None
    for line in reversed(lines):
        try:
            row = json.loads(line)
            return Progress(step=int(row["step"]), loss=float(row["loss"]))
        except (ValueError, KeyError, TypeError):
            continue  # an evaluation, or a line cut off at either end
    return None
