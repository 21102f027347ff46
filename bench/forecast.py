"""Forecast of goodput next to the report of a local run, whose trainers are killed at random.

    python -m bench.forecast [--runs 1] [--seconds 50] [--mean 14] [--output bench/results/forecast-<date>.json]

The kills of each run are a Poisson process. The forecast gets the run's own step time, recoveries and saves, and the
number of its failures, as `xpk plan goodput --from-workload` does, but keeps the run's checkpoint interval.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import random
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.recovery import EVERY, SLICES, endless_trainer
from e2e.harness import DrillError, Lab, Workload
from e2e.machine import machine
from xpk.client import Cluster
from xpk.jobs.forecast.forecast import assumptions_of, restarts_of
from xpk.jobs.forecast.measured import job_of_run
from xpk.jobs.forecast.simulation import Pattern, advance, restart_run
from xpk.jobs.report.goodput import goodput, lost_steps
from xpk.jobs.report.programs import read_folder
from xpk_shared.goodput.failures import FailureRate
from xpk_shared.goodput.restarts import Restarts

CLUSTER = "bench-forecast"
TPU_TYPE = "v5litepod-4"
START_SECONDS = 300.0  # maximum time until the first step


def main() -> int:
    """Run, print and write the comparison; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=1, help="number of runs, with the seeds from 1")
    parser.add_argument("--seconds", type=float, default=50.0, help="length of each run after its first step")
    parser.add_argument("--mean", type=float, default=14.0, help="mean seconds between two kills")
    today = datetime.now(UTC).date().isoformat()
    parser.add_argument("--output", type=Path, default=Path(f"bench/results/forecast-{today}.json"))
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="xpk-bench-"))
    lab = Lab(folder=folder / "lab", cluster=CLUSTER, say=_say)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # deletes the cluster, too
    try:
        lab.prepare()
        lab.create_cluster(TPU_TYPE, SLICES)
        runs: list[dict[str, Any]] = []
        for seed in range(1, options.runs + 1):
            runs.append(_measure(lab, options, seed))
            document = {"date": today, "machine": machine(), "mean_seconds": options.mean, "runs": runs}
            options.output.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    except DrillError as error:
        _say(f"error: {error}")
        return 1
    finally:
        lab.delete_cluster()
        shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps(runs, indent=1), summary(runs), sep="\n")
    return 0


def summary(runs: list[dict[str, Any]]) -> str:
    """Return the mean goodput of reports and forecasts, weighted by the lengths of the runs, and their difference."""

    def mean(get: Callable[[dict[str, Any]], float]) -> float:
        return float(sum(get(run) * run["seconds"] for run in runs) / sum(run["seconds"] for run in runs))

    report = mean(lambda run: run["report"]["goodput"])
    forecast = mean(lambda run: run["forecast"]["goodput"])
    replayed = mean(lambda run: run["forecast"]["goodput_for_these_kills"])
    return (
        f"{len(runs)} runs, {sum(run['kills'] for run in runs)} kills: report {report:.1%}, "
        f"forecast {forecast:.1%} ({100 * (forecast - report):+.1f} points), "
        f"for these times of kills {replayed:.1%} ({100 * (replayed - report):+.1f} points)"
    )


def _measure(lab: Lab, options: argparse.Namespace, seed: int) -> dict[str, Any]:
    run = lab.create_workload("forecast", num_slices=SLICES, max_restarts=1000, trainer=endless_trainer())
    run.await_(lambda: bool(run.steps), START_SECONDS)
    result = {"seed": seed} | _compare(lab, run, _kill(run, options, seed))
    lab.xpk("workload", "delete", run.name, "--cluster", lab.cluster, "--grace-period", "1", "--with-output")
    return result


def _kill(run: Workload, options: argparse.Namespace, seed: int) -> list[float]:
    """Kill trainers at random times; return these in Unix seconds. A trainer that has not started is not killed."""
    rng, end, kills = random.Random(seed), time.monotonic() + options.seconds, []
    while (pause := rng.expovariate(1 / options.mean)) < end - time.monotonic():
        time.sleep(pause)
        try:
            kills.append(run.end_program(rng.randrange(SLICES), 0))
        except DrillError:
            continue
    time.sleep(max(0.0, end - time.monotonic()))
    return kills


def _compare(lab: Lab, run: Workload, kills: list[float]) -> dict[str, Any]:
    """Return the report's figures of the time since the start of the first step, and the forecast of the same."""
    now, record = time.time(), read_folder(run.folder)
    begun = min(line.time - line.seconds for line in (*record.steps, *record.lost_steps))
    spent = goodput(record, end=now)
    before = begun - min(event.time for events in record.events.values() for event in events)
    os.environ.update(lab.environ)  # its state folder
    status = Cluster(lab.cluster).workload(run.name).status()
    job = job_of_run(record, status, FailureRate.prior(1.0), end=now)
    assumed = dataclasses.replace(assumptions_of(job)[0], process_share=1.0)
    model = restarts_of("in place", assumed, len(kills) / (now - begun), has_local=False)
    pattern = Pattern(segment=EVERY * job.step_seconds, segments=1)
    undisturbed = pattern.segment / (pattern.segment + model.persistent.save)
    runs = [restart_run(model, pattern, random.Random(seed), len(kills)) for seed in range(1000)] if kills else []
    return {
        "kills": len(kills),
        "seconds": round(now - begun, 1),
        "report": {
            "goodput": round(spent.goodput * spent.wall / (spent.wall - before * 1e6), 4),
            "lost_steps": lost_steps(record),
        },
        "forecast": {
            "goodput": round(model.goodput(pattern.segment, 1) if kills else undisturbed, 4),
            "standard_deviation": round(statistics.stdev(runs), 4) if runs else 0.0,
            "goodput_for_these_kills": round(_replayed(model, pattern, [begun, *kills, now]), 4),
        },
        "step_seconds": round(job.step_seconds, 4),
        "assumptions": {name: round(value, 3) for name, (value, _) in job.values.items()},
    }


def _replayed(model: Restarts, pattern: Pattern, times: list[float]) -> float:
    """Return the forecast for failures at these times, between the start and the end of the run."""
    start = 0  # segments that are saved
    recovery = 0.0
    for begin, end in itertools.pairwise(times[:-1]):
        start = max(start, advance(model, pattern, start, max(0.0, end - begin - recovery))[1])
        recovery = model.failures[0].recovery_seconds
    share = pattern.segment / (pattern.segment + model.persistent.save)
    last = max(0.0, times[-1] - times[-2] - recovery) * share
    return (start * pattern.segment + last) / (times[-1] - times[0])


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
