"""Supervisors of a job of which Kubernetes replaces single slices: two slices of two hosts."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import until
from tests.xpk_shared.supervised import IN_PLACE, WITH_SHORT_GRACE, Host, Start, connected, kill_command
from xpk.render.supervisor import supervisor_archive

ATTEMPT = "echo up $XPK_RESTART_ATTEMPT; "
# Like a host in a collective until a file exists: SIGTERM does not end it.
WAITS = f"trap '' TERM; {ATTEMPT}until [ -e end ]; do sleep 0.2; done"
SAVES = f"trap 'sleep 1; echo saved; exit 143' TERM; {ATTEMPT}until [ -e end ]; do sleep 0.2; done"
QUICK = WITH_SHORT_GRACE.replace("grace_seconds=0.5", "grace_seconds=0.5, silent_seconds=2.0, finish_seconds=1.0")

# Hosts that do not end their commands count as frozen after a shorter time.
HURRIED = QUICK.replace(
    "sys.exit(main(",
    "import xpk_shared.supervisor.restarts as restarts; "
    "restarts.CoordinatorLimits.__init__.__defaults__ = (0.1, 1.0); sys.exit(main(",
)

# The first host prints which hosts have told it that their command has ended.
HEARING = QUICK.replace(
    "    def introduce",
    """    def _take(self, end, restarts):
        say(f"heard of the end of {end.number}")
        super()._take(end, restarts)

    def introduce""",
)

Replaced = Callable[..., Host]


@pytest.fixture(name="start_host")
def start_in_job(start: Start, tmp_path: Path) -> Iterator[Replaced]:
    """Yield a function that starts a host, by its number and how often its slice was replaced."""
    (tmp_path / "supervisor.pyz").write_bytes(supervisor_archive(replaces_slices=True))

    def started(number: int, command: str = WAITS, *, replaced: int = 0, **more: Any) -> Host:
        env = {"XPK_SLICE_ATTEMPT": str(replaced), "XPK_OUTPUT_DIR": str(tmp_path / "out"), **IN_PLACE}
        return start(number, command, program=more.pop("program", QUICK), **{**env, **more})

    yield started
    (tmp_path / "end").touch()  # ends the commands of hosts that were killed


def all_hosts(start_host: Replaced, command: str = WAITS, **more: Any) -> list[Host]:
    """Start four hosts and wait until they are connected and their commands run."""
    hosts = [start_host(number, command, **more) for number in range(4)]
    connected(hosts)
    for host in hosts:
        host.says("up 0")
    return hosts


def replace(hosts: list[Host], slice_id: int, start_host: Replaced, command: str = WAITS, *, times: int = 1) -> None:
    """Let the pods of a slice be deleted, and start new ones, as JobSet does."""
    for number in range(2 * slice_id, 2 * slice_id + 2):
        hosts[number].process.kill()
        hosts[number].process.wait()
        hosts[number] = start_host(number, command, replaced=times)


def finish(hosts: list[Host], tmp_path: Path, attempt: int) -> None:
    """Check that all hosts are in an attempt, and let them succeed."""
    for host in hosts:
        host.says(f"up {attempt}")
    (tmp_path / "end").touch()
    for host in hosts:
        host.ends(0)


@pytest.mark.parametrize("victim", [3, pytest.param(2, marks=pytest.mark.slow)])
def test_hosts_of_other_slices_keep_their_pods_while_a_slice_is_replaced(
    start_host: Replaced, tmp_path: Path, victim: int
) -> None:
    hosts = all_hosts(start_host)
    kept = hosts[:2]
    hosts[victim].process.kill()
    for host in kept:
        host.says(f"host s1/h{victim - 2} is gone; this host's command starts again once slice 1 has new pods")
    replace(hosts, 1, start_host)
    finish(hosts, tmp_path, 1)
    assert hosts[:2] == kept and not (tmp_path / "out" / "restarts.jsonl").exists(), "Kubernetes counts it"


def test_slices_are_replaced_again_and_restarts_in_place_in_between_count(start_host: Replaced, tmp_path: Path) -> None:
    hosts = all_hosts(start_host)
    replace(hosts, 1, start_host)
    for host in hosts:
        host.says("up 1")
    kill_command(hosts[2])
    for host in hosts:
        host.says("up 2")
    replace(hosts, 1, start_host, times=2)
    finish(hosts, tmp_path, 3)
    (record,) = map(json.loads, (tmp_path / "out" / "restarts.jsonl").read_text().splitlines())
    assert (record["attempt"], record["slice"], record["host"], record["exit_code"]) == (2, 1, 0, 137)


def test_all_follow_when_the_slice_of_the_first_host_is_replaced(start_host: Replaced, tmp_path: Path) -> None:
    hosts = all_hosts(start_host)
    kill_command(hosts[3])
    for host in hosts:
        host.says("up 1")
    kept = hosts[2:]
    hosts[0].process.kill()
    for host in kept:
        host.says("host s0/h0 is gone; this host's command starts again once slice 0 has new pods")
    hosts[1].says("host s0/h0 is lost; stopping this host's command")
    replace(hosts, 0, start_host)
    finish(hosts, tmp_path, 2)
    assert hosts[2:] == kept
    assert "up 0" not in hosts[0].log.read_text() and "up 1" not in hosts[1].log.read_text()


@pytest.mark.parametrize("victim", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_a_host_that_is_a_slice_is_replaced_alone(start_host: Replaced, tmp_path: Path, victim: int) -> None:
    def start_slice(number: int, replaced: int) -> Host:
        sizes = {"MEGASCALE_NUM_SLICES": "3", "XPK_HOSTS_PER_SLICE": "1"}
        return start_host(number, replaced=replaced, MEGASCALE_SLICE_ID=str(number), TPU_WORKER_ID="0", **sizes)

    hosts = [start_slice(number, 0) for number in range(3)]
    connected(hosts)
    for host in hosts:
        host.says("up 0")
    kept = [host for host in hosts if host is not hosts[victim]]
    hosts[victim].process.kill()
    for host in kept:
        host.says(f"host s{victim}/h0 is gone; this host's command starts again once slice {victim} has new pods")
    hosts[victim] = start_slice(victim, 1)
    finish(hosts, tmp_path, 1)
    assert [host for host in hosts if host in kept] == kept


def test_a_host_beside_the_lost_one_waits_for_kubernetes(start_host: Replaced) -> None:
    hosts = all_hosts(start_host)
    hosts[2].process.kill()
    hosts[3].says("host s1/h0 is lost; stopping this host's command")
    hosts[3].process.terminate()
    hosts[3].ends(143)


@pytest.mark.parametrize("asked", [3, *(pytest.param(number, marks=pytest.mark.slow) for number in (0, 1))])
def test_all_hosts_save_when_one_is_asked_to_end_and_only_its_slice_is_replaced(
    start_host: Replaced, tmp_path: Path, asked: int
) -> None:
    hosts = all_hosts(start_host, SAVES)
    slice_id = asked // 2
    kept = [host for number, host in enumerate(hosts) if number // 2 != slice_id]
    hosts[asked].process.terminate()
    hosts[asked].ends(143)
    for host in kept:
        host.says("saved")
        assert host.process.poll() is None
    replace(hosts, slice_id, start_host, SAVES)
    finish(hosts, tmp_path, 1)
    assert not (tmp_path / "out" / "restarts.jsonl").exists()


@pytest.mark.slow
def test_commands_that_do_not_end_have_the_whole_grace_period(start_host: Replaced, tmp_path: Path) -> None:
    asked = f"trap 'exit 143' TERM; {ATTEMPT}until [ -e end ]; do sleep 0.2; done"
    hosts = all_hosts(start_host, XPK_GRACE_SECONDS="2")
    hosts[3].process.kill()
    replace(hosts, 1, start_host, asked)
    for host in hosts:
        host.says("up 1")
    began = time.monotonic()
    hosts[3].process.terminate()
    hosts[3].ends(143)
    replace(hosts, 1, start_host)
    hosts[0].says("up 2")
    assert time.monotonic() - began > 1.5, "no SIGKILL before"
    finish(hosts, tmp_path, 2)


@pytest.mark.slow
def test_success_after_a_request_to_end_is_that_of_all_hosts(start_host: Replaced, tmp_path: Path) -> None:
    good = f"trap 'exit 0' TERM; {ATTEMPT}until [ -e end ]; do sleep 0.2; done"
    hosts = all_hosts(start_host, good)
    for host in hosts:
        host.process.terminate()
    for host in hosts:
        host.ends(0)
    hosts = [start_host(number, good if number == 3 else WAITS, XPK_GRACE_SECONDS="1") for number in range(4)]
    connected(hosts)
    for host in hosts:
        host.says("up 0")
    hosts[3].process.terminate()
    hosts[3].ends(143)  # the others have not finished, so its slice has to be replaced
    replace(hosts, 1, start_host)
    finish(hosts, tmp_path, 1)


def freeze(host: Host) -> None:
    """Stop a host, and its command."""
    kill_command(host, signal.SIGSTOP)
    stop(host)


def stop(host: Host) -> None:
    """Stop the supervisor of a host, with all of its threads."""
    host.process.send_signal(signal.SIGSTOP)
    threads = Path(f"/proc/{host.process.pid}/task")
    until(lambda: {file.read_text().rpartition(")")[2].split()[0] for file in threads.glob("*/stat")} == {"T"})


@pytest.mark.slow
@pytest.mark.parametrize("frozen", [0, 2])
def test_all_slices_get_new_pods_after_a_host_was_frozen(start_host: Replaced, frozen: int) -> None:
    hosts = all_hosts(start_host, program=HURRIED, XPK_GRACE_SECONDS="1")
    freeze(hosts[frozen])
    others = [host for host in hosts if host is not hosts[frozen]]
    for host in others:
        kill_command(host)
    for host in others:
        host.ends(75)


@pytest.mark.slow
def test_a_final_exit_code_ends_one_host_until_kubernetes_acts(start_host: Replaced, tmp_path: Path) -> None:
    hosts = all_hosts(start_host, f"{WAITS}; exit 42")
    (tmp_path / "end").touch()
    until(lambda: any(host.process.poll() == 42 for host in hosts), seconds=30)
    time.sleep(0.5)
    assert sum(host.process.poll() is None for host in hosts) == 3


@pytest.mark.slow
def test_a_host_that_dies_at_the_end_of_a_run_learns_that_it_has_succeeded(
    start_host: Replaced, tmp_path: Path
) -> None:
    later = f"{WAITS}; until [ -e over ]; do sleep 0.2; done"
    hosts = [start_host(number, WAITS if number == 2 else later, program=HEARING) for number in range(4)]
    connected(hosts)
    for host in hosts:
        host.says("up 0")
    (tmp_path / "end").touch()
    hosts[0].says("heard of the end of 2\n")
    stop(hosts[2])  # it receives nothing any more
    (tmp_path / "over").touch()
    hosts[1].ends(0)
    hosts[3].ends(0)
    hosts[2].process.kill()
    assert hosts[0].process.poll() is None
    start_host(2, replaced=1).ends(0)
    hosts[0].ends(0)


@pytest.mark.slow
def test_hosts_of_a_workload_that_is_admitted_again_begin_with_its_first_attempt(
    start_host: Replaced, tmp_path: Path
) -> None:
    hosts = [start_host(number, replaced=number // 2) for number in range(4)]
    finish(hosts, tmp_path, 0)
    (tmp_path / "end").unlink()
    hosts = [start_host(number, replaced=1 - number // 2) for number in range(4)]
    finish(hosts, tmp_path, 0)


def test_a_host_of_a_replaced_slice_that_finds_no_first_host_ends(start_host: Replaced) -> None:
    """It waits longer while the name of the first host does not resolve: its pod may wait for a machine."""

    def started(number: int, absent_seconds: float, **more: str) -> Host:
        limits = f"join_seconds=1.0, absent_seconds={absent_seconds}, finish_seconds"
        return start_host(number, replaced=1, program=QUICK.replace("finish_seconds", limits), **more)

    unnamed = {"XPK_COORDINATOR_ADDRESS": "no name:8476"}
    patient, host = started(2, 1000.0, **unnamed), started(3, 1000.0)
    host.says("this slice was replaced; waiting for the hosts of the others")
    host.ends(75)
    assert patient.process.poll() is None
    assert "up" not in host.log.read_text() + patient.log.read_text()
    patient.process.kill()
    began = time.monotonic()
    impatient = started(2, 4.0, **unnamed)
    impatient.ends(75)
    assert time.monotonic() - began > 4.0
    assert "up" not in impatient.log.read_text()
