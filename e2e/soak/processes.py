"""Processes of local hosts, from /proc.

The guard of a host is the parent of its shim, the shim that of its supervisor, and the supervisor that of its trainer.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

_PAGE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Usage:
    """Resources of a process."""

    resident_bytes: int
    descriptors: int
    threads: int


def parent(pid: int) -> int:
    """Return a process's parent, 0 if the process has ended."""
    state, *numbers = _stat(pid)
    return int(numbers[0]) if state not in ("", "Z", "X") else 0


def lives(pid: int) -> bool:
    """Return whether a process runs or sleeps: it has not ended and is not stopped."""
    return _stat(pid)[0] not in ("", "Z", "X", "T", "t")


def usage(pid: int) -> Usage | None:
    """Return the resources of a process, None if it has ended."""
    folder = Path(f"/proc/{pid}")
    try:
        resident = int((folder / "statm").read_text(encoding="ascii").split()[1]) * _PAGE_BYTES
        return Usage(resident, len(list((folder / "fd").iterdir())), len(list((folder / "task").iterdir())))
    except OSError:
        return None


def descendants(pid: int) -> list[int]:
    """Return all processes below a process."""
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
    except OSError:
        return []
    children = [int(child) for child in text.split()]
    return [*children, *(below for child in children for below in descendants(child))]


def _stat(pid: int) -> list[str]:
    """Return a process's state and the numbers after it, or [""] if it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return [""]
