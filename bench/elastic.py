"""Cost of elastic slices while no slice is lost, as a ratio to the same run whose slices JAX joins.

    python -m bench.elastic [--blocks 100] [--output bench/results/elastic-<date>.json]

Both runs train the same model on two slices of one host. One is suspended while the other trains a block of steps, in
turn, so that other load on the machine falls on both. The ratio is that of a block to the blocks of the other run
right before and after it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import shutil
import signal
import statistics
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from e2e.machine import machine
from tests.trainer.elastic.runs import ElasticRun

ROOT = Path(__file__).resolve().parents[1]
SLICES, CHIPS = 2, 2
STEPS = 10  # in a block, after one that is not counted
SETTINGS = (
    "run.steps=1000000", "run.eval_every=0", "checkpoint.every=1000000", "optim.schedule=constant",
    "data.path=stdlib", "data.max_bytes=400000", "observe.straggler_check_every=0",
)  # fmt: skip
MODELS: dict[str, tuple[str, ...]] = {
    "0.4 M parameters, 4,096 tokens": (
        "model.embed=128", "model.heads=4", "model.head_dim=32", "model.mlp=512", "model.layers=2",
        "model.seq_len=128", "data.global_batch=32",
    ),
    "3.3 M parameters, 4,096 tokens": (
        "model.embed=256", "model.heads=4", "model.head_dim=64", "model.mlp=1024", "model.layers=4",
        "model.seq_len=256", "data.global_batch=16",
    ),
}  # fmt: skip


def main() -> None:
    """Measure, print the table and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=100, help="blocks of each run [default: 100]")
    file = f"elastic-{datetime.now(UTC):%F}.json"
    parser.add_argument("--output", type=Path, default=ROOT / "bench" / "results" / file)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="xpk-bench-"))
    try:
        seconds = {name: measure(folder / name[:3], settings, options.blocks) for name, settings in MODELS.items()}
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    ratio = {name: summary(ratios(*both.values())) for name, both in seconds.items()}
    document = {
        "machine": machine(),
        "slices": SLICES,
        "chips_per_slice": CHIPS,
        "steps_in_a_block": STEPS,
        "settings": MODELS,
        "step_seconds": seconds,
        "ratio": ratio,
    }
    options.output.write_text(json.dumps(document, indent=1) + "\n")
    print("| model | elastic / joined, median | 95 % interval |")
    print("|---|---:|---|")
    for name, one in ratio.items():
        print(f"| {name} | {one['median']:.3f} | {one['low']:.3f} to {one['high']:.3f} |")


def measure(folder: Path, settings: tuple[str, ...], blocks: int) -> dict[str, list[float]]:
    """Return the median seconds per step of each block, of the elastic and of the joined run."""
    runs: list[ElasticRun] = []
    try:
        for name, min_slices in (("elastic", 1), ("joined", 0)):
            chosen = [*SETTINGS, *settings]
            runs.append(ElasticRun(folder / name, chosen, slices=SLICES, chips=CHIPS, min_slices=min_slices))
            runs[-1].wait_for_step(5, 300)
            _signal(runs[-1], signal.SIGSTOP)
        seconds: dict[str, list[float]] = {"elastic": [], "joined": []}
        for number in range(blocks):
            for run, values in zip(runs, seconds.values(), strict=True):
                values.append(_block(run))
            print(f"block {number + 1} of {blocks}: {seconds['joined'][-1] * 1000:.0f} ms a step", file=sys.stderr)
        return seconds
    finally:
        for run in runs:
            run.close()


def _signal(run: ElasticRun, number: signal.Signals) -> None:
    for process in (*run.processes.values(), run.registry):
        process.send_signal(number)


def _block(run: ElasticRun) -> float:
    """Resume a run for a block of steps; return the seconds of one of them, from the first to the last."""
    first = run.metrics()[-1]["step"] + 2
    _signal(run, signal.SIGCONT)
    run.wait_for_step(first + STEPS)
    _signal(run, signal.SIGSTOP)
    times = {line["step"]: line["time"] for line in run.metrics() if "loss_hex" in line}
    return float(times[first + STEPS] - times[first]) / STEPS


def ratios(elastic: list[float], joined: list[float]) -> list[float]:
    """Return the ratio of each block of the elastic run to the mean of the other run's blocks around it."""
    around = [joined[0], *((a + b) / 2 for a, b in itertools.pairwise(joined))]
    return [own / other for own, other in zip(elastic, around, strict=True)]


def summary(values: list[float], samples: int = 2000) -> dict[str, Any]:
    """Return the median and its 95 % interval by resampling."""
    rng = random.Random(0)
    medians = sorted(statistics.median(rng.choices(values, k=len(values))) for _ in range(samples))
    low, high = medians[int(0.025 * samples)], medians[int(0.975 * samples)]
    return {"median": statistics.median(values), "low": low, "high": high}


if __name__ == "__main__":
    main()
