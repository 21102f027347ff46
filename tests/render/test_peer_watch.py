"""The program that runs a host's command and looks after its peers, run as a pod runs it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from xpk.render import peer_watch

SECONDS = 30.0
PATIENT = Path(peer_watch.__file__).read_text().replace("= 1.0, 60.0", "= 0.5, 60.0")  # the calm before SIGKILL
SOURCE = PATIENT.replace("_MEET_SECONDS = 10.0", "_MEET_SECONDS = 0.1")
WAITS = "trap '' TERM; echo up; sleep 1000 & wait; wait"  # as in a collective
OBEYS = "trap 'echo saved; exit 143' TERM; echo up; sleep 1000 & wait"

Start = Callable[..., "Host"]


class Host:
    """One host of two slices of two."""

    def __init__(self, number: int, command: str, folder: Path, port: int, attempt: int, source: str) -> None:
        env = {
            "PATH": os.environ["PATH"],
            "XPK_PEER_WATCH": source,
            "XPK_COORDINATOR_ADDRESS": f"127.0.0.1:{port}",
            "XPK_JOB_ID": "a-job",
            "XPK_RESTART_ATTEMPT": str(attempt),
            "XPK_HOSTS_PER_SLICE": "2",
            "MEGASCALE_NUM_SLICES": "2",
            "MEGASCALE_SLICE_ID": str(number // 2),
            "TPU_WORKER_ID": str(number % 2),
        }
        self.log = folder / f"{number}.log"
        argv = [sys.executable, "-I", "-c", source, "bash", "-c", command]
        with self.log.open("w") as file:
            self.process = subprocess.Popen(argv, env=env, stdout=file, stderr=file)

    def says(self, text: str) -> None:
        """Wait for a line of it."""
        deadline = time.monotonic() + SECONDS
        while text not in self.log.read_text():
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.02)

    def ends(self, code: int) -> None:
        """Wait for its end."""
        assert self.process.wait(SECONDS) == code, self.log.read_text()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a host; none is left."""
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1] - 2
    hosts: list[Host] = []

    def started(number: int, command: str, attempt: int = 0, source: str = SOURCE) -> Host:
        hosts.append(Host(number, command, tmp_path, port, attempt, source))
        return hosts[-1]

    yield started
    for host in hosts:
        if host.process.poll() is None:
            # Its command is a session of its own, and ends with its group.
            children = Path(f"/proc/{host.process.pid}/task/{host.process.pid}/children").read_text().split()
            for child in children:
                os.killpg(int(child), signal.SIGKILL)
            host.process.kill()
            host.process.wait()


def connected(hosts: list[Host]) -> None:
    """Wait until all hosts but the first have a connection to it."""
    deadline = time.monotonic() + SECONDS
    while not all(_is_connected(host.process.pid) for host in hosts[1:]):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(0.2)  # until it was welcome


def _is_connected(pid: int) -> bool:
    inodes = set()
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]:
            if " 01 " in line:  # established
                inodes.add(line.split()[9])
    links = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            links.add(os.readlink(entry))
    return any(f"socket:[{inode}]" in links for inode in inodes)


@pytest.mark.parametrize("victim", [0, 3])
def test_a_host_that_dies_ends_the_commands_of_all_others_and_they_wait_for_kubernetes(
    start: Start, victim: int
) -> None:
    hosts = [start(number, WAITS) for number in range(4)]
    connected(hosts)
    hosts[victim].process.kill()
    others = [host for host in hosts if host is not hosts[victim]]
    for host in others:
        host.says(f"host s{victim // 2}/h{victim % 2} is gone")
    time.sleep(0.5)
    assert all(host.process.poll() is None for host in others), "the first host's end is the cause, not theirs"
    for host in others:
        host.process.terminate()
    began = time.monotonic()
    for host in others:
        host.ends(143)
    assert time.monotonic() - began < 15, "nobody waits for the grace period"


def test_a_command_that_fails_is_a_lost_host_with_its_own_exit_code(start: Start) -> None:
    hosts = [start(number, WAITS) for number in range(2)] + [start(2, "sleep 2; exit 7")]
    connected(hosts)
    hosts[2].ends(7)
    hosts[0].says("host s1/h0 is gone")
    hosts[1].says("host s1/h0 is gone")


@pytest.mark.parametrize("victim", [0, 3])
def test_a_command_that_fails_before_the_hosts_have_met_is_noticed_too(start: Start, victim: int) -> None:
    failed = start(victim, "exit 7", source=PATIENT)
    others = [start(number, WAITS) for number in range(4) if number != victim]
    failed.ends(7)
    for host in others:
        host.says(f"host s{victim // 2}/h{victim % 2} is gone")


def test_hosts_that_end_well_or_are_asked_to_end_are_not_lost(start: Start, tmp_path: Path) -> None:
    well, asked = f"until [ -e '{tmp_path}/end' ]; do sleep 0.1; done; echo done", OBEYS
    hosts = [start(0, WAITS), start(1, well), start(2, asked), start(3, WAITS)]
    connected(hosts)
    (tmp_path / "end").touch()
    hosts[1].ends(0)
    hosts[2].says("up")
    hosts[2].process.terminate()
    hosts[2].ends(143)
    assert "saved" in hosts[2].log.read_text()
    time.sleep(0.5)
    for host in (hosts[0], hosts[3]):
        assert host.process.poll() is None and "is gone" not in host.log.read_text()


def test_who_was_asked_to_end_has_its_grace_period(start: Start) -> None:
    saves = "trap 'sleep 2; echo saved; exit 143' TERM; echo up; sleep 1000 & wait"
    hosts = [start(0, saves), start(1, WAITS)]
    connected(hosts)
    hosts[0].says("up")
    hosts[0].process.terminate()
    time.sleep(0.3)
    hosts[1].process.kill()
    hosts[0].ends(143)
    assert "saved" in hosts[0].log.read_text()


def test_all_processes_of_a_command_are_told_and_waited_for(start: Start) -> None:
    inner = "trap 'sleep 1; echo inner saved; exit 0' TERM; echo up; sleep 1000 & wait"
    host = start(0, f'bash -c "{inner}"; echo after')
    host.says("up")
    host.process.terminate()
    host.process.wait(SECONDS)
    assert "inner saved" in host.log.read_text()


def test_a_command_with_a_trap_decides_what_its_processes_hear(start: Start) -> None:
    deaf = "trap 'echo heard' TERM; sleep 2; echo over"
    host = start(0, f'bash -c "{deaf}" & trap "wait; exit 9" TERM; echo up; wait')
    host.says("up")
    time.sleep(0.5)
    host.process.terminate()
    host.ends(9)
    assert "over" in host.log.read_text() and "heard" not in host.log.read_text()


def test_hosts_of_another_attempt_are_strangers(start: Start) -> None:
    first, stale = start(0, WAITS, 1), start(1, WAITS, 0)
    time.sleep(1.5)
    stale.process.kill()
    time.sleep(0.5)
    assert first.process.poll() is None and "is gone" not in first.log.read_text()


def test_a_taken_port_or_missing_peers_never_end_a_command(start: Start) -> None:
    first = start(0, "sleep 1; exit 3")
    second = start(0, "sleep 2; exit 4")  # finds the port taken
    first.ends(3)
    second.ends(4)
    alone = start(1, "sleep 1; exit 5")
    alone.ends(5)


def test_exit_codes_and_signals_arrive(start: Start) -> None:
    start(0, "exit 42").ends(42)
    start(0, "kill -KILL $$").ends(137)
    told = start(0, "trap 'echo told; exit 9' USR1; echo up; sleep 1000 & wait")
    told.says("up")
    told.process.send_signal(signal.SIGUSR1)
    told.ends(9)


def test_without_the_environment_of_a_host_the_command_runs_alone() -> None:
    argv = [sys.executable, "-I", "-c", SOURCE, "bash", "-c", "echo alone; exit 6"]
    done = subprocess.run(argv, env={"PATH": os.environ["PATH"]}, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (6, "alone\n", "")
