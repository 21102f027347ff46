"""Time and API writes of a restart after one host has failed, by number of hosts: new pods against in place.

    eval "$(e2e/environment/up)" && python -m bench.restart_at_scale [--slices 2 16]

New pods: JobSet recreates them on the cluster of bench.start_at_scale, those of all slices or of one. In place: the
real supervisors of all hosts run on this machine, and the command of one is killed. Writes
bench/results/restart-at-scale-<date>.json.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bench.at_scale import results, usage
from bench.at_scale.cluster import SHAPE, ScaleCluster, missing_programs, scale_cluster
from bench.at_scale.lifecycle import KILLED, await_start, fail_host, remove
from bench.at_scale.observation import await_condition, watching
from bench.at_scale.supervisors import running_hosts
from bench.at_scale.workload import VARIANTS, submit_replacing
from bench.upstream import VERSION

IN_PLACE, ONE_SLICE = "in place", "one-slice"
RESTARTS = {ONE_SLICE: submit_replacing, **VARIANTS}
_ATTEMPT, _SLICE_ATTEMPT = (
    {f"jobset.sigs.k8s.io/{label}": "1"} for label in ("restart-attempt", "job-restart-attempt")
)
_SAVED = 143  # exit code of the host, because one slice is replaced only after a disruption
_SETTLED_SECONDS = 2.0  # after the start, so that its last writes are not counted


def recreate(cluster: ScaleCluster, variant: str, num_slices: int, limit: float) -> dict[str, Any]:
    """Start a workload, let a host fail, and return the measurements of the restart with new pods."""
    hosts, name = num_slices * cluster.shape.hosts, f"{variant}-{num_slices}"
    with watching(cluster.server, name) as marks:
        submitted = RESTARTS[variant](cluster, name, num_slices)
        await_start(cluster, submitted, marks, hosts, limit)
        time.sleep(_SETTLED_SECONDS)
        load, before = os.getloadavg()[0], usage.look(cluster.server)
        is_one = variant == ONE_SLICE
        expected = cluster.shape.hosts if is_one else hosts
        with watching(cluster.server, name, _SLICE_ATTEMPT if is_one else _ATTEMPT) as renewed:
            start = time.monotonic()
            fail_host(cluster, marks, f"{name}-slice-job-0-1-", _SAVED if is_one else KILLED)
            completed = await_condition(lambda: len(renewed.running) == expected, limit)
            seconds = max(renewed.running.values(), default=start) - start
            spent = usage.look(cluster.server).since(before)
            split = renewed.split_slices()
    remove(cluster, name, limit)
    return {
        "variant": variant,
        "hosts": hosts,
        "completed": completed,
        "load_before": round(load, 2),
        "seconds": round(seconds, 2),
        "split_slices": split,
        "cpu_ms_per_host": spent.cpu_ms_per_pod(hosts),
        "writes_per_host": spent.writes_per_pod(hosts),
    }


def in_place(num_slices: int, repeat: int, limit: float) -> Iterator[dict[str, Any]]:
    """Run the supervisors of a workload's hosts and yield the measurements of restarts in place."""
    hosts = num_slices * SHAPE.hosts
    with tempfile.TemporaryDirectory() as folder, running_hosts(Path(folder), hosts, repeat) as supervisors:
        if not supervisors.await_up(0, hosts, limit):
            raise TimeoutError(f"{supervisors.up(0)} of {hosts} supervisors have started after {limit:.0f} s")
        for restart in range(1, repeat + 1):
            time.sleep(_SETTLED_SECONDS)
            load, before = os.getloadavg()[0], supervisors.cpu_seconds()
            start = time.monotonic()
            supervisors.kill_command(1)
            completed = supervisors.await_up(restart, hosts, limit)
            seconds = time.monotonic() - start
            cpu = round(1000 * (supervisors.cpu_seconds() - before) / hosts, 2)
            yield {
                "variant": IN_PLACE,
                "hosts": hosts,
                "completed": completed,
                "load_before": round(load, 2),
                "seconds": round(seconds, 2),
                "cpu_ms_per_host": {"total": cpu},
                "writes_per_host": {"total": 0},  # supervisors have no access to the API server
            }


def line(row: Mapping[str, Any]) -> str:
    """Return a line about a restart."""
    state = "" if row["completed"] else " INCOMPLETE"
    return (
        f"{row['variant']} {row['hosts']:,} hosts{state}: {row['seconds']:.2f} s, "
        f"{row['writes_per_host']['total']:.2f} writes and {row['cpu_ms_per_host']['total']:.1f} CPU-ms a host"
    )


def run(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Measure all sizes."""
    for num_slices in options.in_place_slices:
        yield from in_place(num_slices, options.repeat, options.limit)
    if not options.slices:
        return
    with tempfile.TemporaryDirectory() as folder, scale_cluster(Path(folder), max(options.slices)) as cluster:
        if "upstream" in options.variant:
            cluster.install_upstream()
        for num_slices in options.slices:
            cluster.grow(num_slices)
            for _ in range(options.repeat):
                for variant in options.variant:
                    yield recreate(cluster, variant, num_slices, options.limit)


def main() -> None:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(prog="python -m bench.restart_at_scale", description=__doc__)
    parser.add_argument("--slices", type=int, nargs="*", default=[2, 16], help="slices of 64 hosts, with new pods")
    parser.add_argument("--in-place-slices", type=int, nargs="*", default=[2, 16], help="the same, in place")
    parser.add_argument("--variant", action="append", choices=RESTARTS, help="one or more [default: all]")
    parser.add_argument("--repeat", type=int, default=2, help="restarts of each variant and size")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds after which a restart is given up")
    parser.add_argument("--output", type=Path, help="file of the results")
    options = parser.parse_args()
    options.variant = options.variant or list(RESTARTS)
    if problem := missing_programs():
        sys.exit(f"error: {problem}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the cluster, too
    rows: list[dict[str, Any]] = []
    for row in run(options):
        rows.append(row)
        print(line(row), flush=True)
        content = {"google_xpk": VERSION, "median_seconds": results.medians(rows, "seconds"), "restarts": rows}
        file = results.write("restart-at-scale", content, options.output)
    print(file)


if __name__ == "__main__":
    main()
