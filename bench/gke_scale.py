"""Growth of `xpk cluster create --provider gke` with its slices, on an emulated GKE whose operations take their time.

    python -m bench.gke_scale [--slices 2 16 199] [--speed 20]

Writes bench/results/gke-scale-<date>.json. Nothing leaves this machine.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.capacity.gke.site import QUOTAS, Site
from tools.gke_emulator.emulator import GkeEmulator
from tools.gke_emulator.options import SECONDS, Options
from xpk.model.accelerators import find_shape

RESULTS = Path(__file__).parent / "results"
TPU_TYPE = "v5litepod-256"
HOSTS = find_shape(TPU_TYPE).hosts
POLL_SECONDS = 5.0  # of the cloud: xpk's default
USUAL = SECONDS["CREATE_NODE_POOL"] + HOSTS * Options().seconds_per_node
LONGEST = 506.0  # also an assumption: twice as long, for a slow day


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One create. `pool_seconds`: cloud time for one node pool."""

    num_slices: int
    at_once: int
    pool_seconds: float

    @property
    def operations_seconds(self) -> float:
        """Return the seconds of only the operations: the cluster, then its node pools in rounds of `at_once`."""
        rounds = math.ceil(self.num_slices / self.at_once)
        return SECONDS["CREATE_CLUSTER"] + rounds * self.pool_seconds + (1 + rounds) * Options().pending


def measure(case: Case, speed: float, folder: Path) -> dict[str, Any]:
    """Create a cluster and return its measurements; seconds are of the cloud unless named `real`."""
    per_pool = case.pool_seconds - HOSTS * Options().seconds_per_node
    seconds = {"CREATE_NODE_POOL": per_pool}
    with GkeEmulator(speed=speed, seconds=seconds, quotas=QUOTAS) as gke:
        site = Site(folder, gke)
        site.environ["XPK_GKE_POLL_SECONDS"] = str(POLL_SECONDS / speed)
        at_once = [0]
        watch, cpu = time.perf_counter(), time.process_time()
        plan = site.plan(case.num_slices, TPU_TYPE, at_once=case.at_once)
        planned = time.perf_counter() - watch
        marks: list[tuple[float, str]] = []
        plan.carry_out(
            lambda title: marks.append((time.perf_counter() - watch, title)),
            live=lambda states: at_once.append(len(states)),
        )
        wall = time.perf_counter() - watch
        pools = max(mark for mark, title in marks if title.startswith("create node pool"))
        asked = Counter(call.method for call in gke.calls)
        assert len(site.pools()) == case.num_slices + 1
        polls = asked["ListOperations"]
        return {
            **asdict(case),
            "seconds": round(wall * speed, 1),
            "seconds_to_last_pool": round(pools * speed, 1),
            "operations_seconds": case.operations_seconds,
            "one_after_another_seconds": replace(case, at_once=1).operations_seconds,
            "real_seconds": round(wall, 2),
            "real_seconds_planning": round(planned, 2),
            "real_seconds_cpu_with_emulator": round(time.process_time() - cpu, 2),
            "calls": sum(asked.values()),
            "calls_that_change": asked["CreateCluster"] + asked["CreateNodePool"],
            "calls_that_poll": polls,
            "most_operations_at_once": max(call.operations for call in gke.calls),
            "most_steps_at_once": max(at_once),
            "calls_by_method": dict(asked.most_common()),
        }


def main() -> None:
    """Measure the cases one after the other, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m bench.gke_scale", description=__doc__)
    parser.add_argument("--slices", type=int, nargs="+", default=[2, 16, 199])
    parser.add_argument("--speed", type=float, default=20.0, help="seconds of the cloud in a real one")
    options = parser.parse_args()
    cases = [
        Case(num_slices=count, at_once=100, pool_seconds=item) for item in (USUAL, LONGEST) for count in options.slices
    ]
    if (most := max(options.slices)) > 100:
        cases.append(Case(num_slices=most, at_once=most, pool_seconds=USUAL))
    rows = []
    for case in cases:
        with tempfile.TemporaryDirectory() as folder:
            rows.append(measure(case, options.speed, Path(folder)))
        print(row(rows[-1]), flush=True)
    today = datetime.now(UTC).date().isoformat()
    machine = {"cores": os.cpu_count(), "load": os.getloadavg()[0], "python": sys.version.split()[0]}
    times = {
        "speed": options.speed,
        "CREATE_CLUSTER": SECONDS["CREATE_CLUSTER"],
        "poll": POLL_SECONDS,
        "source": "tools/gke_emulator/options.py",
    }
    RESULTS.mkdir(exist_ok=True)
    text = json.dumps({"date": today, "machine": machine, "cloud": times, "creates": rows}, indent=1)
    (RESULTS / f"gke-scale-{today}.json").write_text(text + "\n", encoding="utf-8")


def row(measured: dict[str, Any]) -> str:
    """Return a line of the table in bench/README.md."""
    cells = [
        f"{measured['num_slices']}", f"{measured['at_once']}", f"{measured['pool_seconds']:.0f}",
        f"{measured['operations_seconds'] / 60:.1f}", f"{measured['seconds_to_last_pool'] / 60:.1f}",
        f"{measured['seconds'] / 60:.1f}",
        f"{measured['one_after_another_seconds'] / 60:.0f}", f"{measured['most_operations_at_once']}",
        f"{measured['calls_that_change']}", f"{measured['calls_that_poll']}",
        f"{measured['calls'] - measured['calls_that_change'] - measured['calls_that_poll']}",
        f"{measured['real_seconds_cpu_with_emulator']:.1f}",
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
