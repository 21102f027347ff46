"""Places on a file system: files are renamed into place, lines are appended with one system call."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from xpk_shared.storage.disk_slot import DiskSlot, create_file
from xpk_shared.storage.errors import Refused
from xpk_shared.storage.place import Entry, Place, check_size

_ABSENT = (FileNotFoundError, NotADirectoryError)
_BLOCK = 1 << 16  # bytes
_RECOVERED = "lost+found"  # at the root of a file system; only its administrator can list it
_MAX_DEPTH = 5  # of folders that `find` searches
_MAX_WAITING = 4 << 20  # bytes of lines that did not fit on a full disk


class Disk(Place):
    """A place on this machine, or on a volume that all hosts share."""

    _read_ahead = 1  # files may be large, and disks are fast

    def __init__(self, path: Path, root: Path | None = None) -> None:
        self.path = path if root else path.expanduser().resolve()
        self._root = root

    def __str__(self) -> str:
        return str(self.path)

    def __truediv__(self, name: str) -> Disk:
        return Disk(self.path / name, self._root)

    def is_file(self) -> bool:
        """Return whether it is a file, or a link to one."""
        return self.path.is_file()

    def is_folder(self) -> bool:
        """Return whether it is a folder, or a link to one."""
        return self.path.is_dir()

    def is_empty(self) -> bool:
        """See `Place.is_empty`."""
        try:
            with os.scandir(self.path) as entries:
                return next(entries, None) is None
        except _ABSENT:
            return True

    def entry(self) -> Entry:
        """Return size and modification time."""
        return _entry(self.path.name, self.path.stat())

    def files(self) -> list[Entry]:
        """See `Place.files`."""
        self._check_links()
        entries = []
        with suppress(*_ABSENT):
            for name in os.listdir(self.path):
                with suppress(FileNotFoundError):  # a dangling link, or removed concurrently
                    status = (self.path / name).stat()
                    if not stat.S_ISDIR(status.st_mode):
                        entries.append(_entry(name, status))
        return entries

    def walk(self, skip: frozenset[str]) -> Iterator[Entry]:
        """Yield regular files and links to them. Raises OSError for a folder that cannot be listed."""
        for root, folders, names in os.walk(self.path, onerror=_raise_unless_absent):
            folders[:] = sorted(f for f in folders if f not in skip and not f.startswith(".") and f != _RECOVERED)
            for name in sorted(names):
                path = Path(root, name)
                if not name.startswith(".") and path.is_file():
                    yield _entry(str(path.relative_to(self.path)), path.stat())

    def find(self, text: str, limit: int) -> list[Entry]:
        """See `Place.find`. Hidden folders, links and deep folders are not searched."""
        entries, depth = [], len(self.path.parts) + _MAX_DEPTH
        for root, folders, names in os.walk(self.path):
            folders[:] = sorted(f for f in folders if not f.startswith(".")) if len(Path(root).parts) < depth else []
            for name in names[: max(0, limit)]:
                path = Path(root, name)
                if text in name and path.is_file() and not path.is_symlink():
                    entries.append(_entry(str(path.relative_to(self.path)), path.stat()))
            limit -= len(names) + 1
            if limit <= 0:
                break
        return entries

    def read(self, limit: int | None = None) -> bytes:
        """See `Place.read`."""
        with self._open() as file:
            check_size(os.fstat(file.fileno()).st_size, limit, self)
            return file.read(-1 if limit is None else limit)

    def part(self, start: int, size: int) -> bytes:
        """See `Place.part`."""
        with self._open() as file:
            file.seek(start if start >= 0 else max(0, os.fstat(file.fileno()).st_size + start))
            return file.read(size)

    def write(self, content: bytes) -> None:
        """Write the file atomically, even during a power failure."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_name(f".{self.path.name}.{secrets.token_hex(4)}")
        create_file(temporary, content, sync=True)
        try:
            os.replace(temporary, self.path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise

    def adopt(self, file: Path) -> Entry:
        """Rename the file."""
        os.replace(file, self.path)
        return self.entry()

    def download(self, file: Path) -> None:
        """See `Place.download`."""
        with self._open() as content, file.open("wb") as copy:
            shutil.copyfileobj(content, copy)

    def lines(self) -> DiskLines:
        """See `Place.lines`."""
        return DiskLines(self.path)

    def slot(self) -> DiskSlot:
        """Return the file as a slot of numbered versions."""
        return DiskSlot(self.path)

    def rename(self, name: str, seal: str) -> None:
        """See `Place.rename`."""
        self.path.rename(self.path.with_name(name))

    def remove_tree(self, seal: str) -> None:
        """See `Place.remove_tree`. Raises Refused for a symbolic link."""
        if self.path.is_symlink():
            raise Refused(errno.ELOOP, "it is a symbolic link", str(self))
        with suppress(*_ABSENT):
            shutil.rmtree(self.path)

    def _open(self) -> BinaryIO:
        file = open_regular(self.path)
        try:
            self._check_links()
        except OSError:
            file.close()
            raise
        return file

    def _check_links(self) -> None:
        if self._root and not self.path.resolve().is_relative_to(self._root.resolve()):
            raise Refused(errno.EPERM, f"a symbolic link leads out of {self._root}", str(self))


class DiskLines:
    """A file of lines, written without a buffer. Lines that a full disk refuses are written before the next one."""

    def __init__(self, path: Path, most_waiting: int = _MAX_WAITING) -> None:
        """Open a file. Of lines that are refused, the newest `most_waiting` bytes are kept."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._fd, self._lock = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644), threading.Lock()
        self._waiting: deque[bytes] = deque()
        self._most_waiting = most_waiting
        _remove_torn_line(path)

    def write(self, line: bytes, *, at_once: bool = False) -> None:
        """Append a line. Raises OSError if it does not fit: it is then appended before a later one, or by `flush`."""
        with self._lock:
            self._waiting.append(line)
            self._write_waiting()

    def flush(self, seconds: float) -> None:
        """Append the lines that did not fit. Raises OSError if they still do not."""
        with self._lock:
            self._write_waiting()

    def _write_waiting(self) -> None:
        while self._waiting:
            line = self._waiting[0]
            try:
                written = os.write(self._fd, line)
                if written < len(line):
                    os.ftruncate(self._fd, os.fstat(self._fd).st_size - written)
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError:
                while sum(map(len, self._waiting)) > self._most_waiting:
                    self._waiting.popleft()
                raise
            self._waiting.popleft()


def open_regular(path: Path) -> BinaryIO:
    """Open a file for reading. Raises Refused for a pipe or a device, because reading one may never end."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    kind = os.fstat(handle).st_mode
    if stat.S_ISREG(kind):
        return open(handle, "rb")
    os.close(handle)
    if stat.S_ISDIR(kind):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise Refused(errno.EINVAL, "it is not a regular file", str(path))


def _raise_unless_absent(error: OSError) -> None:
    if not isinstance(error, _ABSENT):
        raise error


def _entry(name: str, status: os.stat_result) -> Entry:
    return Entry(name, status.st_size, status.st_mtime_ns)


def _remove_torn_line(path: Path) -> None:
    """Remove a partial last line of a killed writer, to which the next line would be appended."""
    with path.open("rb+") as file:
        end = size = file.seek(0, os.SEEK_END)
        while end:
            begin = max(0, end - _BLOCK)
            file.seek(begin)
            if (newline := file.read(end - begin).rfind(b"\n")) >= 0:
                end = begin + newline + 1
                break
            end = begin
        if end < size:
            file.truncate(end)
