"""The supervisor of a host's command, run from its file like in a pod."""

from __future__ import annotations

import ast
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

import xpk_shared
from tests.ports import free_port
from tests.xpk_shared.supervised import (
    OBEYS,
    PATIENT,
    PROGRAM,
    SECONDS,
    WAITS,
    WITH_SHORT_GRACE,
    Host,
    Start,
    connected,
)
from xpk.render.supervisor import FILE, START, supervisor_archive


@pytest.mark.parametrize("victim", [0, 3])
def test_a_lost_host_stops_all_other_commands_until_kubernetes_acts(start: Start, victim: int) -> None:
    hosts = [start(number, WAITS) for number in range(4)]
    connected(hosts)
    hosts[victim].process.kill()
    others = [host for host in hosts if host is not hosts[victim]]
    for host in others:
        host.says(f"host s{victim // 2}/h{victim % 2} is lost")
    time.sleep(0.5)
    assert all(host.process.poll() is None for host in others), "the first host's end is the cause, not theirs"
    for host in others:
        host.process.terminate()
    began = time.monotonic()
    for host in others:
        host.ends(143)
    assert time.monotonic() - began < 15, "no host waits for the grace period"


def test_a_thread_that_cannot_write_does_not_change_the_exit_code() -> None:
    program = (
        f"import sys, threading, time\nsys.path.insert(0, {str(Path(xpk_shared.__file__).parents[1])!r})\n"
        "from xpk_shared.supervisor.host import say\n"
        "def flood():\n    while True: say('x' * 1000)\n"
        "threading.Thread(target=flood, daemon=True).start(); time.sleep(0.5); sys.exit(3)"
    )
    with subprocess.Popen([sys.executable, "-I", "-c", program], stderr=subprocess.PIPE) as process:
        assert process.wait(SECONDS) == 3, "nobody reads the pipe, and the thread waits for it"


def test_a_failed_command_is_a_lost_host_with_its_own_exit_code(start: Start, tmp_path: Path) -> None:
    fails = "until [ -e end ]; do sleep 0.05; done; exit 7"
    hosts = [start(number, fails if number == 2 else WAITS) for number in range(3)]
    connected(hosts)
    (tmp_path / "end").touch()
    hosts[2].ends(7)
    hosts[0].says("host s1/h0 is lost")
    hosts[1].says("host s1/h0 is lost")


@pytest.mark.parametrize("victim", [0, 3])
def test_a_failure_before_all_hosts_are_connected_is_detected(start: Start, victim: int) -> None:
    failed = start(victim, "exit 7", program=WITH_SHORT_GRACE)
    others = [start(number, WAITS) for number in range(4) if number != victim]
    failed.ends(7)
    for host in others:
        host.says(f"host s{victim // 2}/h{victim % 2} is lost")


def test_a_late_host_learns_of_the_first_loss(start: Start) -> None:
    hosts = [start(number, WAITS) for number in (0, 1, 3)]
    connected(hosts)
    hosts[2].process.kill()
    hosts[1].says("host s1/h1 is lost")
    time.sleep(0.5)  # host 1 has left, which is not a loss
    start(2, WAITS).says("host s1/h1 is lost")


def test_successful_and_stopped_hosts_are_not_lost(start: Start, tmp_path: Path) -> None:
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
        assert host.process.poll() is None and "is lost" not in host.log.read_text()


def test_a_host_asked_to_end_has_its_grace_period(start: Start) -> None:
    saves = "trap 'echo saving; sleep 2; echo saved; exit 143' TERM; echo up; sleep 1000 & wait"
    hosts = [start(0, saves), start(1, WAITS)]
    connected(hosts)
    hosts[0].says("up")
    hosts[0].process.terminate()
    hosts[0].says("saving")
    hosts[1].process.kill()
    hosts[0].ends(143)
    assert "saved" in hosts[0].log.read_text()


def test_all_processes_of_a_command_are_signalled_and_awaited(start: Start) -> None:
    inner = "trap 'sleep 1; echo inner saved; exit 0' TERM; echo up; sleep 1000 & wait"
    host = start(0, f'bash -c "{inner}"; echo after')
    host.says("up")
    host.process.terminate()
    host.process.wait(SECONDS)
    assert "inner saved" in host.log.read_text()


def test_a_command_with_a_trap_forwards_signals_itself(start: Start, tmp_path: Path) -> None:
    deaf = "trap 'echo heard' TERM; echo deaf; until [ -e end ]; do sleep 0.05; done; echo over"
    host = start(0, f'bash -c "{deaf}" & trap "echo asked; wait; exit 9" TERM; echo up; wait')
    host.says("up")
    host.says("deaf")
    host.process.terminate()
    host.says("asked")
    (tmp_path / "end").touch()
    host.ends(9)
    assert "over" in host.log.read_text() and "heard" not in host.log.read_text()


def test_hosts_of_another_attempt_are_rejected(start: Start) -> None:
    first, stale = start(0, WAITS, 1), start(1, WAITS, 0)
    time.sleep(1.5)
    stale.process.kill()
    time.sleep(0.5)
    assert first.process.poll() is None and "is lost" not in first.log.read_text()


def test_a_port_in_use_or_missing_peers_do_not_end_a_command(start: Start) -> None:
    first = start(0, "sleep 1; exit 3")
    second = start(0, "sleep 2; exit 4")  # its port is in use
    first.ends(3)
    second.ends(4)
    alone = start(1, "sleep 1; exit 5")
    alone.ends(5)


def test_exit_codes_and_signals_are_forwarded(start: Start) -> None:
    start(0, "exit 42").ends(42)
    start(0, "kill -KILL $$").ends(137)
    message = start(0, "trap 'echo told; exit 9' USR1; echo up; sleep 1000 & wait")
    message.says("up")
    message.process.send_signal(signal.SIGUSR1)
    message.ends(9)


def test_without_the_environment_of_a_host_or_python_the_command_runs_alone(tmp_path: Path) -> None:
    file = tmp_path / "supervisor.pyz"
    file.write_bytes(supervisor_archive())
    argv = [*START[:2], START[2].replace(FILE, str(file)), "bash", "-c", "echo alone; exit 6"]
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "bash").symlink_to("/bin/bash")
    for path in (os.environ["PATH"], str(tmp_path / "bin")):
        done = subprocess.run(argv, env={"PATH": path}, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (6, "alone\n", "")


def test_a_users_modules_do_not_replace_those_of_the_supervisor(start: Start, tmp_path: Path) -> None:
    for name in ("selectors", "xpk_shared"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(99)\n")
    host = {"PYTHONPATH": str(tmp_path), "PATH": os.environ["PATH"], "XPK_COORDINATOR_ADDRESS": "127.0.0.1:1"}
    host |= {"XPK_JOB_ID": "j", "XPK_PEER_SECRET_FILE": "secret", "XPK_RESTART_ATTEMPT": "0", "TPU_WORKER_ID": "0"}
    host |= {"XPK_HOSTS_PER_SLICE": "1", "MEGASCALE_NUM_SLICES": "1", "MEGASCALE_SLICE_ID": "0"}
    start(0, "exit 0").ends(0)  # the file exists
    argv = [*START[:2], START[2].replace(FILE, "supervisor.pyz"), "bash", "-c", "echo $PYTHONPATH; exit 5"]
    done = subprocess.run(argv, env=host, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (5, f"{tmp_path}\n", "")


def test_silent_connections_are_closed_without_blocking_or_load(start: Start) -> None:
    limits = "resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))"
    hurried = "peers = functools.partial(peers, handshake_seconds=1.5)"
    first = start(0, WAITS, program=PROGRAM.replace("sys.exit", f"{limits}; {hurried}; sys.exit"))
    first.says("up")
    deadline = time.monotonic() + SECONDS
    strangers: list[socket.socket] = []
    while len(strangers) < 120 and time.monotonic() < deadline:
        with suppress(OSError):
            strangers.append(socket.create_connection(("127.0.0.1", first.port), timeout=1))
    strangers[0].settimeout(SECONDS)
    before, began = cpu(first), time.monotonic()
    second = start(1, WAITS)
    assert strangers[0].recv(100).startswith(b'{"challenge"') and strangers[0].recv(100) == b"", (
        "the connection is closed"
    )
    assert cpu(first) - before < 0.3 * (time.monotonic() - began) + 0.2
    for stranger in strangers:
        stranger.close()
    connected([first, second])
    second.process.kill()
    first.says("host s0/h1 is lost")


def cpu(host: Host) -> float:
    """Return the CPU seconds of a host's program."""
    fields = Path(f"/proc/{host.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_exit_code_143_is_a_failure_unless_a_host_was_asked_to_end(start: Start) -> None:
    alone = start(0, "exit 143", slices=1)
    alone.ends(1)
    assert "the command exited with 143, but no host was asked to end; exiting with 1" in alone.log.read_text()
    commands = [WAITS, "until [ -e end ]; do sleep 0.05; done; exit 143", OBEYS]
    words = [alone.log.parent / f"words{number}" for number in range(3)]
    logs = [{"XPK_TERMINATION_LOG": str(word)} for word in words]
    hosts = [start(number, commands[number], program=PATIENT, **logs[number]) for number in range(3)]
    connected(hosts)
    hosts[2].says("up")
    hosts[2].process.terminate()
    hosts[2].ends(143)
    (hosts[1].log.parent / "end").touch()
    hosts[1].ends(143)  # it was notified of the other in its own way
    assert [word.read_text() for word in words[1:]] == ["asked to end"] * 2


def test_without_a_readable_secret_the_command_runs_unsupervised(start: Start, tmp_path: Path) -> None:
    alone = start(1, "exit 5")
    (tmp_path / "secret").unlink()
    other = start(2, "exit 6")
    alone.ends(5)
    other.ends(6)
    assert "cannot read" in other.log.read_text()


def test_the_archive_is_reproducible_and_small() -> None:
    content = supervisor_archive()
    supervisor_archive.cache_clear()
    assert supervisor_archive() == content and len(content) < 120_000
    parts = {
        "slices/registry": "elastic",
        "supervisor/registry": "elastic",
        "supervisor/replacement_": "replaces_slices",
    }
    for part, option in parts.items():
        assert f"xpk_shared/{part}".encode() not in content
        assert f"xpk_shared/{part}".encode() in supervisor_archive(**{option: True})


SOURCES = [
    file
    for folder in ("", "links", "slices", "supervisor")
    for file in sorted((Path(xpk_shared.__file__).parent / folder).glob("*.py"))
    if folder or file.name == "__init__.py"
]


@pytest.mark.parametrize("file", SOURCES, ids=lambda file: f"{file.parent.name}/{file.name}")
def test_the_program_is_python_3_8_with_the_standard_library(file: Path) -> None:
    tree = ast.parse(file.read_text(), feature_version=(3, 8))
    imports = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
    modules = {getattr(node, "module", None) or node.names[0].name for node in imports}
    assert {module.partition(".")[0] for module in modules} <= {"xpk_shared", *sys.stdlib_module_names}
    assert "__future__" in modules or not modules or file.name == "__main__.py", "annotations would be evaluated"


OLDEST = next(iter(sorted(Path.home().glob(".pyenv/versions/3.8.*/bin/python3"))), shutil.which("python3.8"))


@pytest.mark.skipif(OLDEST is None, reason="there is no Python 3.8 here")
def test_python_3_8_restarts_a_command_in_place(tmp_path: Path) -> None:
    file, secret = tmp_path / "supervisor.pyz", tmp_path / "secret"
    file.write_bytes(supervisor_archive())
    secret.write_text("s")
    env = {
        "XPK_COORDINATOR_ADDRESS": f"127.0.0.1:{free_port()}",
        "XPK_JOB_ID": "j",
        "XPK_PEER_SECRET_FILE": str(secret),
    }
    env |= {"XPK_RESTART_ATTEMPT": "0", "XPK_HOSTS_PER_SLICE": "1", "MEGASCALE_NUM_SLICES": "1", "TPU_WORKER_ID": "0"}
    env |= {"MEGASCALE_SLICE_ID": "0", "XPK_MAX_RESTARTS": "1", "PATH": os.environ["PATH"]}
    argv = [str(OLDEST), "-I", str(file), "bash", "-c", "echo up $XPK_RESTART_ATTEMPT; [ $XPK_RESTART_ATTEMPT = 1 ]"]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "up 0\nup 1\n"), done.stderr
