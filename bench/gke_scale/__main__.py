"""Growth of `xpk cluster create --provider gke` with its slices: our own time, and that of a cloud of assumed speed.

    python -m bench.gke_scale [--only instant]

Writes bench/results/gke-scale-<date>.json. Nothing leaves this machine.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from google.cloud.container_v1 import Operation

from bench.commands.cluster import missing
from bench.gke_scale import memory
from bench.gke_scale.cases import POLL_SECONDS, TPU_TYPE, Case, cases
from bench.gke_scale.cloud import Cost, Project, project
from e2e.machine import machine

RESULTS = Path(__file__).parents[1] / "results"
_CREATE = (
    "cluster", "create", "c", "--provider", "gke", "--project", "p", "--zone", "us-central1-a", "--on-demand",
    "--tpu-type", TPU_TYPE,
)  # fmt: skip
_CHANGES = ("CreateCluster", "CreateNodePool")
_QUOTA_SECONDS, _QUOTA_CALLS = 100.0, 5000  # of GKE's API: 3,000 a minute, enforced every 100 seconds


def measure(case: Case, folder: Path) -> dict[str, Any]:
    """Plan a cluster, create it, and create it again; seconds are real ones unless named `cloud`."""
    command = [*_CREATE, "--num-slices", str(case.num_slices)]
    command += ["--at-once", str(case.at_once)] if case.at_once else []
    with project(folder, POLL_SECONDS / case.speed, case.emulation()) as site:
        site.run(*command, "--dry-run")  # fills caches
        plan = site.run(*command, "--dry-run")
        calls_before, start = len(site.gke.calls), site.gke.plane.clock.now()
        create = site.run(*command)
        calls = site.gke.calls[calls_before:]
        again = site.run(*command)
        assert len(site.gke.plane.store.pools) == case.num_slices + 1
        assert not any(again.calls[method] for method in _CHANGES), "nothing is left to do"
        row: dict[str, Any] = {
            **asdict(case),
            "load_average": round(os.getloadavg()[0], 1),
            "plan": _cost(plan),
            "plan_and_apply": _cost(create),
            "apply_seconds": round(create.sample.wall_seconds - plan.sample.wall_seconds, 2),
            "again": _cost(again),
            "most_operations_at_once": max(call.operations for call in calls),
        }
        if case.is_instant:
            (folder / "memory").mkdir()
            return row | {"in_memory": memory.measure(case, folder / "memory")}
        times = sorted(call.time * case.speed for call in calls)
        return row | {
            "cloud_seconds": round(create.sample.wall_seconds * case.speed, 1),
            "cloud_seconds_to_last_pool": round(_last_pool(site) - start, 1),
            "cloud_seconds_of_operations": case.operations_seconds,
            "cloud_seconds_one_after_another": case.one_after_another_seconds,
            "most_calls_in_100_cloud_seconds": max(
                sum(start <= other < start + _QUOTA_SECONDS for other in times) for start in times
            ),
            "allowed_calls_in_100_cloud_seconds": _QUOTA_CALLS,
        }


def _last_pool(site: Project) -> float:
    """Return the emulated time at which the last node pool was ready."""
    return max(
        datetime.fromisoformat(work.message.end_time).timestamp()
        for work in site.gke.plane.store.operations.values()
        if work.message.operation_type == Operation.Type.CREATE_NODE_POOL
    )


def _cost(cost: Cost) -> dict[str, Any]:
    return {
        "wall_seconds": round(cost.sample.wall_seconds, 2),
        "cpu_seconds": round(cost.sample.cpu_seconds, 2),
        "peak_mb": round(cost.sample.peak_mb),
        "emulator_cpu_seconds": round(cost.emulator_cpu_seconds, 2),
        "api_server_cpu_seconds": round(cost.server_cpu_seconds, 2),
        "cloud_calls": dict(sorted(cost.calls.items())),
        "api_requests": dict(sorted(cost.requests.items())),
    }


def main() -> int:
    """Measure the cases one after the other, print a table and write the results."""
    parser = argparse.ArgumentParser(prog="python -m bench.gke_scale", description=__doc__)
    parser.add_argument("--only", default="", help="measure only series whose names contain this")
    options = parser.parse_args()
    if why := missing():
        print(f"error: {why}", file=sys.stderr)
        return 1
    rows = []
    for case in cases():
        if options.only in case.name:
            with tempfile.TemporaryDirectory(prefix="xpk-bench-") as folder:
                rows.append(measure(case, Path(folder)))
            print(line(rows[-1]), flush=True)
            _write(rows)
    return 0


def _write(rows: list[dict[str, Any]]) -> None:
    """Write the rows; those of other series in today's file stay."""
    today = datetime.now(UTC).date().isoformat()
    file = RESULTS / f"gke-scale-{today}.json"
    measured = {row["name"] for row in rows}
    earlier = json.loads(file.read_text(encoding="utf-8"))["creates"] if file.exists() else []
    report = {
        "date": today,
        "machine": machine(),
        "poll_cloud_seconds": POLL_SECONDS,
        "times": "tools/gke_emulator/options.py",
        "creates": [*(row for row in earlier if row["name"] not in measured), *rows],
    }
    RESULTS.mkdir(exist_ok=True)
    file.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def line(row: dict[str, Any]) -> str:
    """Return a line of a table in bench/README.md: the first one for an instant cloud, the second one for others."""
    plan, create, again = row["plan"], row["plan_and_apply"], row["again"]
    calls = create["cloud_calls"]
    changes, polls = sum(calls.get(method, 0) for method in _CHANGES), calls.get("ListOperations", 0)
    counts = [str(changes), str(polls), str(sum(calls.values()) - changes - polls)]
    if "cloud_seconds" not in row:
        own = row["in_memory"]
        cells = [
            f"{row['num_slices']}", f"{own['plan_seconds'] + own['apply_seconds']:.2f}",
            f"{own['cpu_seconds_with_emulator']:.2f}", f"{plan['wall_seconds']:.2f}", f"{row['apply_seconds']:.2f}",
            f"{create['wall_seconds']:.2f}", f"{create['cpu_seconds']:.2f}", f"{again['wall_seconds']:.2f}",
            f"{create['peak_mb']}", *counts, str(sum(create["api_requests"].values())),
            f"{create['emulator_cpu_seconds']:.2f}", f"{create['api_server_cpu_seconds']:.2f}",
        ]  # fmt: skip
    else:
        cells = [
            row["name"], f"{row['num_slices']}", f"{row['pool_seconds']:.0f}",
            f"{row['cloud_seconds_of_operations'] / 60:.1f}", f"{row['cloud_seconds_to_last_pool'] / 60:.1f}",
            f"{row['cloud_seconds'] / 60:.1f}", f"{row['cloud_seconds_one_after_another'] / 60:.0f}",
            f"{row['most_operations_at_once']}", *counts, f"{row['most_calls_in_100_cloud_seconds']}",
            f"{create['cpu_seconds']:.1f}",
        ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main())
