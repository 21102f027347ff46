"""Step times, and the straggler that keeps the others waiting."""

import functools
import json
import statistics
import time
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.checkpoint.tiers import a_job
from tests.trainer.hosts.connections import connected, together
from tests.trainer.small import start
from trainer.observe.stragglers import Slow, StragglerCheck, slow_hosts
from xpk_shared.percentiles import percentiles

SECONDS = 60


def test_percentiles_are_times_that_were_measured() -> None:
    assert percentiles([]) == {}
    assert percentiles([0.5]) == {"p50": 0.5, "p90": 0.5, "p99": 0.5, "max": 0.5}
    hundred = [n / 100 for n in range(100, 0, -1)]
    assert percentiles(hundred) == {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
    assert percentiles([*hundred, 7.0])["max"] == 7.0


def test_slow_hosts_are_found_with_what_they_and_the_median_host_measured() -> None:
    usual = {"data": 0.001, "host": 0.01, "chip": 0.004}
    assert slow_hosts([usual] * 8, 1.0) == []
    reports = [usual, usual | {"chip": 0.008}, usual, usual, usual | {"data": 0.301}, usual, usual | {"host": 0.09}]
    assert slow_hosts(reports, 1.0) == [Slow(4, "data", 0.301, 0.001), Slow(1, "chip", 0.008, 0.004)]
    # Where all hosts are equally slow, none is.
    assert slow_hosts([usual | {"data": 0.5}] * 4, 1.0) == []
    # Of two hosts the faster one counts.
    assert [one.process for one in slow_hosts([usual, usual | {"chip": 0.006}], 1.0)] == [1]


class Compared:
    """Two hosts, of which the second one's chips take as long as they are `told`; what is said of them is kept."""

    def __init__(self, folder: Path, *, emulated: bool = False) -> None:
        hosts, _ = connected(2)
        self.told = 0.004
        probes = [lambda: lambda: 0.004, lambda: lambda: self.told]
        self.jobs = [a_job(folder, peers=peers) for peers in hosts]
        self.checks = [
            StragglerCheck(job, None if emulated else probe) for job, probe in zip(self.jobs, probes, strict=True)
        ]
        self.log = folder / "events-0"

    def compare(self, step: int, took: float) -> dict[str, Any]:
        """Compare the hosts and return the event."""
        self.told = took
        for check in self.checks:
            check.took(1.0)
        together([functools.partial(check.compare, step) for check in self.checks])
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            told = [json.loads(line) for line in self.log.read_text().splitlines()] if self.log.exists() else []
            if found := [event for event in told if event["event"] == "pace" and event["step"] == step]:
                return dict(found[0])
        raise AssertionError("the hosts were not compared")


def test_a_host_is_named_only_when_it_was_slow_in_most_of_the_last_comparisons(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    compared = Compared(tmp_path)
    slow = [True, False, True, False, True, True, False, False, False]
    sure = []
    for step, is_slow in enumerate(slow, 1):
        found = compared.compare(step, 0.008 if is_slow else 0.004)["slow"]
        assert [one["host"] for one in found] == ["slice 1 host 0"] * is_slow
        sure += [one["conclusive"] for one in found]
    assert sure == [False, False, True, True]
    said = [line for line in capfd.readouterr().out.splitlines() if line.startswith("slow")]
    numbers = "0.0080 s for the same products, 0.0040 s on the median host"
    assert said == [f"slow {step:6d}   slice 1 host 0 has slow chips: {numbers}" for step in (5, 6)]


def test_emulated_chips_are_not_compared(tmp_path: Path) -> None:
    found = Compared(tmp_path, emulated=True).compare(1, 0.008)
    assert found["slow"] == [] and found["medians"].keys() == {"data", "host"}


SETTINGS = ["run.steps=100000", "run.eval_every=0", "checkpoint.every=100000", "data.max_bytes=50000"]


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_host_that_waits_for_its_data_is_named(tmp_path: Path) -> None:
    settings = [*SETTINGS, "run.steps=10", "run.log_every=4", "observe.straggler_check_every=2"]
    job = start(tmp_path, settings, faults={1: "slow:1"})
    assert job.exit_codes() == [0, 0], job.logs()
    last = [event for event in job.events(0) if event["event"] == "pace"][-1]
    waits = [one for one in last["slow"] if one["reason"] == "data"]
    assert [one["host"] for one in waits] == ["slice 1 host 0"], last
    assert waits[0]["own"] > 0.1 > last["medians"]["data"] and waits[0]["conclusive"]
    assert "slice 1 host 0 waits for its data: " in job.logs()
    lines = [line for line in job.metrics() if line["step"] >= 5 and "loss" in line]
    # A busy machine may take longer over one step, while the next batch comes.
    assert statistics.mean(line["data_seconds"] for line in lines) > 0.1, "what any host waits for is the step's"
    windows = [line["window"] for line in job.metrics() if "window" in line]
    assert [window["steps"] for window in windows] == [1, 3, 4, 2]
    assert all(window["p50"] <= window["p90"] <= window["p99"] <= window["max"] for window in windows)
