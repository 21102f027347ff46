"""A small file that several processes may write, each only over the version that it has read (compare and swap).

In a bucket the version is the object's generation. A file system has no such write: there each version is a file of
its own, NAME.VERSION, which only one process can create; the highest one counts.
"""

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from trainer.bucket import Bucket


class Slot(Protocol):
    """A file with versions; 0 is that of a file that does not exist."""

    def look(self) -> tuple[int, bytes]:
        """Return version and content."""

    def put(self, content: bytes, over: int) -> int:
        """Write `content` over version `over`; return the new version. Raises FileExistsError if there is another."""


class FolderSlot:
    """A slot on a file system."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def look(self) -> tuple[int, bytes]:
        """Read the newest version; one that was replaced meanwhile is not there any more."""
        while version := self._newest():
            with contextlib.suppress(FileNotFoundError):
                return version, self._file(version).read_bytes()
        return 0, b""

    def put(self, content: bytes, over: int) -> int:
        """Create the next version, then remove the older ones."""
        if not over:
            self._path.parent.mkdir(parents=True, exist_ok=True)
        mine = self._file(over + 1)
        _create(mine, content)
        if self._newest() > over + 1:  # `over` was replaced, and removed, long ago
            mine.unlink(missing_ok=True)
            raise FileExistsError(17, "somebody else has written it", str(self._path))
        for version in self._versions():
            if version <= over:
                self._file(version).unlink(missing_ok=True)
        return over + 1

    def _newest(self) -> int:
        return max(self._versions(), default=0)

    def _versions(self) -> list[int]:
        name = f"{self._path.name}."
        ends = (path.name.removeprefix(name) for path in self._path.parent.glob(f"{name}*"))
        return [int(end) for end in ends if end.isdecimal()]

    def _file(self, version: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{version}")


class BucketSlot:
    """A slot in a bucket."""

    def __init__(self, place: "Bucket") -> None:
        self._place = place

    def look(self) -> tuple[int, bytes]:
        """Read the object."""
        with contextlib.suppress(FileNotFoundError):
            return self._place.entry().changed, self._place.read()
        return 0, b""

    def put(self, content: bytes, over: int) -> int:
        """Write the object; no two may write the same `content`, by which a request that seemed lost is found."""
        try:
            return self._place.create(content, over)
        except FileExistsError:
            version, found = self.look()
            if found != content:
                raise
            return version


def _create(file: Path, content: bytes) -> None:
    """Create a file. Raises FileExistsError if there is one; leaves none that could not be written."""
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        os.write(descriptor, content)
    except OSError:
        file.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)
