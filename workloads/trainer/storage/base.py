"""Storage interface of a run: a folder, or a Google Cloud Storage bucket. The rest of the trainer uses only `Place`.

Place    one file or folder: read, written atomically, appended to, listed Lines    a file that lines are appended to
Slot     a small file with compare-and-swap writes (slot.py) Shelf    the checkpoints in a folder: each exists
completely or not at all

All errors are OSErrors with one line in `strerror`: FileNotFoundError for a missing file, PermissionError for a denied
operation, Unreachable for an operation that may succeed later.
"""

import dataclasses
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

from trainer.storage.slot import Slot

BUCKET = "gs://"


@dataclasses.dataclass(frozen=True, slots=True)
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


class Place(Protocol):
    """A file or folder; `str()` is its path or address."""

    def __truediv__(self, name: str) -> "Place": ...

    def is_file(self) -> bool:
        """Return whether it is a file."""

    def is_folder(self) -> bool:
        """Return whether it is a folder; in a bucket: whether anything is in it."""

    def entry(self) -> Entry:
        """Return this file's metadata without reading it."""

    def files(self) -> list[Entry]:
        """Return the files directly in this folder; empty if it does not exist."""

    def walk(self, skip: frozenset[str]) -> Iterator[Entry]:
        """Yield all files below: a folder's own by name, then its folders', except hidden ones and those in `skip`."""

    def read(self) -> bytes:
        """Return the whole content."""

    def read_each(self, entries: Iterable[Entry]) -> Iterator[bytes | None]:
        """Yield the contents of files below, in order; None for one that cannot be read."""

    def head(self, size: int) -> bytes:
        """Return the first bytes."""

    def write(self, content: bytes) -> None:
        """Write the file atomically."""

    def workshop(self) -> Path:
        """Return a folder of this host in which to create files for `adopt`."""

    def adopt(self, file: Path) -> None:
        """Move a file of the workshop here."""

    def local(self, digest: str) -> Path:
        """Return this file on this host's disk, where it can be mapped; `digest`: first digits of its SHA-256."""

    def part(self, start: int, size: int) -> bytes:
        """Return `size` bytes from `start`, or as many as exist."""

    def partial(self, size: int) -> Path | None:
        """Return a sparse local file of `size` bytes to copy parts into; None if this file is local."""

    def lines(self) -> Lines:
        """Open the file for appending lines."""

    def slot(self) -> Slot:
        """Return this file as a slot with compare-and-swap writes."""

    def room(self) -> int | None:
        """Return the free bytes here; None if unlimited."""

    def shelf(self) -> "Shelf":
        """Return the checkpoints in this folder."""


class Shelf(Protocol):
    """Checkpoints, named by their step. Only process 0 calls methods that change them."""

    def claim(self, attempt: int) -> str:
        """Remove the remains of aborted saves; return the name of this attempt's saves. Fences earlier attempts."""

    def steps(self) -> list[int]:
        """Return the steps of the committed checkpoints, oldest first."""

    def draft(self, step: int, claim: str) -> str:
        """Return the path or address that all hosts write checkpoint `step` to; every host calls it."""

    def commit(self, step: int, claim: str, notes: dict[str, Any]) -> None:
        """Commit the written checkpoint with `notes`. Raises OSError and commits nothing if it may not."""

    def discard(self, step: int, claim: str) -> None:
        """Remove the written files; errors are ignored."""

    def damage(self, step: int) -> str:
        """Return the defect of a checkpoint, or ""."""

    def notes(self, step: int) -> dict[str, Any]:
        """Return the notes of a complete checkpoint."""

    def content(self, step: int, notes: dict[str, Any]) -> str:
        """Return the path or address to read a checkpoint from; every reading host calls it."""

    def set_aside(self, step: int) -> None:
        """Exclude a damaged checkpoint; the next `keep` removes it."""

    def keep(self, newest: int, committed: int, unread: Collection[int] = ()) -> None:
        """Remove all but the newest checkpoints up to the one just committed, as far as possible.

        Those that are `unread` may be incomplete, so they do not count. Nor do any after `committed`, as the run did
        not resume from them.
        """
