"""Tell a whole checkpoint from a damaged one: a manifest of sizes and checksums, written last."""

import json
import zlib
from pathlib import Path
from typing import Any

from trainer.metrics import write_json

MANIFEST = "manifest.json"
_CHUNK = 1 << 22


def seal(folder: Path, notes: dict[str, Any]) -> None:
    """Write the manifest of every file in `folder`, with `notes` beside it."""
    files = {str(path.relative_to(folder)): [path.stat().st_size, _crc32(path)] for path in _files(folder)}
    write_json(folder / MANIFEST, {"notes": notes, "files": files})


def read_notes(folder: Path) -> dict[str, Any]:
    """Return the notes of a sealed folder."""
    notes: dict[str, Any] = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["notes"]
    return notes


def damage(folder: Path) -> str:
    """Return what is wrong with a sealed folder, or nothing. Sizes are compared before anything is read."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        expected = {str(name): (int(size), int(crc)) for name, (size, crc) in manifest["files"].items()}
        manifest["notes"].items()
    except FileNotFoundError:
        return f"{MANIFEST} is missing"
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return f"{MANIFEST} is damaged"
    try:
        for name, (size, _) in expected.items():
            if (found := (folder / name).stat().st_size) != size:
                return f"{name} has {found} bytes, should have {size}"
        for name, (_, crc) in expected.items():
            if _crc32(folder / name) != crc:
                return f"{name} has changed since it was written"
    except OSError as error:
        return f"{error.filename or folder} cannot be read: {error.strerror}"
    return ""


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST)


def _crc32(path: Path) -> int:
    crc = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            crc = zlib.crc32(chunk, crc)
    return crc
