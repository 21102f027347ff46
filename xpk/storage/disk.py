"""A folder of this machine's file system."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from xpk.model.errors import XpkError

_ABSENT = (FileNotFoundError, NotADirectoryError)


@dataclass(frozen=True, slots=True)
class DiskFolder:
    """A `Folder` on disk."""

    path: Path

    @property
    def url(self) -> str:
        """See `Folder.url`."""
        return str(self.path)

    def is_empty(self) -> bool:
        """See `Folder.is_empty`."""
        with _explained("read", self.path):
            try:
                return next(self.path.iterdir(), None) is None
            except _ABSENT:
                return True

    def has(self, path: str) -> bool:
        """See `Folder.has`."""
        with _explained("read", self.path):
            return (self.path / path).is_file()

    def read(self, path: str) -> bytes | None:
        """See `Folder.read`."""
        with _explained("read", self.path / path):
            try:
                return (self.path / path).read_bytes()
            except (*_ABSENT, IsADirectoryError):
                return None

    def read_end(self, path: str, size: int) -> bytes | None:
        """See `Folder.read_end`."""
        with _explained("read", self.path / path):
            try:
                with (self.path / path).open("rb") as file:
                    file.seek(0, os.SEEK_END)
                    file.seek(max(0, file.tell() - size))
                    return file.read()
            except (*_ABSENT, IsADirectoryError):
                return None

    def read_all(self, folder: str) -> dict[str, bytes]:
        """See `Folder.read_all`."""
        with _explained("read", self.path / folder):
            try:
                files = sorted(entry.name for entry in (self.path / folder).iterdir() if entry.is_file())
            except _ABSENT:
                return {}
        found = ((name, self.read(f"{folder}/{name}")) for name in files)
        return {name: content for name, content in found if content is not None}

    def write(self, path: str, content: bytes) -> None:
        """See `Folder.write`."""
        file = self.path / path
        with _explained("write", file):
            file.parent.mkdir(parents=True, exist_ok=True)
            handle, fresh = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.parent)
            try:
                with os.fdopen(handle, "wb") as out:
                    out.write(content)
                os.chmod(fresh, 0o644)
                os.replace(fresh, file)
            except BaseException:
                os.unlink(fresh)
                raise

    def rename(self, name: str) -> None:
        """See `Folder.rename`."""
        with _explained("move", self.path):
            self.path.rename(self.path.with_name(name))

    def remove(self) -> None:
        """See `Folder.remove`."""
        with _explained("remove", self.path):
            try:
                shutil.rmtree(self.path)
            except _ABSENT:
                return


@contextmanager
def _explained(what: str, path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        where = error.filename or path
        hint = f"`ls -ld {path.parent}` shows whose it is; `df {path.parent}` shows how full it is"
        raise XpkError(f"cannot {what} {where}: {error.strerror}", hint=hint) from error
