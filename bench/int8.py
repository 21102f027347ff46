"""Loss curves with products in int8 against the same run in bfloat16.

    python -m bench.int8                   # 8 runs of 120 steps, five minutes on two cores
    python -m bench.int8 --only forward

Trains the `tiny` configuration on Python's own library, on one emulated chip. Everything but the products is the
same: seeds, data, order. A second seed in bfloat16 shows what chance does.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
STEPS, EVERY = 120, 30
BOUND = 0.01  # of bfloat16's loss: the maximum difference of int8 on held-out text, after the warm-up
CASES: dict[str, tuple[str, ...]] = {
    "bfloat16": (),
    "forward, dgrad, wgrad": ("quant.matmuls=forward,dgrad,wgrad",),
    "bfloat16, other seed": ("run.seed=1",),
    "forward, dgrad": ("quant.matmuls=forward,dgrad",),
    "forward": ("quant.matmuls=forward",),
    "all, nearest": ("quant.matmuls=forward,dgrad,wgrad", "quant.rounding=nearest"),
    "all, one scale a tensor": ("quant.matmuls=forward,dgrad,wgrad", "quant.scale=tensor"),
    "all, nearest, one scale a tensor": (
        "quant.matmuls=forward,dgrad,wgrad",
        "quant.rounding=nearest",
        "quant.scale=tensor",
    ),
}


def main() -> None:
    """Run missing results, write each when it is complete, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=CASES, help="only these")
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results" / f"int8-{datetime.now(UTC):%F}.json")
    options = parser.parse_args()
    results: dict[str, Any] = json.loads(options.out.read_text()) if options.out.exists() else {}
    for name in options.only or CASES:
        if name not in results:
            results[name] = losses(CASES[name])
            print(f"{name}: {results[name]['eval_loss']}", file=sys.stderr)
            rows = [f"{json.dumps(case)}: {json.dumps(row)}" for case, row in results.items()]
            options.out.write_text("{" + ",\n ".join(rows) + "}\n")
    for line in table(results):
        print(line)


def losses(settings: tuple[str, ...]) -> dict[str, Any]:
    """Train and return the losses on held-out text by step, and those of every step's batch."""
    shape = ("model.compute_dtype=bfloat16", "model.seq_len=64", "data.global_batch=16", "data.max_bytes=1000000")
    length = (f"run.steps={STEPS}", f"run.eval_every={EVERY}", "checkpoint.every=1000")
    with tempfile.TemporaryDirectory() as out:
        chosen = [word for one in (*shape, *length, *settings, f"run.output_dir={out}") for word in ("--set", one)]
        argv = ["nice", "-n", "10", sys.executable, "-m", "trainer", "train", "--config", "tiny", *chosen]
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("XPK_", "MEGASCALE_", "JAX_"))}
        env = clean | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT / "workloads")}
        subprocess.run(argv, env=env, check=True, stdout=subprocess.DEVNULL)
        lines = [json.loads(line) for line in (Path(out) / "metrics.jsonl").read_text().splitlines()]
    return {
        "settings": settings,
        "eval_loss": {str(line["step"]): line["eval_loss"] for line in lines if "eval_loss" in line},
        "loss": [round(line["loss"], 4) for line in lines if "loss" in line],
    }


def table(results: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of a Markdown table: held-out loss by step, and the maximum difference from bfloat16."""
    base = results["bfloat16"]["eval_loss"]
    yield f"| products | {' | '.join(f'step {step}' for step in base)} | furthest from bfloat16 |"
    yield "|---|" + "---:|" * (len(base) + 1)
    for name, row in results.items():
        off = max((row["eval_loss"][step] / base[step] - 1 for step in base), key=abs)
        curve = " | ".join(f"{loss:.4f}" for loss in row["eval_loss"].values())
        yield f"| {name} | {curve} | {off:+.2%}{'' if abs(off) <= BOUND or 'seed' in name else ' (over the bound)'} |"


if __name__ == "__main__":
    main()
