"""The `Folder` interface, and a factory that opens a path or URL."""

from __future__ import annotations

import re
from typing import Protocol

from xpk.model.errors import XpkError

_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*)://(.*)", re.DOTALL)
_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")
MOST_BYTES = 512 << 20  # that are read into memory at once
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


class Folder(Protocol):
    """A folder of files. Paths inside it are relative, with `/`.

    Every method may raise NotFoundError (the bucket is missing), AuthorizationError, MissingToolError (no
    credentials) and XpkError (no answer, not writable, not a regular file, or larger than MOST_BYTES).
    A missing file is not an error.
    """

    @property
    def url(self) -> str:
        """Path or URL of the folder, as given."""
        ...

    def is_empty(self) -> bool:
        """Return whether the folder is empty or does not exist."""
        ...

    def has(self, path: str) -> bool:
        """Return whether a file exists."""
        ...

    def read(self, path: str) -> bytes | None:
        """Return a file's content; None if it does not exist."""
        ...

    def read_end(self, path: str, size: int) -> bytes | None:
        """Return the last `size` bytes of a file without reading the rest; None if it does not exist."""
        ...

    def read_all(self, folder: str) -> dict[str, bytes]:
        """Return names and contents of the files directly in a folder, sorted by name."""
        ...

    def write(self, path: str, content: bytes) -> None:
        """Write a world-readable file atomically."""
        ...

    def rename(self, name: str) -> None:
        """Rename the whole folder within its parent. A partial result must not look like a committed checkpoint."""
        ...

    def remove(self) -> None:
        """Remove the folder with all its contents."""
        ...


def check_size(size: int, place: str) -> None:
    """Raise XpkError if a read would exceed MOST_BYTES."""
    if size > MOST_BYTES:
        raise XpkError(
            f"cannot read {place}: it holds {size >> 20} MiB, and at most {MOST_BYTES >> 20} MiB are read",
            hint="move it aside, or make it smaller",
        )


def in_bucket(url: str) -> bool:
    """Return whether a folder lies in a bucket."""
    return url.startswith("gs://")


def url_problems(url: str) -> list[str]:
    """Return the problems of a folder's path or URL, one line each."""
    scheme = _SCHEME.fullmatch(url)
    if _CONTROL.search(url):
        return [f"{url!r} contains control characters"]
    if not scheme:
        return [] if url else ["the folder's name is empty"]
    if scheme[1] != "gs":
        return [f"'{url}' is neither a folder nor gs://BUCKET/PREFIX"]
    bucket, _, prefix = scheme[2].partition("/")
    found = []
    if not _BUCKET.fullmatch(bucket):
        found.append(
            f"'{url}' has an invalid bucket name: 3 to 222 lower-case letters, digits, '-', '_' and '.'"
            if bucket
            else f"'{url}' has an invalid bucket name"
        )
    if {"", ".", ".."} & set(prefix.rstrip("/").split("/") if prefix.rstrip("/") else ()) or prefix.endswith("//"):
        found.append(f"'{url}' has an empty part, '.' or '..' in its prefix")
    return found


def split_url(url: str) -> tuple[str, str]:
    """Return bucket and prefix of a valid `gs://` URL; the prefix ends with `/` unless it is empty."""
    bucket, _, prefix = url.removeprefix("gs://").partition("/")
    prefix = prefix.rstrip("/")
    return bucket, f"{prefix}/" if prefix else ""
