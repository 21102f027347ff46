"""Time from the submission of a workload to its last running host, by number of hosts, with real controllers.

    eval "$(e2e/environment/up)" && python -m bench.start_at_scale [--slices 2 16 64] [--variant ours]

etcd, kube-apiserver, kube-controller-manager, kube-scheduler, JobSet and Kueue run on this machine; KWOK emulates the
nodes. Variants alternate in one cluster. Writes bench/results/start-at-scale-<date>.json; see bench/README.md.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.at_scale import results, usage
from bench.at_scale.candidates import CANDIDATES
from bench.at_scale.cluster import ScaleCluster, missing_programs, scale_cluster
from bench.at_scale.lifecycle import await_start, remove
from bench.at_scale.observation import Marks, watching
from bench.at_scale.profiles import Profiler
from bench.at_scale.release_webhooks import release_webhooks
from bench.at_scale.workload import VARIANTS, submit_upstream
from bench.upstream import VERSION

WITH_ITS_WEBHOOKS = "upstream-webhooks"
ALL = VARIANTS | {WITH_ITS_WEBHOOKS: submit_upstream} | CANDIDATES
PHASES = ("admitted", "jobs", "created", "bound", "running", "coordinator", "published")


def measure(cluster: ScaleCluster, variant: str, num_slices: int, limit: float) -> dict[str, Any]:
    """Start a workload and return the measurements."""
    hosts, name = num_slices * cluster.shape.hosts, f"{variant[:18].rstrip('-')}-{num_slices}"
    with _webhooks(cluster, variant), watching(cluster.server, name) as marks, _profiling(cluster, name, hosts):
        load, before = os.getloadavg()[0], usage.look(cluster.server)
        start = time.monotonic()
        submitted = ALL[variant](cluster, name, num_slices)
        start += submitted.render_seconds
        published = await_start(cluster, submitted, marks, hosts, limit)
        spent = usage.look(cluster.server).since(before)
        completed = len(marks.running) == hosts
        seconds: dict[str, float] = {
            "render": round(submitted.render_seconds, 3),
            "submit": round(submitted.submit_seconds, 3),
            **_phases(marks, start, published),
        }
        return {
            "name": name,
            "variant": variant,
            "date": datetime.now(UTC).date().isoformat(),
            "hosts": hosts,
            "nodes": cluster.num_slices * cluster.shape.hosts,
            "completed": completed,
            "load_before": round(load, 2),
            "seconds": seconds,
            "split_slices": marks.split_slices(),
            "cpu_ms_per_pod": spent.cpu_ms_per_pod(hosts),
            "writes_per_pod": spent.writes_per_pod(hosts),
            "webhook_calls_per_pod": spent.webhook_calls_per_pod(hosts),
        }


def _webhooks(cluster: ScaleCluster, variant: str) -> AbstractContextManager[None]:
    """Call the webhooks that the variant's tool leaves in a cluster."""
    return release_webhooks(cluster) if variant == WITH_ITS_WEBHOOKS else nullcontext()


def _profiling(cluster: ScaleCluster, name: str, hosts: int) -> AbstractContextManager[None]:
    """Profile the middle of a start, if profiles are requested."""
    if cluster.profiler is None:
        return nullcontext()
    return cluster.profiler.profiling(cluster.server, name, after=2 + hosts * 0.006, seconds=max(4, hosts // 200))


def _phases(marks: Marks, start: float, published: Mapping[str, float]) -> dict[str, float]:
    """Return the seconds from the start to the end of each phase."""
    ends = {
        "admitted": marks.admitted,
        **{name: max(getattr(marks, name).values(), default=0.0) for name in ("jobs", "created", "bound", "running")},
        **published,
    }
    return {name: round(ends[name] - start, 2) for name in PHASES if ends.get(name)}


def run(options: argparse.Namespace, folder: Path) -> Path:
    """Measure all sizes and variants in one cluster; return the file of the results, which each run completes."""
    rows: list[dict[str, Any]] = []
    earlier = read_runs(options.earlier) if options.earlier else []
    profiler = Profiler.into(options.profiles) if options.profiles else None
    with scale_cluster(folder, max(*options.slices, options.node_slices), profiler) as cluster:
        if any(name.startswith("upstream") for name in options.variant):
            cluster.install_upstream()
        for num_slices, variant in plan(options):
            if rows:
                rows[-1]["seconds"]["deletion"] = round(remove(cluster, rows[-1]["name"], options.limit), 1)
            cluster.grow(max(num_slices, options.node_slices))
            rows.append(measure(cluster, variant, num_slices, options.limit))
            print(line(rows[-1]), flush=True)
            file = results.write("start-at-scale", content(cluster, [*earlier, *rows]), options.output)
    return file


def read_runs(file: Path) -> list[dict[str, Any]]:
    """Return the runs of a file of results, with their dates."""
    stored = json.loads(file.read_text(encoding="utf-8"))
    return [{"date": stored["date"], **run} for run in stored["runs"]]


def content(cluster: ScaleCluster, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the content of the results' file."""
    return {
        "google_xpk": VERSION,
        "node_seconds": cluster.node_seconds,
        "load_after": round(os.getloadavg()[0], 2),
        "summary": summary(rows),
        "runs": rows,
    }


def plan(options: argparse.Namespace) -> Iterator[tuple[int, str]]:
    """Yield the runs in their order: sizes ascend, and variants alternate. The last workload ends with the cluster."""
    for num_slices in options.slices:
        for repeat in range(options.repeat):
            for variant in options.variant if repeat % 2 == 0 else reversed(options.variant):
                yield num_slices, variant


def line(row: Mapping[str, Any]) -> str:
    """Return a line about a run."""
    seconds, cpu = row["seconds"], row["cpu_ms_per_pod"]
    times = ", ".join(f"{name} {seconds[name]:.1f}" for name in ("created", "running", "published") if name in seconds)
    state = "" if row["completed"] else " INCOMPLETE"
    return (
        f"{row['variant']} {row['hosts']:,} hosts of {row['nodes']:,}{state}: {times} s; "
        f"{cpu['total']:.1f} CPU-ms a pod; "
        f"{row['writes_per_pod']['total']:.2f} writes a pod; {row['split_slices']} slices split"
    )


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return medians by variant and hosts, and the exponents from 1,024 hosts on."""
    flat = [
        {**row, "running": row["seconds"].get("running", 0.0), "cpu": row["cpu_ms_per_pod"]["total"]} for row in rows
    ]
    running, cpu = results.medians(flat, "running"), results.medians(flat, "cpu")
    return {
        "running_seconds": running,
        "cpu_ms_per_pod": cpu,
        "exponent": {name: results.exponent(sizes.items()) for name, sizes in running.items()},
    }


def main() -> None:
    """Measure, print a table and write the results."""
    parser = argparse.ArgumentParser(prog="python -m bench.start_at_scale", description=__doc__)
    parser.add_argument("--slices", type=int, nargs="+", default=[2, 16, 64], help="numbers of slices of 64 hosts")
    parser.add_argument("--node-slices", type=int, default=0, help="slices of the cluster, if more than the workload's")
    parser.add_argument("--variant", action="append", choices=ALL, help="one or more [default: ours, upstream]")
    parser.add_argument("--repeat", type=int, default=2, help="runs of each variant and size")
    parser.add_argument("--limit", type=float, default=900.0, help="seconds after which a run is given up")
    parser.add_argument("--profiles", type=Path, metavar="FOLDER", help="write CPU profiles of the middle of each run")
    parser.add_argument("--earlier", type=Path, metavar="FILE", help="keep the runs of this file of results, too")
    parser.add_argument("--output", type=Path, help="file of the results")
    options = parser.parse_args()
    if min(options.slices) < 1:
        parser.error(f"--slices must be at least 1, got {min(options.slices)}")
    options.variant = options.variant or ["ours", "upstream"]
    if problem := missing_programs():
        sys.exit(f"error: {problem}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the cluster, too
    with tempfile.TemporaryDirectory() as folder:
        print(run(options, Path(folder)))


if __name__ == "__main__":
    main()
