"""Steps that LARS takes on a small residual network, with scaled and with unscaled momentum.

    PYTHONPATH=workloads nice python -m bench.lars [--seeds N] [--steps N] [--lr RATE ...]

Every case is the trainer's own step on the same synthetic images, for each seed; seeds change the first parameters and
the order of the images. Writes bench/results/lars-<date>.json; what is there of other rates or numbers of steps stays.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import numpy as np
import numpy.typing as npt

from trainer import config
from trainer.data import batches, synthetic_images
from trainer.data.records import record
from trainer.data.sampler import Order
from trainer.parallel import layout
from trainer.parallel.mesh import make_mesh
from trainer.step import programs as step

RESULTS = Path(__file__).parent / "results"
TRAINED, HELD_OUT = 4096, 512  # images
TARGETS = (0.3, 0.4, 0.5)  # fraction of correctly classified held-out images
EVERY = 10  # steps between evaluations
MODEL = ("model.image=24", "model.width=8", "model.blocks=1,1", "data.global_batch=64", "optim.warmup=30")
# The forms that Kumar et al. compare (Scale MLPerf-0.6 models on Google TPU-v3 Pods, 2019), and a larger momentum.
CASES = {
    "scaled, momentum 0.9": ("optim.momentum_form=scaled", "optim.momentum=0.9"),
    "unscaled, momentum 0.9": ("optim.momentum_form=unscaled", "optim.momentum=0.9"),
    "unscaled, momentum 0.929": ("optim.momentum_form=unscaled", "optim.momentum=0.929"),
}


class Case:
    """The programs of a case, compiled for one device of this machine, and its images."""

    def __init__(self, settings: list[str], images_NS: npt.NDArray[np.uint8]) -> None:
        self.config, self.images_NS = config.load("resnet-tiny", [*MODEL, *settings]), images_NS
        sizes = layout.layout(self.config, layout.Chips(1, 1, 1))
        self.batch, self.mesh = sizes.global_batch, make_mesh(sizes, jax.devices()[:1], 1)
        self.slots = batches.make_slots(self.mesh, 1, 1, self.batch)
        self.programs = step.build(self.config, self.mesh, self.slots, sizes)
        self.flags = jax.device_put(np.zeros((1, step.FLAGS), np.int32), self.programs.flags.sharding)

    def train(self, seed: int) -> dict[int, float]:
        """Return the accuracy on the held-out images, by step."""
        state, shares = self.programs.init(np.uint32(seed)), {}
        ids = batches.train_ids(Order(seed, self.batch, TRAINED), 0)
        for at in range(1, self.config.run.steps + 1):
            state, _ = self.programs.train(state, self._blocks(next(ids)), self.flags)
            if at % EVERY == 0:
                shares[at] = self._right(state)
        return shares

    def _right(self, state: step.State) -> float:
        right = weight = 0.0
        for ids in batches.eval_ids(self.batch, TRAINED, HELD_OUT):
            sums = self.programs.evaluate(state["params"], self._blocks(ids), state["averages"])
            right, weight = right + float(sums.right), weight + float(sums.weight)
        return right / weight

    def _blocks(self, ids: npt.NDArray[np.int64]) -> batches.Blocks:
        return batches.to_blocks(
            self.mesh, self.slots, ids, lambda ids_N: self.images_NS[ids_N], record(self.config.model)
        )


def runs(seeds: int, steps: int, rates: list[float]) -> Iterator[dict[str, Any]]:
    """Train every case at every learning rate with every seed, and yield the result of each."""
    size = config.load("resnet-tiny", MODEL).model.image
    drawn_NS = [np.frombuffer(synthetic_images.draw(n, size), np.uint8) for n in range(TRAINED + HELD_OUT)]
    for rate in rates:
        for name, settings in CASES.items():
            case = Case([*settings, f"run.steps={steps}", f"optim.lr={rate}"], np.stack(drawn_NS))
            for seed in range(seeds):
                right = case.train(seed)
                reached = {
                    str(goal): next((at for at, part in right.items() if part >= goal), None) for goal in TARGETS
                }
                print(f"{name:<26} lr {rate:<5} seed {seed}   {right[max(right)]:.1%}   {reached}", flush=True)
                done = {
                    "case": name,
                    "lr": rate,
                    "steps": steps,
                    "seed": seed,
                    "reached": reached,
                    "final": right[max(right)],
                }
                yield done | {"right": right}


def table(done: list[dict[str, Any]], rates: list[float]) -> Iterator[str]:
    """Yield a row for every learning rate and case: medians over seeds.

    A run that missed a target counts as infinite.
    """
    yield "| lr | case | " + " | ".join(f"steps to {target:.0%}" for target in TARGETS) + " | final accuracy |"
    yield "|---:|---|" + "---:|" * (len(TARGETS) + 1)
    for rate in rates:
        for name in CASES:
            same = [run for run in done if (run["case"], run["lr"]) == (name, rate)]
            cells = [_median([run["reached"][str(target)] for run in same]) for target in TARGETS]
            final = statistics.median(run["final"] for run in same)
            yield f"| {rate:g} | {name} | " + " | ".join(cells) + f" | {final:.1%} |"


def _median(steps: list[int | None]) -> str:
    middle = statistics.median(float("inf") if step is None else step for step in steps)
    return "never" if middle == float("inf") else f"{middle:g}"


def main() -> None:
    """Measure, print the table and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--lr", type=float, nargs="+", default=[8.0, 16.0])
    asked = parser.parse_args()
    file = RESULTS / f"lars-{datetime.now(UTC).date().isoformat()}.json"
    earlier = json.loads(file.read_text(encoding="utf-8"))["runs"] if file.exists() else []
    kept = [run for run in earlier if run["lr"] not in asked.lr or run["steps"] != asked.steps]
    done = kept + list(runs(asked.seeds, asked.steps, asked.lr))
    same = [run for run in done if run["steps"] == asked.steps]
    print(*table(same, sorted({run["lr"] for run in same})), sep="\n")
    machine = {"cores": os.cpu_count(), "python": sys.version.split()[0], "jax": version("jax")}
    RESULTS.mkdir(exist_ok=True)
    file.write_text(json.dumps({"machine": machine, "model": MODEL, "runs": done}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
