"""Control of the daemon from other processes: status, start and stop."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import xpk_shared
from xpk.local import process
from xpk.local.store import damaged
from xpk.model.errors import XpkError
from xpk.storage.private import open_file
from xpk.version import __version__

LOCK = "daemon.lock"
INFO = "daemon.version"
LOG = "daemon.log"
_STOP_SECONDS = 10.0
_PATIENCE = 10
_LAUNCHES = 2  # the launching process may be killed, by the OOM killer for example


def fingerprint(workloads: str) -> str:
    """Return the values that must match for a running daemon to be usable."""
    newest = max(path.stat().st_mtime_ns for path in Path(__file__).parent.glob("*.py"))
    return f"{__version__} {newest}\n{workloads}"


def ensure(folder: Path, workloads: str) -> None:
    """Make sure that the cluster's daemon runs in this version. Its hosts keep running."""
    for _ in range(_PATIENCE):  # it may be starting: locked, but not recorded yet
        recorded = _recorded(folder)
        workloads = workloads or recorded.partition("\n")[2]  # without one, keep the running daemon's
        if not process.is_locked(folder / LOCK):
            break
        if recorded == fingerprint(workloads):
            process.ring(folder)
            return
        time.sleep(0.02)
    stop(folder)
    # The daemon imports the same packages as this process, wherever they are.
    paths = dict.fromkeys(str(path) for path in (Path(__file__).parents[2], Path(xpk_shared.__file__).parents[1]))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-m", "xpk.local.daemon", str(folder), workloads]
    for _ in range(_LAUNCHES):
        with os.fdopen(open_file(folder / LOG, os.O_WRONLY | os.O_APPEND), "ab") as log:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", env=environment, check=False
            )
        if done.returncode >= 0:  # it exited by itself
            break
    if done.returncode:
        problem = f"the local control plane did not start (exit code {done.returncode})"
        raise XpkError(problem, hint=f"see {folder / LOG}")


def _recorded(folder: Path) -> str:
    """Return the daemon's own record, "" if there is none. Raises XpkError if its files are damaged."""
    for file in (folder / LOCK, folder / INFO, folder / LOG):
        if os.path.lexists(file) and not stat.S_ISREG(file.lstat().st_mode):
            raise damaged(folder, f"{file.name} is not a file")
    try:
        return (folder / INFO).read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
    except UnicodeDecodeError as error:
        raise damaged(folder, f"{INFO} is not text") from error


def stop(folder: Path) -> None:
    """Stop the daemon; the hosts keep running."""
    deadline, number = time.monotonic() + _STOP_SECONDS, signal.SIGTERM
    while process.is_locked(folder / LOCK):
        process.tell(folder / LOCK, number)
        if time.monotonic() > deadline:
            number = signal.SIGKILL
        time.sleep(0.02)
