"""Forecast of goodput next to the report of a local run, whose trainers are killed at random.

    python -m bench.forecast [--seconds 50] [--mean 12] [--output bench/results/forecast-<date>.json]

One run; the kills are a Poisson process. The forecast gets the run's own step time, recoveries and saves, and the
number of its failures, as `xpk plan goodput --from-workload` does, but keeps the run's checkpoint interval.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
import shutil
import signal
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from e2e.harness import DrillError, Lab, Workload
from e2e.machine import machine
from xpk.client import Cluster
from xpk.jobs.forecast.assumptions import Assumptions
from xpk.jobs.forecast.failures import FailureRate
from xpk.jobs.forecast.forecast import assumptions_of, restarts_of
from xpk.jobs.forecast.measured import job_of_run
from xpk.jobs.report.goodput import goodput, lost_steps
from xpk.jobs.report.record import read_folder

CLUSTER = "bench-forecast"
TPU_TYPE = "v5litepod-4"
SLICES = 2
EVERY = 10  # steps from one checkpoint to the next
START_SECONDS = 300.0  # maximum time until the first step


def main() -> int:
    """Run, print and write the comparison; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=50.0, help="length of the run after its first step")
    parser.add_argument("--mean", type=float, default=12.0, help="mean seconds between two kills")
    parser.add_argument("--seed", type=int, default=1)
    today = datetime.now(UTC).date().isoformat()
    parser.add_argument("--output", type=Path, default=Path(f"bench/results/forecast-{today}.json"))
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="xpk-bench-"))
    lab = Lab(folder=folder / "lab", cluster=CLUSTER, say=_say)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # deletes the cluster, too
    try:
        lab.prepare()
        lab.create_cluster(TPU_TYPE, SLICES)
        result = _measure(lab, options)
    except DrillError as error:
        _say(f"error: {error}")
        return 1
    finally:
        lab.delete_cluster()
        shutil.rmtree(folder, ignore_errors=True)
    document = {"date": today, "machine": machine(), **result}
    options.output.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=1))
    return 0


def _measure(lab: Lab, options: argparse.Namespace) -> dict[str, Any]:
    settings = {
        "data.path": "stdlib",
        "run.steps": 100_000,  # it is deleted long before
        "run.eval_every": 0,
        "run.log_every": 1,
        "checkpoint.every": EVERY,
    }
    trainer = ["--config", "tiny", *(word for key, value in settings.items() for word in ("--set", f"{key}={value}"))]
    run = lab.create_workload("forecast", num_slices=SLICES, max_restarts=1000, trainer=trainer)
    run.await_(lambda: bool(run.steps), START_SECONDS)
    kills = _kill(run, options)
    return _compare(lab, run, kills) | {"seed": options.seed, "mean_seconds": options.mean}


def _kill(run: Workload, options: argparse.Namespace) -> int:
    """Kill trainers at random times; return their number. A trainer that has not started is not killed."""
    rng, end, kills = random.Random(options.seed), time.monotonic() + options.seconds, 0
    while (pause := rng.expovariate(1 / options.mean)) < end - time.monotonic():
        time.sleep(pause)
        try:
            run.end_program(rng.randrange(SLICES), 0)
            kills += 1
        except DrillError:
            continue
    time.sleep(max(0.0, end - time.monotonic()))
    return kills


def _compare(lab: Lab, run: Workload, kills: int) -> dict[str, Any]:
    """Return the report's figures of the time since the first step, and the forecast of the same."""
    now, record = time.time(), read_folder(run.folder)
    begun = record.steps[0].time if record.steps else now
    spent = goodput(record, end=now)
    before = begun - min(event.time for events in record.events.values() for event in events)
    status = Cluster(lab.cluster).workload(run.name).status()
    job = job_of_run(record, status, FailureRate.prior(1.0), end=now)
    assumed = dataclasses.replace(assumptions_of(job)[0], process_share=1.0)
    return {
        "kills": kills,
        "seconds": round(now - begun, 1),
        "report": {
            "goodput": round(spent.goodput * (spent.wall / 1e6) / (spent.wall / 1e6 - before), 4),
            "lost_steps": lost_steps(record),
        },
        "forecast": {"goodput": round(_goodput(assumed, kills / (now - begun), job.step_seconds), 4)},
        "step_seconds": round(job.step_seconds, 4),
        "assumptions": {name: round(value, 3) for name, (value, _) in job.values.items()},
    }


def _goodput(assumed: Assumptions, rate: float, step_seconds: float) -> float:
    return restarts_of("in place", assumed, rate, has_local=False).goodput(EVERY * step_seconds, 1)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
