"""Cost of each part of the trainer's observability, as a ratio to the same step without it.

    python -m bench.observability                  # about five minutes on two cores
    python -m bench.observability --blocks 4       # quicker, noisier

All cases train the same model on the same emulated chips of one process, a block of steps of each in turn, so that
other load on the machine falls on all of them. The ratio is that of a case's block to the blocks without any part
right before and after it; the median over blocks is told, with its quartiles.
"""

# mypy: disallow-untyped-calls=False

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.blocks import BLOCK, block, start_training

ROOT = Path(__file__).resolve().parents[1]
CHIPS = 4  # emulated
NOTHING = ("observe.hang_seconds=0", "observe.straggler_check_every=0")
# Each with its usual setting, except checks of copies and comparisons of hosts, which are rarer in a real run.
CASES: dict[str, tuple[str, ...]] = {
    "the watchdog": ("observe.hang_seconds=300", "observe.straggler_check_every=0"),
    "comparison of hosts every 20 steps": ("observe.hang_seconds=0", "observe.straggler_check_every=20"),
    "checksums of all copies every 20 steps": (*NOTHING, "observe.checksum_every=20"),
    "checksums of all copies every step": (*NOTHING, "observe.checksum_every=1"),
    "event files for TensorBoard": (*NOTHING, "observe.tensorboard=true"),
    "a profile of every step": (*NOTHING, "observe.profile_start=2", "observe.profile_steps=100"),
    "nothing, repeated": NOTHING,
}
MAX_BLOCKS = {"a profile of every step": 4}  # JAX keeps a profile in memory until it ends: gigabytes after 200 steps
MODEL = ("model.seq_len=64", "data.global_batch=8", "mesh.dp=2", "data.max_bytes=200000")
LENGTH = ("run.steps=1000000", "run.eval_every=0", "checkpoint.every=1000000", "optim.schedule=constant")


def main() -> None:
    """Measure, write the result and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=12, help="blocks of each case (12)")
    file = f"observability-{datetime.now(UTC):%F}.json"
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results" / file)
    options = parser.parse_args()
    _environment()
    with tempfile.TemporaryDirectory() as folder:
        measurement = measure(Path(folder), options.blocks)
        options.out.write_text(json.dumps(measurement, indent=1) + "\n")
        for line in table(measurement):
            print(line, flush=True)
        os._exit(0)  # unfinished runs, whose output is discarded


def _environment() -> None:
    """Configure emulated chips, before anything imports JAX."""
    os.environ |= {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(CHIPS)}
    os.environ["XLA_FLAGS"] = "--xla_cpu_enable_concurrency_optimized_scheduler=false"
    sys.path.insert(0, str(ROOT / "workloads"))


def measure(folder: Path, blocks: int) -> dict[str, Any]:
    """Return the seconds per step of every block, in the order: no part, a case, no part, the next case, ..."""
    base, others = _begun(folder / "base", NOTHING), {n: _begun(folder / n, CASES[n]) for n in CASES}
    runs = {"nothing": base, **others}
    for name, run in runs.items():
        print(f"warming up: {name}", file=sys.stderr)
        block(run)
    seconds: dict[str, list[float]] = {name: [] for name in CASES}
    around: dict[str, list[float]] = {name: [] for name in CASES}
    for turn in range(blocks):
        before = block(base)
        for name in (case for case in CASES if turn < MAX_BLOCKS.get(case, blocks)):
            seconds[name].append(block(runs[name]))
            after = block(base)
            around[name].append((before + after) / 2)
            before = after
        print(f"block {turn + 1} of {blocks}: {1000 * before:.1f} ms a step", file=sys.stderr)
    return {
        "chips": CHIPS,
        "steps_in_a_block": BLOCK,
        "cores": os.cpu_count(),
        "load": os.getloadavg(),
        "settings": {name: [*MODEL, *settings] for name, settings in CASES.items()},
        "step_seconds": seconds,
        "step_seconds_without": around,
    }


def _begun(out: Path, settings: tuple[str, ...]) -> Iterator[int]:
    """Start a run that is driven step by step."""
    from trainer import config

    settings = (*MODEL, *LENGTH, *settings, "data.path=stdlib", f"run.output_dir={out}")
    return start_training(config.load("tiny", settings))


def table(measurement: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of a Markdown table."""
    yield "| part | step with it / without | quartiles |"
    yield "|---|---:|---|"
    for name, seconds in measurement["step_seconds"].items():
        ratios = [own / base for own, base in zip(seconds, measurement["step_seconds_without"][name], strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        yield f"| {name} | {middle:.3f} | {low:.3f} to {high:.3f} |"


if __name__ == "__main__":
    main()
