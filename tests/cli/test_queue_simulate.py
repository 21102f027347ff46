"""Estimated starts on a local cluster."""

from __future__ import annotations

import re
from pathlib import Path

import xpk as xpk_api
from tests.cli.conftest import Xpk
from tests.waiting import until

INTERVAL = r"starts in (23h59m|1d00h) \((11h59m|12h00m) to (1d23h|2d00h)\)"
FOREVER = "trap 'exit 143' TERM; sleep 1000 & wait"


def test_starts_are_estimated_before_and_after_creation(dev: Xpk, tmp_path: Path) -> None:
    assert dev("workload", "create", "big", "--num-slices", "2", "--command", FOREVER).code == 0
    until(lambda: dev("workload", "status", "big", "-o", "json").data["phase"] == "Running")
    create = ("workload", "create", "next", "--command", FOREVER)
    before = dev(*create, "--when")
    assert before.code == 0 and re.match(rf"next: {INTERVAL}\n  starts when default/big ends in ", before.out)
    assert "(1d in all, assumed)" in before.out
    urgent = dev(*create, "--when", "--priority", "high", "-o", "json").data
    assert urgent["preempts"] == ["default/big"]
    both = dev(*create, "--when", "--wait")
    assert both.code == 2 and "--when excludes --dry-run and --wait" in both.err
    larger = dev(*create, "--when", "--num-slices", "3")
    assert larger.code == 5 and "queue 'multislice-queue' of cluster 'dev' has 16 in all" in larger.err
    assert dev("workload", "list", "-o", "name").out == "big\n"

    assert dev(*create).code == 0
    until(lambda: dev("workload", "status", "next", "-o", "json").data["start"])
    assert re.search(rf"\n  start      {INTERVAL[7:]}\n", dev("workload", "status", "next").out)
    assert dev("workload", "status", "big", "-o", "json").data["start"] is None

    simulate = ("queue", "simulate")
    (pending,) = dev(*simulate, "-o", "json").data["pending"]
    assert (pending["name"], pending["needs"]) == (
        "next",
        {"v5litepod-8/google.com/tpu": 8, "node pools of v5litepod-8": 1},
    )
    more = dev(*simulate, "--add-slices", "multislice-queue=1")
    assert more.out.splitlines()[1].split()[:4] == ["default/next", "multislice-queue", "medium", "now"]
    assert "assumed: quota of multislice-queue: 2 -> 3 slices of v5litepod-8" in more.err

    stated = dev(*simulate, "--duration", "big=2h", "-o", "json").data
    assert stated["durations"]["default/big"] == "2h in all, as given"

    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"name": "a", "slices": 2, "submit": 0, "seconds": 60}\n')
    (replayed,) = dev(*simulate, "--replay", str(trace), "-o", "json").data["replayed"]
    assert (replayed["queue"], replayed["started"], replayed["wait_max"]) == ("multislice-queue", 1, 0.0)


def test_wrong_inputs_are_reported_together(dev: Xpk) -> None:
    wrong = dev("queue", "simulate", "--duration", "big", "--assume-duration", "soon", "--add-workload", "x")
    assert wrong.code == 2 and "expected NAME=TIME" in wrong.err and "'soon' is not a time" in wrong.err
    unknown = dev("queue", "simulate", "--duration", "big=1h")
    assert unknown.code == 2 and "workload 'default/big' not found in the queues" in unknown.err
    assert dev("workload", "create", "big", "--command", FOREVER).code == 0
    until(lambda: "did you mean 'default/big'?" in dev("queue", "simulate", "--duration", "bug=1h").err)
    misspelled = dev("workload", "status", "bgi")
    assert misspelled.code == 3 and "workload 'bgi' not found" in misspelled.err
    assert "hint: did you mean 'big'?" in misspelled.err
    other = dev("queue", "simulate", "--quota", "rad=1")
    assert other.code == 2 and "queue 'rad' not found; choose from multislice-queue" in other.err


def test_the_python_api_simulates_the_queues_of_a_cluster(dev: Xpk) -> None:
    simulation = xpk_api.QueueSimulation.of(xpk_api.Cluster("dev"))
    result = simulation.forecast(xpk_api.WhatIf(workloads=("name=a,slices=2,duration=1h", "name=b,slices=1")))
    assert [(item.name, item.rests_on) for item in result.pending] == [
        ("a", ()),
        ("b", ("starts when a ends in 1h (1h in all, as given)",)),
    ]
