"""The queue of local clusters next to Kueue: small, medium and full-size workloads with priorities, submitted at once.

    python -m bench.queue [--share 0.2]

Writes bench/results/queue-<date>.json. No host runs: both queues admit workloads, which end after their time.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.queue import kueue, local
from bench.queue.load import CLASSES, Log, shortest
from e2e.api_server import missing
from e2e.machine import machine

RESULTS = Path(__file__).parents[1] / "results"
_SECONDS = 420.0


def main() -> int:
    """Run both queues, print the tables and write the results."""
    parser = argparse.ArgumentParser(prog="python -m bench.queue", description=__doc__)
    parser.add_argument("--share", type=float, default=1.0, help="share of each class's workloads")
    options = parser.parse_args()
    if why := missing("etcd", "kube-apiserver", "jobset", "kueue"):
        print(f"error: {why}", file=sys.stderr)
        return 1
    queues: dict[str, Any] = {}
    for name, run in (("local", local.run), ("Kueue", kueue.run)):
        with tempfile.TemporaryDirectory(prefix="xpk-bench-") as folder:
            log = Log(options.share)
            load = os.getloadavg()[0]
            cost = run(Path(folder), log, _SECONDS)
            queues[name] = {**log.summary(), **cost, "load_average_at_start": round(load, 1)}
        print(line(name, queues[name]), flush=True)
    today = datetime.now(UTC).date().isoformat()
    report = {
        "date": today,
        "machine": machine(),
        "share": options.share,
        "shortest_makespan": round(shortest(options.share), 1),
        "queues": queues,
    }
    if options.share == 1.0:
        (RESULTS / f"queue-{today}.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 0


def line(name: str, measured: dict[str, Any]) -> str:
    """Return a line of the table in bench/README.md."""
    cells = [name, f"{measured['makespan']:.0f}", f"{measured['admissions_per_second']:.1f}"]
    cells += [f"{100 * measured['average_use_of_quota']:.0f}%", str(measured["preemptions"])]
    for kind in CLASSES:
        waits = measured["classes"][kind.name]
        cells.append(f"{waits['wait_mean']:.1f} / {waits['wait_95']:.1f} / {waits['wait_most']:.1f}")
    cells.append(f"{measured['cpu_seconds']:.1f}")
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main())
