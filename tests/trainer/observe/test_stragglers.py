"""Step times, and stragglers."""

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
from tests.waiting import until
from trainer.observe.stragglers import Comparisons, Slow, StragglerCheck
from xpk_shared.percentiles import percentiles

SECONDS = 60


def test_percentiles_are_measured_values() -> None:
    assert percentiles([]) == {}
    assert percentiles([0.5]) == {"p50": 0.5, "p90": 0.5, "p99": 0.5, "max": 0.5}
    hundred = [n / 100 for n in range(100, 0, -1)]
    assert percentiles(hundred) == {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
    assert percentiles([*hundred, 7.0])["max"] == 7.0


def test_slow_hosts_are_found_with_their_and_the_median_measurement() -> None:
    usual = {"data": 0.001, "host": 0.01, "chip": 0.004}
    reports = [usual, usual | {"chip": 0.008}, usual, usual, usual | {"data": 0.301}, usual, usual | {"host": 0.05}]
    comparisons = Comparisons()
    results = [comparisons.add(reports, 1.0) for _ in range(20)]
    # The third one costs less than 5 % of a step.
    assert results[-1] == [Slow(4, "data", 0.301, 0.001, 20), Slow(1, "chip", 0.008, 0.004, 20)]
    assert results[0] == []


def test_equally_slow_hosts_are_not_stragglers() -> None:
    comparisons = Comparisons()
    reports = [{"data": 0.5, "host": 0.01}] * 4
    assert [comparisons.add(reports, 1.0) for _ in range(30)] == [[]] * 30


def test_of_two_hosts_the_faster_one_counts() -> None:
    comparisons = Comparisons()
    results = [comparisons.add([{"chip": 0.004}, {"chip": 0.006}], 1.0) for _ in range(20)]
    assert [slow.process for slow in results[-1]] == [1]


class Compared:
    """Two hosts, whose second one's chips take the given time; their log lines are recorded."""

    def __init__(self, folder: Path, *, is_emulated: bool = False) -> None:
        hosts, _ = connected(2)
        self.told = 0.004
        probes = [lambda: lambda: 0.004, lambda: lambda: self.told]
        self.jobs = [a_job(folder, peers=peers) for peers in hosts]
        self.checks = [
            StragglerCheck(job, None if is_emulated else probe) for job, probe in zip(self.jobs, probes, strict=True)
        ]
        self.log = folder / "events-0"

    def compare(self, step: int, record_step: float) -> dict[str, Any]:
        """Compare the hosts and return the event."""
        self.told = record_step
        for check in self.checks:
            check.record_step(1.0)
        together([functools.partial(check.compare, step) for check in self.checks])
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            message = [json.loads(line) for line in self.log.read_text().splitlines()] if self.log.exists() else []
            if result := [event for event in message if event["event"] == "pace" and event["step"] == step]:
                return dict(result[0])
        raise AssertionError("the hosts were not compared")


def test_a_host_is_named_only_after_many_comparisons(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    compared = Compared(tmp_path)
    named = [[one["host"] for one in compared.compare(step, 0.008)["slow"]] for step in range(1, 17)]
    assert named == [[]] * 14 + [["slice 1 host 0"]] * 2
    output = [line for line in capfd.readouterr().out.splitlines() if line.startswith("slow")]
    numbers = "0.0080 s for the same products, 0.0040 s on the median host"
    assert output == [f"slow {step:6d}   slice 1 host 0 has slow chips: {numbers}" for step in (15, 16)]


def test_emulated_chips_are_not_compared(tmp_path: Path) -> None:
    result = Compared(tmp_path, is_emulated=True).compare(1, 0.008)
    assert result["slow"] == [] and result["medians"].keys() == {"data", "host"}


SETTINGS = ["run.steps=100000", "run.eval_every=0", "checkpoint.every=100000", "data.max_bytes=50000"]


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_host_that_waits_for_its_data_is_named(tmp_path: Path) -> None:
    job = start(tmp_path, [*SETTINGS, "run.log_every=4", "observe.straggler_check_every=1"], faults={1: "slow:1"})

    def named() -> list[dict[str, Any]]:
        return [event for event in job.events(0) if event["event"] == "pace" and reasons(event) == ["data"]]

    try:  # a busy machine needs more comparisons: its steps may be longer than the wait for the next batch
        event = until(named, seconds=180, report=job.logs)[0]
        job.wait_for_step(24)
    finally:
        job.kill()
    assert [one["host"] for one in event["slow"]] == ["slice 1 host 0"]
    assert event["slow"][0]["own"] > 0.1 > event["slow"][0]["median"]
    assert "slice 1 host 0 waits for its data: " in job.logs()
    lines = [line for line in job.metrics() if line["step"] >= 5 and "loss" in line]
    assert statistics.mean(line["data_seconds"] for line in lines) > 0.1, "the wait of any host is the step's"
    windows = [line["window"] for line in job.metrics() if "window" in line]
    assert [window["steps"] for window in windows[:6]] == [1, 3, *[4] * 4]
    assert all(window["p50"] <= window["p90"] <= window["p99"] <= window["max"] for window in windows)


def reasons(event: dict[str, Any]) -> list[str]:
    """Return the reasons for which hosts are named."""
    return [one["reason"] for one in event["slow"]]
