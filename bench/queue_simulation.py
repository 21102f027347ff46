"""Speed of simulated queues: 30 days of 199 slices and 10,000 workloads, on one core.

    python -m bench.queue_simulation [--workloads 10000]

Writes bench/results/queue-simulation-<date>.json. The limit is 60 s.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from e2e.machine import machine
from xpk.local.ledger import Queue
from xpk.local.simulation import Job, Simulation
from xpk.model import names
from xpk.model.quotas import Allotment

RESULTS = Path(__file__).parent / "results"
LIMIT_SECONDS = 60.0
WORKLOADS = 10_000
_DAYS = 30.0
_CHIPS = 16  # of a slice
_RESOURCE = "v5litepod-16/google.com/tpu"
_QUOTAS = {names.CLUSTER_QUEUE: 99, "red": 50, "blue": 30, "green": 20}  # 199 slices in all
# Share of the workloads by size, and by priority: many small ones, few that need most of the cluster.
_SIZES = {1: 40, 2: 20, 4: 15, 8: 10, 16: 8, 32: 4, 64: 2, 128: 1}
_SHARES = {"very-low": 10, "low": 30, "medium": 40, "high": 15, "very-high": 5}


def queues() -> dict[str, Queue]:
    """Return four queues that lend to each other, with the rules of `xpk queue create`."""
    rules: dict[str, str] = {
        "cohort": names.COHORT,
        "within_queue": "LowerPriority",
        "while_borrowing": "LowerPriority",
    }
    return {
        name: Queue(
            allotments={_RESOURCE: Allotment(nominal=slices * _CHIPS)},
            reclaim="LowerPriority" if name == names.CLUSTER_QUEUE else "Any",
            **rules,
        )
        for name, slices in _QUOTAS.items()
    }


def jobs(count: int, load: float, rng: random.Random) -> list[Job]:
    """Return workloads that arrive at random times, and would use this share of the slices without gaps."""
    period = _DAYS * 86400 * count / WORKLOADS
    sizes, priorities = list(_SIZES), list(_SHARES)
    mean_slices = sum(size * share for size, share in _SIZES.items()) / sum(_SIZES.values())
    mean_seconds = period * sum(_QUOTAS.values()) * load / (count * mean_slices)
    arrivals = sorted(rng.uniform(0, period) for _ in range(count))
    return [
        Job(
            uid=f"{number:06d}",
            queue=rng.choice(list(_QUOTAS)),
            priority=names.PRIORITIES[rng.choices(priorities, [*_SHARES.values()])[0]],
            needs={_RESOURCE: _CHIPS * rng.choices(sizes, [*_SIZES.values()])[0]},
            seconds=rng.expovariate(1 / mean_seconds),
            arrival=arrival,
        )
        for number, arrival in enumerate(arrivals)
    ]


def measure(count: int, load: float, seed: int) -> dict[str, Any]:
    """Simulate once; return the time that it took and what happened."""
    submitted = jobs(count, load, random.Random(seed))
    began, cpu = time.monotonic(), time.process_time()
    simulation = Simulation(queues(), submitted, stop_seconds=30.0)
    courses = simulation.run()
    return {
        "workloads": count,
        "load": load,
        "seed": seed,
        "wall_seconds": round(time.monotonic() - began, 2),
        "cpu_seconds": round(time.process_time() - cpu, 2),
        "simulated_days": round(simulation.now / 86400, 1),
        "starts": sum(len(course.starts) for course in courses.values()),
        "preemptions": sum(len(course.stops) for course in courses.values()),
        "unfinished": sum(course.end is None for course in courses.values()),
        "preemption_loops": len(simulation.loops),
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


def row(result: Mapping[str, Any]) -> str:
    """Return a line of the table in bench/README.md."""
    keys = ("load", "wall_seconds", "cpu_seconds", "simulated_days", "starts", "preemptions", "unfinished", "peak_mib")
    return f"| {' | '.join(f'{result[key]:,}' for key in keys)} |"


def main() -> int:
    """Measure, print a table and write the results; return 1 above the limit."""
    parser = argparse.ArgumentParser(prog="python -m bench.queue_simulation", description=__doc__)
    parser.add_argument("--workloads", type=int, default=WORKLOADS, help="[default: 10000, in 30 days]")
    parser.add_argument("--load", type=float, action="append", help="share of the slices in use [default: 0.7 and 0.9]")
    parser.add_argument("--seed", type=int, default=1, help="[default: 1]")
    options = parser.parse_args()
    load_average, results = os.getloadavg()[0], []
    for load in options.load or (0.7, 0.9):
        results.append(measure(options.workloads, load, options.seed))
        print(row(results[-1]), flush=True)
    if options.workloads == WORKLOADS:
        today = datetime.now(UTC).date().isoformat()
        report = {
            "date": today,
            "machine": machine(),
            "load_average_at_start": round(load_average, 1),
            "limit_seconds": LIMIT_SECONDS,
            "runs": results,
        }
        (RESULTS / f"queue-simulation-{today}.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return int(any(result["cpu_seconds"] > LIMIT_SECONDS for result in results))


if __name__ == "__main__":
    sys.exit(main())
