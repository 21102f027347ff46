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
_PATIENCE = 10


def fingerprint(workloads: str) -> str:
    """Return what must be the same for a running daemon to be of use."""
    newest = max(path.stat().st_mtime_ns for path in Path(__file__).parent.glob("*.py"))
    return f"{xpk.__version__} {newest}\n{workloads}"


def ensure(folder: Path, workloads: str) -> None:
    """Make sure that the cluster's daemon runs, and that it is of this version. Its hosts run on."""
    info = folder / INFO
    for _ in range(_PATIENCE):  # it may be starting, and have its lock but not have said so
        recorded = info.read_text(encoding="utf-8") if info.exists() else ""
        workloads = workloads or recorded.partition("\n")[2]  # who has no opinion keeps what is there
        if not process.is_locked(folder / LOCK):
            break
        if recorded == fingerprint(workloads):
            process.ring(folder)
            return
        time.sleep(0.02)
    stop(folder)
    environment = {**os.environ, "PYTHONPATH": str(Path(xpk.__file__).parent.parent)}
    command = [sys.executable, "-m", "xpk.local.daemon", str(folder), workloads]
    with (folder / LOG).open("ab") as log:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", env=environment, check=False
        )
    if done.returncode:
        problem = f"the local control plane did not start (exit code {done.returncode})"
        raise XpkError(problem, hint=f"see {folder / LOG}")


def stop(folder: Path) -> None:
    """Stop the daemon; the hosts run on."""
    deadline, number = time.monotonic() + _STOP_SECONDS, signal.SIGTERM
    while process.is_locked(folder / LOCK):
        process.tell(folder / LOCK, number)
        if time.monotonic() > deadline:
            number = signal.SIGKILL
        time.sleep(0.02)
