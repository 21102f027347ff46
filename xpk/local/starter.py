"""The daemon seen from outside: whether it runs, and how it is started and stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import xpk
from xpk.local import process
from xpk.model.errors import XpkError

LOCK = "daemon.lock"
INFO = "daemon.version"
LOG = "daemon.log"
_STOP_SECONDS = 10.0


def fingerprint(workloads: str) -> str:
    """Return what must be the same for a running daemon to be of use."""
    newest = max(path.stat().st_mtime_ns for path in Path(__file__).parent.glob("*.py"))
    return f"{xpk.__version__} {newest} {workloads}"


def ensure(folder: Path, workloads: str) -> None:
    """Make sure that the cluster's daemon runs, and that it is of this version. Its hosts run on."""
    if process.is_locked(folder / LOCK):
        info = folder / INFO
        if not info.exists() or info.read_text(encoding="utf-8") == fingerprint(workloads):
            process.ring(folder)
            return
        stop(folder)
    environment = {**os.environ, "PYTHONPATH": str(Path(xpk.__file__).parent.parent)}
    command = [sys.executable, "-m", "xpk.local.daemon", str(folder), workloads]
    with (folder / LOG).open("ab") as log:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", env=environment, check=False
        )
    if done.returncode:
        raise XpkError(
            f"the local control plane did not start (exit code {done.returncode})", hint=f"see {folder / LOG}"
        )


def stop(folder: Path) -> None:
    """Stop the daemon; the hosts run on."""
    deadline, number = time.monotonic() + _STOP_SECONDS, signal.SIGTERM
    while process.is_locked(folder / LOCK):
        process.tell(folder / LOCK, number)
        if time.monotonic() > deadline:
            number = signal.SIGKILL
        time.sleep(0.02)
