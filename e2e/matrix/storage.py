"""Faults of disks and of checkpoints."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from e2e.harness import largest_file
from e2e.matrix.cell import Cell
from e2e.matrix.fault import LOCAL, Holds, fault
from e2e.matrix.programs import HOSTS
from e2e.soak.injection import INTERVAL

_DISK_BYTES = 256 << 20
_SECONDS = 6.0  # of a disk that is full or cannot be written: several saves
_OWN_FILES = "its checkpoints are files of its own, which xpk does not check"
_ONLY_LOCAL = (LOCAL,)


@fault(
    "full-disk",
    f"The disk of the output is full for {_SECONDS:.0f} s.",
    Holds.CONTINUES,
    platforms=_ONLY_LOCAL,
    plain="it handles errors of its files itself; an exception is an exit code (exit-crash)",
)
def _full_disk(cell: Cell) -> None:
    root = _small_disk(cell)
    cell.train("--output-root", str(root))
    filler = root / "filler"
    cell.strike(lambda: _fill(filler))
    cell.heal_after(_SECONDS, lambda: filler.unlink(missing_ok=True))


@fault(
    "full-disk-at-start",
    "The disk of the output is full before the run starts, and the only restart does not help.",
    Holds.REFUSED,
    platforms=_ONLY_LOCAL,
    plain="it handles errors of its files itself; an exception is an exit code (exit-crash)",
)
def _full_at_start(cell: Cell) -> None:
    root = _small_disk(cell)
    _fill(root / "filler")
    cell.refuses("space", "--output-root", str(root), "--max-restarts", "1")


@fault(
    "read-only-checkpoints",
    f"The folder of checkpoints cannot be written for {_SECONDS:.0f} s (chattr +i).",
    Holds.CONTINUES,
    platforms=_ONLY_LOCAL,
    plain=_OWN_FILES,
)
def _read_only_checkpoints(cell: Cell) -> None:
    cell.train("--output-root", str(_small_disk(cell)))
    folder = str(cell.output / "checkpoints")
    cell.strike(lambda: _run("chattr", "+i", folder))
    cell.heal_after(_SECONDS, lambda: _run("chattr", "-i", folder))
    cell.until(lambda: cell.events("save"))


@fault(
    "read-only-output",
    "The output root cannot be written at all, and the only restart does not help.",
    Holds.REFUSED,
    platforms=_ONLY_LOCAL,
)
def _read_only_output(cell: Cell) -> None:
    root = _small_disk(cell)
    _run("mount", "-o", "remount,ro", str(root))
    cell.heals.callback(_run, "mount", "-o", "remount,rw", str(root))
    cell.refuses("read-only", "--output-root", str(root), "--max-restarts", "1")


@fault(
    "flip-byte",
    "All hosts are killed, and a byte of the newest checkpoint changes.",
    Holds.RESTARTS,
    platforms=_ONLY_LOCAL,
    plain=_OWN_FILES,
)
def _flip_byte(cell: Cell) -> None:
    def flip(checkpoint: Path) -> None:
        file = largest_file(checkpoint)
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content)

    _damage(cell, flip)


@fault(
    "truncate-checkpoint",
    "All hosts are killed, and the largest file of the newest checkpoint loses its second half.",
    Holds.RESTARTS,
    platforms=_ONLY_LOCAL,
    plain=_OWN_FILES,
)
def _truncate(cell: Cell) -> None:
    def cut(checkpoint: Path) -> None:
        file = largest_file(checkpoint)
        os.truncate(file, file.stat().st_size // 2)

    _damage(cell, cut)


@fault(
    "delete-checkpoint",
    "All hosts are killed, and the newest checkpoint is deleted.",
    Holds.RESTARTS,
    platforms=_ONLY_LOCAL,
    plain=_OWN_FILES,
)
def _delete(cell: Cell) -> None:
    _damage(cell, shutil.rmtree, is_skipped=False)


def _fill(filler: Path) -> None:
    """Write until no byte is left."""
    with filler.open("wb", buffering=0) as file:
        for size in (1 << 16, 1):
            with suppress(OSError):
                while True:
                    file.write(bytes(size))


def _damage(cell: Cell, act: Callable[[Path], object], *, is_skipped: bool = True) -> None:
    """Kill all hosts and damage the newest checkpoint before they have started again."""
    cell.train()
    cell.until(lambda: cell.run.saved() >= 2 * INTERVAL)
    cell.send(signal.SIGKILL, *range(HOSTS))
    act(cell.run.newest_checkpoint())
    cell.until(lambda: not is_skipped or cell.events("restore_skipped"))


def _small_disk(cell: Cell) -> Path:
    """Mount a disk in memory for the length of a cell; only this command sees it."""
    root = cell.lab.folder / f"disk-{cell.name}"
    root.mkdir()
    _run("mount", "-t", "tmpfs", "-o", f"size={_DISK_BYTES}", "matrix", str(root))
    cell.removals.callback(_run, "umount", "--lazy", str(root))
    return root


def _run(*argv: str) -> None:
    subprocess.run(argv, check=False, stdout=subprocess.DEVNULL)
