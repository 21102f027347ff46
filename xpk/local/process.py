"""Hosts as the daemon sees them: state from their folders, and signals to their supervisors."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from xpk.api.base import Obj
from xpk.local import shim
from xpk.local.environment import MARK
from xpk.storage.private import open_file

BELL = "bell"
PODS = "pods"
_STUCK_SECONDS, _GIVE_UP_SECONDS = 2.0, 10.0
_ROUNDS = 10


@dataclass(frozen=True, slots=True)
class Host:
    """State of a host.

    `absent`: never requested; `prepared`: requested, but no supervisor runs; `lost`: its supervisor died.
    """

    state: Literal["absent", "prepared", "starting", "running", "ended", "lost"] = "absent"
    facts: Obj = field(default_factory=dict)


def _read(path: Path) -> Obj:
    """Return the content of a file, nothing without it, or if a crash of the machine has emptied it."""
    try:
        content: Obj = json.loads(path.read_text(encoding="utf-8"))
        return content
    except (FileNotFoundError, ValueError):
        return {}


@contextlib.contextmanager
def locked(path: Path, operation: int = fcntl.LOCK_EX) -> Iterator[int | None]:
    """Take a lock for the block and yield its descriptor, or None if another process holds it."""
    fd = open_file(path, os.O_RDWR)
    try:
        try:
            fcntl.flock(fd, operation | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
        else:
            yield fd
    finally:
        os.close(fd)


def is_locked(path: Path) -> bool:
    """Return whether a process holds a lock. A lock is released on death; a pid may be reused by then."""
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            return False  # no process could use it
    except OSError:
        return False
    with locked(path, fcntl.LOCK_SH) as fd:  # shared, so that two observers do not see each other
        return fd is None


def observe(folder: Path) -> Host:
    """Return the state of the host of a pod's folder."""
    if not (folder / "spec.json").exists():
        return Host()
    # The supervisor's lock is checked first: it may end between the two checks.
    alive = is_locked(folder / "lock")
    end = _read(folder / "exit.json")
    if end:
        return Host("ended", end)
    start = _read(folder / "start.json")
    if alive:
        return Host("running" if "pid" in start else "starting", start)
    return Host("lost" if start else "prepared", start)


def read_spec(folder: Path) -> Obj:
    """Return the command, the environment and the working folder of a host; empty if its folder is gone."""
    return _read(folder / "spec.json")


def launch(folder: Path, spec: Obj, bell: Path) -> subprocess.Popen[bytes]:
    """Start the supervisor of a host. A second one for the same folder would find the lock and exit."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    shim.write(str(folder), "spec.json", {**spec, "bell": str(bell)})
    os.chmod(folder / "spec.json", 0o600)
    return subprocess.Popen(
        [sys.executable, "-S", "-E", "-s", shim.__file__, str(folder)],
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        cwd="/",
    )


def tell(lock: Path, number: signal.Signals) -> bool:
    """Send a signal to the process that holds a lock and wrote its pid there; return whether it was sent."""
    with contextlib.suppress(OSError, ValueError):
        pidfd = os.pidfd_open(int(lock.read_text(encoding="ascii")))
        try:
            if is_locked(lock):
                signal.pidfd_send_signal(pidfd, number)
                return True
        finally:
            os.close(pidfd)
    return False


def terminate(folder: Path, grace: float) -> None:
    """Send SIGTERM to a host; kill it after the grace period. To be called repeatedly until it has ended."""
    marker = folder / "terminated"
    if not marker.exists() and (grace <= 0 or tell(folder / "lock", signal.SIGTERM)):
        marker.touch()
    if not marker.exists():
        return
    seconds = time.time() - marker.stat().st_mtime
    if seconds < 0:  # the clock was set back: the grace period begins again
        marker.touch()
    elif seconds >= grace:
        tell(folder / "lock", signal.SIGUSR1)


def record_end(folder: Path, reason: str, message: str) -> None:
    """Record the end of a host whose supervisor is gone or never started, and kill its remaining processes."""
    with locked(folder / "lock") as fd:
        if fd is not None and not _read(folder / "exit.json"):
            kill_strays(folder)
            started = _read(folder / "start.json").get("startedAt", shim.stamp())
            end = {"exitCode": 137, "reason": reason, "message": message}
            shim.write(str(folder), "exit.json", {**end, "startedAt": started, "finishedAt": shim.stamp()})


def strays(folder: Path) -> list[int]:
    """Return the processes that were started for a pod's folder, found by their environment."""
    mark, pids = f"{MARK}={folder}".encode(), []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and mark in (entry / "environ").read_bytes().split(b"\0"):
                pids.append(int(entry.name))
    return pids


def kill_strays(folder: Path) -> None:
    """Kill processes that outlived a dead supervisor, with which only the host itself dies; repeat for new ones."""
    for _ in range(_ROUNDS):
        pids = strays(folder)
        for pid in pids:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if not pids:
            return


def stop_all(cluster: Path, grace: float) -> None:
    """Kill every host of a cluster, regardless of its store."""
    running = {folder: Host() for folder in (cluster / PODS).glob("*")}
    deadline, late = time.monotonic() + grace, 0.0
    while running := {folder: host for folder in running if (host := observe(folder)).state not in ("absent", "ended")}:
        late = time.monotonic() - deadline
        for folder, host in running.items():
            if host.state in ("prepared", "lost"):
                with contextlib.suppress(OSError):  # no disk space to record its end: it is killed nevertheless
                    record_end(folder, "Stopped", "the cluster was deleted")
            elif late < _STUCK_SECONDS:
                terminate(folder, grace if late < 0 else 0)
            else:  # stopped, or stuck on a full disk; its host dies with it
                tell(folder / "lock", signal.SIGKILL)
        if late > _GIVE_UP_SECONDS:
            break
        time.sleep(0.02)
    for folder in running:
        kill_strays(folder)


def sweep(cluster: Path, names: set[str]) -> None:
    """Remove the folders of unknown pods."""
    for folder in (cluster / PODS).glob("*"):
        if folder.name not in names and not is_locked(folder / "lock"):
            shutil.rmtree(folder, ignore_errors=True)


def ring(cluster: Path) -> None:
    """Wake up the daemon of a cluster, if it runs."""
    shim.ring(str(cluster / BELL))
