"""The user's command as a child process."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

from xpk_shared.supervisor.standby import Standby

_SUBREAPER = 36  # prctl: orphaned processes become children of this process, as of a container's first process


class Command:
    """The user's command in a session of its own, so that all of its processes can receive a signal.

    Raises OSError if it cannot be started.
    """

    def __init__(self, argv: list[str], environ: Mapping[str, str], standby: Standby | None = None) -> None:
        self.code: int | None = None
        self._orphaned, self._standby = False, standby
        warm = standby.take(argv, environ) if standby else None
        self._process = warm or subprocess.Popen(argv, env=dict(environ), start_new_session=True)

    def forward(self, number: int) -> None:
        """Send a signal to the first process, as Kubernetes does; after its end, to all of its processes."""
        if self.code is None:
            os.kill(self._process.pid, number)
        else:
            self.signal_all(number)

    def signal_all(self, number: int) -> bool:
        """Send a signal to all processes of the command; return whether there are any."""
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError:
            return False
        return True

    @property
    def is_saving(self) -> bool:
        """True if processes are running that did not receive the signal of their first process."""
        return self._orphaned and self.signal_all(0)

    def reap(self) -> None:
        """Reap processes that have ended, including those inherited by a container's first process."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if pid == self._process.pid:
                    if os.WIFSIGNALED(status):  # it has not forwarded the signal, like a shell without a trap
                        self._orphaned = self.signal_all(signal.SIGTERM)
                    self.code = 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)

    def clear(self) -> None:
        """Kill the remaining processes, including those in sessions of their own, before the next attempt."""
        self.signal_all(signal.SIGKILL)
        spare = self._standby.pid if self._standby else 0
        while children := [pid for pid in _children() if pid != spare]:
            for pid in children:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, 0)


class NoCommand:
    """Stands for the command of a host that waits for the order to start its first attempt."""

    code: int | None = 128 + signal.SIGTERM  # exit code if the host is asked to end meanwhile
    is_saving = False

    def forward(self, number: int) -> None:
        """Forward nothing."""

    def signal_all(self, number: int) -> bool:
        """Return False: there are no processes."""
        return False

    def reap(self) -> None:
        """Reap nothing."""

    def clear(self) -> None:
        """Kill nothing."""


def adopt_orphans() -> None:
    """Make orphaned processes children of this one, if the system and this Python support it."""
    with contextlib.suppress(ImportError, OSError, AttributeError):
        import ctypes  # missing in some images' Python

        ctypes.CDLL(None).prctl(_SUBREAPER, 1)


def _children() -> list[int]:
    with contextlib.suppress(OSError, ValueError):  # a kernel without the list
        path = Path(f"/proc/self/task/{os.getpid()}/children")
        return [int(pid) for pid in path.read_text(encoding="ascii").split()]
    return []
