"""Manifest of a checkpoint: sizes and checksums of its files, written last, which detect damage.

A checksum is "blocks:SIZE:..." (the CRC-32 of every SIZE bytes, of a file that this host read; older manifests have one
number for the file) or "md5:..." or "crc32c:..." (as a bucket stores them). So a checkpoint stays valid when it is
copied from a bucket to a folder, or back.
"""

import base64
import hashlib
import json
import os
import re
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO

from trainer.errors import FatalError, Problem

MANIFEST = "manifest.json"
INSIDE = "inside"  # the note that names the checkpoint's folder of arrays
_CHUNK = 1 << 22
_READERS = 16  # files read at a time, as shared file systems limit the throughput of a stream
_BLOCK, _MAX_BLOCKS = 1 << 16, 64  # minimum bytes per checksum, and maximum checksums per file
_OWN_SUM = "crc32"  # key of the manifest's checksum of its own content
_FIELDS = {"notes", "files"}  # its content
_NOTE_TYPES = {INSIDE: str, "model": dict, "optimizer": dict, "data": str, "global_batch": int, "tokens": int}
_MAX_PATH = 1024
_SUMS = re.compile(r"blocks:[1-9][0-9]{0,17}:[0-9a-f,]*|(md5|crc32c):[A-Za-z0-9+/=]*")
_STEP = re.compile(r"0|[1-9][0-9]{0,17}")

Sum = int | str
Sums = dict[str, tuple[int, Sum]]  # file -> (bytes, checksum)
Inside = Callable[[str, int, int], str]  # file, first byte, end -> description of that part of the checkpoint


def manifest(files: Sums, notes: dict[str, Any]) -> bytes:
    """Return the manifest of `files`, with `notes` beside them and a checksum of both."""
    content = {"notes": notes, "files": files}
    return json.dumps(content | {_OWN_SUM: _own_sum(content)}, indent=1).encode()


def notes(content: bytes) -> dict[str, Any]:
    """Return the notes of a manifest."""
    values: dict[str, Any] = json.loads(content)["notes"]
    return values


def read_manifest(content: bytes) -> Sums | None:
    """Return the files of a manifest, or None if it is damaged."""
    try:
        fields = json.loads(content)
        if fields.keys() != _FIELDS and fields.pop(_OWN_SUM) != _own_sum(fields):  # older manifests have no checksum
            return None
        files = {name: (int(size), _sum(checksum)) for name, (size, checksum) in fields["files"].items()}
        is_ours = fields.keys() == _FIELDS and _are_notes(fields["notes"]) and all(map(is_inside, files))
        return files if is_ours else None
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None


def _are_notes(values: dict[str, Any]) -> bool:
    """Return whether the notes that a run reads have their types."""
    known = {key: values[key] for key in _NOTE_TYPES if key in values}
    length = known.get("model", {}).get("seq_len", 0)
    return all(type(value) is _NOTE_TYPES[key] for key, value in known.items()) and (
        type(length) is int and is_inside(known.get(INSIDE, "."))
    )


def is_inside(name: str) -> bool:
    """Return whether a relative path is below the folder that it is relative to, and can be a path at all."""
    parts = name.split("/")
    is_short = len(name) < _MAX_PATH and all(len(os.fsencode(part)) < 256 for part in parts)
    return is_short and "\0" not in name and not {"", ".."} & {*parts}


def read_step(name: str) -> int | None:
    """Return the step in the name of a checkpoint's folder, None for other names."""
    return int(name) if _STEP.fullmatch(name) else None


def foreign_error(where: object) -> FatalError:
    """Return the error for a folder named like a checkpoint without a manifest: only its owner may remove it."""
    message = f"{where} is not a checkpoint of this trainer: it has no {MANIFEST}"
    return FatalError(Problem(message, "Use another run.output_dir, or move the folder; nothing was removed"))


def _own_sum(content: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())


def sums(folder: Path) -> Sums:
    """Return size and checksum of every file of a folder that is about to be committed."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST)
    with ThreadPoolExecutor(_READERS) as readers:
        return {
            str(path.relative_to(folder)): (path.stat().st_size, blocks)
            for path, blocks in zip(paths, readers.map(_blocks, paths), strict=True)
        }


def damage(folder: Path, inside: Inside = lambda name, begin, end: "") -> str:
    """Return the defect of a committed folder, or "". Sizes are compared before anything is read.

    Raises OSError if it cannot be read, as it may be complete.
    """
    try:
        expected = _expected(folder)
        if isinstance(expected, str):
            return expected
        if wrong := find_wrong_size(expected, _sizes(folder, expected)):
            return wrong
        kinds = [checksum for _, checksum in expected.values()]
        with ThreadPoolExecutor(_READERS) as readers:
            computed = dict(zip(expected, readers.map(_computed, map(folder.joinpath, expected), kinds), strict=True))
        return find_wrong_sum(expected, lambda name, kind: computed[name], inside)
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
        return f"{error.filename or folder} is not a file"


def has_sizes(folder: Path) -> bool:
    """Return whether all files of a committed folder exist with the right sizes; reads none of them."""
    try:
        expected = _expected(folder)
        return not isinstance(expected, str) and not find_wrong_size(expected, _sizes(folder, expected))
    except OSError:
        return False


def _sizes(folder: Path, expected: Sums) -> dict[str, int]:
    """Return the sizes of the files that exist; reading a pipe or a device would not end."""
    return {name: (folder / name).stat().st_size for name in expected if (folder / name).is_file()}


def _expected(folder: Path) -> Sums | str:
    """Return the entries of a folder's manifest, or its defect."""
    try:
        return read_manifest((folder / MANIFEST).read_bytes()) or f"{MANIFEST} is damaged"
    except FileNotFoundError:
        return f"{MANIFEST} is missing"


def outdated(steps: list[int], newest: int, is_complete: Callable[[int], bool]) -> list[int]:
    """Return the steps that may be removed: those before the `newest` newest complete ones. `steps` is oldest first."""
    complete = 0
    for step in reversed(steps):
        complete += is_complete(step)
        if complete == newest:
            return [old for old in steps if old < step]
    return []


def find_wrong_size(expected: Sums, sizes: dict[str, int]) -> str:
    """Return the defect of the first file of the wrong size, or ""."""
    for name, (size, _) in expected.items():
        if name not in sizes:
            return f"{name} is missing"
        if sizes[name] != size:
            return f"{name} has {sizes[name]} bytes, should have {size}"
    return ""


def find_wrong_sum(
    expected: Sums, computed: Callable[[str, Sum], Sum | None], inside: Inside = lambda name, begin, end: ""
) -> str:
    """Return the defect of the first changed file, or ""; `computed(name, kind)` returns a checksum of that kind."""
    for name, (size, checksum) in expected.items():
        now = computed(name, checksum)
        if now not in (checksum, None):
            begin, end = _changed(checksum, now, size)
            description = inside(name, begin, end)
            return f"{name} has changed since it was written" + (f" ({description})" if description else "")
    return ""


def _changed(was: Sum, now: Sum | None, size: int) -> tuple[int, int]:
    """Return the first byte and the end of the changed range, as far as checksums tell."""
    if not isinstance(was, str) or not isinstance(now, str) or not was.startswith("blocks:"):
        return 0, size
    (_, block, before), (_, _, after) = was.split(":"), now.split(":")
    changed = [
        n for n, (one, other) in enumerate(zip(before.split(","), after.split(","), strict=False)) if one != other
    ]
    return (changed[0] * int(block), min(size, (changed[-1] + 1) * int(block))) if changed else (0, size)


def _sum(checksum: Any) -> Sum:
    """Return a checksum of a manifest. Raises ValueError or TypeError for an unknown one."""
    if isinstance(checksum, str) and not _SUMS.fullmatch(checksum):
        raise ValueError(checksum)
    return checksum if isinstance(checksum, str) else int(checksum)


def _computed(path: Path, kind: Sum) -> Sum | None:
    """Return the checksum of a file, of the same kind as the known one; None if only buckets compute that kind."""
    if isinstance(kind, int):
        return _crc32(path)
    if kind.startswith("blocks:"):
        return _blocks(path)
    if not kind.startswith("md5:"):
        return None
    with path.open("rb") as file:
        return "md5:" + base64.b64encode(hashlib.file_digest(file, "md5").digest()).decode()


def _crc32(path: Path) -> int:
    with path.open("rb") as file:
        return _crc32_of(file, path.stat().st_size)


def _blocks(path: Path) -> str:
    """Return the checksums of a file's blocks, whose length follows from its size."""
    size = -(-path.stat().st_size // (_BLOCK * _MAX_BLOCKS)) * _BLOCK or _BLOCK
    with path.open("rb") as file:
        crcs = [f"{_crc32_of(file, size):08x}" for _ in range(0, path.stat().st_size, size)]
    return f"blocks:{size}:{','.join(crcs)}"


def _crc32_of(file: BinaryIO, size: int) -> int:
    """Return the CRC-32 of the next `size` bytes."""
    crc = 0
    while size > 0 and (chunk := file.read(min(size, _CHUNK))):
        crc, size = zlib.crc32(chunk, crc), size - len(chunk)
    return crc
