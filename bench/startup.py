"""Time of short commands, as ratios to `python -c "import click"` measured in the same run.

    python -m bench.startup [RUNS]

Writes bench/results/startup-<date>.json. The bar for `xpk --help` is 2.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

RESULTS = Path(__file__).parent / "results"
PYTHON = sys.executable
CASES = {
    "import click": [PYTHON, "-c", "import click"],
    "xpk --help": [PYTHON, "-m", "xpk", "--help"],
    "xpk accelerator list": [PYTHON, "-m", "xpk", "accelerator", "list"],
    "xpk workload list": [PYTHON, "-m", "xpk", "workload", "list", "--cluster", "bench"],
}


def seconds(argv: list[str], state: str) -> float:
    """Run a command once and return its wall time."""
    env = os.environ | {"XPK_STATE_DIR": state}
    watch = time.perf_counter()
    subprocess.run(argv, env=env, check=True, capture_output=True)
    return time.perf_counter() - watch


def main(runs: int) -> None:
    """Measure the cases in turn, so that a machine that slows down slows all of them."""
    with tempfile.TemporaryDirectory() as state:
        xpk = [PYTHON, "-m", "xpk"]
        seconds([*xpk, "cluster", "create", "bench", "--tpu-type", "v5litepod-8"], state)
        taken: dict[str, list[float]] = {name: [] for name in CASES}
        for _ in range(runs + 1):  # the first of each warms the caches
            for name, argv in CASES.items():
                taken[name].append(seconds(argv, state))
        seconds([*xpk, "cluster", "delete", "bench", "--yes"], state)
    base = taken["import click"][1:]
    report = {}
    for name, times in taken.items():
        ratios = [mine / click for mine, click in zip(times[1:], base, strict=True)]
        report[name] = {
            "median_seconds": round(statistics.median(times[1:]), 4),
            "ratio": round(statistics.median(ratios), 2),
        }
        print(
            f"{name:<22} {report[name]['median_seconds'] * 1000:7.0f} ms   {report[name]['ratio']:5.2f} x import click"
        )
    today = datetime.now(UTC).date().isoformat()
    machine = {"cores": os.cpu_count(), "python": sys.version.split()[0], "runs": runs}
    RESULTS.mkdir(exist_ok=True)
    text = json.dumps({"date": today, "machine": machine, "commands": report}, indent=1)
    (RESULTS / f"startup-{today}.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 15)
