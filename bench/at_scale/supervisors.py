"""Supervisors of many hosts as processes of this machine, whose commands are restarted in place."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.ports import free_ports
from xpk.render.supervisor import supervisor_archive

_HOSTS_PER_SLICE = 64
_AT_ONCE = 8  # further supervisors start once this many or fewer are missing
_POLL_SECONDS = 0.05
# Every attempt leaves a file; then the command waits as a training process would.
_COMMAND = 'touch "$XPK_OUTPUT_DIR/up-$XPK_RESTARTS_IN_PLACE-$MEGASCALE_SLICE_ID-$TPU_WORKER_ID"; exec sleep 100000'


@dataclass(slots=True)
class Hosts:
    """Running supervisors."""

    folder: Path
    processes: list[subprocess.Popen[bytes]]

    def up(self, restarts: int) -> int:
        """Return the number of hosts whose command has started after this number of restarts."""
        return sum(1 for entry in os.scandir(self.folder) if entry.name.startswith(f"up-{restarts}-"))

    def await_up(self, restarts: int, hosts: int, seconds: float) -> bool:
        """Return whether so many commands start in time."""
        deadline = time.monotonic() + seconds
        while self.up(restarts) < hosts:
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_SECONDS)
        return True

    def kill_command(self, number: int) -> None:
        """End a host's command with SIGKILL."""
        for child in _children(self.processes[number].pid):
            os.kill(child, signal.SIGKILL)

    def cpu_seconds(self) -> float:
        """Return the CPU time of the supervisors so far, without that of their commands."""
        return sum(_cpu_seconds(process.pid) for process in self.processes)


@contextmanager
def running_hosts(folder: Path, hosts: int, max_restarts: int) -> Iterator[Hosts]:
    """Run the supervisors of all hosts until the end of the block."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))  # the first host has a connection to each other one
    (folder / "secret").write_text("0123456789abcdef" * 4, encoding="utf-8")
    (folder / "supervisor.pyz").write_bytes(supervisor_archive())
    (port,) = free_ports(1)
    environ = {
        "PATH": os.environ["PATH"],
        "XPK_COORDINATOR_ADDRESS": f"127.0.0.1:{port}",
        "XPK_SUPERVISOR_PORT": str(port),
        "XPK_JOB_ID": "bench",
        "XPK_PEER_SECRET_FILE": str(folder / "secret"),
        "XPK_RESTART_ATTEMPT": "0",
        "XPK_HOSTS_PER_SLICE": str(_HOSTS_PER_SLICE),
        "XPK_MAX_RESTARTS": str(max_restarts),
        "XPK_FATAL_EXIT_CODES": "42",
        "XPK_OUTPUT_DIR": str(folder),
        "MEGASCALE_NUM_SLICES": str(hosts // _HOSTS_PER_SLICE),
    }
    started = Hosts(folder, [])
    argv = [sys.executable, "-I", str(folder / "supervisor.pyz"), "sh", "-c", _COMMAND]
    try:
        with (folder / "log").open("wb") as log:
            for number in range(hosts):
                started.await_up(0, number - _AT_ONCE, 60.0)
                place = divmod(number, _HOSTS_PER_SLICE)
                own = dict(zip(("MEGASCALE_SLICE_ID", "TPU_WORKER_ID"), map(str, place), strict=True))
                started.processes.append(subprocess.Popen(argv, env=environ | own, stdout=log, stderr=log, cwd=folder))
        yield started
    finally:
        _end(folder, started.processes)


def _end(folder: Path, processes: list[subprocess.Popen[bytes]]) -> None:
    """Kill the supervisors and then their commands, which are sessions of their own but share the folder."""
    for process in processes:
        process.kill()
    for process in processes:
        process.wait()
    for entry in Path("/proc").iterdir():
        with suppress(OSError):  # a process that has ended, or another user's
            if entry.name.isdigit() and os.readlink(entry / "cwd") == str(folder):
                os.kill(int(entry.name), signal.SIGKILL)


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()]
    except OSError:
        return []


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
