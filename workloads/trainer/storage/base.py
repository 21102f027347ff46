"""Where a run keeps its files: a folder, or a bucket of Google Cloud Storage. The rest knows only `Place`.

Place    one file or folder: read, written whole or not at all, appended to, listed
Lines    a file that lines are appended to
Slot     a small file that is only written over the version that was read (slot.py)
Shelf    the checkpoints in a folder: each is there whole, or is not there

All errors are OSErrors with a line for people in `strerror`: FileNotFoundError for what is not there,
PermissionError for what this host may not do, Unreachable for what may work later.
"""

import dataclasses
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

from trainer.storage.slot import Slot

BUCKET = "gs://"


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """A file somewhere below a place."""

    name: str  # from that place on, with "/"
    size: int  # bytes
    changed: int  # another number after every change, and a greater one


class Lines(Protocol):
    """A file that lines are appended to, by several threads and never torn."""

    def write(self, line: bytes, *, at_once: bool = False) -> None:
        """Append a line with its end. Lines may be kept for a while, unless one has to be there `at_once`."""

    def flush(self, seconds: float) -> None:
        """Wait until every line is in its place. Raises OSError if they are not after `seconds`."""


class Place(Protocol):
    """A file or folder; `str()` is its path or address."""

    def __truediv__(self, name: str) -> "Place": ...

    def is_file(self) -> bool:
        """Whether it is a file."""

    def is_folder(self) -> bool:
        """Whether it is a folder; in a bucket: whether anything is in it."""

    def entry(self) -> Entry:
        """Return what is known of this file without reading it."""

    def files(self) -> list[Entry]:
        """Return the files directly in this folder; none if it is not there."""

    def walk(self, skip: frozenset[str]) -> Iterator[Entry]:
        """Yield all files below: a folder's own by name, then its folders', but those hidden or in `skip`."""

    def read(self) -> bytes:
        """Return the whole content."""

    def read_each(self, entries: Iterable[Entry]) -> Iterator[bytes | None]:
        """Yield the contents of files below, in order; None for one that cannot be read."""

    def head(self, size: int) -> bytes:
        """Return the first bytes."""

    def write(self, content: bytes) -> None:
        """Write whole or not at all."""

    def workshop(self) -> Path:
        """Return a folder of this host in which files for `adopt` are made."""

    def adopt(self, file: Path) -> None:
        """Move a file of the workshop here."""

    def local(self, digest: str) -> Path:
        """Return this file where it can be mapped into memory; `digest`: the beginning of its SHA-256."""

    def part(self, start: int, size: int) -> bytes:
        """Return `size` bytes from `start`, or as many as there are."""

    def partial(self, size: int) -> Path | None:
        """Return a file of this host's, of `size` bytes, that parts are copied into; None: this file is here itself."""

    def lines(self) -> Lines:
        """Open for appending."""

    def slot(self) -> Slot:
        """Return this file as one that is only written over the version that was read."""

    def room(self) -> int | None:
        """Return the bytes free here; None for no end of them."""

    def shelf(self) -> "Shelf":
        """Return the checkpoints in this folder."""


class Shelf(Protocol):
    """Checkpoints, named by their step. Process 0 alone calls what changes anything."""

    def claim(self, attempt: int) -> str:
        """Remove what cut-off saves left; return what names this attempt's saves. No earlier attempt commits now."""

    def steps(self) -> list[int]:
        """Return the steps of the committed checkpoints, oldest first."""

    def draft(self, step: int, claim: str) -> str:
        """Return the path or address that all hosts write checkpoint `step` to; every host calls it."""

    def commit(self, step: int, claim: str, notes: dict[str, Any]) -> None:
        """Make what was written a checkpoint, with `notes`. Raises OSError and commits nothing if it may not."""

    def discard(self, step: int, claim: str) -> None:
        """Remove what was written, as far as that works."""

    def damage(self, step: int) -> str:
        """Return what is wrong with a checkpoint, or nothing."""

    def notes(self, step: int) -> dict[str, Any]:
        """Return the notes of a whole checkpoint."""

    def content(self, step: int, notes: dict[str, Any]) -> str:
        """Return the path or address that a checkpoint is read from; every reading host calls it."""

    def set_aside(self, step: int) -> None:
        """Keep a damaged checkpoint from being counted; it goes with the next `keep`."""

    def keep(self, newest: int, committed: int, unread: Collection[int] = ()) -> None:
        """Remove all but the newest checkpoints up to the one just committed, as far as that works.

        Of those that are `unread` nobody knows whether they are whole: they do not count. Nor do any after
        `committed`, for the run did not go on from them.
        """
