"""Time of short commands, as ratios to `python -c "import click"` measured in the same run.

    python -m bench.startup [--runs 15]
    python -m bench.startup --gate               # compares with the stored ratios, as CI does

Writes bench/results/startup-<date>.json. The bar for `xpk --help` is 2.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.performance.page import newest

RESULTS = Path(__file__).parent / "results"
PYTHON = sys.executable
CASES = {
    "import click": [PYTHON, "-c", "import click"],
    "xpk --help": [PYTHON, "-m", "xpk", "--help"],
    "xpk accelerator list": [PYTHON, "-m", "xpk", "accelerator", "list"],
    "xpk workload list": [PYTHON, "-m", "xpk", "workload", "list", "--cluster", "bench"],
}
MARGIN = 1.15  # between two machines, beyond the spread of the runs of each


def run(argv: list[str], state: str) -> tuple[float, float]:
    """Run a command once; return its wall time and its CPU time in seconds."""
    env = os.environ | {"XPK_STATE_DIR": state}
    watch = time.perf_counter()
    process = subprocess.Popen(argv, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    _, status, usage = os.wait4(process.pid, 0)
    taken = time.perf_counter() - watch
    if status:
        sys.exit(f"error: {' '.join(argv[1:])} failed: {process.stderr.read().decode() if process.stderr else ''}")
    return taken, usage.ru_utime + usage.ru_stime


def measure(runs: int) -> dict[str, dict[str, Any]]:
    """Measure the cases in turn, so that a machine that slows down slows all of them."""
    with tempfile.TemporaryDirectory() as state:
        xpk = [PYTHON, "-m", "xpk"]
        run([*xpk, "cluster", "create", "bench", "--tpu-type", "v5litepod-8"], state)
        taken: dict[str, list[tuple[float, float]]] = {name: [] for name in CASES}
        for _ in range(runs + 1):  # the first of each warms the caches
            for name, argv in CASES.items():
                taken[name].append(run(argv, state))
        run([*xpk, "cluster", "delete", "bench", "--yes"], state)
    base = taken["import click"][1:]
    report = {}
    for name, times in taken.items():
        wall, cpu = ([mine[n] / click[n] for mine, click in zip(times[1:], base, strict=True)] for n in (0, 1))
        low, _, high = statistics.quantiles(cpu, n=4)
        report[name] = {
            "median_seconds": round(statistics.median(wall for wall, _ in times[1:]), 4),
            "ratio": round(statistics.median(wall), 2),
            "cpu_ratio": round(statistics.median(cpu), 2),
            "cpu_quartiles": [round(low, 2), round(high, 2)],
        }
    return report


def regressions(measured: Mapping[str, Any], stored: Mapping[str, Any]) -> Iterator[str]:
    """Yield the commands whose CPU time is above the stored ratio by more than the spread of both and a margin.

    CPU time, because wall times of short processes vary with other load on the machine.
    """
    for name, one in stored.items():
        low, limit = measured[name]["cpu_quartiles"][0], MARGIN * one["cpu_quartiles"][1]
        if low > limit:
            yield f"{name} takes at least {low:.2f} x the CPU time of import click in 3 of 4 runs, limit {limit:.2f}"


def main() -> int:
    """Measure, and write the result or compare it with the stored one; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.startup", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=15, help="runs of each command [default: 15]")
    parser.add_argument("--gate", action="store_true", help="compare with the newest result instead of writing one")
    options = parser.parse_args()
    stored = newest("startup", RESULTS)
    if options.gate and stored is None:
        print("error: no stored result of bench.startup", file=sys.stderr)
        return 1
    report = measure(options.runs)
    for name, one in report.items():
        low, high = one["cpu_quartiles"]
        cpu = f"CPU time {one['cpu_ratio']:.2f} x ({low} to {high})"
        print(f"{name:<22} {one['median_seconds'] * 1000:7.0f} ms   {one['ratio']:5.2f} x import click   {cpu}")
    if options.gate and stored is not None:
        problems = list(regressions(report, json.loads(stored.read_text(encoding="utf-8"))["commands"]))
        for problem in problems:
            print(f"error: {problem}", file=sys.stderr)
        return 1 if problems else 0
    today = datetime.now(UTC).date().isoformat()
    machine = {"cores": os.cpu_count(), "load": os.getloadavg()[0], "python": sys.version.split()[0]}
    text = json.dumps({"date": today, "machine": machine, "runs": options.runs, "commands": report}, indent=1)
    (RESULTS / f"startup-{today}.json").write_text(text + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
