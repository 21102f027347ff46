"""Time for hosts to find each other: from the start of a process until jax.distributed is up, for 1 to 16 hosts.

    PYTHONPATH=workloads python -m bench.init [--most 16] [--repeat 3]

A host is a process with one emulated chip; it does what the trainer does until its `init` event, and ends. Writes
bench/results/init-<date>.json.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.ports import free_port
from tests.trainer.small import WORKLOADS

RESULTS = Path(__file__).parent / "results"
_SECONDS = 600.0
# A host's work before its first step, without the step. All hosts wait for each other after the imports, so that
# contention for cores does not count as waiting for other hosts.
PROGRAM = """
import json, os, sys, threading, time
from trainer.hosts import bootstrap
from trainer.hosts.peers import Peers
host = bootstrap.read_host(os.environ)
import jax
jax.config.update("jax_platforms", "cpu")
address, port = host.coordinator.rsplit(":", 1)
peers = Peers(host.process_id, host.processes, on_lost=lambda peer: None, on_message=lambda what, by: None)
began = time.monotonic()
peers.connect(address, int(port) + 1, 300)
met = time.monotonic()
peers.barrier("imported")
imported = time.monotonic()
if host.processes > 1:
    bootstrap.join(host, address, int(port), peers)
joined = time.monotonic()
count = len(jax.devices())
seen = time.monotonic()
assert count == host.processes, count
print(json.dumps({"meet": met - began, "join": joined - imported, "devices": seen - joined}), flush=True)
peers.barrier("done")
peers.leave()
os._exit(0)
"""


def run(processes: int) -> dict[str, Any]:
    """Start this number of hosts; return the slowest one's seconds of each part, and the total from the first start."""
    address = f"127.0.0.1:{free_port()}"
    watch = time.monotonic()
    hosts = []
    for n in range(processes):
        env = os.environ | {
            "MEGASCALE_NUM_SLICES": str(processes),
            "MEGASCALE_SLICE_ID": str(n),
            "TPU_WORKER_ID": "0",
            "XPK_HOSTS_PER_SLICE": "1",
            "XPK_COORDINATOR_ADDRESS": address,
            "JAX_PLATFORMS": "cpu",
            "JAX_NUM_CPU_DEVICES": "1",
            "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo",
            "PYTHONPATH": str(WORKLOADS),
        }
        hosts.append(subprocess.Popen([sys.executable, "-c", PROGRAM], env=env, stdout=subprocess.PIPE, text=True))
    reports = [json.loads(host.communicate(timeout=_SECONDS)[0]) for host in hosts]
    assert all(host.returncode == 0 for host in hosts)
    return {"seconds": time.monotonic() - watch} | {part: max(one[part] for one in reports) for part in reports[0]}


def table(report: dict[int, list[dict[str, Any]]]) -> Iterator[str]:
    """Yield medians for every number of processes, and their ratio to those of two."""
    yield "| processes | join, s | of 2 | see all chips, s | join and see, a process | start to end, s | a process |"
    yield "|---:|---:|---:|---:|---:|---:|---:|"
    base = statistics.median(one["join"] for one in report[2]) if 2 in report else None
    for processes, runs in report.items():
        join, seen, whole = (statistics.median(one[part] for one in runs) for part in ("join", "devices", "seconds"))
        ratio = f"{join / base:.1f}" if base and processes > 1 else ""
        cells = (f"{join:.3f}", ratio, f"{seen:.3f}", f"{(join + seen) / processes:.3f}")
        yield f"| {processes} | " + " | ".join(cells) + f" | {whole:.1f} | {whole / processes:.2f} |"


def main() -> None:
    """Measure the numbers in turn, print the table and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--most", type=int, default=16)
    parser.add_argument("--repeat", type=int, default=3)
    asked = parser.parse_args()
    counts = [1 << n for n in range(asked.most.bit_length())]
    report: dict[int, list[dict[str, Any]]] = {count: [] for count in counts}
    for _ in range(asked.repeat):
        for count in counts:
            report[count].append(run(count))
    print(*table(report), sep="\n")
    machine = {
        "cores": os.cpu_count(),
        "load": os.getloadavg(),
        "python": sys.version.split()[0],
        "jax": version("jax"),
    }
    RESULTS.mkdir(exist_ok=True)
    file = RESULTS / f"init-{datetime.now(UTC).date().isoformat()}.json"
    file.write_text(json.dumps({"machine": machine, "processes": report}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
