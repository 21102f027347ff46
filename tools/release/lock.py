"""Lock files of requirements/: each package with its version, its files' SHA-256 and the packages that require it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from xpk.model.errors import XpkError

PROJECT = "xpk-multislice"
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
_VIA = re.compile(r"\s*#\s+(?:via )?([A-Za-z0-9][\w.-]*)(?: \(pyproject\.toml\))?$")


@dataclass(frozen=True, slots=True)
class LockedPackage:
    """A package of a lock file."""

    name: str
    version: str
    marker: str  # environments that it is for; "" for all
    sha256: tuple[str, ...]  # of each of its files
    required_by: frozenset[str]  # names; empty if the file has no annotations


def read_lock(file: Path) -> list[LockedPackage]:
    """Return the packages of a lock file. Raises XpkError if one has no exact version or no hash."""
    return [_package(file, line, notes) for line, notes in _entries(file)]


def _entries(file: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield each requirement as one line, and the comment lines below it."""
    requirement = ""
    notes: list[str] = []
    for line in file.read_text(encoding="utf-8").replace("\\\n", " ").splitlines():
        if line.lstrip().startswith("#"):
            notes.append(line)
        elif line.strip():
            if requirement:
                yield requirement, notes
            requirement, notes = line, []
    if requirement:
        yield requirement, notes


def _package(file: Path, line: str, notes: list[str]) -> LockedPackage:
    try:
        requirement = Requirement(line.split(" --hash=")[0])
    except InvalidRequirement as error:
        raise _invalid(file, line, "it is not a requirement") from error
    exact = [each.version for each in requirement.specifier if each.operator == "=="]
    if len(exact) != 1 or len(requirement.specifier) != 1:
        raise _invalid(file, line, "it has no exact version")
    hashes = tuple(_HASH.findall(line))
    if not hashes:
        raise _invalid(file, line, "it has no SHA-256")
    parents = {str(canonicalize_name(match[1])) for note in notes if (match := _VIA.match(note))}
    marker = str(requirement.marker or "")
    return LockedPackage(canonicalize_name(requirement.name), exact[0], marker, hashes, frozenset(parents - {"via"}))


def _invalid(file: Path, line: str, why: str) -> XpkError:
    return XpkError(f"invalid line in {file.name}: '{line.split(' ')[0]}': {why}", hint="make lock")
