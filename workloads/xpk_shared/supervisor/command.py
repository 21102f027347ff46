"""The user's command as a child process."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

from xpk_shared.supervisor.standby import Standby

_SUBREAPER = 36  # prctl: processes that lose their parent become this program's, as those of a container's first do


class Command:
    """The user's command: a session of its own, so that all of its processes can get a signal.

    Raises OSError if it cannot be started.
    """

    def __init__(self, argv: list[str], environ: Mapping[str, str], standby: Standby | None = None) -> None:
        self.code: int | None = None
        self._orphaned, self._standby = False, standby
        warm = standby.take(argv, environ) if standby else None
        self._process = warm or subprocess.Popen(argv, env=dict(environ), start_new_session=True)

    def forward(self, number: int) -> None:
        """Send a signal to its first process, as a container would: the others are its affair while it runs."""
        if self.code is None:
            os.kill(self._process.pid, number)
        else:
            self.signal_all(number)

    def signal_all(self, number: int) -> bool:
        """Send a signal to all of its processes; return whether there are any."""
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError:
            return False
        return True

    @property
    def is_saving(self) -> bool:
        """True if processes are left that only this program has asked to end."""
        return self._orphaned and self.signal_all(0)

    def reap(self) -> None:
        """Take note of processes that have ended: the first of a container inherits those of others."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if pid == self._process.pid:
                    if os.WIFSIGNALED(status):  # it has forwarded nothing, as a shell without a trap does not
                        self._orphaned = self.signal_all(signal.SIGTERM)
                    self.code = 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)

    def clear(self) -> None:
        """Kill the processes that it has left behind, also those in sessions of their own: an attempt follows."""
        self.signal_all(signal.SIGKILL)
        spare = self._standby.pid if self._standby else 0
        while children := [pid for pid in _children() if pid != spare]:
            for pid in children:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, 0)


def adopt_orphans() -> None:
    """Let processes whose parents end become children of this one, where the system and this Python can."""
    with contextlib.suppress(ImportError, OSError, AttributeError):
        import ctypes  # not in every image's Python

        ctypes.CDLL(None).prctl(_SUBREAPER, 1)


def _children() -> list[int]:
    with contextlib.suppress(OSError, ValueError):  # a kernel without the list
        path = Path(f"/proc/self/task/{os.getpid()}/children")
        return [int(pid) for pid in path.read_text(encoding="ascii").split()]
    return []
