"""Supervisors of elastic slices: a group for each slice, and the registry of the slices."""

from __future__ import annotations

import json
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.ports import free_port
from tests.waiting import until
from tests.xpk_shared.supervised import (
    FIRST,
    IN_PLACE,
    LATER,
    OBEYS,
    PATIENT,
    SECRET,
    WAITS,
    WITH_SHORT_GRACE,
    Host,
    Start,
    kill_command,
)
from xpk.render.supervisor import supervisor_archive
from xpk_shared.slices.client import RegistryClient
from xpk_shared.slices.registry import identity
from xpk_shared.slices.roster import WAITING, Entry, View
from xpk_shared.supervisor.host import ElasticSlices, read_host
from xpk_shared.supervisor.host import Host as Place
from xpk_shared.supervisor.restarts import Coordinator, End

SlicesStart = Callable[..., Host]
QUICK = WITH_SHORT_GRACE.replace("grace_seconds=0.5", "grace_seconds=0.5, registry_seconds=1.5")
ENDS = "until [ -e end ]; do sleep 0.05; done; [ $XPK_RESTART_ATTEMPT = 0 ] || echo again $XPK_RESTART_ATTEMPT"


@pytest.fixture
def registry_port() -> int:
    """Return a free port."""
    return free_port()


@pytest.fixture(name="start_host")
def start_in_slice(start: Start, tmp_path: Path, registry_port: int) -> Iterator[SlicesStart]:
    """Yield a function that starts a host of two elastic slices, by its slice and its number in the slice."""
    (tmp_path / "supervisor.pyz").write_bytes(supervisor_archive(elastic=True))  # once: running hosts import from it

    def started(slice_id: int, host: int, command: str, *, hosts: int = 2, **more: Any) -> Host:
        program = more.pop("program", WITH_SHORT_GRACE)
        env = {
            "XPK_MIN_SLICES": "1",
            "XPK_SLICE_REGISTRY": f"127.0.0.1:{registry_port}",
            "XPK_HOSTS_PER_SLICE": str(hosts),
            "TPU_WORKER_HOSTNAMES": ",".join([f"127.0.0.{1 + slice_id}"] * hosts),
            **IN_PLACE,
        }
        return start(2 * slice_id + host, command, program=program, **{**env, **more})

    yield started


def started_slices(start_host: SlicesStart, command: str, **more: Any) -> list[list[Host]]:
    """Start two slices of two hosts and wait until the hosts of each are connected."""
    slices = [[start_host(slice_id, host, command, **more) for host in range(2)] for slice_id in range(2)]
    for first, _ in slices:
        first.says("met 1\n")
    return slices


class Slice:
    """A slice's client of the registry, and the views that it has received."""

    def __init__(self, number: int, port: int, incarnation: str = "") -> None:
        self.views: list[View] = []
        self.evicted = threading.Event()
        self.entry = Entry(incarnation or f"first {number}", WAITING, (("127.0.0.1", 1),))
        callbacks: dict[str, Any] = {"on_view": self.views.append, "on_evicted": self.evicted.set}
        self.client = RegistryClient(identity("a-job", SECRET.encode()), number, self.entry, **callbacks)
        self.client.connect(lambda: "127.0.0.1", port)

    def sees(self, *numbers: int) -> None:
        """Wait for a view of these slices."""
        until(lambda: bool(self.views) and {*self.views[-1].slices} == {*numbers}, seconds=30)


def place(slice_id: int = 1, hosts: int = 2, max_restarts: int = 1) -> Place:
    """Return the first host of a slice."""
    elastic = ElasticSlices(num_slices=4, min_slices=2, own=slice_id, registry="127.0.0.1:1")
    return Place(0, hosts, hosts, "", 0, "j", 0, "", max_restarts, frozenset({42}), elastic=elastic)


@pytest.mark.parametrize("victim", [0, 1])
def test_a_failed_command_is_restarted_in_its_slice_only(start_host: SlicesStart, tmp_path: Path, victim: int) -> None:
    out = {"XPK_OUTPUT_DIR": str(tmp_path / "out")}
    slices = started_slices(start_host, f"echo up; {LATER}{ENDS}", **out)
    kill_command(slices[1][victim])
    for host in slices[1]:
        host.ends(0)
        assert "again 1" in host.log.read_text()
    (tmp_path / "end").touch()
    slices[0][1].ends(0)
    assert "restart" not in "".join(host.log.read_text() for host in slices[0])
    assert f"host s1/h{victim} ended with exit code 137" in slices[1][1 - victim].log.read_text()
    (record,) = map(json.loads, (tmp_path / "out" / "restarts.jsonl").read_text().splitlines())
    del record["time"]
    cause = {"slice": 1, "host": victim, "exit_code": 137}
    assert record == {"job": "a-job", "attempt": 1, "restarts_in_place": 1, **cause}


def test_a_lost_host_stops_its_slice_only(start_host: SlicesStart) -> None:
    slices = started_slices(start_host, WAITS)
    slices[1][0].process.kill()
    slices[1][1].says("host s1/h0 is lost")
    time.sleep(0.5)
    for host in slices[0]:
        assert host.process.poll() is None and "is lost" not in host.log.read_text()
    slices[1][1].process.terminate()
    slices[1][1].ends(143)


def test_hosts_of_different_slices_do_not_connect(start_host: SlicesStart) -> None:
    first = start_host(0, 0, WAITS)
    other = start_host(1, 1, WAITS, TPU_WORKER_HOSTNAMES="127.0.0.1,127.0.0.1")
    start_host(0, 1, WAITS)
    first.says("met 1\n")
    other.process.kill()
    time.sleep(0.5)
    assert "is lost" not in first.log.read_text()


def test_a_slice_of_one_host_restarts_in_place(start_host: SlicesStart) -> None:
    host = start_host(1, 0, f"{LATER}exit 3", hosts=1)
    host.ends(0)
    assert "again 1" in host.log.read_text()


def test_a_request_to_end_stops_a_slice_and_leaves_the_others_alone(start_host: SlicesStart, tmp_path: Path) -> None:
    slices = started_slices(start_host, OBEYS, program=PATIENT)
    slices[1][1].says("up")
    slices[1][1].process.terminate()
    slices[1][1].ends(143)
    kill_command(slices[1][0], signal.SIGTERM)  # the hosts of a slice have agreed to stop
    slices[1][0].ends(143)
    assert all(host.process.poll() is None for host in slices[0])
    assert "restart" not in slices[1][0].log.read_text()


def test_a_slice_that_stops_with_another_one_starts_again(start_host: SlicesStart) -> None:
    host = start_host(1, 0, f"{LATER}exit 143", hosts=1, XPK_MAX_RESTARTS="0")
    host.ends(0)
    assert "no host of this slice was asked to end; exiting with 75" in host.log.read_text()


def test_restarts_that_other_slices_cause_are_not_limited(start_host: SlicesStart) -> None:
    commands = "[ $XPK_RESTART_ATTEMPT = 2 ] && exit 3; [ $XPK_RESTART_ATTEMPT = 3 ] || exit 75"
    host = start_host(1, 0, commands, hosts=1, XPK_MAX_RESTARTS="1")
    host.ends(0)
    assert "restart 3 in place" in host.log.read_text()


def test_the_limit_of_restarts_counts_failures_of_this_slice() -> None:
    coordinator = Coordinator(place(), 0.0)

    def fail(now: float, code: int, **facts: Any) -> dict[str, Any] | None:
        coordinator.take(End(0, code, was_stopped=False, **facts), coordinator.restarts, now)
        assert coordinator.decide(now, ()) == {"stop": coordinator.restarts, "number": 0, "code": code}
        coordinator.take(End(1, 75, was_stopped=True), coordinator.restarts, now)
        return coordinator.decide(now, ())

    assert fail(10.0, 75) == {"start": 1}
    assert fail(20.0, 75, lost=1) == {"start": 2}, "host 1 was frozen"
    assert coordinator.cause == End(1, 75, was_stopped=True)
    assert fail(30.0, 75) == {"start": 3}
    assert fail(40.0, 9) == {"final": 0, "exhausted": True}
    coordinator = Coordinator(place(max_restarts=0), 0.0)
    assert fail(10.0, 75) == {"start": 1}
    assert fail(20.0, 9) == {"final": 0, "exhausted": False}, "no restart has counted"
    coordinator = Coordinator(place(), 0.0)
    assert fail(10.0, 42) == {"final": 0}


def test_places_are_those_of_the_job() -> None:
    host = place(slice_id=2)
    assert (host.name(1), host.place(1)) == ("s2/h1", (2, 1))
    assert [host.number_of(each) for each in ((2, 0), (2, 1), (2, 2), (1, 1), (3, 0), None)] == [0, 1, *[None] * 4]


def test_an_incomplete_environment_describes_no_host() -> None:
    environ = {
        **{"XPK_HOSTS_PER_SLICE": "2", "MEGASCALE_NUM_SLICES": "3", "MEGASCALE_SLICE_ID": "1", "TPU_WORKER_ID": "1"},
        **{"XPK_COORDINATOR_ADDRESS": "a.b:8476", "XPK_JOB_ID": "j", "XPK_RESTART_ATTEMPT": "4"},
        **{"XPK_PEER_SECRET_FILE": "s", "XPK_MIN_SLICES": "2", "XPK_SLICE_REGISTRY": "a.b:8479"},
        "TPU_WORKER_HOSTNAMES": "c.b,d.b",
    }
    host = read_host(environ)
    assert host and (host.number, host.hosts, host.address, host.port) == (1, 2, "c.b", 8478)
    assert host.elastic == ElasticSlices(num_slices=3, min_slices=2, own=1, registry="a.b:8479")
    for name in ("XPK_SLICE_REGISTRY", "TPU_WORKER_HOSTNAMES"):
        assert read_host({other: value for other, value in environ.items() if other != name}) is None


def test_the_registry_outlives_restarts_in_place(start_host: SlicesStart, registry_port: int) -> None:
    first = start_host(0, 0, f"{FIRST} && {{ {WAITS}; }}; {ENDS}", hosts=1)
    slices = [Slice(number, registry_port) for number in range(2)]
    for each in slices:
        each.sees(0, 1)
    seen = [len(each.views) for each in slices]
    kill_command(first)
    first.says("restart 1 in place")
    time.sleep(1)
    assert [len(each.views) for each in slices] == seen, "the connections have not been interrupted"


def test_the_registry_stays_until_all_slices_know_that_the_run_has_finished(
    start_host: SlicesStart, registry_port: int, tmp_path: Path
) -> None:
    first = start_host(0, 0, ENDS, hosts=1)
    slices = [Slice(number, registry_port) for number in range(2)]
    slices[1].sees(0, 1)
    slices[0].client.leave(is_done=True)
    (tmp_path / "end").touch()
    until(lambda: slices[1].views[-1].is_done)
    time.sleep(2)
    assert first.process.poll() is None
    slices[1].client.leave(is_done=True)
    first.ends(0)


def test_the_registry_waits_for_a_limited_time(start_host: SlicesStart, tmp_path: Path) -> None:
    (tmp_path / "end").touch()
    start_host(0, 0, ENDS, hosts=1, program=QUICK).ends(0)


def test_a_host_that_waits_for_other_slices_ends_when_it_is_asked_to(start_host: SlicesStart, tmp_path: Path) -> None:
    first = start_host(0, 0, f"{ENDS}; echo ended", hosts=1)
    (tmp_path / "end").touch()
    first.says("ended")
    time.sleep(1)
    first.process.terminate()
    first.ends(0)


def test_a_registry_that_cannot_listen_ends_its_host(start_host: SlicesStart, registry_port: int) -> None:
    with socket.create_server(("127.0.0.1", registry_port)):
        first = start_host(0, 0, "echo up", hosts=1)
        first.ends(1)
    (line,) = first.log.read_text().splitlines()
    assert line.startswith(f"xpk: cannot listen at 127.0.0.1:{registry_port}: ")
    assert line.endswith("exiting because the slices cannot register")


def test_without_a_secret_nobody_can_register(start_host: SlicesStart, registry_port: int, tmp_path: Path) -> None:
    (tmp_path / "secret").unlink()
    first = start_host(0, 0, WAITS, hosts=1)
    first.says("up")
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", registry_port), timeout=5).close()
