"""A folder of files that hosts write: read with limits, with the errors of the tool."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from xpk.model.errors import AuthorizationError, MissingToolError, NotFoundError, UsageError, XpkError
from xpk_shared.storage import EMULATOR, Place, Slot, address_problems, errors, in_bucket, open_place
from xpk_shared.storage.place import Entry, check_size

MAX_BYTES = 512 << 20  # that are read into memory at once
_SEAL = "manifest.json"  # marks a checkpoint as complete
_PATIENCE, _EMULATOR_PATIENCE = 30.0, 2.0  # seconds for which a request is retried
_REFUSED = {errno.EFBIG: "move it aside, or make it smaller", errno.ELOOP: "`ls -l {0}` shows its target"}
_ABSENT = (FileNotFoundError, IsADirectoryError, NotADirectoryError)

Found = TypeVar("Found")


def open_folder(url: str) -> Folder:
    """Return the folder at a path or a `gs://` URL; nothing is accessed yet.

    Raises UsageError for no or another URL, MissingToolError without the client of Google Cloud Storage.
    """
    if problems := address_problems(url):
        raise UsageError(problems[0], problems=problems, hint="use gs://BUCKET/PREFIX")
    seconds = _EMULATOR_PATIENCE if os.environ.get(EMULATOR) else _PATIENCE
    try:
        return Folder(open_place(url, root=Path(url).parent, retry_seconds=seconds))
    except errors.MissingClient as error:
        raise MissingToolError(
            f"reading {url} needs the Python package `google-cloud-storage`", hint="pip install 'xpk-multislice[gcs]'"
        ) from error


class Folder:
    """A folder of files. Paths inside it are relative, with `/`.

    Every method may raise NotFoundError (the bucket is missing), AuthorizationError, MissingToolError (no
    credentials) and XpkError (no answer, not writable, not a regular file, larger than MAX_BYTES, or behind a
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
        with self.explained("list"):
            return self._place.is_empty()

    def has(self, path: str) -> bool:
        """Return whether a file exists."""
        with self.explained("read"):
            return (self._place / path).is_file() or self._absent(False)

    def read(self, path: str) -> bytes | None:
        """Return a file's content; None if it does not exist."""
        return self._read(lambda: (self._place / path).read(MAX_BYTES))

    def read_end(self, path: str, size: int) -> bytes | None:
        """Return the last `size` bytes of a file without reading the rest; None if it does not exist."""
        return self._read(lambda: (self._place / path).part(-size, size))

    def read_part(self, path: str, start: int, size: int) -> bytes | None:
        """Return at most `size` bytes of a file from the position `start`; None if it does not exist."""
        return self._read(lambda: (self._place / path).part(start, size))

    def find(self, text: str, limit: int) -> list[Entry]:
        """Return the files below whose names contain `text`; at most `limit` files are looked at."""
        with self.explained("list"):
            return self._place.find(text, limit)

    def read_all(self, folder: str, *, first: str = "") -> dict[str, bytes]:
        """Return names and contents of the files directly in a folder, sorted by name, from the name `first` on."""
        place = self._place / folder
        with self.explained("read"):
            entries = sorted((entry for entry in place.files() if entry.name >= first), key=lambda entry: entry.name)
            check_size(sum(entry.size for entry in entries), MAX_BYTES, place)
            contents = place.read_each(entries)
            pairs = zip(entries, contents, strict=True)
            return {entry.name: content for entry, content in pairs if content is not None}

    def write(self, path: str, content: bytes) -> None:
        """Write a world-readable file atomically."""
        with self.explained("write"):
            (self._place / path).write(content)

    def slot(self, path: str) -> Slot:
        """Return a file with compare-and-swap writes, whose errors are those of a folder."""
        return _Slot(self, (self._place / path).slot())

    def rename(self, name: str) -> None:
        """Rename the whole folder within its parent. A partial result must not look like a committed checkpoint."""
        with self.explained("move"):
            self._place.rename(name, _SEAL)

    def remove(self) -> None:
        """Remove the folder with all its contents."""
        with self.explained("remove"):
            self._place.remove_tree(_SEAL)

    def _read(self, read: Callable[[], bytes]) -> bytes | None:
        with self.explained("read"):
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
    def explained(self, verb: str) -> Iterator[None]:
        """Convert the errors of an attempt to `verb` this folder."""
        try:
            yield
        except errors.InvalidAddress as error:
            raise UsageError(str(error), hint=f"set {EMULATOR}=http://HOST:PORT") from error
        except OSError as error:
            raise _convert(error, verb, self._place) from error


class _Slot:
    """A slot of a folder; `put` raises FileExistsError as every slot does."""

    def __init__(self, folder: Folder, slot: Slot) -> None:
        self._folder, self._slot = folder, slot

    def look(self) -> tuple[int, bytes]:
        """See `Slot.look`."""
        with self._folder.explained("read"):
            return self._slot.look()

    def put(self, content: bytes, over: int) -> int:
        """See `Slot.put`."""
        with self._folder.explained("write"):
            try:
                return self._slot.put(content, over)
            except FileExistsError as error:
                conflict = error
        raise conflict


def _convert(error: OSError, verb: str, place: Place) -> XpkError:
    location = error.filename or place
    message, emulator = f"cannot {verb} {location}: {error.strerror or error}", os.environ.get(EMULATOR)
    if isinstance(error, errors.Refused):
        return XpkError(message, hint=_REFUSED.get(error.errno or 0, "remove {0}").format(location))
    if place.path is not None:
        folder = place.path.parent
        return XpkError(message, hint=f"`ls -ld {folder}` shows its owner; `df {folder}` shows free space")
    bucket = "/".join(str(place).split("/")[:3])
    match error:
        case errors.RefreshFailed() | errors.Unauthenticated():
            return AuthorizationError(message, hint="`gcloud auth application-default login`")
        case errors.NoCredentials():
            hint = "`gcloud auth application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS"
            return MissingToolError(message, hint=hint)
        case PermissionError():
            hint = f"ask the owner of {bucket} for the role roles/storage.objectUser on it"
            return AuthorizationError(message, hint=hint)
        case errors.BucketNotFound():
            return NotFoundError(message, hint=f"`gcloud storage buckets create {bucket}`, or choose another one")
    return XpkError(message, hint=f"start it, or unset {EMULATOR}" if emulator else "check the network and try again")
