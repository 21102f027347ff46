"""Source files of text: selection of a folder's files, and detection of text."""

import codecs
import hashlib
import sysconfig
from collections.abc import Iterator

from trainer.storage import open_place
from xpk_shared.storage import Entry, Place

SEPARATOR = b"\0"  # between documents; a file that contains one is binary
_SKIPPED_FOLDERS = frozenset({"__pycache__", "site-packages", "node_modules"})
_HEAD = 4096  # bytes read to detect text


def source_place(path: str) -> Place:
    """Return the folder or file of `data.path`. Raises FatalError as `open_place`."""
    return open_place(sysconfig.get_paths()["stdlib"] if path == "stdlib" else path)


def is_translated_text(path: str, target: str) -> bool:
    """Return whether these name pairs of sentences as text, rather than a folder of text or a prepared data set."""
    return bool(target) or path.endswith(".tsv")


def source_suffixes(path: str, suffixes: str) -> str:
    """Return `data.suffixes`, or the suffixes of Python sources for Python's own library."""
    return suffixes or (".py" if path == "stdlib" else "")


def text_files(folder: Place, suffixes: str = "") -> Iterator[Entry]:
    """Yield the candidate files under `folder` in a fixed order, except in hidden and vendored folders."""
    endings = tuple(suffix.strip() for suffix in suffixes.split(",") if suffix.strip())
    return (entry for entry in folder.walk(_SKIPPED_FOLDERS) if not endings or entry.name.endswith(endings))


def document(content: bytes | None) -> bytes | None:
    """Return a file's text as UTF-8 bytes, or None if it is not text or cannot be read."""
    try:
        (content or b"").decode("utf-8")
    except UnicodeDecodeError:
        return None
    return None if not content or SEPARATOR in content else content


def looks_like_text(file: Place) -> bool:
    """Return whether a file is probably text, as `document` decides, from a few KiB at most."""
    try:
        head = file.part(0, _HEAD)
        codecs.getincrementaldecoder("utf-8")().decode(head, final=len(head) < _HEAD)
    except (OSError, UnicodeDecodeError):
        return False
    return bool(head) and SEPARATOR not in head


def fingerprint(folder: Place, suffixes: str) -> str:
    """Return a digest of the sources' names, sizes and times, which detects changes without reading them."""
    digest = hashlib.sha256()
    for entry in text_files(folder, suffixes):
        digest.update(f"{entry.name}\0{entry.size}\0{entry.changed}\n".encode())
    return digest.hexdigest()[:16]
