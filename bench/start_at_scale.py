"""Time from the submission of a workload to its last running host, by number of hosts, with real controllers.

    eval "$(e2e/environment/up)" && python -m bench.start_at_scale [--slices 2 16 64] [--variant ours --variant upstream]

etcd, kube-apiserver, kube-controller-manager, kube-scheduler, JobSet and Kueue run on this machine; KWOK emulates the
nodes. Variants alternate in one cluster. Writes bench/results/start-at-scale-<date>.json; see bench/README.md.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.at_scale import observation, results, usage
from bench.at_scale.cluster import ScaleCluster, missing_programs, scale_cluster
from bench.at_scale.observation import Marks, await_condition, published_hosts, watching
from bench.at_scale.server import RequestError, query
from bench.at_scale.workload import VARIANTS, Submitted
from bench.commands.google_xpk import CACHE
from bench.upstream import VERSION, Upstream

JOBSETS = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/default/jobsets"
PHASES = ("admitted", "jobs", "created", "bound", "running", "coordinator", "published")


def measure(cluster: ScaleCluster, variant: str, num_slices: int, limit: float) -> dict[str, Any]:
    """Start a workload, delete it, and return the measurements."""
    hosts, name = num_slices * cluster.shape.hosts, f"{variant[:12].rstrip('-')}-{num_slices}"
    load, before = os.getloadavg()[0], usage.look(cluster.server)
    with watching(cluster.server, name) as marks:
        start = time.monotonic()
        submitted = VARIANTS[variant](cluster, name, num_slices)
        start += submitted.render_seconds
        published = _await_start(cluster, submitted, marks, hosts, limit)
        spent = usage.look(cluster.server).since(before)
        completed = len(marks.running) == hosts
        row = {
            "variant": variant,
            "hosts": hosts,
            "nodes": cluster.num_slices * cluster.shape.hosts,
            "completed": completed,
            "load_before": round(load, 2),
            "seconds": {
                "render": round(submitted.render_seconds, 3),
                "submit": round(submitted.submit_seconds, 3),
                **_phases(marks, start, published),
            },
            "split_slices": marks.split_slices(),
            "cpu_ms_per_pod": spent.cpu_ms_per_pod(hosts),
            "writes_per_pod": spent.writes_per_pod(hosts),
            "webhook_calls_per_pod": spent.webhook_calls_per_pod(hosts),
        }
    row["seconds"]["deletion"] = round(remove(cluster, name, limit), 1)
    return row


def remove(cluster: ScaleCluster, name: str, limit: float) -> float:
    """Delete a workload; return the seconds until all its objects are gone."""
    start = time.monotonic()
    cluster.server.call("DELETE", f"{JOBSETS}/{name}", {"propagationPolicy": "Foreground"})

    def is_gone() -> bool:
        try:
            cluster.server.call("GET", f"{JOBSETS}/{name}")
        except RequestError as error:
            return error.status == 404 and not cluster.server.call("GET", query(observation.PODS, limit="1"))["items"]
        return False

    await_condition(is_gone, limit)
    return time.monotonic() - start


def _await_start(
    cluster: ScaleCluster, submitted: Submitted, marks: Marks, hosts: int, limit: float
) -> Mapping[str, float]:
    """Wait for all hosts and their names; return when the coordinator's and all names had an address."""
    times: dict[str, float] = {}

    def has_coordinator() -> bool:
        return submitted.coordinator in published_hosts(cluster.server, submitted.subdomain)

    if await_condition(has_coordinator, limit / 4):
        times["coordinator"] = time.monotonic()
        if await_condition(lambda: len(marks.running) == hosts, limit) and await_condition(
            lambda: len(published_hosts(cluster.server, submitted.subdomain)) == hosts, limit / 4
        ):
            times["published"] = time.monotonic()
    return times


def _phases(marks: Marks, start: float, published: Mapping[str, float]) -> dict[str, float]:
    """Return the seconds from the start to the end of each phase."""
    ends = {
        "admitted": marks.admitted,
        **{name: max(getattr(marks, name).values(), default=0.0) for name in ("jobs", "created", "bound", "running")},
        **published,
    }
    return {name: round(ends[name] - start, 2) for name in PHASES if ends.get(name)}


def run(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Measure all sizes and variants in one cluster; return the results."""
    upstream = Upstream(CACHE)
    if any(name.startswith("upstream") for name in options.variant):
        CACHE.mkdir(parents=True, exist_ok=True)
        upstream.install()
    rows = []
    with scale_cluster(folder, upstream, max(options.slices)) as cluster:
        for num_slices in options.slices:
            cluster.grow(num_slices)
            for repeat in range(options.repeat):
                for variant in options.variant if repeat % 2 == 0 else reversed(options.variant):
                    rows.append(measure(cluster, variant, num_slices, options.limit))
                    print(line(rows[-1]), flush=True)
        return {"google_xpk": VERSION, "node_seconds": cluster.node_seconds, "runs": rows}


def line(row: Mapping[str, Any]) -> str:
    """Return a line about a run."""
    seconds, cpu = row["seconds"], row["cpu_ms_per_pod"]
    times = ", ".join(f"{name} {seconds[name]:.1f}" for name in ("created", "running", "published") if name in seconds)
    state = "" if row["completed"] else " INCOMPLETE"
    return (
        f"{row['variant']} {row['hosts']:,} hosts{state}: {times} s; {cpu['total']:.1f} CPU-ms a pod; "
        f"{row['writes_per_pod']['total']:.2f} writes a pod; {row['split_slices']} slices split"
    )


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return medians by variant and hosts, and the exponents from 1,024 hosts on."""
    flat = [{**row, "running": row["seconds"].get("running", 0.0), "cpu": row["cpu_ms_per_pod"]["total"]} for row in rows]
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
    parser.add_argument("--variant", action="append", choices=VARIANTS, help="one or more [default: ours, upstream]")
    parser.add_argument("--repeat", type=int, default=2, help="runs of each variant and size")
    parser.add_argument("--limit", type=float, default=900.0, help="seconds after which a run is given up")
    parser.add_argument("--output", type=Path, help="file of the results")
    options = parser.parse_args()
    options.variant = options.variant or ["ours", "upstream"]
    if problem := missing_programs():
        sys.exit(f"error: {problem}")
    with tempfile.TemporaryDirectory() as folder:
        measured = run(options, Path(folder))
    measured |= {"summary": summary(measured["runs"]), "load_after": round(os.getloadavg()[0], 2)}
    print(measured["summary"])
    print(results.write("start-at-scale", measured, options.output))


if __name__ == "__main__":
    main()
