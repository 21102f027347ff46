"""Checkpoints in a bucket, where nothing can be renamed: one exists if and only if its manifest does.

    checkpoints/owner.json              the attempt that may commit; its generation names the attempt's saves
    checkpoints/<step>/<generation>/…   files written by the hosts of that attempt
    checkpoints/<step>/manifest.json    written last, removed first; empty while it is about to be written
    checkpoints/<step>/removing         marks a checkpoint copied here from a folder: the rest is ours to remove

A surviving host of an earlier attempt (its machine was only disconnected) writes beside the newer ones' objects, and
finds at its commit that it is not the owner any more. If another becomes the owner just then, it removes the empty
manifest before the rest, and the commit, which overwrites only that one, fails.
"""

import contextlib
import json
import secrets
import time
from collections.abc import Collection, Iterable
from typing import Any

from trainer.checkpoint.shelves import manifest as integrity
from trainer.checkpoint.shelves import ocdbt
from xpk_shared.storage.bucket import Bucket

_OWNER, _REMOVING = "owner.json", "removing"


class BucketShelf:
    """A `Shelf` in a bucket."""

    def __init__(self, place: Bucket) -> None:
        self._place = place
        self._aside: list[str] = []  # objects of damaged checkpoints

    def claim(self, attempt: int) -> str:
        """Become the owner, then remove the remains of aborted saves, which cannot be committed any more.

        Raises FatalError if there are checkpoints of another program.
        """
        for name in self._unsealed():
            if not _is_ours(self._content(name)):
                raise integrity.foreign(self._place / name)
        owner = (self._place / _OWNER).slot()
        content = {"attempt": attempt, "time": time.time(), "write": secrets.token_hex(8)}
        claim = str(owner.put(json.dumps(content).encode(), owner.look()[0]))
        for name in self._unsealed():
            if _is_ours(left := self._content(name)) and self._unreserve(name):  # still
                self._clear(f"{name}/{each}" for each in left)
        return claim

    def steps(self) -> list[int]:
        """Return the steps that have a manifest."""
        steps = sorted(int(name) for name in self._place.folders() if name.isdigit())
        return [step for step in steps if self._is_sealed(step)]

    def draft(self, step: int, claim: str) -> str:
        """Return the address to write to; nothing has to be created."""
        return str(self._place / str(step) / claim)

    def commit(self, step: int, claim: str, notes: dict[str, Any]) -> None:
        """Write the manifest, if this attempt is still the owner."""
        files = {f"{claim}/{name}": known for name, known in (self._place / str(step) / claim).sums().items()}
        content = integrity.manifest(dict(files), notes | {integrity.INSIDE: claim})
        manifest = self._manifest(step).slot()
        version, reserved = manifest.look()
        if not reserved:
            version = manifest.put(b"", version)  # a new owner removes it before the checkpoint's objects
        try:
            if str((self._place / _OWNER).entry().changed) != claim:
                raise FileExistsError
            manifest.put(content, version)
        except FileExistsError as error:
            raise PermissionError(13, "a newer attempt has taken over", str(self._place)) from error

    def discard(self, step: int, claim: str) -> None:
        """Remove what was written."""
        with contextlib.suppress(OSError):
            draft = self._place / str(step) / claim
            draft.remove_each(draft.sums())

    def damage(self, step: int) -> str:
        """Compare sizes and checksums with those stored by the bucket; only the manifest is read."""
        try:
            expected = integrity.read_manifest(self._manifest(step).read())
        except FileNotFoundError:
            return f"{integrity.MANIFEST} is missing"
        if expected is None:
            return f"{integrity.MANIFEST} is damaged"
        sums = (self._place / str(step)).sums()

        def kept(name: str, like: integrity.Sum) -> integrity.Sum | None:
            checksum = sums[name][1]
            return checksum if str(like).partition(":")[0] == checksum.partition(":")[0] else None

        def inside(name: str, begin: int, end: int) -> str:
            claim, _, file = name.partition("/")
            return ocdbt.inside(f"{self._place / str(step) / claim}/", file, begin, end)

        sizes = {name: size for name, (size, _) in sums.items()}
        return integrity.wrong_size(expected, sizes) or integrity.wrong_sum(expected, kept, inside)

    def notes(self, step: int) -> dict[str, Any]:
        """Return the notes of a complete checkpoint."""
        return integrity.notes(self._manifest(step).read())

    def content(self, step: int, notes: dict[str, Any]) -> str:
        """Return the address that Orbax wrote to."""
        return str(self._place / str(step) / notes.get(integrity.INSIDE, ""))

    def set_aside(self, step: int) -> None:
        """Remove the manifest."""
        self._aside += self._take_down(step)

    def keep(self, newest: int, committed: int, unread: Collection[int] = ()) -> None:
        """Remove older checkpoints and damaged ones."""
        with contextlib.suppress(OSError):
            steps = [step for step in self.steps() if step <= committed]
            for step in integrity.outdated(steps, newest, lambda step: step not in unread and not self.damage(step)):
                self._clear(self._take_down(step))
            self._clear(self._aside)
            self._aside.clear()

    def _manifest(self, step: int | str) -> Bucket:
        return self._place / str(step) / integrity.MANIFEST

    def _is_sealed(self, step: int | str) -> bool:
        with contextlib.suppress(FileNotFoundError):
            return self._manifest(step).entry().size > 0
        return False

    def _unreserve(self, step: str) -> bool:
        """Remove an empty manifest, so that nobody can write it; return whether no manifest exists now."""
        with contextlib.suppress(FileExistsError, FileNotFoundError):
            empty = self._manifest(step).entry()
            if not empty.size:
                self._manifest(step).remove(empty.changed)
        return not self._manifest(step).is_file()

    def _content(self, step: str) -> list[str]:
        """Return the names of a step's objects except its manifest."""
        return [name for name in (self._place / step).sums() if name != integrity.MANIFEST]

    def _unsealed(self) -> list[str]:
        """Return the names of folders that would be checkpoints with a manifest."""
        names = [name for name in self._place.folders() if name.isdigit()]
        return [name for name in names if not self._is_sealed(name)]

    def _take_down(self, step: int) -> list[str]:
        """Remove the manifest, so that it is not a checkpoint any more; return its other objects to remove."""
        folder = self._place / str(step)
        names = self._content(str(step))
        if names and not _is_ours(names):
            (folder / _REMOVING).write(b"")
            names.append(_REMOVING)
        self._manifest(step).remove()
        return [f"{step}/{name}" for name in names]

    def _clear(self, names: Iterable[str]) -> None:
        """Remove objects, the markers that they are ours to remove last."""
        names = list(names)
        marks = [name for name in names if name.endswith(f"/{_REMOVING}")]
        self._place.remove_each(name for name in names if name not in marks)
        self._place.remove_each(marks)


def _is_ours(names: Collection[str]) -> bool:
    """Return whether a step's content without a manifest is from saves, each in its generation, or marked."""
    return _REMOVING in names or all(name.partition("/")[0].isdigit() and "/" in name for name in names)
