"""Checkpoints in a bucket, where objects cannot be renamed: a checkpoint exists if and only if its manifest does.

    checkpoints/owner.json              the attempt that may commit; its generation names the attempt's saves
    checkpoints/<step>/<generation>/…   files written by the hosts of that attempt
    checkpoints/<step>/manifest.json    written last, removed first; empty while it is about to be written
    checkpoints/<step>/removing         marks a checkpoint copied here from a folder: its other objects may be removed

A surviving host of an earlier attempt (its machine was only disconnected) writes to its own prefix, and its commit
fails because its attempt is no longer the owner. If another attempt becomes the owner during the commit, it removes the
empty manifest before the other objects, and the commit, which overwrites only that empty manifest, fails.
"""

import contextlib
import json
import secrets
import time
from collections.abc import Collection, Iterable
from typing import Any

from trainer.checkpoint.stores import manifest as integrity
from trainer.checkpoint.stores import ocdbt
from xpk_shared.storage.bucket import Bucket

_OWNER, _REMOVING = "owner.json", "removing"


class BucketStore:
    """Store of checkpoints in a bucket."""

    def __init__(self, place: Bucket) -> None:
        self._place = place
        self._quarantined: list[str] = []  # objects of damaged checkpoints

    def begin_attempt(self, attempt: int) -> str:
        """Become the owner, then remove the remains of aborted saves, which can no longer be committed.

        Raises FatalError if there are checkpoints of another program.
        """
        for name in self._uncommitted():
            if not _is_from_saves(self._object_names(name)):
                raise integrity.foreign_error(self._place / name)
        owner = (self._place / _OWNER).slot()
        content = {"attempt": attempt, "time": time.time(), "write": secrets.token_hex(8)}
        attempt_id = str(owner.put(json.dumps(content).encode(), owner.look()[0]))
        for name in self._uncommitted():
            if _is_from_saves(names := self._object_names(name)) and self._remove_empty_manifest(name):  # still
                self._remove_objects(f"{name}/{item}" for item in names)
        return attempt_id

    def steps(self) -> list[int]:
        """Return the steps that have a manifest."""
        steps = map(integrity.read_step, self._place.folders())
        return [step for step in sorted(step for step in steps if step is not None) if self._is_committed(step)]

    def staging_path(self, step: int, attempt_id: str) -> str:
        """Return the address to write to."""
        return str(self._place / str(step) / attempt_id)

    def commit(self, step: int, attempt_id: str, notes: dict[str, Any]) -> None:
        """Write the manifest, if this attempt is still the owner."""
        files = {f"{attempt_id}/{name}": known for name, known in (self._place / str(step) / attempt_id).sums().items()}
        content = integrity.manifest(dict(files), notes | {integrity.INSIDE: attempt_id})
        manifest = self._manifest(step).slot()
        version, reserved = manifest.look()
        if not reserved:
            version = manifest.put(b"", version)  # a new owner removes it before the checkpoint's other objects
        try:
            if str((self._place / _OWNER).entry().changed) != attempt_id:
                raise FileExistsError
            manifest.put(content, version)
        except FileExistsError as error:
            raise PermissionError(13, "a newer attempt has taken over", str(self._place)) from error

    def abort(self, step: int, attempt_id: str) -> None:
        """Remove the written objects."""
        with contextlib.suppress(OSError):
            staging = self._place / str(step) / attempt_id
            staging.remove_each(staging.sums())

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
            attempt_id, _, file = name.partition("/")
            return ocdbt.inside(f"{self._place / str(step) / attempt_id}/", file, begin, end)

        sizes = {name: size for name, (size, _) in sums.items()}
        return integrity.find_wrong_size(expected, sizes) or integrity.find_wrong_sum(expected, kept, inside)

    def notes(self, step: int) -> dict[str, Any]:
        """Return the notes of a complete checkpoint."""
        return integrity.notes(self._manifest(step).read())

    def content(self, step: int, notes: dict[str, Any]) -> str:
        """Return the address that Orbax wrote to."""
        return str(self._place / str(step) / notes.get(integrity.INSIDE, ""))

    def quarantine(self, step: int) -> None:
        """Remove the manifest."""
        self._quarantined += self._remove_manifest(step)

    def remove_old(self, newest: int, committed: int, unread: Collection[int] = ()) -> None:
        """Remove older checkpoints and damaged ones."""
        with contextlib.suppress(OSError):
            steps = [step for step in self.steps() if step <= committed]
            for step in integrity.outdated(steps, newest, lambda step: step not in unread and not self.damage(step)):
                self._remove_objects(self._remove_manifest(step))
            self._remove_objects(self._quarantined)
            self._quarantined.clear()

    def _manifest(self, step: int | str) -> Bucket:
        return self._place / str(step) / integrity.MANIFEST

    def _is_committed(self, step: int | str) -> bool:
        with contextlib.suppress(FileNotFoundError):
            return self._manifest(step).entry().size > 0
        return False

    def _remove_empty_manifest(self, step: str) -> bool:
        """Remove an empty manifest, so that it cannot be overwritten; return whether no manifest exists now."""
        with contextlib.suppress(FileExistsError, FileNotFoundError):
            empty = self._manifest(step).entry()
            if not empty.size:
                self._manifest(step).remove(empty.changed)
        return not self._manifest(step).is_file()

    def _object_names(self, step: str) -> list[str]:
        """Return the names of a step's objects except its manifest."""
        return [name for name in (self._place / step).sums() if name != integrity.MANIFEST]

    def _uncommitted(self) -> list[str]:
        """Return the names of step folders without a manifest."""
        names = [name for name in self._place.folders() if name.isdigit()]
        return [name for name in names if not self._is_committed(name)]

    def _remove_manifest(self, step: int) -> list[str]:
        """Remove the manifest, so that the step is no longer a checkpoint; return the names of its other objects."""
        folder = self._place / str(step)
        names = self._object_names(str(step))
        if names and not _is_from_saves(names):
            (folder / _REMOVING).write(b"")
            names.append(_REMOVING)
        self._manifest(step).remove()
        return [f"{step}/{name}" for name in names]

    def _remove_objects(self, names: Iterable[str]) -> None:
        """Remove objects; the markers that allow their removal go last."""
        names = list(names)
        marks = [name for name in names if name.endswith(f"/{_REMOVING}")]
        self._place.remove_each(name for name in names if name not in marks)
        self._place.remove_each(marks)


def _is_from_saves(names: Collection[str]) -> bool:
    """Return whether a step's objects without a manifest are from saves, each in its generation, or marked."""
    return _REMOVING in names or all(name.partition("/")[0].isdigit() and "/" in name for name in names)
