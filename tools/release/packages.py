"""Wheel and sdist of a commit, built twice in different surroundings and compared byte by byte."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tools.release.source import Source
from xpk.model.errors import XpkError


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Conditions of a build that must not show in its result."""

    folder: str
    umask: int
    variables: Mapping[str, str]


FIRST = Surroundings("first", 0o022, {"TZ": "UTC", "PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8"})
SECOND = Surroundings("second/with/a/longer/path", 0o077, {"TZ": "Asia/Tokyo", "PYTHONHASHSEED": "1", "LC_ALL": "C"})


def build_packages(source: Source) -> dict[str, bytes]:
    """Return the wheel and the sdist by their names. Raises XpkError if a build fails, or if two builds differ."""
    with tempfile.TemporaryDirectory(prefix="xpk-release-") as temporary:
        root = Path(temporary)
        first, second = (_build(source, root, surroundings) for surroundings in (FIRST, SECOND))
        compare_builds(first, second)
        rebuilt = _build_from_sdist(source, root, first)
        compare_builds({name: content for name, content in first.items() if name in rebuilt}, rebuilt)
        return first


def compare_builds(first: Mapping[str, bytes], second: Mapping[str, bytes]) -> None:
    """Raise XpkError if two builds have other files or other bytes."""
    if first.keys() != second.keys():
        names = ", ".join(sorted(first.keys() ^ second.keys()))
        raise XpkError(f"two builds of the commit have different files: {names}", hint="set the version in one place")
    for name, content in first.items():
        digests = [hashlib.sha256(each).hexdigest() for each in (content, second[name])]
        if digests[0] != digests[1]:
            raise XpkError(
                f"two builds of {name} differ: sha256 {digests[0]} and {digests[1]}",
                hint="compare the two with diffoscope; a build must not depend on time, paths or order",
            )


def _build(source: Source, root: Path, surroundings: Surroundings) -> dict[str, bytes]:
    folder = root / surroundings.folder
    folder.mkdir(parents=True)
    source.extract(folder)
    return _run_backend(source, folder, surroundings, "wheel", "sdist")


def _build_from_sdist(source: Source, root: Path, packages: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the wheel that a user builds from the sdist."""
    (name,) = (name for name in packages if name.endswith(".tar.gz"))
    file = root / name
    file.write_bytes(packages[name])
    with tarfile.open(file) as tar:
        tar.extractall(root / "sdist", filter="data")
    return _run_backend(source, root / "sdist" / name.removesuffix(".tar.gz"), SECOND, "wheel")


def _run_backend(source: Source, folder: Path, surroundings: Surroundings, *targets: str) -> dict[str, bytes]:
    """Return what hatchling builds in a folder."""
    output = folder / "dist"
    command = [sys.executable, "-m", "hatchling", "build", "--directory", str(output)]
    for target in targets:
        command += ["--target", target]
    environment = os.environ | surroundings.variables | {"SOURCE_DATE_EPOCH": str(source.seconds)}
    done = subprocess.run(
        command, cwd=folder, env=environment, umask=surroundings.umask, capture_output=True, text=True, check=False
    )
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or [f"exit code {done.returncode}"]
        raise XpkError(f"hatchling failed: {lines[-1]}", hint="make install")
    return {file.name: file.read_bytes() for file in sorted(output.iterdir()) if file.is_file()}
