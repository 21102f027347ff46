"""How long steps take, and the host that keeps the others waiting."""

import contextlib
import dataclasses
import signal
import statistics
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.trainer.small import Cluster, start
from trainer.pace import Slow, percentiles, slow_hosts


def test_percentiles_are_times_that_were_measured() -> None:
    assert percentiles([]) == {}
    assert percentiles([0.5]) == {"p50": 0.5, "p90": 0.5, "p99": 0.5, "max": 0.5}
    hundred = [n / 100 for n in range(100, 0, -1)]
    assert percentiles(hundred) == {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
    assert percentiles([*hundred, 7.0])["max"] == 7.0


def test_slow_hosts_are_named_with_the_reason_and_what_they_cost() -> None:
    usual = {"data": 0.001, "host": 0.01, "chip": 0.004}
    assert slow_hosts([usual] * 8, 1.0) == []
    reports = [usual, usual | {"chip": 0.008}, usual, usual, usual | {"data": 0.301}, usual, usual | {"host": 0.09}]
    slowest, second = slow_hosts(reports, 1.0)
    assert slowest == Slow(1, "chip", 1.0, 0.008, 0.004)
    assert dataclasses.replace(second, seconds=round(second.seconds, 6)) == Slow(4, "data", 0.3, 0.301, 0.001)
    # Where all hosts are equally slow, none is.
    assert slow_hosts([usual | {"data": 0.5}] * 4, 1.0) == []
    # Of two hosts the faster one counts.
    assert [one.process for one in slow_hosts([usual, usual | {"chip": 0.006}], 1.0)] == [1]


@contextlib.contextmanager
def slowed_down(job: Cluster, host: int) -> Iterator[None]:
    """Let a host's process run a tenth of the time only, as on a machine that it has to share."""
    over = threading.Event()

    def work() -> None:
        while not over.is_set():
            job.processes[host].send_signal(signal.SIGSTOP)
            over.wait(0.036)
            job.processes[host].send_signal(signal.SIGCONT)
            over.wait(0.004)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


SETTINGS = ["run.steps=100000", "run.eval_every=0", "checkpoint.every=100000", "data.max_bytes=50000"]


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_host_that_waits_for_its_data_is_named(tmp_path: Path) -> None:
    settings = [*SETTINGS, "run.steps=10", "run.log_every=4", "observe.pace_every=5"]
    job = start(tmp_path, settings, faults={1: "slow:1"})
    assert job.exit_codes() == [0, 0], job.logs()
    last = [event for event in job.events(0) if event["event"] == "pace"][-1]
    # Where hosts share a machine's cores, their chips may be found slow besides.
    waits = [one for one in last["slow"] if one["reason"] == "data"]
    assert [one["host"] for one in waits] == ["slice 1 host 0"], last
    assert waits[0]["seconds"] > 0.1 and last["medians"]["data"] < 0.1
    assert "slice 1 host 0 waits for its data, which costs" in job.logs()
    lines = [line for line in job.metrics() if line["step"] >= 5 and "loss" in line]
    # A busy machine may take longer over one step, while the next batch comes.
    assert statistics.mean(line["data_seconds"] for line in lines) > 0.1, "what any host waits for is the step's"
    windows = [line["window"] for line in job.metrics() if "window" in line]
    assert [window["steps"] for window in windows] == [1, 3, 4, 2]
    assert all(window["p50"] <= window["p90"] <= window["p99"] <= window["max"] for window in windows)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_host_whose_machine_is_slow_is_named(tmp_path: Path) -> None:
    job = start(tmp_path, [*SETTINGS, "observe.pace_every=5"])
    job.wait_for_step(10)
    with slowed_down(job, 1):
        begun = max(job.losses())
        job.wait_for_step(begun + 25)
    job.kill()
    told = [event for event in job.events(0) if event["event"] == "pace" and event["step"] > begun + 1]
    assert len(told) >= 4
    named = [[one["host"] for one in event["slow"] if one["reason"] == "chip"] for event in told]
    assert sum("slice 1 host 0" in hosts for hosts in named) > len(told) / 2, named
    assert sum("slice 0 host 0" in hosts for hosts in named) < len(told) / 2, named
