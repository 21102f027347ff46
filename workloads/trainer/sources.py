"""The files that text is taken from: which of a folder's files count, and which of those are text."""

import codecs
import hashlib
import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path

SEPARATOR = b"\0"  # between documents; a file that contains one is binary
_SKIPPED_FOLDERS = {"__pycache__", "site-packages", "node_modules"}
_HEAD = 4096  # bytes that tell text from something else


def source_folder(path: str) -> Path:
    """Return the folder or file that `data.path` means."""
    return Path(sysconfig.get_paths()["stdlib"]) if path == "stdlib" else Path(path).expanduser()


def wanted_suffixes(path: str, suffixes: str) -> str:
    """Return `data.suffixes`, or those of Python's sources where Python's own library is asked for."""
    return suffixes or (".py" if path == "stdlib" else "")


def text_files(folder: Path, suffixes: str = "") -> Iterator[Path]:
    """Yield the candidate files under `folder` in a fixed order; hidden and vendored folders are left out.

    Only regular files and links to them: reading a pipe or a device may never end.
    """
    wanted = tuple(suffix.strip() for suffix in suffixes.split(",") if suffix.strip())
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(f for f in folders if f not in _SKIPPED_FOLDERS and not f.startswith("."))
        for name in sorted(names):
            path = Path(root, name)
            if not name.startswith(".") and (not wanted or name.endswith(wanted)) and os.path.isfile(path):
                yield path


def document(path: Path) -> bytes | None:
    """Return a file's text as UTF-8 bytes, or None if it is no text (or cannot be read)."""
    try:
        content = path.read_bytes()
        content.decode("utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    return None if not content or SEPARATOR in content else content


def looks_like_text(path: Path) -> bool:
    """Whether the beginning of a file is text: what `document` would say, reading a few KiB at most."""
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD)
        codecs.getincrementaldecoder("utf-8")().decode(head, final=len(head) < _HEAD)
    except (OSError, UnicodeDecodeError):
        return False
    return bool(head) and SEPARATOR not in head


def fingerprint(folder: Path, suffixes: str) -> str:
    """Digest of the names, sizes and times of the sources: tells a change without reading them."""
    digest = hashlib.sha256()
    for path in text_files(folder, suffixes):
        stat = path.stat()
        digest.update(f"{path.relative_to(folder)}\0{stat.st_size}\0{stat.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:16]
