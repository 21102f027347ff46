"""Tests of a changed module: in a copy of the tree, so that neither the tree nor tests in it are affected."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cosmic_ray.testing import run_tests
from cosmic_ray.work_item import TestOutcome

from tools.mutation.drawing import Mutant
from tools.mutation.table import Target

ROOT = Path(__file__).resolve().parents[2]
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)(?: - |$)", re.MULTILINE)
_AT_IMPORT = ("errors during collection", "error during collection", "ImportError while loading conftest")
_PYTEST = ("-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--hypothesis-seed", "1")
_UNCHANGED_SECONDS = 300.0


@contextmanager
def copied_tree(python: Path) -> Iterator[Runs]:
    """Copy the files that git knows or would add, and go there for the block."""
    with tempfile.TemporaryDirectory(prefix="xpk-mutation-") as folder:
        copy = Path(folder) / "tree"
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT, check=True, capture_output=True, text=True,
        ).stdout  # fmt: skip
        for name in filter(None, listed.split("\0")):
            if (ROOT / name).is_file():
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(ROOT / name, copy / name)
        subprocess.run([python, "-m", "compileall", "-q", "xpk", "workloads"], cwd=copy, check=True)
        paths = os.pathsep.join(map(str, (copy, copy / "workloads")))
        os.environ.update(PYTHONPATH=paths, XPK_STATE_DIR=str(Path(folder) / "state"))
        os.chdir(copy)
        try:
            yield Runs(copy, python)
        finally:
            os.chdir(ROOT)


class Runs:
    """Runs of tests in a copy of the tree."""

    def __init__(self, copy: Path, python: Path) -> None:
        self._copy, self._python = copy, python

    def unchanged_seconds(self, target: Target) -> float:
        """Return the seconds that a target's tests take. Raises RuntimeError if they fail without any change."""
        began = time.monotonic()
        outcome, output = self._run(target, _UNCHANGED_SECONDS)
        if outcome != TestOutcome.SURVIVED:
            raise RuntimeError(f"the tests of {target.name} fail without any change:\n{output}")
        return time.monotonic() - began

    def killer(self, target: Target, mutant: Mutant, limit_seconds: float) -> str:
        """Return the test that notices a change, "import", "timeout", "exit" if pytest dies, or "" if none does."""
        file = self._copy / target.module
        original = file.read_bytes()
        for stale in (file.parent / "__pycache__").glob(f"{file.stem}.*.pyc"):
            stale.unlink()
        try:
            file.write_text(mutant.code, encoding="utf-8")
            outcome, output = self._run(target, limit_seconds)
        finally:
            file.write_bytes(original)
        if outcome == TestOutcome.SURVIVED:
            return ""
        if outcome != TestOutcome.KILLED:
            raise RuntimeError(f"the tests of {target.name} did not start:\n{output}")
        if output == "timeout":
            return "timeout"
        if any(text in output for text in _AT_IMPORT):
            return "import"
        return failed[1] if (failed := _FAILED.search(output)) else "exit"

    def _run(self, target: Target, limit_seconds: float) -> tuple[TestOutcome, str]:
        """Run a target's tests until one fails; return the outcome and the output of the last run."""
        ends_at, outcome, output = time.monotonic() + limit_seconds, TestOutcome.SURVIVED, ""
        for arguments in target.tests:
            if outcome == TestOutcome.SURVIVED:
                command = shlex.join([str(self._python), *_PYTEST, *shlex.split(arguments)])
                outcome, output = run_tests(command, max(1.0, ends_at - time.monotonic()))
        return outcome, output
