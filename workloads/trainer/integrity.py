"""Tell a whole checkpoint from a damaged one: a manifest of sizes and checksums, written last.

A checksum is a number (CRC-32, of a file that this host read) or "md5:..." or "crc32c:..." (as a bucket
keeps them). So a checkpoint that was copied from a bucket to a folder, or back, is still a checkpoint.
"""

import base64
import hashlib
import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

MANIFEST = "manifest.json"
INSIDE = "inside"  # the note that says in which folder of the checkpoint its arrays are
_CHUNK = 1 << 22
_OWN = "crc32"  # key of a manifest's checksum of itself

Sum = int | str
Sums = dict[str, tuple[int, Sum]]  # file -> (bytes, checksum)


def manifest(files: Sums, notes: dict[str, Any]) -> bytes:
    """Return the manifest of `files`, with `notes` beside them and a checksum of both."""
    content = {"notes": notes, "files": files}
    return json.dumps(content | {_OWN: _own_sum(content)}, indent=1).encode()


def notes(content: bytes) -> dict[str, Any]:
    """Return the notes of a manifest."""
    found: dict[str, Any] = json.loads(content)["notes"]
    return found


def read_manifest(content: bytes) -> Sums | None:
    """Return the files of a manifest, or None if it is damaged."""
    try:
        told = json.loads(content)
        told["notes"].items()
        if told.pop(_OWN, None) not in (None, _own_sum(told)):  # older manifests have none
            return None
        return {str(name): (int(size), _sum(checksum)) for name, (size, checksum) in told["files"].items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _own_sum(content: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())


def sums(folder: Path) -> Sums:
    """Read every file of a folder that is about to be sealed."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST)
    return {str(path.relative_to(folder)): (path.stat().st_size, _crc32(path)) for path in paths}


def damage(folder: Path) -> str:
    """Return what is wrong with a sealed folder, or nothing. Sizes are compared before anything is read."""
    try:
        expected = read_manifest((folder / MANIFEST).read_bytes())
    except FileNotFoundError:
        return f"{MANIFEST} is missing"
    except OSError:
        expected = None
    if expected is None:
        return f"{MANIFEST} is damaged"
    try:
        sizes = {name: (folder / name).stat().st_size for name in expected}
        return wrong_size(expected, sizes) or wrong_sum(expected, lambda name, kind: _computed(folder / name, kind))
    except OSError as error:
        return f"{error.filename or folder} cannot be read: {error.strerror}"


def wrong_size(expected: Sums, found: dict[str, int]) -> str:
    """Return which file has not its size, or nothing."""
    for name, (size, _) in expected.items():
        if name not in found:
            return f"{name} is missing"
        if found[name] != size:
            return f"{name} has {found[name]} bytes, should have {size}"
    return ""


def wrong_sum(expected: Sums, found: Callable[[str, Sum], Sum | None]) -> str:
    """Return which file has changed, or nothing; `found(name, kind)` gives a checksum like `kind` or None."""
    for name, (_, checksum) in expected.items():
        if found(name, checksum) not in (checksum, None):
            return f"{name} has changed since it was written"
    return ""


def _sum(checksum: Any) -> Sum:
    return checksum if isinstance(checksum, str) else int(checksum)


def _computed(path: Path, kind: Sum) -> Sum | None:
    """Return the checksum of a file, of the kind that is known; None if there is no way to compute it."""
    if isinstance(kind, int):
        return _crc32(path)
    if not kind.startswith("md5:"):
        return None
    with path.open("rb") as file:
        return "md5:" + base64.b64encode(hashlib.file_digest(file, "md5").digest()).decode()


def _crc32(path: Path) -> int:
    crc = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            crc = zlib.crc32(chunk, crc)
    return crc
