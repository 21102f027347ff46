"""A folder of files that hosts write: read with limits, with the errors of the tool."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from xpk.model.errors import AuthorizationError, MissingToolError, NotFoundError, UsageError, XpkError
from xpk_shared.storage import EMULATOR, Place, address_problems, in_bucket, open_place
from xpk_shared.storage.errors import (
    BucketNotFound,
    InvalidAddress,
    MissingClient,
    NoCredentials,
    RefreshFailed,
    Refused,
    ServerError,
    TooLarge,
    Unauthenticated,
    Unreachable,
)

MOST_BYTES = 512 << 20  # that are read into memory at once
_SEAL = "manifest.json"  # marks a checkpoint as complete
_PATIENCE, _EMULATOR_PATIENCE = 30.0, 2.0  # seconds for which a request is retried
_ABSENT = (FileNotFoundError, IsADirectoryError, NotADirectoryError)

Found = TypeVar("Found")


def open_folder(url: str) -> Folder:
    """Return the folder at a path or a `gs://` URL; nothing is accessed yet.

    Raises UsageError for no or another URL, MissingToolError without the client of Google Cloud Storage.
    """
    if problems := address_problems(url):
        raise UsageError(problems[0], problems=problems, hint="gs://BUCKET/PREFIX")
    seconds = _EMULATOR_PATIENCE if os.environ.get(EMULATOR) else _PATIENCE
    try:
        return Folder(open_place(url, root=Path(url).parent, patience_seconds=seconds))
    except MissingClient as error:
        raise MissingToolError(
            f"reading {url} needs the Python package `google-cloud-storage`", hint="pip install 'xpk-multislice[gcs]'"
        ) from error


class Folder:
    """A folder of files. Paths inside it are relative, with `/`.

    Every method may raise NotFoundError (the bucket is missing), AuthorizationError, MissingToolError (no
    credentials) and XpkError (no answer, not writable, not a regular file, larger than MOST_BYTES, or behind a
    symbolic link that leads out of the folder's parent). A missing file is not an error.
    """

    def __init__(self, place: Place) -> None:
        self._place = place

    @property
    def url(self) -> str:
        """Path or URL of the folder."""
        return str(self._place)

    def is_empty(self) -> bool:
        """Return whether the folder is empty or does not exist."""
        with self._explained("list"):
            return self._place.is_empty()

    def has(self, path: str) -> bool:
        """Return whether a file exists."""
        with self._explained("read"):
            return (self._place / path).is_file() or self._absent(False)

    def read(self, path: str) -> bytes | None:
        """Return a file's content; None if it does not exist."""
        return self._read(lambda: (self._place / path).read(MOST_BYTES))

    def read_end(self, path: str, size: int) -> bytes | None:
        """Return the last `size` bytes of a file without reading the rest; None if it does not exist."""
        return self._read(lambda: (self._place / path).tail(size))

    def read_all(self, folder: str) -> dict[str, bytes]:
        """Return names and contents of the files directly in a folder, sorted by name."""
        place = self._place / folder
        with self._explained("read"):
            entries = sorted(place.files(), key=lambda entry: entry.name)
            if (size := sum(entry.size for entry in entries)) > MOST_BYTES:
                raise TooLarge(size, str(place))
            contents = place.read_each(entries)
            found = zip(entries, contents, strict=True)
            return {entry.name: content for entry, content in found if content is not None}

    def write(self, path: str, content: bytes) -> None:
        """Write a world-readable file atomically."""
        with self._explained("write"):
            (self._place / path).write(content)

    def rename(self, name: str) -> None:
        """Rename the whole folder within its parent. A partial result must not look like a committed checkpoint."""
        with self._explained("move"):
            self._place.rename(name, _SEAL)

    def remove(self) -> None:
        """Remove the folder with all its contents."""
        with self._explained("remove"):
            self._place.remove_tree(_SEAL)

    def _read(self, read: Callable[[], bytes]) -> bytes | None:
        with self._explained("read"):
            try:
                return read()
            except _ABSENT:
                return self._absent(None)

    def _absent(self, answer: Found) -> Found:
        """Return `answer` for a missing file. Raises BucketNotFound if the whole bucket is missing."""
        if in_bucket(self.url):
            self._place.is_empty()
        return answer

    @contextmanager
    def _explained(self, verb: str) -> Iterator[None]:
        """Convert the errors of an attempt to `verb` this folder."""
        try:
            yield
        except InvalidAddress as error:
            raise UsageError(str(error), hint=f"{EMULATOR}=http://HOST:PORT") from error
        except OSError as error:
            if in_bucket(self.url):
                raise _explain_bucket(error, f"cannot {verb} {self.url}", self.url.split("/")[2]) from error
            raise _explain_disk(error, verb, self._place.path or Path(self.url)) from error


def _explain_disk(error: OSError, verb: str, path: Path) -> XpkError:
    where = error.filename or path
    if isinstance(error, TooLarge):
        return _too_large(error)
    doing = f"cannot {verb} {where}: {error.strerror or error}"
    if isinstance(error, Refused):
        return XpkError(doing, hint=f"`ls -l {where}` shows its target" if verb == "remove" else f"remove {where}")
    return XpkError(doing, hint=f"`ls -ld {path.parent}` shows its owner; `df {path.parent}` shows free space")


def _explain_bucket(error: OSError, doing: str, bucket: str) -> XpkError:
    emulator = os.environ.get(EMULATOR)
    match error:
        case TooLarge():
            return _too_large(error)
        case RefreshFailed() | Unauthenticated():
            return AuthorizationError(
                f"{doing}: the credentials of this machine are not accepted ({error.strerror})",
                hint="`gcloud auth application-default login`",
            )
        case NoCredentials():
            return MissingToolError(
                f"{doing}: this machine has no credentials for Google Cloud",
                hint="`gcloud auth application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS",
            )
        case PermissionError():
            return AuthorizationError(
                f"not authorised: {doing}: {error.strerror}",
                hint=f"ask the owner of gs://{bucket} for the role roles/storage.objectUser on it",
            )
        case BucketNotFound():
            return NotFoundError(
                f"{doing}: bucket '{bucket}' not found",
                hint=f"`gcloud storage buckets create gs://{bucket}`, or choose another one",
            )
        case Unreachable() if not isinstance(error, ServerError):
            server = f"the storage emulator at {emulator}" if emulator else "Google Cloud Storage"
            hint = f"start it, or unset {EMULATOR}" if emulator else "check the network and try again"
            return XpkError(f"{doing}: no answer from {server}", hint=hint)
    return XpkError(f"{doing}: {error.strerror or error}", hint="try again")


def _too_large(error: TooLarge) -> XpkError:
    return XpkError(
        f"cannot read {error.filename}: it holds {error.size >> 20} MiB, and at most {MOST_BYTES >> 20} MiB are read",
        hint="move it aside, or make it smaller",
    )
