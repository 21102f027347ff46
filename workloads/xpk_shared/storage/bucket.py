"""Places in a bucket, where a folder is a common prefix of names and writes are atomic."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from xpk_shared.storage.bucket_lines import BucketLines
from xpk_shared.storage.bucket_objects import Objects
from xpk_shared.storage.place import Entry, Place


class Bucket(Objects, Place):
    """A place in a bucket."""

    path = None

    def is_file(self) -> bool:
        """Return whether there is an object of this name."""
        return bool(self._name) and self.look() is not None

    def is_folder(self) -> bool:
        """Return whether there is an object below. A bucket that does not exist is not a folder."""
        with suppress(FileNotFoundError):
            return not self.is_empty()
        return False

    def walk(self, skip: frozenset[str]) -> Iterator[Entry]:
        """Yield the objects below in the order of a folder's files."""
        sort_keys = []
        for entry in self.below():
            *folders, name = entry.name.split("/")
            if name and not name.startswith(".") and not any(f in skip or f.startswith(".") for f in folders):
                sort_keys.append(([(1, folder) for folder in folders] + [(0, name)], entry))
        return (entry for _, entry in sorted(sort_keys, key=lambda pair: pair[0]))

    def find(self, text: str, limit: int) -> list[Entry]:
        """See `Place.find`. The server looks only at objects whose names match."""
        entries = self.matching(f"**{text}*", limit)
        return [entry for entry in entries if text in entry.name.rpartition("/")[2]]

    def write(self, content: bytes) -> None:
        """Write the object."""
        self.create(content, None)

    def lines(self) -> BucketLines:
        """Start appending lines in the background."""
        return BucketLines(self)

    def slot(self) -> BucketSlot:
        """Return the object as a slot, versioned by generation."""
        return BucketSlot(self)

    def rename(self, name: str, seal: str) -> None:
        """See `Place.rename`."""
        parent = self._name.rpartition("/")[0]
        target = self._with_name(f"{parent}/{name}" if parent else name)
        batches = self._batches(seal)
        for names in batches:
            self._for_each(lambda name: (self / name).copy_to(target / name), names)
        self._remove(batches)

    def remove_tree(self, seal: str) -> None:
        """See `Place.remove_tree`."""
        self._remove(self._batches(seal))

    def _remove(self, batches: list[list[str]]) -> None:
        for names in reversed(batches):
            self.remove_each(names)

    def _batches(self, seal: str) -> list[list[str]]:
        """Return the names of all objects below in two batches; the second one holds those named `seal`."""
        names = [entry.name for entry in self.below()]
        return [[name for name in names if name.endswith(f"/{seal}") == is_seal] for is_seal in (False, True)]


class BucketSlot:
    """A `Slot` in a bucket, whose version is the object's generation."""

    def __init__(self, place: Objects) -> None:
        self._place = place

    def look(self) -> tuple[int, bytes]:
        """Read the object."""
        with suppress(FileNotFoundError):
            return self._place.entry().changed, self._place.read()
        return 0, b""

    def put(self, content: bytes, over: int) -> int:
        """Write the object; each `content` must be unique, so that a request whose response was lost is recognized."""
        try:
            return self._place.create(content, over)
        except FileExistsError:
            version, stored = self.look()
            if stored != content:
                raise
            return version
