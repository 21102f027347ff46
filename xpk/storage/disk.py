"""A folder in this machine's file system."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from xpk.model.errors import XpkError
from xpk.storage.folder import MOST_BYTES, check_size

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
        return self._read(path)

    def read_end(self, path: str, size: int) -> bytes | None:
        """See `Folder.read_end`."""
        return self._read(path, size)

    def read_all(self, folder: str) -> dict[str, bytes]:
        """See `Folder.read_all`."""
        with _explained("read", self.path / folder):
            try:
                files = sorted(entry.name for entry in (self.path / folder).iterdir())
            except _ABSENT:
                return {}
        found: dict[str, bytes] = {}
        for name in files:
            if (content := self._read(f"{folder}/{name}")) is not None:
                found[name] = content
                check_size(sum(map(len, found.values())), f"{self.path}/{folder}")
        return found

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

    def _read(self, path: str, tail: int | None = None) -> bytes | None:
        """Return a file's content, or its last `tail` bytes; None if it does not exist.

        A host may have replaced the file by anything, such as a link to a file outside the folder.
        """
        file = self.path / path
        with _explained("read", file):
            try:
                handle = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            except _ABSENT:
                return None
            state = os.fstat(handle)
            if stat.S_ISDIR(state.st_mode):
                os.close(handle)
                return None
            with open(handle, "rb") as opened:
                if not stat.S_ISREG(state.st_mode):
                    raise XpkError(f"cannot read {file}: it is not a regular file", hint=f"remove {file}")
                if not file.resolve().is_relative_to(self.path.parent.resolve()):
                    raise XpkError(
                        f"cannot read {file}: a symbolic link leads out of {self.path.parent}", hint=f"remove {file}"
                    )
                if tail is not None:
                    opened.seek(max(0, state.st_size - tail))
                    return opened.read(tail)
                check_size(state.st_size, str(file))
                return opened.read(MOST_BYTES)

    def rename(self, name: str) -> None:
        """See `Folder.rename`."""
        with _explained("move", self.path):
            self.path.rename(self.path.with_name(name))

    def remove(self) -> None:
        """See `Folder.remove`."""
        with _explained("remove", self.path):
            if self.path.is_symlink():
                raise XpkError(
                    f"cannot remove {self.path}: it is a symbolic link",
                    hint=f"`ls -l {self.path}` shows its target",
                )
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
        hint = f"`ls -ld {path.parent}` shows its owner; `df {path.parent}` shows free space"
        raise XpkError(f"cannot {what} {where}: {error.strerror or error}", hint=hint) from error
