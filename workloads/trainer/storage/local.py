"""Places on a file system: files are renamed into place, lines are appended with one system call."""

import contextlib
import errno
import functools
import os
import shutil
import tempfile
import threading
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

from trainer.storage import manifest, ocdbt
from trainer.storage.base import Entry
from trainer.storage.slot import FolderSlot

_BLOCK = 1 << 16  # bytes


class Folder:
    """A file or folder of this machine, or on a volume that all hosts share."""

    def __init__(self, path: Path) -> None:
        self.path = path.expanduser().resolve()

    def __str__(self) -> str:
        return str(self.path)

    def __truediv__(self, name: str) -> "Folder":
        return Folder(self.path / name)

    def is_file(self) -> bool:
        """Return whether it is a file, or a link to one."""
        return self.path.is_file()

    def is_folder(self) -> bool:
        """Return whether it is a folder, or a link to one."""
        return self.path.is_dir()

    def entry(self) -> Entry:
        """Return size and modification time."""
        stat = self.path.stat()
        return Entry(self.path.name, stat.st_size, stat.st_mtime_ns)

    def files(self) -> list[Entry]:
        """Return the files directly in it."""
        return [Folder(path).entry() for path in self.path.glob("*") if path.is_file()]

    def walk(self, skip: frozenset[str]) -> Iterator[Entry]:
        """Yield regular files and links to them, as reading a pipe or a device may never end."""
        for root, folders, names in os.walk(self.path):
            folders[:] = sorted(f for f in folders if f not in skip and not f.startswith("."))
            for name in sorted(names):
                path = Path(root, name)
                if not name.startswith(".") and path.is_file():
                    stat = path.stat()
                    yield Entry(str(path.relative_to(self.path)), stat.st_size, stat.st_mtime_ns)

    def read(self) -> bytes:
        """Return the whole content."""
        return self.path.read_bytes()

    def read_each(self, entries: Iterable[Entry]) -> Iterator[bytes | None]:
        """Yield contents in order; None for a file that cannot be read."""
        for entry in entries:
            try:
                yield (self.path / entry.name).read_bytes()
            except OSError:
                yield None

    def head(self, size: int) -> bytes:
        """Return the first bytes."""
        return self.part(0, size)

    def part(self, start: int, size: int) -> bytes:
        """Return `size` bytes from `start`, or as many as exist."""
        with self.path.open("rb") as file:
            file.seek(start)
            return file.read(size)

    def partial(self, size: int) -> None:
        """Return None, as nothing has to be copied."""

    def write(self, content: bytes) -> None:
        """Write the file atomically, also through a power failure."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_name(f".{self.path.name}.tmp")
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, self.path)

    def workshop(self) -> Path:
        """Return the folder that the file will be in, as a rename must stay on one disk."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        return self.path.parent

    def adopt(self, file: Path) -> None:
        """Rename the file."""
        os.replace(file, self.path)

    def local(self, digest: str) -> Path:
        """Return the file itself; its digest was computed when it was made."""
        return self.path

    def lines(self) -> "FolderLines":
        """Open the file for appending lines."""
        return FolderLines(self.path)

    def slot(self) -> FolderSlot:
        """Return the file as a slot of numbered versions."""
        return FolderSlot(self.path)

    def room(self) -> int | None:
        """Return the bytes free on the disk."""
        disk = os.statvfs(self.path)
        return disk.f_bavail * disk.f_frsize

    def shelf(self) -> "FolderShelf":
        """Return the checkpoints in this folder, creating it."""
        self.path.mkdir(parents=True, exist_ok=True)
        return FolderShelf(self.path)


class FolderLines:
    """A file of lines, written without a buffer."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._fd, self._lock = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644), threading.Lock()
        _remove_torn_line(path)

    def write(self, line: bytes, *, at_once: bool = False) -> None:
        """Append a line. Raises OSError if it does not fit, and leaves nothing of it."""
        with self._lock:
            written = os.write(self._fd, line)
            if written < len(line):
                os.ftruncate(self._fd, os.fstat(self._fd).st_size - written)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def flush(self, seconds: float) -> None:
        """Do nothing, as no line is buffered."""


class FolderShelf:
    """Checkpoints renamed into place: `.saving-...` is aborted, a number is complete, others are to be removed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def claim(self, attempt: int) -> str:
        """Remove the remains of aborted saves. Needs no fence: a rename never replaces an existing checkpoint.

        Raises FatalError if there are checkpoints of another program.
        """
        unsealed = [path for path in self._numbered() if not _is_sealed(path)]
        for path in unsealed:
            if not self._is_half(path):
                raise manifest.foreign(path)
        self._remove([*unsealed, *self._folder.glob(".saving-*"), *self._folder.glob(".removing-*")])
        return str(attempt)

    def steps(self) -> list[int]:
        """Return the numbers of the folders that have a manifest."""
        return sorted(int(path.name) for path in self._numbered() if _is_sealed(path))

    def draft(self, step: int, claim: str) -> str:
        """Create the folder that is renamed when it is complete."""
        draft = self._draft(step, claim)
        draft.mkdir(parents=True, exist_ok=True)
        return str(draft)

    def commit(self, step: int, claim: str, notes: dict[str, Any]) -> None:
        """Write the manifest, then rename; both survive a power failure."""
        draft = self._draft(step, claim)
        Folder(draft / manifest.MANIFEST).write(manifest.manifest(manifest.sums(draft), notes))
        os.replace(draft, self._folder / str(step))
        _sync_folder(self._folder)

    def discard(self, step: int, claim: str) -> None:
        """Remove the draft."""
        self._remove([self._draft(step, claim)])

    def damage(self, step: int) -> str:
        """Compare sizes with the manifest, then read everything and compare checksums."""
        folder = self._folder / str(step)
        return manifest.damage(folder, functools.partial(ocdbt.inside, f"file://{folder}/"))

    def notes(self, step: int) -> dict[str, Any]:
        """Return the notes of a complete checkpoint."""
        return manifest.notes((self._folder / str(step) / manifest.MANIFEST).read_bytes())

    def content(self, step: int, notes: dict[str, Any]) -> str:
        """Return the folder that Orbax wrote."""
        return str(self._folder / str(step) / notes.get(manifest.INSIDE, ""))

    def set_aside(self, step: int) -> None:
        """Rename it, so that its number is free."""
        aside = self._folder / f".damaged-{step}"
        self._remove([aside])
        os.replace(self._folder / str(step), aside)

    def keep(self, newest: int, committed: int, unread: Collection[int] = ()) -> None:
        """Remove older and damaged checkpoints; each is renamed first, so that none is ever partial."""

        def is_whole(step: int) -> bool:
            return step not in unread and manifest.has_sizes(self._folder / str(step))

        self._remove(self._folder.glob(".removing-*"))  # free the names for renames
        for old in manifest.outdated([step for step in self.steps() if step <= committed], newest, is_whole):
            with contextlib.suppress(OSError):
                os.replace(self._folder / str(old), self._folder / f".removing-{old}")
        self._remove([*self._folder.glob(".removing-*"), *self._folder.glob(".damaged-*")])

    def _numbered(self) -> list[Path]:
        return sorted(path for path in self._folder.glob("*") if path.name.isdigit())

    def _is_half(self, path: Path) -> bool:
        """Return whether a folder without a manifest is a part of our checkpoint, as in a mounted bucket.

        There a rename copies. Anywhere else a folder has its manifest before it has its number.
        """
        halves = self._folder.glob(f".saving-{path.name}-*"), self._folder.glob(f".removing-{path.name}")
        return any(True for half in halves for _ in half)

    def _draft(self, step: int, claim: str) -> Path:
        return self._folder / f".saving-{step}-{claim}"

    @staticmethod
    def _remove(paths: Iterable[Path]) -> None:
        for path in paths:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                with contextlib.suppress(OSError):
                    path.unlink()


def _is_sealed(path: Path) -> bool:
    """Return whether a checkpoint has a manifest; True if the disk fails, so that reading it reports the error."""
    try:
        return (path / manifest.MANIFEST).is_file()
    except OSError:
        return True


def _sync_folder(folder: Path) -> None:
    """Make the rename itself survive a power failure."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove_torn_line(path: Path) -> None:
    """Remove a partial line, left by a killed writer, which would swallow the next one."""
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


@contextlib.contextmanager
def making(workshop: Path) -> Iterator[Path]:
    """Create a file in the workshop; it is removed unless it was moved away."""
    descriptor, name = tempfile.mkstemp(dir=workshop, prefix="making-")
    os.close(descriptor)
    try:
        yield Path(name)
    finally:
        Path(name).unlink(missing_ok=True)
