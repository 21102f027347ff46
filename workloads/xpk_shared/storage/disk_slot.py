"""Compare-and-swap writes on a file system.

Each version is a file of its own, NAME.VERSION, which only one process can create; the highest version is current.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
import time
from pathlib import Path

_RETRY_SECONDS = 0.1  # between reads of a version that is listed but cannot be read
_NOT_FOUND = {errno.ENOENT, errno.ESTALE}
_NO_LINKS = {errno.EPERM, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK}


class DiskSlot:
    """A `Slot` on a file system; a listed version that cannot be read is retried for `retry_seconds`."""

    def __init__(self, path: Path, *, retry_seconds: float = 5.0) -> None:
        self._path, self._retry_seconds = path, retry_seconds

    def look(self) -> tuple[int, bytes]:
        """Read the newest version; retry if it was replaced concurrently, or is still empty.

        A network file system may show either for some time. If it persists, the content is returned as empty.
        """
        deadline = time.monotonic() + self._retry_seconds
        while version := self._newest():
            content = _content(self._file(version))
            if content or time.monotonic() > deadline:
                return version, content
            time.sleep(_RETRY_SECONDS)
        return 0, b""

    def put(self, content: bytes, over: int) -> int:
        """Create the next version, then remove the older ones."""
        if not over:
            self._path.parent.mkdir(parents=True, exist_ok=True)
        created = self._file(over + 1)
        _create(created, content)
        if self._newest() > over + 1:  # `over` was replaced and removed before
            created.unlink(missing_ok=True)
            raise FileExistsError(17, "it was modified concurrently", str(self._path))
        for version in self._versions():
            if version <= over:
                with contextlib.suppress(OSError):  # the next writer removes the rest
                    self._file(version).unlink()
        return over + 1

    def _newest(self) -> int:
        return max(self._versions(), default=0)

    def _versions(self) -> list[int]:
        name = f"{self._path.name}."
        ends = (path.name.removeprefix(name) for path in self._path.parent.glob(f"{name}*"))
        return [int(end) for end in ends if end.isdecimal()]

    def _file(self, version: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{version}")


def _content(file: Path) -> bytes:
    """Return a file's content; empty if it does not exist."""
    try:
        return file.read_bytes()
    except OSError as error:
        if error.errno not in _NOT_FOUND:
            raise
        return b""


def _create(file: Path, content: bytes) -> None:
    """Create a file, atomically if there are hard links. Raises FileExistsError if it exists."""
    temporary = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    try:
        create_file(temporary, content)
        os.link(temporary, file)
    except FileExistsError:
        if temporary.stat().st_nlink < 2:  # else a request whose response was lost has created it
            raise
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        create_file(file, content)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def create_file(path: Path, content: bytes, *, sync: bool = False) -> None:
    """Create a file with mode 0644, and `sync` it to the disk.

    Raises FileExistsError if it exists; removes the file after a failed write.
    """
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        with open(handle, "wb") as file:
            if stat.S_IMODE(os.fstat(handle).st_mode) != 0o644:  # the umask has removed permissions
                with contextlib.suppress(OSError):  # a file system without permissions
                    os.fchmod(handle, 0o644)
            file.write(content)
            if sync:
                file.flush()
                os.fsync(handle)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
