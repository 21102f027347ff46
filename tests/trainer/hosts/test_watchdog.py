"""Hosts that hang: in a wait of this process, and as real processes that no longer run."""

import contextlib
import faulthandler
import functools
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.ports import free_port
from tests.trainer.hosts.connections import together
from tests.trainer.small import WORKLOADS, start
from tests.waiting import until
from trainer.config import Config, Observe
from trainer.errors import ExitCode
from trainer.hosts.bootstrap import Host
from trainer.hosts.peers import Peers
from trainer.hosts.time_limits import STEP_START, TimeLimits
from trainer.hosts.watchdog import Wait, Watchdog
from trainer.storage import open_place
from trainer.telemetry.metrics import Events, JsonLines

SECONDS = 60


class Watched:
    """A host whose watchdog writes to a folder, and whose exit code is put into a queue.

    A `frozen` one receives nothing.
    """

    def __init__(
        self, folder: Path, process: int, hang_seconds: float, processes: int = 2, frozen: bool = False
    ) -> None:
        self.ended: queue.Queue[ExitCode] = queue.Queue()
        self.heard: list[int] = []  # sender of each message

        def on_message(what: str, peer: int) -> None:
            self.heard.append(peer)
            if not frozen:
                self.dog.receive(what.removeprefix("hung "), peer)

        self.peers = Peers(process, processes, on_lost=lambda peer: None, on_message=on_message)
        host = Host(num_slices=processes, slice_id=process)
        out = open_place(folder)
        self.log = folder / f"events-{process}.jsonl"
        events = Events(JsonLines(out / self.log.name), process, 0, 0, time.monotonic())
        limits = TimeLimits(Config(observe=Observe(hang_seconds=hang_seconds)))
        output = self.peers.broadcast, self.peers.reply
        self.dog = Watchdog(host, limits, events, out, *output, lambda code, seconds: self.ended.put(code))
        self.under_way = contextlib.ExitStack()

    def waits(self, what: str, step: int, **more: Any) -> None:
        """Wait until the test has ended, or closes the wait."""
        self.under_way.enter_context(self.dog.waiting(what, step, **more))

    def events(self, name: str) -> list[dict[str, Any]]:
        return [e for e in map(json.loads, self.log.read_text().splitlines()) if e["event"] == name]


Watch = Callable[..., Watched]


@pytest.fixture
def timers(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Record the timers of Python's own C thread, which must not end the process of the tests."""
    given: list[float] = []
    monkeypatch.setattr(faulthandler, "dump_traceback_later", lambda seconds, exit: given.append(seconds))
    monkeypatch.setattr(faulthandler, "cancel_dump_traceback_later", given.clear)
    return given


@pytest.fixture
def watch(tmp_path: Path, timers: list[float]) -> Iterator[Watch]:
    """Return a factory of watchdogs with a timeout in seconds; all are stopped after the test."""
    watched: list[Watched] = []

    def begin(process: int, hang_seconds: float, **more: Any) -> Watched:
        watched.append(Watched(tmp_path, process, hang_seconds, **more))
        return watched[-1]

    yield begin
    for item in watched:
        item.dog.stop()


def connect(*hosts: Watched) -> None:
    """Connect hosts over loopback, like those of a job."""
    port = free_port()
    together([functools.partial(host.peers.connect, "127.0.0.1", port, SECONDS) for host in hosts])


def a_wait_with_a_name(over: threading.Event) -> None:
    over.wait()


def test_a_hung_host_writes_its_stacks_and_is_at_fault(
    tmp_path: Path, watch: Watch, capsys: pytest.CaptureFixture[str]
) -> None:
    over = threading.Event()
    threading.Thread(target=a_wait_with_a_name, args=(over,), name="reader", daemon=True).start()
    slow, other = watch(1, 0.3), watch(0, 300.0)
    connect(other, slow)
    other.waits("step 7", 7)
    slow.waits("its data of step 7", 7, is_own=lambda: True)
    assert slow.ended.get(timeout=SECONDS) == ExitCode.HUNG
    assert other.ended.get(timeout=SECONDS) == ExitCode.PEER_LOST
    over.set()
    stacks = (tmp_path / "stacks" / "s1-h0-0.txt").read_text()
    assert stacks.startswith("slice 1 host 0: has waited 0 s for its data of step 7\nthread MainThread\n")
    assert "thread reader\n" in stacks and "in a_wait_with_a_name" in stacks
    printed = capsys.readouterr()
    assert "in a_wait_with_a_name" in printed.err
    assert "slice 0 host 0: exiting so that the job can restart; slice 1 host 0 hangs" in printed.out
    assert printed.out.count("hangs; exiting") == 1


@pytest.mark.parametrize("frozen", [0, 2])
def test_an_unresponsive_host_is_at_fault(frozen: int, watch: Watch, capsys: pytest.CaptureFixture[str]) -> None:
    """Including process 0, which forwards all messages: then each host times out by itself."""
    limits = [300.0, 0.3, 300.0 if frozen else 0.3]
    hosts = [watch(n, limits[n], processes=3, frozen=n == frozen) for n in range(3)]
    connect(*hosts)
    for host in hosts:
        host.waits("step 7", 7)
    waiting = [host for n, host in enumerate(hosts) if n != frozen]
    for host in waiting:
        assert host.ended.get(timeout=SECONDS) == ExitCode.PEER_LOST
        assert [event["peer"] for event in host.events("peer_lost")] == [frozen]
    assert hosts[frozen].ended.empty()
    report = capsys.readouterr().out
    assert report.count(f"slice {frozen} host 0 hangs\n") == len(waiting) and "hangs; exiting" not in report


def test_if_all_hosts_wait_for_the_step_none_is_at_fault(watch: Watch) -> None:
    hosts = [watch(n, 0.3 if n == 1 else 300.0, processes=3) for n in range(3)]
    connect(*hosts)
    for host in hosts:
        host.waits("step 7", 7)
    assert [host.ended.get(timeout=SECONDS) for host in hosts] == [ExitCode.HUNG] * 3
    heard = [sorted(set(host.heard)) for host in hosts]
    assert heard == [[1, 2], [0], [0]], "messages between all hosts would be too many to be read in time"


def test_hung_storage_does_not_make_process_0_at_fault(tmp_path: Path, watch: Watch) -> None:
    stuck = "stacks/.s0-h0-0.txt.tmp"
    (tmp_path / "stacks").mkdir()
    first, slow = watch(0, 300.0), watch(1, 0.3)
    os.mkfifo(tmp_path / stuck)  # opening it for writing blocks until there is a reader
    connect(first, slow)
    first.waits("step 7", 7)
    slow.waits("its data of step 7", 7, is_own=lambda: True)
    assert slow.ended.get(timeout=SECONDS) == ExitCode.HUNG
    assert first.ended.empty(), "process 0 ends last"
    reader = os.open(tmp_path / stuck, os.O_RDONLY | os.O_NONBLOCK)
    assert first.ended.get(timeout=SECONDS) == ExitCode.PEER_LOST
    os.close(reader)


def test_slow_steps_increase_the_timeout(watch: Watch) -> None:
    step, save = Wait("step 7", 7, lambda: False, 0.0), Wait("a save", 7, lambda: False, 1800.0)
    dog = watch(0, 300.0).dog
    assert (dog.limit(step), dog.limit(save)) == (300.0, 1800.0)
    for seconds in (1000.0, 20.0, 20.0):
        dog.record_step(seconds)
    assert (dog.limit(step), dog.limit(save)) == (20 * 20.0, 1800.0)


def test_time_outside_waits_does_not_count(watch: Watch) -> None:
    watched = watch(0, 2.0)
    for _ in range(50):  # no wait is longer than the timeout, also on a busy machine
        with watched.dog.waiting("a step", 1):
            time.sleep(0.05)
    with pytest.raises(queue.Empty):
        watched.ended.get(timeout=1.0)


def test_the_time_of_a_wait_does_not_count_while_it_is_held(watch: Watch) -> None:
    watched, is_held = watch(0, 0.3, processes=1), threading.Event()
    is_held.set()
    watched.dog.is_held = is_held.is_set
    watched.waits("a step", 1)
    with pytest.raises(queue.Empty):
        watched.ended.get(timeout=1.0)
    is_held.clear()
    assert watched.ended.get(timeout=SECONDS) == ExitCode.HUNG


def test_a_stopped_watchdog_does_not_end_the_process(watch: Watch, timers: list[float]) -> None:
    watched = watch(0, 1.0)
    watched.waits("a step", 1)
    until(lambda: timers)
    assert timers[0] == 2.0
    watched.dog.stop()
    assert timers == []
    with pytest.raises(queue.Empty):
        watched.ended.get(timeout=1.5)
    assert timers == []


WAITS_LONG = """
import sys, time
from pathlib import Path
from trainer.config import Config, Observe
from trainer.hosts.bootstrap import Host
from trainer.telemetry.metrics import Events, JsonLines
from trainer.storage import open_place
from trainer.hosts.time_limits import TimeLimits
from trainer.hosts.watchdog import Watchdog
out = open_place(Path(sys.argv[1]))
events = Events(JsonLines(out / "events.jsonl"), 0, 0, 0, time.monotonic())
limits = TimeLimits(Config(observe=Observe(hang_seconds=1.0)))
dog = Watchdog(Host(), limits, events, out, print, print, lambda code, seconds: None)
time.sleep(0.5)  # the timer is set for a wait of a second
with dog.waiting("a save", 7, min_seconds=30.0):
    time.sleep(3.0)
dog.stop()
"""


def test_a_longer_timeout_replaces_the_previous_timer(tmp_path: Path) -> None:
    environ = os.environ | {"PYTHONPATH": str(WORKLOADS)}
    command = [sys.executable, "-c", WAITS_LONG, str(tmp_path)]
    ran = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=SECONDS)
    assert ran.returncode == 0, ran.stderr


MEASURED = ["run.eval_every=0", "data.max_bytes=50000", "checkpoint.every=1000", "observe.min_hang_seconds=6"]


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_measured_limit_detects_a_hang_sooner_than_the_fixed_one(tmp_path: Path) -> None:
    job = start(tmp_path, [*MEASURED, "run.steps=1000"], slices=1, chips=1, faults={0: "hang:150"})
    assert job.exit_codes(200) == [ExitCode.HUNG], job.logs()
    (hang,) = [event for event in job.events(0) if event["event"] == "hang"]
    assert 5 < hang["seconds"] < 60 < STEP_START
    assert max(job.losses()) > 140


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_step_that_is_slower_than_any_before_is_not_ended_by_a_measured_limit(tmp_path: Path) -> None:
    job = start(tmp_path, [*MEASURED, "run.steps=154"], slices=1, chips=1, faults={0: "slow:150"})
    assert job.exit_codes(200) == [0], job.logs()
    seconds = job.step_seconds()
    assert max(seconds[step] for step in range(150, 155)) > 0.9


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_hung_data_read_ends_the_job_with_its_host_at_fault(tmp_path: Path) -> None:
    settings = ["run.steps=1000", "run.eval_every=0", "data.max_bytes=50000", "observe.hang_seconds=8"]
    job = start(tmp_path, settings, faults={1: "hang:4"})
    assert job.exit_codes() == [75, 76], job.logs()
    assert "slice 1 host 0: hangs; exiting so that the job can restart" in job.logs()
    assert "slice 0 host 0: exiting so that the job can restart; slice 1 host 0 hangs" in job.logs()
    assert "in read_that_never_ends" in (tmp_path / "stacks" / "s1-h0-0.txt").read_text()
    (hang,) = [event for event in job.events(1) if event["event"] == "hang"]
    assert (hang["step"], hang["waited_for"], hang["own"]) == (4, "its data of step 4", True)


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("frozen", [pytest.param(0, marks=pytest.mark.extended), 1])
def test_a_stopped_process_ends_the_job_with_its_host_at_fault(frozen: int, tmp_path: Path) -> None:
    """Including a timeout shorter than the silence after which a host counts as lost."""
    job = start(tmp_path, ["run.steps=100000", "run.eval_every=0", "data.max_bytes=50000", "observe.hang_seconds=12"])
    job.wait_for_step(3)
    job.processes[frozen].send_signal(signal.SIGSTOP)
    waits = 1 - frozen
    try:
        assert job.processes[waits].wait(SECONDS) == ExitCode.PEER_LOST, job.logs()
    finally:
        job.kill()
    assert f"slice {waits} host 0: exiting so that the job can restart; slice {frozen} host 0 hangs" in job.logs()
    assert "hangs; exiting" not in job.logs()
    assert [event["peer"] for event in job.events(waits) if event["event"] == "peer_lost"] == [frozen]


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("fault", "limit", "what"),
    [
        ("copy:1", "observe.data_hang_seconds=12", "its copy of the data"),
        pytest.param(
            *("compile:2", "observe.compile_hang_seconds=40", "the compilation of the program 'train'"),
            marks=pytest.mark.extended,
        ),
    ],
)
def test_a_hang_before_the_first_step_ends_the_job_with_its_host_at_fault(
    fault: str, limit: str, what: str, tmp_path: Path
) -> None:
    settings = ["run.steps=1000", "run.eval_every=0", "data.max_bytes=50000", "observe.hang_seconds=10", limit]
    job = start(tmp_path, settings, faults={1: fault})
    assert job.exit_codes(200) == [75, 76], job.logs()
    assert "slice 0 host 0: exiting so that the job can restart; slice 1 host 0 hangs" in job.logs()
    assert "in read_that_never_ends" in (tmp_path / "stacks" / "s1-h0-0.txt").read_text()
    (hang,) = [event for event in job.events(1) if event["event"] == "hang"]
    assert (hang["waited_for"], hang["own"]) == (what, True)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_hung_checkpoint_write_ends_the_job_with_its_host_at_fault(tmp_path: Path) -> None:
    settings = ["run.steps=1000", "run.eval_every=0", "data.max_bytes=50000", "checkpoint.every=3"]
    limits = ["observe.hang_seconds=15", "checkpoint.hang_seconds=20"]
    job = start(tmp_path, [*settings, *limits], faults={1: "stuck:6"})
    assert job.exit_codes() == [75, 76], job.logs()
    assert "slice 0 host 0: exiting so that the job can restart; slice 1 host 0 hangs" in job.logs()
    assert "in result_that_never_comes" in (tmp_path / "stacks" / "s1-h0-0.txt").read_text()
    (hang,) = [event for event in job.events(1) if event["event"] == "hang"]
    assert (hang["step"], hang["waited_for"]) == (9, "the checkpoint of step 9, or the one before it")
    report = [event for n in (0, 1) for event in job.events(n) if event["event"] == "hang"]
    assert hang["own"] and max(event["seconds"] for event in report) >= 20, (
        "the first host that times out notifies the other"
    )
    assert [event["step"] for event in job.events(0) if event["event"] == "save"] == [3]


@pytest.mark.slow
@pytest.mark.extended  # the test above has the same watch over the writes of the other tier
@pytest.mark.timeout(240)
def test_a_hung_local_disk_ends_the_job_with_its_host_at_fault(tmp_path: Path) -> None:
    settings = ["run.steps=1000", "run.eval_every=0", "data.max_bytes=50000", "checkpoint.every=100000"]
    local = ["checkpoint.local_every=3", f"checkpoint.local_path={tmp_path / 'ram'}"]
    limits = ["observe.hang_seconds=15", "checkpoint.hang_seconds=16"]
    job = start(tmp_path / "out", [*settings, *local, *limits], faults={1: "disk:6"})
    assert job.exit_codes() == [75, 76], job.logs()
    assert "slice 0 host 0: exiting so that the job can restart; slice 1 host 0 hangs" in job.logs()
    (hang,) = [event for event in job.events(1) if event["event"] == "hang"]
    assert (hang["step"], hang["own"]) == (9, True)
    assert hang["waited_for"] == "the local checkpoint of step 9, or the one before it"
    assert [event["step"] for event in job.events(0) if event["event"] == "local_save"] == [3]


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_process_without_runnable_threads_ends(tmp_path: Path) -> None:
    settings = ["run.steps=1000", "run.eval_every=0", "data.max_bytes=50000", "observe.hang_seconds=6"]
    job = start(tmp_path, settings, slices=1, faults={0: "lock:4"})
    assert job.exit_codes() == [1], job.logs()
    assert "Timeout (0:00:" in job.logs() and "planted.py" in job.logs()
