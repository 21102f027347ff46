"""The end of a cluster's daemon by SIGKILL."""

from __future__ import annotations

import signal
from pathlib import Path

from tests.waiting import until
from xpk.local import daemon_control, process


def kill_daemon(folder: Path) -> None:
    assert process.tell(folder / daemon_control.LOCK, signal.SIGKILL)
    until(lambda: not process.is_locked(folder / daemon_control.LOCK))
