"""Copies of bucket files on this host's disk: one of each file, of its newest generation.

A file on a disk is its own copy. Copies are shared by all hosts on this machine.
"""

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from trainer.errors import FatalError, Problem
from trainer.storage.scratch import scratch
from xpk_shared.storage import Place


@contextlib.contextmanager
def draft(place: Place) -> Iterator[Path]:
    """Create a file on this host's disk for `adopt`; it is removed unless `adopt` has moved it."""
    if place.path is not None:
        place.path.parent.mkdir(parents=True, exist_ok=True)
    with _temporary_file(
        scratch() if place.path is None else place.path.parent
    ) as file:  # a rename must stay on one disk
        yield file


def adopt(place: Place, file: Path) -> None:
    """Move a `draft` to its place; for a bucket it becomes this host's copy."""
    generation = place.adopt(file).changed
    if place.path is None:
        _store(place, file, generation)


def complete_copy(place: Place, digest: str) -> Path:
    """Return the path of a copy, verified against the object's size and `digest`, the first digits of its SHA-256.

    Raises FatalError if the object is damaged. A file on a disk is not verified here.
    """
    if place.path is not None:
        return place.path
    entry = place.entry()
    copy = _copy(place, entry.changed)
    if not (copy.is_file() and copy.stat().st_size == entry.size and _sha256(copy).startswith(digest)):
        with _temporary_file(scratch()) as file:
            place.download(file)
            if not _sha256(file).startswith(digest):
                message = f"{place} is damaged: its SHA-256 does not begin with {digest}"
                raise FatalError(Problem(message, "Delete it and its .json to prepare it again from the source"))
            _store(place, file, entry.changed)
    return copy


def partial_copy(place: Place, size: int) -> Path | None:
    """Return the path of a copy of `size` bytes, complete or sparse, whose content is not verified.

    None for a file on a disk. Raises FatalError if the object has another size.
    """
    if place.path is not None:
        return None
    entry = place.entry()
    if entry.size != size:
        message = f"{str(place)!r} has {entry.size:,} bytes but should have {size:,}"
        raise FatalError(Problem(message, "Copy it here again, or prepare the data set again"))
    whole, parts = _copy(place, entry.changed), _copy(place, f"{entry.changed}.parts")
    if whole.is_file() and whole.stat().st_size == size:
        return whole
    if not (parts.is_file() and parts.stat().st_size == size):
        with _temporary_file(scratch()) as file:
            os.truncate(file, size)
            _remove_older(place, entry.changed)
            os.replace(file, parts)
    return parts


@contextlib.contextmanager
def temporary_copy(place: Place) -> Iterator[Path]:
    """Yield the path of a file on a disk, or of a copy of one in a bucket, which is removed afterward."""
    if place.path is not None:
        yield place.path
        return
    with _temporary_file(scratch()) as file:
        place.download(file)
        yield file


def _copy(place: Place, generation: int | str) -> Path:
    return scratch() / f"{hashlib.sha256(str(place).encode()).hexdigest()[:16]}-{generation}"


def _store(place: Place, file: Path, generation: int) -> None:
    """Store a file as this host's copy, replacing older ones."""
    _remove_older(place, generation)
    os.replace(file, _copy(place, generation))


def _remove_older(place: Place, generation: int) -> None:
    """Remove the copies of other generations; another job may be using those of this one."""
    kept = {_copy(place, generation), _copy(place, f"{generation}.parts")}
    for old in set(scratch().glob(_copy(place, "*").name)) - kept:
        old.unlink(missing_ok=True)


def _sha256(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


@contextlib.contextmanager
def _temporary_file(folder: Path) -> Iterator[Path]:
    descriptor, name = tempfile.mkstemp(dir=folder, prefix="making-")
    os.close(descriptor)
    try:
        yield Path(name)
    finally:
        Path(name).unlink(missing_ok=True)
