"""Restarts of a command in place by the supervisors of all hosts, without Kubernetes."""

from __future__ import annotations

import json
import queue
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.ports import free_port
from tests.xpk_shared.supervised import (
    FIRST,
    IN_PLACE,
    LATER,
    OBEYS,
    SECONDS,
    SECRET,
    WAITS,
    WITH_SHORT_GRACE,
    Host,
    Start,
    connected,
    kill_command,
)
from xpk_shared.links.endpoint import Handlers
from xpk_shared.links.handshake import Identity
from xpk_shared.links.hub import Hub
from xpk_shared.supervisor.host import Host as Place
from xpk_shared.supervisor.restarts import Coordinator, CoordinatorLimits, End

# An attempt begins once the standby is ready, if there is one, and not before: it may take long on a busy machine.
AWAITS_STANDBY = WITH_SHORT_GRACE.replace(
    "peers, limits =",
    """
from xpk_shared.supervisor.standby import Standby

class Awaited(Standby):
    def take(self, *arguments):
        while self._process and self._process.poll() is None and not self.is_ready:
            time.sleep(0.02)
        return super().take(*arguments)

import xpk_shared.supervisor.supervision as supervision
supervision.Standby = Awaited
peers, limits =""",
)


# Every attempt counts as a short one, however long a busy machine needs for it.
ALWAYS_SHORT = WITH_SHORT_GRACE.replace(
    "sys.exit(main(",
    "import xpk_shared.supervisor.restarts as restarts; restarts.SHORT_SECONDS = 3600.0; sys.exit(main(",
)


def started(start: Start, commands: dict[int, str], *, program: str = WITH_SHORT_GRACE, **more: str) -> list[Host]:
    """Start four hosts, by default with a command that ends with the attempt, and wait until they are connected."""
    slow = f"{LATER}{WAITS}"
    hosts = [start(number, commands.get(number, slow), program=program, **{**IN_PLACE, **more}) for number in range(4)]
    connected(hosts)
    return hosts


@pytest.mark.parametrize("victim", [0, 3])
def test_a_failed_command_is_restarted_on_all_hosts_in_place(start: Start, victim: int, tmp_path: Path) -> None:
    hosts = started(start, {}, XPK_OUTPUT_DIR=str(tmp_path / "out"))
    for host in hosts:
        host.says("up")
    began = time.monotonic()
    kill_command(hosts[victim])
    for host in hosts:
        host.ends(0)
        assert "again 1" in host.log.read_text()
    assert time.monotonic() - began < SECONDS
    slice_id, number = divmod(victim, 2)
    assert f"the command of host s{slice_id}/h{number} ended with exit code 137" in hosts[1].log.read_text()
    (record,) = map(json.loads, (tmp_path / "out" / "restarts.jsonl").read_text().splitlines())
    assert abs(record.pop("time") - time.time()) < 60
    assert record == {
        **{"job": "a-job", "attempt": 1, "restarts_in_place": 1},
        **{"slice": slice_id, "host": number, "exit_code": 137},
    }


def test_no_name_has_to_resolve_after_a_restart_in_place(start: Start) -> None:
    port = free_port()
    shows = f'{FIRST} || {{ echo "first host at $XPK_COORDINATOR_ADDRESS"; exit 0; }}; {WAITS}'
    name = {"XPK_COORDINATOR_ADDRESS": f"localhost:{port}"}
    hosts = [start(number, shows, program=WITH_SHORT_GRACE, **IN_PLACE, **name) for number in range(4)]
    connected(hosts)
    for host in hosts:
        host.says("up")
    kill_command(hosts[2])
    for host in hosts:
        host.ends(0)
        said = host.log.read_text()
        assert f"first host at 127.0.0.1:{port}" in said or f"first host at [::1]:{port}" in said


def test_attempts_do_not_overlap_and_leave_no_processes(start: Start, tmp_path: Path) -> None:
    # Each attempt holds a lock on each host for its duration, and starts a process that leaves its session.
    strays = f"setsid sleep 987 & echo $! >> '{tmp_path}/strays'"
    holds = f"{FIRST} && {{ exec 9> '{tmp_path}/lock'; flock -n -s 9 || echo overlap; {strays}; }}; {LATER}{WAITS}"
    alone = f"exec 9> '{tmp_path}/lock'; {FIRST} || flock -n -x 9 || echo overlap; {FIRST} && flock -n -s 9; "
    hosts = started(start, {1: f"{alone}{LATER}{WAITS}", 2: holds})
    for host in hosts:
        host.says("up")
    kill_command(hosts[3])
    for host in hosts:
        host.ends(0)
        assert "overlap" not in host.log.read_text()
    for pid in (tmp_path / "strays").read_text().split():
        assert not Path(f"/proc/{pid}").exists()


def test_exhausted_restarts_have_their_own_exit_code(start: Start) -> None:
    hosts = started(
        start,
        {2: "echo $XPK_RESTARTS_IN_PLACE; sleep 0.5; exit 7", **dict.fromkeys((0, 1, 3), WAITS)},
        XPK_MAX_RESTARTS="1",
    )
    hosts[2].ends(78)
    text = hosts[2].log.read_text()
    assert "0\n" in text and "1\n" in text and "no restarts left after 1" in text
    for host in hosts:
        if host.number != 2:
            assert host.process.poll() is None, "Kubernetes ends the others"
            host.process.terminate()
            host.ends(143)


def test_a_crash_loop_is_slowed_down_recorded_and_ended(start: Start, tmp_path: Path) -> None:
    commands = {2: "exit 7", **dict.fromkeys((0, 1, 3), WAITS)}
    more = {"XPK_MAX_RESTARTS": "2", "XPK_OUTPUT_DIR": str(tmp_path / "out")}
    hosts = started(start, commands, program=ALWAYS_SHORT, **more)
    hosts[2].ends(78)
    assert "2 attempts in a row have ended within 5 s; the next one starts in 2 s" in hosts[1].log.read_text()
    lines = [json.loads(text) for text in (tmp_path / "out" / "restarts.jsonl").read_text().splitlines()]
    assert [(each.get("attempt"), each.get("pause_seconds"), each.get("short_attempts")) for each in lines] == [
        (1, None, None),
        (None, 2.0, 2),
        (2, None, None),
    ]
    assert {(each["slice"], each["host"], each["exit_code"]) for each in lines} == {(1, 0, 7)}
    assert lines[2]["time"] - lines[1]["time"] >= 2.0


@pytest.mark.parametrize(("command", "code"), [("sleep 1; exit 42", 42), ("sleep 1; exit 7", 7)])
def test_a_fatal_exit_code_is_passed_on(start: Start, command: str, code: int) -> None:
    hosts = started(start, {1: command}, XPK_MAX_RESTARTS="0" if code == 7 else "3")
    hosts[1].ends(code)
    assert "restart 1" not in "".join(host.log.read_text() for host in hosts)


def test_a_succeeded_host_waits_and_restarts_with_the_others(start: Start) -> None:
    hosts = started(start, {1: "echo done $XPK_RESTART_ATTEMPT"})
    hosts[1].says("done 0")
    kill_command(hosts[2])
    for host in hosts:
        host.ends(0)
    assert "done 1" in hosts[1].log.read_text()


def deciding(hosts: int = 3) -> Coordinator:
    """Return the decisions on restarts of a job that began at 0.0."""
    place = Place(0, hosts, 1, "", 0, "j", 0, "", max_restarts=3, fatal_codes=frozenset({42}))
    return Coordinator(place, 0.0)


@pytest.mark.parametrize("stopped_code", [143, 1, 42])
@pytest.mark.parametrize("stopped_first", [True, False])
def test_the_consequence_of_a_failure_is_not_its_cause(stopped_first: bool, stopped_code: int) -> None:
    # A stopped command may exit with any code, including a fatal one.
    coordinator = deciding()
    # The connection of a dead process ends before its parent knows.
    coordinator.take(End(0, 75, was_stopped=False), 0, 9.0)
    assert coordinator.decide(9.0, ()) == {"stop": 0, "number": 0, "code": 75}
    ends = [End(2, 9, was_stopped=False), End(1, stopped_code, was_stopped=True)]
    for end in ends[::-1] if stopped_first else ends:
        coordinator.take(end, 0, 9.1)
    assert coordinator.decide(9.2, ()) == {"start": 1}
    assert coordinator.cause == End(2, 9, was_stopped=False)


def test_a_frozen_host_is_the_cause() -> None:
    coordinator = Coordinator(Place(0, 3, 1, "", 0, "j", 0, "", max_restarts=1), 0.0)
    for restarts, order in enumerate(({"start": 1}, {"final": 2, "exhausted": True})):
        coordinator.take(End(0, 75, was_stopped=False, lost=2), restarts, 30.0)
        assert coordinator.decide(30.0, ()) == {"stop": restarts, "number": 0, "code": 75}
        coordinator.take(End(1, 75, was_stopped=True, lost=0), restarts, 30.1)
        coordinator.take(End(2, 137, was_stopped=True), restarts, 30.2)
        assert coordinator.decide(30.2, ()) == order
        assert coordinator.cause == End(2, 137, was_stopped=True)


def test_a_frozen_command_is_named_in_the_record(start: Start, tmp_path: Path) -> None:
    words = {"XPK_TERMINATION_LOG": str(tmp_path / "words"), "XPK_OUTPUT_DIR": str(tmp_path / "out")}
    waits = "until [ -e go ]; do sleep 0.05; done"
    declares_lost = f"{FIRST} || exit 0; {waits}; echo -n lost slice 1 host 0 > {tmp_path / 'words'}; exit 75"
    hosts = [start(0, declares_lost, **words, **IN_PLACE)]
    hosts += [start(number, f"{FIRST} || exit 0; {WAITS}", **IN_PLACE) for number in (1, 2, 3)]
    connected(hosts)
    (tmp_path / "go").touch()
    for host in hosts:
        host.ends(0)
    record = json.loads((tmp_path / "out" / "restarts.jsonl").read_text())
    assert (record["slice"], record["host"], record["silent"]) == (1, 0, True)


def test_a_report_of_an_earlier_attempt_does_not_count() -> None:
    coordinator = deciding(hosts=2)
    coordinator.take(End(1, 9, was_stopped=False), 0, 9.0)
    coordinator.decide(9.0, ())
    coordinator.take(End(0, 143, was_stopped=True), 0, 9.1)
    assert coordinator.decide(9.1, ()) == {"start": 1}
    coordinator.take(End(1, 9, was_stopped=False), 0, 9.2)
    assert coordinator.decide(9.2, ()) is None
    for number in range(2):
        coordinator.take(End(number, 0, was_stopped=False), 1, 20.0)
    assert coordinator.decide(20.0, ()) == {"done": True}


def test_a_stopped_command_is_killed_and_restarted(start: Start) -> None:
    hosts = started(start, {})
    kill_command(hosts[1], signal.SIGSTOP)
    kill_command(hosts[2])
    for host in hosts:
        host.ends(0)


@pytest.mark.parametrize("victim", [0, 3])
def test_a_lost_host_is_left_to_kubernetes(start: Start, victim: int) -> None:
    hosts = started(start, {})
    hosts[victim].process.kill()
    others = [host for host in hosts if host is not hosts[victim]]
    for host in others:
        host.says(f"host s{victim // 2}/h{victim % 2} is lost")
    time.sleep(0.5)
    assert all(host.process.poll() is None for host in others)
    for host in others:
        host.process.terminate()
        host.ends(143)


def test_a_host_that_was_asked_to_end_is_not_restarted(start: Start) -> None:
    hosts = started(start, {2: OBEYS})
    hosts[2].says("up")
    hosts[2].process.terminate()
    hosts[2].ends(143)
    time.sleep(0.5)
    assert all(host.process.poll() is None for host in hosts if host.number != 2)
    assert "restart 1" not in hosts[0].log.read_text()


def test_a_request_to_end_between_attempts_ends_the_host(start: Start) -> None:
    quick = "exit 3"
    hosts = started(start, dict.fromkeys(range(4), quick), program=ALWAYS_SHORT, XPK_MAX_RESTARTS="9")
    hosts[1].says("the next one starts in")
    hosts[1].process.terminate()
    hosts[1].process.wait(SECONDS)
    assert hosts[1].process.returncode in (3, 143)


def test_unconnected_hosts_exit_with_their_own_code(start: Start) -> None:
    start(1, "exit 5", **IN_PLACE).ends(5)
    start(0, "exit 6", **IN_PLACE).ends(6)
    start(2, "true", **IN_PLACE).ends(0)
    start(0, "true", **IN_PLACE).ends(0)


def test_a_single_host_restarts_in_place(start: Start) -> None:
    host = start(0, f"{LATER}exit 3", slices=1, **IN_PLACE)
    host.ends(0)
    assert "again 1" in host.log.read_text()


def test_each_restart_is_a_line_of_the_record(start: Start, tmp_path: Path) -> None:
    (tmp_path / "restarts.jsonl").write_text('{"job": "one before"}\n')
    more = {**IN_PLACE, "XPK_OUTPUT_DIR": str(tmp_path)}
    start(0, "[ $XPK_RESTART_ATTEMPT = 2 ]", program=ALWAYS_SHORT, slices=1, **more).ends(0)
    before, *lines = map(json.loads, (tmp_path / "restarts.jsonl").read_text().splitlines())
    assert before == {"job": "one before"}
    restarts = [line for line in lines if "attempt" in line]
    assert [(restart["attempt"], restart["exit_code"]) for restart in restarts] == [(1, 1), (2, 1)]
    pauses = [line for line in lines if "attempt" not in line]
    assert all(pause["pause_seconds"] > 0 and pause["exit_code"] == 1 for pause in pauses) and pauses


@pytest.mark.parametrize("command", ["exec python3 program.py", "python3 program.py"], ids=["without", "with"])
def test_the_next_attempt_uses_the_standby(start: Start, tmp_path: Path, command: str) -> None:
    (tmp_path / "slow.py").write_text("import os, time; time.sleep(1); AT = os.getpid()\n")
    (tmp_path / "program.py").write_text(
        "import os, sys\n"
        "attempt, imported = os.environ['XPK_RESTART_ATTEMPT'], 'slow' in sys.modules\n"
        "print('attempt', attempt, imported, flush=True)\n"
        "sys.exit(9 if attempt == '0' else 0)\n"
    )
    program = AWAITS_STANDBY.replace("grace_seconds=0.5", "grace_seconds=0.5, standby_seconds=0.0")
    standby = {"XPK_STANDBY_IMPORTS": "slow", "PYTHONPATH": str(tmp_path)}
    host = start(0, command, program=program, slices=1, **IN_PLACE, **standby)
    host.ends(0)
    text = host.log.read_text()
    assert "attempt 0 False" in text and f"attempt 1 {not command.startswith('exec')}" in text


def test_exit_code_143_without_a_request_counts_as_a_failure_in_place(start: Start) -> None:
    host = start(0, "exit 143", slices=1, **IN_PLACE | {"XPK_MAX_RESTARTS": "1"})
    host.ends(78)
    assert "no host was asked to end" in host.log.read_text()


def test_a_frozen_supervisor_is_named_and_the_other_hosts_end(start: Start, tmp_path: Path) -> None:
    place = Place(0, 2, 1, "", 0, "j", 0, "", max_restarts=3)
    coordinator = Coordinator(place, 0.0, CoordinatorLimits(stop_seconds=5))
    coordinator.take(End(0, 75, was_stopped=False), 0, 1.0)
    assert coordinator.decide(1.0, ()) == {"stop": 0, "number": 0, "code": 75}
    assert coordinator.decide(6.0, ()) is None
    assert coordinator.decide(6.1, ()) == {"final": 1, "silent": True}
    assert coordinator.decide(99.0, ()) is None


def test_a_frozen_first_host_is_named_by_a_host_that_waits_for_its_order(start: Start, tmp_path: Path) -> None:
    program = WITH_SHORT_GRACE.replace("grace_seconds=0.5", "grace_seconds=0.5, silent_seconds=2.0")
    words = {number: tmp_path / f"words-{number}" for number in range(4)}
    hosts = [
        start(number, WAITS, program=program, XPK_TERMINATION_LOG=str(words[number]), **IN_PLACE) for number in range(4)
    ]
    connected(hosts)
    hosts[0].process.send_signal(signal.SIGSTOP)
    kill_command(hosts[2])
    hosts[2].ends(75)
    assert words[2].read_text() == "lost slice 0 host 0"


def test_a_host_waits_while_the_first_host_is_alive(start: Start) -> None:
    program = WITH_SHORT_GRACE.replace("grace_seconds=0.5", "grace_seconds=0.5, silent_seconds=1.0")
    hosts = [start(number, "true" if number else "sleep 4", program=program, **IN_PLACE) for number in range(4)]
    for host in hosts:
        host.ends(0)


def test_an_order_to_start_after_a_loss_is_ignored(start: Start) -> None:
    # The first host records the restart, which takes time, after checking that no host is lost.
    ended: queue.Queue[Any] = queue.Queue()
    handlers = Handlers(lost=ended.put, broadcast=lambda *_: None, message=lambda message, _: ended.put(message))
    hub = Hub(Identity(("command", "a-job"), 0, SECRET.encode()), 4, handlers)
    member = start(1, f"{FIRST} || echo again; {WAITS}", **IN_PLACE)
    hub.open("127.0.0.1", member.port)
    member.says("up")
    hub.publish({"stop": 0, "number": 2, "code": 1})
    assert ended.get(timeout=SECONDS)["told"]
    hub.publish({"lost": 3})
    time.sleep(0.5)  # it waits for Kubernetes now
    hub.publish({"start": 1})
    time.sleep(0.5)
    member.process.terminate()
    member.ends(143)
    assert "again" not in member.log.read_text()


REPORTS = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from([0, 0, 1, 42, 75, 137]), st.booleans(), st.floats(0, 5)), max_size=60
)


@given(REPORTS, st.integers(0, 3))
def test_orders_satisfy_their_invariants_for_any_reports(
    reports: list[tuple[int, int, bool, float]], limit: int
) -> None:
    place = Place(0, 4, 2, "", 0, "j", 0, "", max_restarts=limit, fatal_codes=frozenset({42}))
    coordinator, now, ended, stopped, over = Coordinator(place, 0.0), 0.0, set[int](), False, False
    codes: dict[int, int] = {}
    for number, code, report, seconds in reports:
        now += seconds
        coordinator.take(End(number, code, report and stopped), coordinator.restarts, now)
        ended.add(number)
        codes.setdefault(number, code)
        while order := coordinator.decide(now, ()):
            assert not over, "nothing follows the last order"
            if "start" in order:
                assert ended == {0, 1, 2, 3}, "attempts do not overlap"
                assert order["start"] == coordinator.restarts <= limit and 42 not in {
                    code for code in codes.values() if not stopped
                }
                ended, codes, stopped = set(), {}, False
            elif "stop" in order:
                assert not stopped and any(codes.values())
                stopped = True
            elif "done" in order:
                assert ended == {0, 1, 2, 3} and not any(codes.values())
            over = over or "final" in order or "done" in order
    assert over or stopped or not any(codes.values())
