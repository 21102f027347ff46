"""The program that runs a host's command and looks after its peers, run as a pod runs it."""

from __future__ import annotations

import hmac
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
# The calm before SIGKILL is shorter, and the first host says whom it has met.
PATIENT = Path(peer_watch.__file__).read_text().replace("= 1.0, 60.0", "= 0.5, 60.0")
PATIENT = PATIENT.replace("self._missing.discard(number)", "self._missing.discard(number); say(f'met {number}')")
SOURCE = PATIENT.replace("_MEET_SECONDS = 10.0", "_MEET_SECONDS = 0.1")
SECRET = "0123456789abcdef" * 4
WAITS = "trap '' TERM; echo up; sleep 1000 & wait; wait"  # as in a collective
OBEYS = "trap 'echo saved; exit 143' TERM; echo up; sleep 1000 & wait"

Start = Callable[..., "Host"]


class Host:
    """One host of two slices of two, or of the only one."""

    def __init__(
        self, number: int, command: str, folder: Path, port: int, attempt: int, source: str, slices: int
    ) -> None:
        env = {
            "PATH": os.environ["PATH"],
            "XPK_PEER_WATCH": source,
            "XPK_COORDINATOR_ADDRESS": f"127.0.0.1:{port}",
            "XPK_JOB_ID": "a-job",
            "XPK_PEER_SECRET_FILE": str(folder / "secret"),
            "XPK_RESTART_ATTEMPT": str(attempt),
            "XPK_HOSTS_PER_SLICE": str(slices),
            "MEGASCALE_NUM_SLICES": str(slices),
            "MEGASCALE_SLICE_ID": str(number // 2),
            "TPU_WORKER_ID": str(number % 2),
        }
        self.number, self.port = number, port + 2
        self.log = folder / f"{number}.log"
        argv = [sys.executable, "-I", "-c", source, "bash", "-c", command]
        with self.log.open("w") as file:
            self.process = subprocess.Popen(argv, env=env, stdout=file, stderr=file, cwd=folder)

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
        free = taken.getsockname()[1] - 2
    hosts: list[Host] = []
    (tmp_path / "secret").write_text(SECRET)

    def started(
        number: int, command: str, attempt: int = 0, source: str = SOURCE, *, port: int = free, slices: int = 2
    ) -> Host:
        hosts.append(Host(number, command, tmp_path, port, attempt, source, slices))
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
    """Wait until the first host has welcomed all others."""
    for host in hosts[1:]:
        hosts[0].says(f"met {host.number}\n")


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


def test_a_host_that_joins_late_hears_of_the_first_loss(start: Start) -> None:
    hosts = [start(number, WAITS) for number in (0, 1, 3)]
    connected(hosts)
    hosts[2].process.kill()
    hosts[1].says("host s1/h1 is gone")
    time.sleep(0.5)  # host 1 has hung up, which is not a loss
    start(2, WAITS).says("host s1/h1 is gone")


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


class Caller:
    """Somebody who has reached the first host's port, and heard its challenge."""

    def __init__(self, first: Host) -> None:
        self.link = socket.create_connection(("127.0.0.1", first.port), timeout=SECONDS)
        self.stream = self.link.makefile("rb")
        self.challenge = self.stream.readline().removeprefix(b"challenge ").strip()

    def hello(self, number: int, *, secret: str = SECRET, attempt: int = 0, challenge: bytes = b"") -> bytes:
        """Return a hello; with nothing else given, one that is valid on this connection."""
        text = b"host xpk-peer-watch a-job.%d %d %s aa" % (attempt, number, challenge or self.challenge)
        return b"hello %d aa %s\n" % (number, hmac.new(secret.encode(), text, "sha256").hexdigest().encode())

    def hears(self, said: bytes) -> bytes:
        """Say something; return the next line, nothing where the connection is closed."""
        self.link.sendall(said)
        with suppress(ConnectionResetError):
            return self.stream.readline()
        return b""


def test_who_cannot_prove_to_know_the_secret_changes_nothing(start: Start) -> None:
    hosts = [start(number, WAITS) for number in range(2)]
    connected(hosts)
    valid = Caller(hosts[0])
    replay = valid.hello(3)
    assert valid.hears(replay).startswith(b"welcome ")
    refused: list[Callable[[Caller], bytes]] = [
        lambda caller: b"hello a-job.0 777\n",  # what was enough before there was a secret
        lambda caller: replay,
        lambda caller: caller.hello(777),
        lambda caller: caller.hello(4),
        lambda caller: caller.hello(0),
        lambda caller: caller.hello(2, secret="another"),
        lambda caller: caller.hello(2, secret=""),
        lambda caller: caller.hello(2, attempt=1),
        lambda caller: caller.hello(2, challenge=b"mine"),
        lambda caller: caller.hello(3),  # is here already
        lambda caller: b"lost 1\n",
        lambda caller: "hello ² aa é\n".encode(),
        lambda caller: b"x" * 5000,
    ]
    for said in refused:
        caller = Caller(hosts[0])
        assert caller.hears(said(caller)) == b""
        caller.link.close()
    time.sleep(0.3)
    assert all(host.process.poll() is None and "is gone" not in host.log.read_text() for host in hosts)
    valid.stream.close()
    valid.link.close()
    hosts[1].says("host s1/h1 is gone")


def test_a_first_host_that_cannot_prove_it_either_is_not_believed(start: Start) -> None:
    with socket.create_server(("", 0)) as impostor:
        host = start(1, WAITS, port=impostor.getsockname()[1] - 2)
        for said in (b"challenge aa\nwelcome %s\nlost 0\n" % (b"0" * 64), b"welcome\nlost 0\n", b"lost 0\n"):
            impostor.settimeout(SECONDS)
            link, _ = impostor.accept()
            with link:
                link.sendall(said)
                while link.recv(1024):
                    pass
    assert host.process.poll() is None and "is gone" not in host.log.read_text()


def test_a_host_that_comes_late_hears_of_all_that_are_lost(start: Start) -> None:
    """The first host says it at once: more than a line may have, and more than is read in one go."""
    with socket.create_server(("", 0)) as first:
        host = start(1, WAITS, port=first.getsockname()[1] - 2)
        first.settimeout(SECONDS)
        link, _ = first.accept()
        with link, link.makefile("rb") as stream:
            link.sendall(b"challenge cc\n")
            _, number, nonce, proof = stream.readline().split()
            text = b"xpk-peer-watch a-job.0 1 cc " + nonce
            host_proof, welcome = (
                hmac.new(SECRET.encode(), role + b" " + text, "sha256").hexdigest().encode()
                for role in (b"host", b"hub")
            )
            assert (number, proof) == (b"1", host_proof)
            lost = b"".join(b"lost %d\n" % each for each in range(2, 700))
            link.sendall(b"welcome " + welcome + b"\n" + lost)
            host.says("host s1/h0 is gone")


def test_silent_strangers_are_hung_up_on_and_keep_nobody_out_or_busy(start: Start) -> None:
    hurried = SOURCE.replace("_HANDSHAKE_SECONDS, _PAUSE_SECONDS = 5.0", "_HANDSHAKE_SECONDS, _PAUSE_SECONDS = 1.5")
    first = start(0, WAITS, source=hurried.replace("_LONGEST =", "resource.setrlimit(7, (40, 40)); _LONGEST =", 1))
    first.says("up")
    deadline = time.monotonic() + SECONDS
    strangers: list[socket.socket] = []
    while len(strangers) < 120 and time.monotonic() < deadline:
        with suppress(OSError):
            strangers.append(socket.create_connection(("127.0.0.1", first.port), timeout=1))
    strangers[0].settimeout(SECONDS)
    before, began = cpu(first), time.monotonic()
    second = start(1, WAITS)
    assert strangers[0].recv(100).startswith(b"challenge") and strangers[0].recv(100) == b"", "hung up on"
    assert cpu(first) - before < 0.3 * (time.monotonic() - began) + 0.2
    for stranger in strangers:
        stranger.close()
    connected([first, second])
    second.process.kill()
    first.says("host s0/h1 is gone")


def cpu(host: Host) -> float:
    """Return the seconds that a host's program has computed."""
    fields = Path(f"/proc/{host.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_143_is_a_failure_unless_a_host_was_asked_to_end(start: Start) -> None:
    alone = start(0, "exit 143", slices=1)
    alone.ends(1)
    assert "the command ended with 143, but no host was asked to end: exit code 1" in alone.log.read_text()
    hosts = [start(0, WAITS), start(1, "until [ -e end ]; do sleep 0.05; done; exit 143"), start(2, OBEYS)]
    connected(hosts)
    hosts[2].says("up")
    hosts[2].process.terminate()
    hosts[2].ends(143)
    (hosts[1].log.parent / "end").touch()
    hosts[1].ends(143)  # it has heard of the other in its own way


def test_without_a_readable_secret_the_command_runs_unwatched(start: Start, tmp_path: Path) -> None:
    alone = start(1, "exit 5")
    (tmp_path / "secret").unlink()
    other = start(2, "exit 6")
    alone.ends(5)
    other.ends(6)
    assert "cannot read" in other.log.read_text()
