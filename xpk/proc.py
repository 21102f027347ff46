"""Child processes: argument lists, never a shell string, and errors with commands that can be pasted."""

from __future__ import annotations

import os
import selectors
import shlex
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from xpk.model.errors import MissingToolError, TimedOutError, XpkError


@dataclass(frozen=True, slots=True)
class Result:
    """Exit code and output of a program."""

    argv: tuple[str, ...]
    exit_code: int
    stdout: str
    stderr: str

    @property
    def command(self) -> str:
        """Return the command line, quoted for a shell."""
        return shlex.join(self.argv)

    @property
    def last_line(self) -> str:
        """Return the last non-empty line of output."""
        lines = (self.stderr.strip() or self.stdout.strip()).splitlines()
        return lines[-1] if lines else f"exit code {self.exit_code}"


class Runner(Protocol):
    """Interface that runs programs."""

    def run(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, folder: Path | None = None) -> Result:
        """Run a program to its end, in `folder` or the current one. Raises MissingToolError if it is not installed."""
        ...

    def attach(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None) -> int:
        """Run a program on this process's stdin, stdout and stderr; return its exit code."""
        ...


class LocalRunner:
    """Runner on this machine."""

    def run(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, folder: Path | None = None) -> Result:
        """See `Runner.run`."""
        try:
            done = subprocess.run(list(argv), env=env, cwd=folder, capture_output=True, text=True, check=False)
        except FileNotFoundError as error:
            raise MissingToolError(f"program '{argv[0]}' not found", hint="install it, or add it to PATH") from error
        return Result(tuple(argv), done.returncode, done.stdout, done.stderr)

    def attach(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None) -> int:
        """See `Runner.attach`."""
        try:
            return subprocess.run(list(argv), env=env, check=False).returncode
        except FileNotFoundError as error:
            raise MissingToolError(f"program '{argv[0]}' not found", hint="install it, or add it to PATH") from error


def run_limited(
    argv: Sequence[str], *, env: Mapping[str, str] | None, seconds: float, max_bytes: int, interactive: bool
) -> Result:
    """Run a program for at most `seconds` with at most `max_bytes` of output; `interactive` leaves it the terminal.

    A program that exceeds a limit is killed. Raises MissingToolError, TimedOutError, or XpkError for one that cannot be
    run or prints more.
    """
    try:
        program = subprocess.Popen(
            list(argv), env=env, stdout=subprocess.PIPE,
            stdin=None if interactive else subprocess.DEVNULL, stderr=None if interactive else subprocess.PIPE,
        )  # fmt: skip
    except FileNotFoundError as error:
        raise MissingToolError(f"program '{argv[0]}' not found", hint="install it, or add it to PATH") from error
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise XpkError(f"cannot run '{argv[0]}': {why}", hint="check its path and its permissions") from error
    with program:
        try:
            printed = _read_limited(program, time.monotonic() + seconds, max_bytes)
            if printed is None:
                raise XpkError(f"'{argv[0]}' printed more than {max_bytes} bytes", hint="run it by hand")
            program.wait(seconds)
        except (TimeoutError, subprocess.TimeoutExpired) as error:
            raise TimedOutError(f"'{argv[0]}' timed out after {seconds:g}s", hint="run it by hand") from error
        finally:
            program.kill()
    stdout, stderr = (text.decode(errors="replace") for text in printed)
    return Result(tuple(argv), program.returncode, stdout, stderr)


def _read_limited(program: subprocess.Popen[bytes], ends: float, max_bytes: int) -> tuple[bytes, bytes] | None:
    """Return a program's stdout and stderr, None if longer than `max_bytes`. Raises TimeoutError."""
    printed = {pipe: b"" for pipe in (program.stdout, program.stderr) if pipe}
    with selectors.DefaultSelector() as selector:
        for pipe in printed:
            selector.register(pipe, selectors.EVENT_READ)
        while selector.get_map():
            seconds_left = ends - time.monotonic()
            ready = selector.select(max(0.0, seconds_left))
            if seconds_left <= 0:
                raise TimeoutError
            for key, _ in ready:
                pipe = next(stream for stream in printed if stream is key.fileobj)
                part = os.read(pipe.fileno(), 1 << 16)
                printed[pipe] += part
                if not part:
                    selector.unregister(pipe)
                if len(printed[pipe]) > max_bytes:
                    return None
    stdout, stderr = ((printed[pipe] if pipe else b"") for pipe in (program.stdout, program.stderr))
    return stdout, stderr
