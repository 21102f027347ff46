"""Measurements with their limits and their words for the table."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.fleet import console, preflight
from tests.agents.conftest import CLUSTER, Agent
from tests.agents.diagnoses import CALLS, COMMANDS, FAULTS, LONG, diagnose, servers
from tests.jobs.usage.closing import close
from tests.simulation.placement.__main__ import simulate
from tests.simulation.runner import results
from tests.trainer.observe.simulated_runs import NOISES, Run
from xpk import Cluster, create_cluster

Content = Mapping[str, Any]
RUNS, MONTHS, RACES = 100, 100, 10_000
TIMES = {  # of the console, with their meaning
    "phase_seconds": "phase of a run in the overview",
    "step_seconds": "step of a run in the overview, from an output folder",
    "curve_seconds": "step in the curve on the page of a run",
}
_CAPACITY = ("plan", "capacity", "--config", "64b", "--tokens", "1e12", "-o", "json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """A figure: how it is measured, its limit in words, its result in words, and whether the limit is met."""

    name: str
    title: str
    limit: str
    measure: Callable[[], dict[str, Any]]
    words: Callable[[Content], str]
    is_met: Callable[[Content], bool]


def find_false_alarms() -> dict[str, Any]:
    """Return the number of runs with a false alarm of each 100 undisturbed ones, by kind of noise and load."""
    cases = {}
    for hosts, comparisons in ((2, 200), (8, 60)):
        for load, length in ((0.0, 1), (1.0, 1), (0.05, 4)):
            for noise, draw in NOISES.items():
                runs = (Run(draw, hosts, seed, load=load, length=length) for seed in range(RUNS))
                alarms = sum(bool(run.false_alarms(comparisons)) for run in runs)
                cases[f"{hosts} hosts, {noise}, load {load:g} for {length}"] = alarms
    return {"runs": RUNS, "cases": cases}


def search() -> dict[str, Any]:
    """Return the candidates of a search and its seconds, with the start of the command."""
    before, began = _cpu_seconds(), time.monotonic()
    done = subprocess.run([sys.executable, "-m", "xpk", *_CAPACITY], capture_output=True, text=True, check=True)
    seconds, cpu = time.monotonic() - began, _cpu_seconds() - before
    return {
        "candidates": json.loads(done.stdout)["candidates"],
        "seconds": round(seconds, 2),
        "cpu_seconds": round(cpu, 2),
    }


def close_ledger() -> dict[str, Any]:
    """Return how far the ledger of 100 simulated months is from the chips that were really there and held."""
    closing = close(0, MONTHS)
    fleet, balanced = closing.fleet, closing.balanced
    return {
        "months": MONTHS,
        "crashes": fleet.crashes,
        "difference": (balanced.held + balanced.free - balanced.capacity) / balanced.capacity,
        "capacity_error": abs(balanced.capacity - fleet.capacity) / fleet.capacity,
        "held_error": abs(balanced.held - fleet.held) / fleet.capacity,
    }


def count_diagnoses() -> dict[str, Any]:
    """Return the number of faults whose facts are in the answers of an agent's calls."""
    with tempfile.TemporaryDirectory() as folder, servers(Path(folder)) as environment:
        os.environ |= {"XPK_STATE_DIR": f"{folder}/state", "XPK_CONFIG_DIR": f"{folder}/config", **environment}
        create_cluster(CLUSTER, "v5litepod-1", num_slices=16)
        try:
            missing = diagnose(Agent("apply"), COMMANDS) | diagnose(Agent("apply"), LONG)
        finally:
            Cluster(CLUSTER).delete(force=True)
    return {"faults": len(FAULTS), "calls": CALLS, "found": len(FAULTS) - len(missing), "missing": sorted(missing)}


def run_races() -> dict[str, Any]:
    """Return the sums of random races of placers; the first problem ends the measurement."""
    sums = [0, 0, 0]
    for name, (counts, problem) in results([f"1/{n}" for n in range(RACES)], simulate, os.cpu_count() or 1, 16):
        assert not problem, f"race {name}: {problem}"
        sums = [one + more for one, more in zip(sums, counts, strict=True)]
    return {"races": RACES, **dict(zip(("requests", "releases", "crashes"), sums, strict=True))}


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _console_words(content: Content) -> str:
    (overview, run), *others = _requests(content)
    sizes = " and ".join(f"{int(hosts):,}" for hosts in content)
    same = f"{overview} for the overview and {run} for a run, with {sizes} hosts" if not others else "not constant"
    times = [one[key] for one in content.values() for key in TIMES]
    return (
        f"{same}; median {max(one['median'] for one in times):.2f} s, maximum {max(one['max'] for one in times):.2f} s"
    )


def _is_live(content: Content) -> bool:
    medians = [one[key]["median"] for one in content.values() for key in TIMES]
    return len(_requests(content)) == 1 and max(medians) <= 1


def _requests(content: Content) -> list[tuple[int, int]]:
    """Return the different numbers of requests for the overview and for a run."""
    return sorted({(one["requests_overview"], one["requests_run"]) for one in content.values()})


MEASURES = (
    Measure(
        name="preflight",
        title="Preflight of 2 slices of 2 hosts, on emulated chips",
        limit="3 s a host",
        measure=preflight.measure,
        words=lambda one: (
            f"{one['checks_seconds']:.1f} s of checks, {one['whole_seconds']:.1f} s with Python and the import of JAX; "
            f"{one['cpu_seconds_per_host']:.1f} s of CPU time a host. The fastest of 5"
        ),
        is_met=lambda one: bool(one["checks_seconds"] <= 3),
    ),
    Measure(
        name="stragglers",
        title="False alarms of the straggler test in 100 undisturbed runs",
        limit="1",
        measure=find_false_alarms,
        words=lambda one: (
            f"{max(one['cases'].values())} in the worst of {len(one['cases'])} kinds of noise and load, "
            f"{sum(one['cases'].values())} in all {one['runs'] * len(one['cases']):,} runs"
        ),
        is_met=lambda one: max(one["cases"].values()) <= 1,
    ),
    Measure(
        name="console",
        title="Requests of the console, and the time from a change to its event",
        limit="constant; 1 s in the median",
        measure=console.measure,
        words=_console_words,
        is_met=_is_live,
    ),
    Measure(
        name="capacity",
        title="Candidates of `xpk plan capacity`",
        limit="10,000 in 10 s",
        measure=search,
        words=lambda one: (
            f"{one['candidates']:,} in {one['seconds']:.1f} s, with {one['cpu_seconds']:.1f} s of CPU time"
        ),
        is_met=lambda one: bool(one["candidates"] >= 10_000 and one["seconds"] / one["candidates"] <= 10 / 10_000),
    ),
    Measure(
        name="usage",
        title="Usage ledger of 100 simulated months, with crashes of its writer",
        limit="closes within 0.1 %",
        measure=close_ledger,
        words=lambda one: (
            f"held and free sum to the capacity (difference {one['difference']:g}); capacity is wrong by "
            f"{one['capacity_error']:.4%} and held chips by {one['held_error']:.4%}, after {one['crashes']} crashes"
        ),
        is_met=lambda one: one["difference"] == 0 and max(one["capacity_error"], one["held_error"]) < 0.001,
    ),
    Measure(
        name="diagnoses",
        title="Faults of the chaos matrix whose facts are in the answers of an agent's calls",
        limit="20 faults, 3 calls",
        measure=count_diagnoses,
        words=lambda one: f"{one['found']} of {one['faults']}, at most {one['calls']} calls each",
        is_met=lambda one: bool(one["found"] == one["faults"] >= 20),
    ),
    Measure(
        name="placement",
        title="Races of placers of a workload of several clusters",
        limit="10,000, never two copies at once",
        measure=run_races,
        words=lambda one: (
            f"{one['races']:,} races with {one['requests']:,} requests, {one['releases']:,} releases and "
            f"{one['crashes']:,} crashes of placers: no problem"
        ),
        is_met=lambda one: bool(one["races"] >= 10_000),
    ),
)
