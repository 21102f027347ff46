"""An evaluation whose last batch is padded, as the trainer's, next to one with a program of its own for the rest.

    PYTHONPATH=workloads python -m bench.evaluation_padding [--repeat 5]

1,000 held-out examples in batches of 64 on four emulated chips: 15 whole batches, and 40 examples. Writes
bench/results/evaluation-padding-<date>.json.
"""

# mypy: disallow-untyped-calls=False

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from e2e.machine import machine

RESULTS = Path(__file__).parent / "results"
HELD_OUT, BATCH, CHIPS = 1000, 64, 4
CASES = {
    "resnet-tiny": ("model.family=resnet", "model.image=32", "model.width=16", "model.classes=10", "model.blocks=2,2"),
    "ssd, 64 pixels": ("model.family=ssd", "model.image=64", "model.width=8", "model.classes=3", "model.blocks=1,1,1"),
    "bert-tiny": ("model.family=bert", "model.embed=128", "model.heads=4", "model.mlp=512", "model.seq_len=16"),
}


class Evaluation:
    """The compiled evaluation of batches of one size, with its input on the chips."""

    def __init__(self, settings: tuple[str, ...], batch: int, first: int, examples: int) -> None:
        import numpy as np

        from tests.trainer.emulated import Trainer
        from trainer.data import batches
        from trainer.step.compiler import QUICK_ON_CPU

        trainer = Trainer(2, 2, 1, *settings, "model.compute_dtype=float32", f"data.global_batch={batch}")
        self.state = trainer.init(np.uint32(0))
        self.blocks = [trainer.blocks(ids) for ids in batches.eval_ids(batch, first, examples)]
        began = time.process_time()
        lowered = trainer.programs.evaluate.lower(self.state["params"], self.blocks[0], self.state.get("averages"))
        self.program = lowered.compile(QUICK_ON_CPU)
        self.compile_seconds = time.process_time() - began

    def sums(self) -> list[Any]:
        """Return the sums of all batches."""
        params, averages = self.state["params"], self.state.get("averages")
        return [self.program(params, blocks, averages) for blocks in self.blocks]


def measure(settings: tuple[str, ...], repeat: int) -> dict[str, Any]:
    """Return the CPU seconds of both evaluations in turn, and of their compilations; the mean loss is the same."""
    import jax

    rest = HELD_OUT % BATCH
    kinds = {
        "padded": [Evaluation(settings, BATCH, 0, HELD_OUT)],
        "unpadded": [
            Evaluation(settings, BATCH, 0, HELD_OUT - rest),
            Evaluation(settings, rest, HELD_OUT - rest, rest),
        ],
    }
    report = dict[str, Any]()
    seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(repeat + 1):
        for kind, parts in kinds.items():
            began = time.process_time()
            sums = jax.device_get([one for part in parts for one in part.sums()])
            seconds[kind].append(time.process_time() - began)
            loss = float(sum(one.loss for one in sums) / sum(one.weight for one in sums))
            report[kind] = {"loss": loss, "programs": len(parts), "cpu_seconds": seconds[kind][1:]}
            report[kind]["compile_cpu_seconds"] = sum(part.compile_seconds for part in parts)
    assert abs(report["padded"]["loss"] / report["unpadded"]["loss"] - 1) < 1e-5, report
    return report


def table(results: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of a Markdown table."""
    yield "| model | evaluation | programs | compilation, CPU s | evaluation, CPU s | loss |"
    yield "|---|---|---:|---:|---:|---:|"
    for name, report in results.items():
        for kind, one in report.items():
            compilation, evaluation = one["compile_cpu_seconds"], statistics.median(one["cpu_seconds"])
            yield f"| {name} | {kind} | {one['programs']} | {compilation:.1f} | {evaluation:.2f} | {one['loss']:.5f} |"


def main() -> None:
    """Measure all cases, print the table and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=5)
    repeat = parser.parse_args().repeat
    os.environ |= {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(CHIPS)}
    results = {name: measure(settings, repeat) for name, settings in CASES.items()}
    print(*table(results), sep="\n")
    file = RESULTS / f"evaluation-padding-{datetime.now(UTC):%F}.json"
    file.write_text(json.dumps({"machine": machine(), "results": results}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
