"""The command line on a pseudo-terminal."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Callable


def on_terminal(*arguments: str, do: Callable[[subprocess.Popen[bytes], str], bool]) -> tuple[int, str]:
    """Run `xpk` on a terminal of 80 columns; `do` is called after each output until it returns True."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "xpk", *arguments]
    environ = os.environ | {"COLUMNS": "80", "TERM": "xterm"}
    running = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environ, start_new_session=True)
    os.close(theirs)
    seen, done = b"", False
    while True:
        try:
            seen += os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
        done = done or do(running, seen.decode(errors="replace"))
    os.close(ours)
    return running.wait(30), seen.decode()
