"""Interfaces of storage.

Place    one file or folder: read, written atomically, appended to, listed
Lines    a file that lines are appended to
Slot     a small file with compare-and-swap writes
"""

from __future__ import annotations

import errno
import itertools
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from xpk_shared.storage.errors import Refused

MAX_CONCURRENT = 16  # requests to a bucket; each is a round trip of many milliseconds
RETRY_SECONDS = 120.0  # total time of retries of a request
Skip = tuple[type[OSError], ...]


@dataclass(frozen=True, slots=True)
class Entry:
    """A file below a place."""

    name: str  # relative to that place, with "/"
    size: int  # bytes
    changed: int  # a number that increases with every change


class Lines(Protocol):
    """A file to which several threads append complete lines."""

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

    path: Path | None  # on this machine; None in a bucket
    _read_ahead: int = MAX_CONCURRENT

    def __truediv__(self, name: str) -> Place: ...

    def is_file(self) -> bool:
        """Return whether it is a file."""

    def is_folder(self) -> bool:
        """Return whether it is a folder; in a bucket, whether objects are below it."""

    def is_empty(self) -> bool:
        """Return whether it contains nothing. Raises BucketNotFound, unlike `is_folder`."""

    def entry(self) -> Entry:
        """Return this file's metadata without reading it."""

    def files(self) -> list[Entry]:
        """Return the entries directly in this folder except folders; empty if it does not exist."""

    def walk(self, skip: frozenset[str]) -> Iterator[Entry]:
        """Yield all files below: a folder's files by name, then its subfolders', except hidden ones and `skip`."""

    def find(self, text: str, limit: int) -> list[Entry]:
        """Return files below whose names contain `text`; at most `limit` files or objects are looked at."""

    def read(self, limit: int | None = None) -> bytes:
        """Return the whole content. Raises Refused if it has more than `limit` bytes."""

    def read_each(self, entries: Iterable[Entry], skip: Skip = (FileNotFoundError,)) -> Iterator[bytes | None]:
        """Yield the contents of files below, in order; None for a file whose read raises an error in `skip`."""

        def read(entry: Entry) -> bytes | None:
            with suppress(*skip):
                return (self / entry.name).read()
            return None

        entries, pool = iter(entries), ThreadPoolExecutor(self._read_ahead, "read")
        futures = deque(pool.submit(read, entry) for entry in itertools.islice(entries, self._read_ahead))
        try:
            while futures:
                yield futures.popleft().result()
                futures.extend(pool.submit(read, entry) for entry in itertools.islice(entries, 1))
        finally:
            pool.shutdown(cancel_futures=True)

    def part(self, start: int, size: int) -> bytes:
        """Return `size` bytes from `start`, or as many as exist; a negative one counts from the end."""

    def write(self, content: bytes) -> None:
        """Write the file atomically; on a disk it is readable by everyone."""

    def adopt(self, file: Path) -> Entry:
        """Move a file of the same disk here, or copy any file into the bucket; atomic."""

    def download(self, file: Path) -> None:
        """Copy this file to a path on this machine."""

    def lines(self) -> Lines:
        """Open the file for appending lines; a torn last line is removed."""

    def slot(self) -> Slot:
        """Return this file as a slot with compare-and-swap writes."""

    def rename(self, name: str, seal: str) -> None:
        """Rename the folder within its parent.

        A bucket copies objects, and removes the old ones. Those named `seal` are copied last and removed first: they
        mark their folder as complete.
        """

    def remove_tree(self, seal: str) -> None:
        """Remove the folder with all its contents, those named `seal` first; do nothing if it does not exist."""


def check_size(size: int, limit: int | None, place: object) -> None:
    """Raise Refused if a read of `size` bytes would exceed the limit."""
    if limit is not None and size > limit:
        message = f"too large: {size >> 20} MiB, the limit is {limit >> 20} MiB"
        raise Refused(errno.EFBIG, message, str(place))
