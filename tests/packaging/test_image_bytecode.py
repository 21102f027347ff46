"""The bytecode in the trainer's image: the same from each build, whenever the sources were copied."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_COMPILE = re.compile(r"^RUN python (-m compileall .*?) \\$", re.MULTILINE)


def test_two_builds_compile_to_the_same_bytes(tmp_path: Path) -> None:
    one, two = (
        compiled(tmp_path / name, seconds) for name, seconds in (("one", 1_000_000_000), ("two", 1_700_000_000))
    )
    assert len(one) > 50 and one == two


def test_packages_are_not_compiled_with_the_time_of_their_installation() -> None:
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    installs = re.findall(r"pip install .*", text)
    assert len(installs) == 2 and all(" --no-compile " in line for line in installs)
    assert all("--invalidation-mode unchecked-hash" in line for line in re.findall(r"-m compileall .*", text))


def compiled(folder: Path, seconds: int) -> dict[str, bytes]:
    """Return the files that the Dockerfile's first command compiles from sources with a time."""
    match = _COMPILE.search((ROOT / "Dockerfile").read_text(encoding="utf-8"))
    assert match
    arguments = shlex.split(match[1])
    for name in arguments[-3:]:
        shutil.copytree(ROOT / "workloads" / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for file in folder.rglob("*.py"):
        os.utime(file, (seconds, seconds))
    subprocess.run([sys.executable, *arguments], cwd=folder, check=True, env={"PYTHONHASHSEED": str(seconds)})
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*.pyc")}
