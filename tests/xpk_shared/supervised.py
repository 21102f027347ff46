"""Hosts of a job whose supervisors are started from their file, like in a pod."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from tests.ports import free_port
from tests.waiting import until
from xpk.render.supervisor import supervisor_archive

SECONDS = 30.0
# The grace period before SIGKILL is shorter, and the first host prints which hosts are connected.
WITH_SHORT_GRACE = """
import functools, resource, sys, threading, time
sys.path.insert(0, "supervisor.pyz")
from xpk_shared.supervisor.host import say
from xpk_shared.supervisor.main import Limits, main
from xpk_shared.supervisor.peers import Peers

class Talkative(Peers):
    def connect(self, *arguments, **more):
        threading.Thread(target=self.introduce, args=(set(self._link.absent),), daemon=True).start()
        super().connect(*arguments, **more)

    def introduce(self, absent):
        while absent:
            met = absent - self._link.absent
            for number in met:
                say(f"met {number}")
            absent -= met
            time.sleep(0.02)

peers, limits = Talkative, Limits(grace_seconds=0.5)
sys.exit(main(sys.argv[1:], limits=limits, open_peers=peers))
"""
PROGRAM = WITH_SHORT_GRACE.replace("grace_seconds=0.5", "grace_seconds=0.5, meet_seconds=0.1")
# A command that exits with 143 waits for the message that another host was asked to end, however late it arrives.
PATIENT = WITH_SHORT_GRACE.replace("grace_seconds=0.5", f"grace_seconds={SECONDS}")
SECRET = "0123456789abcdef" * 4
WAITS = "trap '' TERM; echo up; sleep 1000 & wait; wait"  # like in a collective
OBEYS = "trap 'echo saved; exit 143' TERM; echo up; sleep 1000 & wait"
# With restarts in place: the first attempt, what later ones do, and the variables.
FIRST = '[ "$XPK_RESTART_ATTEMPT" = 0 ]'
LATER = f"{FIRST} || {{ echo again $XPK_RESTART_ATTEMPT; exit 0; }}; "
IN_PLACE = {"XPK_MAX_RESTARTS": "3", "XPK_FATAL_EXIT_CODES": "42 127"}

Start = Callable[..., "Host"]


class Host:
    """One host of two slices of two, or the only one."""

    def __init__(
        self,
        number: int,
        command: str,
        folder: Path,
        port: int,
        attempt: int,
        program: str,
        slices: int,
        more: dict[str, str],
    ) -> None:
        env = {
            "PATH": os.environ["PATH"],
            "XPK_COORDINATOR_ADDRESS": f"127.0.0.1:{port}",
            "XPK_JOB_ID": "a-job",
            "XPK_PEER_SECRET_FILE": str(folder / "secret"),
            "XPK_RESTART_ATTEMPT": str(attempt),
            "XPK_HOSTS_PER_SLICE": str(slices),
            "MEGASCALE_NUM_SLICES": str(slices),
            "MEGASCALE_SLICE_ID": str(number // 2),
            "TPU_WORKER_ID": str(number % 2),
            **more,
        }
        self.number, self.port = number, port + 2
        self.log = folder / f"{number}.log"
        argv = [sys.executable, "-I", "-c", program, "bash", "-c", command]
        with self.log.open("w") as file:
            self.process = subprocess.Popen(argv, env=env, stdout=file, stderr=file, cwd=folder)

    def says(self, text: str) -> None:
        """Wait for a line of its output."""
        until(lambda: text in self.log.read_text(), seconds=SECONDS, every=0.02, report=self.log.read_text)

    def ends(self, code: int) -> None:
        """Wait for its exit code."""
        ended_with = self.process.wait(SECONDS)
        assert ended_with == code, f"{ended_with}: {self.log.read_text()}"


def starter(tmp_path: Path) -> Iterator[Start]:
    """Yield a function that starts a host; all are killed afterwards."""
    free = free_port()
    hosts: list[Host] = []
    (tmp_path / "secret").write_text(SECRET)
    (tmp_path / "supervisor.pyz").write_bytes(supervisor_archive())

    def started(
        number: int,
        command: str,
        attempt: int = 0,
        program: str = PROGRAM,
        *,
        port: int = free,
        slices: int = 2,
        **env: str,
    ) -> Host:
        hosts.append(Host(number, command, tmp_path, port, attempt, program, slices, env))
        return hosts[-1]

    yield started
    for host in hosts:
        if host.process.poll() is None:
            # Its command is a session of its own, and ends with its group.
            children = Path(f"/proc/{host.process.pid}/task/{host.process.pid}/children").read_text().split()
            for child in children:
                with suppress(ProcessLookupError):  # it has just been started, or left by the command
                    os.kill(int(child), signal.SIGKILL)
                    os.killpg(int(child), signal.SIGKILL)
            host.process.kill()
            host.process.wait()


def connected(hosts: list[Host]) -> None:
    """Wait until the first host has welcomed all others."""
    for host in hosts[1:]:
        hosts[0].says(f"met {host.number}\n")


def kill_command(host: Host, number: int = signal.SIGKILL) -> None:
    """Send a signal to the first process of a host's command."""
    host.says("up")
    (child,) = Path(f"/proc/{host.process.pid}/task/{host.process.pid}/children").read_text().split()
    os.kill(int(child), number)
