"""Interfaces of storage.

Place    one file or folder: read, written atomically, appended to, listed
Lines    a file that lines are appended to
Slot     a small file with compare-and-swap writes
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Entry:
    """A file below a place."""

    name: str  # relative to that place, with "/"
    size: int  # bytes
    changed: int  # a number that increases with every change


class Lines(Protocol):
    """A file that lines are appended to, by several threads and never torn."""

    def write(self, line: bytes, *, at_once: bool = False) -> None:
        """Append a line that includes its end. Lines may be buffered, except with `at_once`."""

    def flush(self, seconds: float) -> None:
        """Wait until every line is written. Raises OSError if they are not after `seconds`."""


class Slot(Protocol):
    """A file with versions; version 0 means that the file does not exist."""

    def look(self) -> tuple[int, bytes]:
        """Return version and content."""

    def put(self, content: bytes, over: int) -> int:
        """Write `content` over version `over`; return the new version. Raises FileExistsError if there is another."""


class Place(Protocol):
    """A file or folder; `str()` is its path or address. Methods raise the errors of `errors.py`."""

    @property
    def path(self) -> Path | None:
        """Path on this machine; None in a bucket."""

    def __truediv__(self, name: str) -> Place: ...

    def is_file(self) -> bool:
        """Return whether it is a file."""

    def is_folder(self) -> bool:
        """Return whether it is a folder; in a bucket: whether anything is in it."""

    def is_empty(self) -> bool:
        """Return whether nothing is in it. Raises BucketNotFound, unlike `is_folder`."""

    def entry(self) -> Entry:
        """Return this file's metadata without reading it."""

    def files(self) -> list[Entry]:
        """Return everything directly in this folder but folders; empty if it does not exist."""

    def walk(self, skip: frozenset[str]) -> Iterator[Entry]:
        """Yield all files below: a folder's own by name, then its folders', except hidden ones and those in `skip`."""

    def read(self, limit: int | None = None) -> bytes:
        """Return the whole content. Raises TooLarge if it has more than `limit` bytes."""

    def read_each(
        self, entries: Iterable[Entry], skip: type[OSError] | tuple[type[OSError], ...] = FileNotFoundError
    ) -> Iterator[bytes | None]:
        """Yield the contents of files below, in order; None for one whose read raises an error of `skip`."""

    def part(self, start: int, size: int) -> bytes:
        """Return `size` bytes from `start`, or as many as exist."""

    def tail(self, size: int) -> bytes:
        """Return the last `size` bytes, or as many as exist."""

    def write(self, content: bytes) -> None:
        """Write the file atomically; on a disk everybody may read it."""

    def adopt(self, file: Path) -> Entry:
        """Move a file of the same disk here, or copy any file into the bucket; atomic."""

    def download(self, file: Path) -> None:
        """Copy this file to a path on this machine."""

    def lines(self) -> Lines:
        """Open the file for appending lines; a torn last line is removed."""

    def slot(self) -> Slot:
        """Return this file as a slot with compare-and-swap writes."""

    def room(self) -> int | None:
        """Return the free bytes here; None if unlimited."""

    def rename(self, name: str, seal: str) -> None:
        """Rename the folder within its parent.

        A bucket copies objects, and removes the old ones. Those named `seal` are copied last and removed first: they
        mark their folder as complete.
        """

    def remove_tree(self, seal: str) -> None:
        """Remove the folder with all its contents, those named `seal` first; a missing one is no error."""
