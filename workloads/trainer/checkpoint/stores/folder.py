"""Checkpoints in a folder, renamed into place."""

import contextlib
import errno
import functools
import os
import secrets
import shutil
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any

from trainer.checkpoint.stores import manifest, ocdbt
from xpk_shared.storage import open_place

_OWNER = ".owner"
_CANNOT_SYNC = {errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}


class FolderStore:
    """Store of checkpoints in a folder: `.saving-...` is an aborted save, a number is a complete checkpoint.

    `.owner` names the attempt that may commit.
    """

    def __init__(self, folder: Path, *, sync: Callable[[int], None] = os.fsync) -> None:
        self._folder, self._sync = folder, sync
        self._owner: bytes | None = None  # content of the owner file while no other attempt has begun

    def begin_attempt(self, attempt: int) -> str:
        """Remove the remains of aborted saves.

        An earlier attempt that still runs can commit only what it renames before this. So the remains are renamed, too,
        before they are removed, and it finds that it is no longer the owner.
        Raises FatalError if there are checkpoints of another program.
        """
        uncommitted = [path for path in self._numbered() if not _is_committed(path)]
        for path in uncommitted:
            if not self._is_partial_rename(path):
                raise manifest.foreign_error(path)
        self._owner = self._take_over()
        self._remove(uncommitted)
        for path in self._folder.glob(".saving-*"):
            with contextlib.suppress(OSError):
                os.replace(path, self._folder / f".removing-{path.name[1:]}")
        self._remove([*self._folder.glob(".saving-*"), *self._folder.glob(".removing-*")])
        return str(attempt)

    def steps(self) -> list[int]:
        """Return the numbers of the folders that have a manifest."""
        steps = {path: manifest.read_step(path.name) for path in self._numbered()}
        return sorted(step for path, step in steps.items() if step is not None and _is_committed(path))

    def staging_path(self, step: int, attempt_id: str) -> str:
        """Create the folder that is renamed when it is complete."""
        staging = self._staging_folder(step, attempt_id)
        staging.mkdir(exist_ok=True)
        return str(staging)

    def commit(self, step: int, attempt_id: str, notes: dict[str, Any]) -> None:
        """Write the manifest, then rename; both survive a power failure."""
        staging = self._staging_folder(step, attempt_id)
        open_place(staging / manifest.MANIFEST).write(manifest.manifest(manifest.sums(staging), notes))
        if self._owner not in (None, self._read_owner()):
            raise PermissionError(errno.EACCES, "a newer attempt has taken over", str(self._folder))
        os.replace(staging, self._folder / str(step))
        self._sync_folder()

    def abort(self, step: int, attempt_id: str) -> None:
        """Remove the staging folder."""
        self._remove([self._staging_folder(step, attempt_id)])

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

    def quarantine(self, step: int) -> None:
        """Rename the checkpoint, so that its number is free."""
        aside = self._folder / f".damaged-{step}"
        self._remove([aside])
        os.replace(self._folder / str(step), aside)

    def remove_old(self, newest: int, committed: int, unread: Collection[int] = ()) -> None:
        """Remove older and damaged checkpoints; each is renamed first, so that none is ever partial."""

        def is_complete(step: int) -> bool:
            return step not in unread and manifest.has_sizes(self._folder / str(step))

        self._remove(self._folder.glob(".removing-*"))  # free the names for renames
        for old in manifest.outdated([step for step in self.steps() if step <= committed], newest, is_complete):
            with contextlib.suppress(OSError):
                os.replace(self._folder / str(old), self._folder / f".removing-{old}")
        self._remove([*self._folder.glob(".removing-*"), *self._folder.glob(".damaged-*")])

    def _take_over(self) -> bytes:
        """Become the owner; return the content of the owner file, which is the earlier one if the disk is full."""
        content = secrets.token_hex(8).encode()
        try:
            (self._folder / _OWNER).write_bytes(content)  # if it is cut off, no earlier attempt is the owner either
        except OSError:
            return self._read_owner()
        return content

    def _read_owner(self) -> bytes:
        with contextlib.suppress(FileNotFoundError):
            return (self._folder / _OWNER).read_bytes()
        return b""

    def _numbered(self) -> list[Path]:
        return sorted(path for path in self._folder.glob("*") if path.name.isdigit())

    def _is_partial_rename(self, path: Path) -> bool:
        """Return whether a folder without a manifest is part of an interrupted rename, as in a mounted bucket.

        There a rename is a copy. Elsewhere a folder has its manifest before it has its number.
        """
        sources = self._folder.glob(f".saving-{path.name}-*"), self._folder.glob(f".removing-{path.name}")
        return any(True for matches in sources for _ in matches)

    def _staging_folder(self, step: int, attempt_id: str) -> Path:
        return self._folder / f".saving-{step}-{attempt_id}"

    def _sync_folder(self) -> None:
        """Make the rename itself survive a power failure, if the file system can."""
        descriptor = os.open(self._folder, os.O_RDONLY)
        try:
            self._sync(descriptor)
        except OSError as error:
            if error.errno not in _CANNOT_SYNC:
                raise
        finally:
            os.close(descriptor)

    @staticmethod
    def _remove(paths: Iterable[Path]) -> None:
        for path in paths:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                with contextlib.suppress(OSError):
                    path.unlink()


def _is_committed(path: Path) -> bool:
    """Return whether a checkpoint has a manifest; True on a disk error, so that the read reports the error."""
    try:
        return (path / manifest.MANIFEST).is_file()
    except OSError:
        return True
