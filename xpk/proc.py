"""Child processes, in one place: argument lists, never a shell string, and errors that can be pasted."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from xpk.model.errors import MissingToolError


@dataclass(frozen=True, slots=True)
class Result:
    """How a program ended and what it printed."""

    argv: tuple[str, ...]
    exit_code: int
    stdout: str
    stderr: str

    @property
    def command(self) -> str:
        """Return the command as one could paste it."""
        return shlex.join(self.argv)

    @property
    def last_line(self) -> str:
        """Return the last thing that it said."""
        lines = (self.stderr.strip() or self.stdout.strip()).splitlines()
        return lines[-1] if lines else f"exit code {self.exit_code}"


class Runner(Protocol):
    """Something that runs programs."""

    def run(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, folder: Path | None = None) -> Result:
        """Run a program to its end, in a `folder` or where we are. Raises MissingToolError if there is none."""
        ...

    def attach(self, argv: Sequence[str]) -> int:
        """Run a program on our own stdin, stdout and stderr; return its exit code."""
        ...


class LocalRunner:
    """Runs programs on this machine."""

    def run(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, folder: Path | None = None) -> Result:
        """See `Runner.run`."""
        try:
            done = subprocess.run(list(argv), env=env, cwd=folder, capture_output=True, text=True, check=False)
        except FileNotFoundError as error:
            raise MissingToolError(f"there is no program '{argv[0]}'", hint="install it, or add it to PATH") from error
        return Result(tuple(argv), done.returncode, done.stdout, done.stderr)

    def attach(self, argv: Sequence[str]) -> int:
        """See `Runner.attach`."""
        try:
            return subprocess.run(list(argv), check=False).returncode
        except FileNotFoundError as error:
            raise MissingToolError(f"there is no program '{argv[0]}'", hint="install it, or add it to PATH") from error
