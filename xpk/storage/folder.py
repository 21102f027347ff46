"""What we need of a folder, and how one is opened by its path or URL."""

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
    credentials) and XpkError (it does not answer, cannot be written, is not a regular file, or is larger than
    MOST_BYTES). What is not there is no error.
    """

    @property
    def url(self) -> str:
        """The path or URL by which it was opened."""
        ...

    def is_empty(self) -> bool:
        """Return whether there is nothing in it, or no such folder."""
        ...

    def has(self, path: str) -> bool:
        """Return whether there is a file."""
        ...

    def read(self, path: str) -> bytes | None:
        """Return a file's content; None when there is no such file."""
        ...

    def read_end(self, path: str, size: int) -> bytes | None:
        """Return the last `size` bytes of a file without reading the rest; None when there is no such file."""
        ...

    def read_all(self, folder: str) -> dict[str, bytes]:
        """Return name and content of the files right inside a folder, by name."""
        ...

    def write(self, path: str, content: bytes) -> None:
        """Write a file that all users may read; whoever reads sees all of it or none."""
        ...

    def rename(self, name: str) -> None:
        """Give the whole folder another name beside its own. A checkpoint is never committed by halves."""
        ...

    def remove(self) -> None:
        """Remove it with all that is in it."""
        ...


def check_size(size: int, place: str) -> None:
    """Raise XpkError where more than MOST_BYTES would be read."""
    if size > MOST_BYTES:
        raise XpkError(
            f"cannot read {place}: it holds {size >> 20} MiB, and at most {MOST_BYTES >> 20} MiB are read",
            hint="move it aside, or make it smaller",
        )


def in_bucket(url: str) -> bool:
    """Return whether a folder lies in a bucket."""
    return url.startswith("gs://")


def url_problems(url: str) -> list[str]:
    """Return what is wrong with the path or URL of a folder, one line each."""
    scheme = _SCHEME.fullmatch(url)
    if _CONTROL.search(url):
        return [f"{url!r} holds control characters"]
    if not scheme:
        return [] if url else ["the folder's name is empty"]
    if scheme[1] != "gs":
        return [f"'{url}' is neither a folder nor gs://BUCKET/PREFIX"]
    bucket, _, prefix = scheme[2].partition("/")
    found = []
    if not _BUCKET.fullmatch(bucket):
        found.append(
            f"'{url}' names no bucket: 3 to 222 lower-case letters, digits, '-', '_' and '.'"
            if bucket
            else f"'{url}' names no bucket"
        )
    if {"", ".", ".."} & set(prefix.rstrip("/").split("/") if prefix.rstrip("/") else ()) or prefix.endswith("//"):
        found.append(f"'{url}' has an empty part, '.' or '..' in its prefix")
    return found


def split_url(url: str) -> tuple[str, str]:
    """Return bucket and prefix of a `gs://` URL without problems; the prefix ends with `/` unless it is empty."""
    bucket, _, prefix = url.removeprefix("gs://").partition("/")
    prefix = prefix.rstrip("/")
    return bucket, f"{prefix}/" if prefix else ""
