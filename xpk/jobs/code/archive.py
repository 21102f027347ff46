"""Content-addressed archives of user code."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import tarfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from xpk.model.errors import UsageError, XpkError
from xpk.storage.text import read_text

IGNORE_FILE = ".xpkignore"
MAX_BYTES, MAX_FILES = 64 * 2**20, 20_000
_IGNORED = (".git", ".hg", ".svn", ".venv", "__pycache__", "*.pyc", ".mypy_cache", ".pytest_cache", ".ruff_cache")
_TIME = 946_684_800  # 2000-01-01: zip files cannot represent times before 1980
_DIGEST = 20  # hexadecimal digits


@dataclass(frozen=True, slots=True)
class Archive:
    """A folder as .tar.gz, named by its content. `size` is the total size of the files in bytes."""

    name: str
    content: bytes
    files: int
    size: int


def check_folder(folder: Path) -> None:
    """Raise UsageError if a folder does not exist."""
    if not os.path.isdir(folder):  # Path.is_dir raises for names with invalid characters
        raise UsageError(f"--script-dir: folder '{folder}' not found", hint="--script-dir DIR")


def pack(folder: Path) -> Archive:
    """Return a folder as an archive without ignored files. Raises UsageError with all problems."""
    check_folder(folder)
    entries = list(_walk(folder, _patterns(folder)))
    if not any(entry.is_symlink() or entry.is_file() for entry in entries):
        raise UsageError(f"--script-dir: there are no files in '{folder}'", hint="--script-dir DIR")
    _check_size(folder, entries)
    problems = [problem for entry in entries if (problem := _problem(folder, entry))]
    if problems:
        raise UsageError(
            f"'{folder}' cannot be shipped",
            problems=problems,
            hint=f"replace these entries by copies, or list them in {IGNORE_FILE}",
        )
    raw, files, size = io.BytesIO(), 0, 0
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for entry in entries:
            try:
                info, content = _member(entry, entry.relative_to(folder).as_posix())
            except OSError as error:
                raise XpkError(f"cannot read {entry}: {error.strerror}", hint="try again") from error
            tar.addfile(info, io.BytesIO(content))
            files, size = files + (not info.isdir()), size + len(content)
    packed = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", fileobj=packed, mtime=0) as file:
        file.write(raw.getvalue())
    # Of the uncompressed content: releases of zlib compress differently.
    digest = hashlib.sha256(raw.getvalue()).hexdigest()[:_DIGEST]
    return Archive(f"xpk-code-{digest}", packed.getvalue(), files, size)


def format_size(count: int) -> str:
    """Return a number of bytes for people to read."""
    for unit, size in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} bytes"


def _walk(folder: Path, patterns: list[str]) -> Iterator[Path]:
    """Yield the entries to ship, folders before their content, in an order determined by names alone."""
    count, rest = 0, [folder]
    while rest:
        entry = rest.pop()
        if entry != folder:
            yield entry
        if entry.is_symlink() or not entry.is_dir():
            continue
        try:
            children = sorted(entry.iterdir(), key=lambda path: path.name, reverse=True)
            entries = [entry for entry in children if not _ignored(entry, entry.relative_to(folder), patterns)]
        except OSError as error:
            raise UsageError(f"cannot read {entry}: {error.strerror}", hint=f"list it in {IGNORE_FILE}") from error
        count += len(entries)
        if count > MAX_FILES:
            raise UsageError(
                f"--script-dir: '{folder}' holds more than {MAX_FILES:,} files",
                hint=f"choose a smaller folder, or list unneeded files in {IGNORE_FILE}",
            )
        rest += entries


def _patterns(folder: Path) -> list[str]:
    """Return the ignore patterns: built-in ones and those of the folder's ignore file."""
    file = folder / IGNORE_FILE
    try:
        lines = read_text(file, hint=f"write one pattern a line to {IGNORE_FILE}, or remove it").splitlines()
    except FileNotFoundError:
        lines = []
    patterns = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    for pattern in patterns:
        if pattern.startswith("!") or "**" in pattern:
            raise UsageError(
                f"{file}: '{pattern}' is not supported",
                hint="use a name or a path with * ? [..], and / at the end for folders only",
            )
    return [*_IGNORED, *patterns]


def _ignored(entry: Path, relative: Path, patterns: list[str]) -> bool:
    """Return True if a pattern matches an entry: by its name at any depth, or by its path if it contains `/`."""
    link = entry.is_symlink()  # first: its target may be unreadable
    folder = not link and entry.is_dir()
    if not (link or folder or entry.is_file()):
        return True  # sockets, pipes and devices have no content
    for pattern in patterns:
        if pattern.endswith("/") and not folder:
            continue
        pattern_parts = PurePosixPath(pattern.strip("/")).parts
        parts = relative.parts if "/" in pattern.rstrip("/") else relative.parts[-1:]
        if len(parts) == len(pattern_parts) and all(map(fnmatchcase, parts, pattern_parts)):
            return True
    return False


def _problem(folder: Path, entry: Path) -> str:
    """Return why an entry cannot be shipped, "" if it can."""
    try:
        name = entry.relative_to(folder).as_posix()
        name.encode()
    except UnicodeEncodeError:
        return f"the name of {os.fsencode(entry)!r} is not UTF-8"
    if entry.is_symlink():
        to = os.readlink(entry)
        is_inside = Path(os.path.realpath(entry)).is_relative_to(os.path.realpath(folder))
        if os.path.isabs(to) or not is_inside:
            return f"{name} is a link that leaves the folder, to {to}"
    elif not os.access(entry, os.R_OK):
        return f"{name} cannot be read: {os.strerror(13)}"
    return ""


def _check_size(folder: Path, entries: list[Path]) -> None:
    sizes: Counter[str] = Counter()
    for entry in entries:
        if not entry.is_symlink() and entry.is_file():
            sizes[entry.relative_to(folder).parts[0]] += entry.stat().st_size
    total = sum(sizes.values())
    if total > MAX_BYTES:
        largest = ", ".join(f"{name} {format_size(size)}" for name, size in sizes.most_common(3))
        raise UsageError(
            f"--script-dir: '{folder}' holds {format_size(total)}, more than the maximum of {format_size(MAX_BYTES)}; "
            f"largest entries: {largest}",
            hint=f"list files that are not code in {folder / IGNORE_FILE}, one pattern a line",
        )


def _member(entry: Path, name: str) -> tuple[tarfile.TarInfo, bytes]:
    """Return an entry of the archive and its content, normalized so that copies of a folder are identical."""
    info, content = tarfile.TarInfo(name), b""
    info.mtime, info.mode = _TIME, 0o755
    if entry.is_symlink():
        info.type, info.linkname = tarfile.SYMTYPE, os.readlink(entry)
    elif entry.is_dir():
        info.type = tarfile.DIRTYPE
    else:
        info.mode = 0o755 if entry.stat().st_mode & 0o100 else 0o644
        content = entry.read_bytes()
        info.size = len(content)
    return info, content
