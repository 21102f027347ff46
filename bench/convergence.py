"""Accuracy after a fixed number of examples, by batch size: LARS next to SGD with momentum, LAMB next to AdamW.

    PYTHONPATH=workloads nice python -m bench.convergence [--seeds N] [--model NAME]

Every run sees the same number of examples, so that a larger batch has fewer steps. Each optimizer's rate is the best
of a sweep at the smallest batch. Larger batches take that rate times the quotient of the batches (LARS, SGD), or its
square root (LAMB, AdamW). With one seed the sweep is repeated at every batch, from rates that are scaled likewise.
Losses, gradients and updates are the trainer's, on one device of this machine. Writes
bench/results/convergence-<date>.json after each run, and docs/pictures/convergence.svg at the end. Runs that the file
of this day already has are not repeated, so that a benchmark that was stopped goes on.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import math
import os
import statistics
import sys
import sysconfig
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax  # type: ignore[import-untyped]
from jax.sharding import Mesh

from bench.performance.plots import draw_convergence
from trainer import config
from trainer.config import Optim
from trainer.data import synthetic_images
from trainer.models.family import Context
from trainer.models.registry import family
from trainer.parallel.mesh import ALL
from trainer.parallel.partitioning import Execution
from trainer.step import learning_rate, optimizers

ROOT = Path(__file__).resolve().parents[1]
RESULTS, PICTURE = ROOT / "bench" / "results", ROOT / "docs" / "pictures" / "convergence.svg"
SWEEP = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1)  # times the highest rate
WARMUP = 0.1  # of the steps
EVALUATED = 256  # examples at a time


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """A model, its data, and the optimizers that are compared on it."""

    model: str
    settings: tuple[str, ...]
    batches: tuple[int, ...]
    examples: int  # of a run
    trained: int  # distinct examples
    held_out: int
    optimizers: dict[str, float]  # highest rate of the sweep at the smallest batch, by name
    exponent: float  # of the quotient of batches in the scaling of the rate


STUDIES = (
    Study(
        model="resnet-tiny",
        settings=("model.image=24", "model.width=8", "model.blocks=1,1"),
        batches=(64, 256, 1024),
        examples=12_288,
        trained=4096,
        held_out=512,
        optimizers={"lars": 32.0, "sgd": 0.8},
        exponent=1.0,
    ),
    Study(
        model="bert-tiny",
        settings=("model.embed=64", "model.heads=2", "model.mlp=256", "model.seq_len=64"),
        batches=(16, 64, 256),
        examples=6144,
        trained=6144,
        held_out=512,
        optimizers={"lamb": 0.08, "adamw": 0.016},
        exponent=0.5,
    ),
)


class Learner:
    """The compiled gradient, evaluation and updates of a study, and its data."""

    def __init__(self, study: Study) -> None:
        """Read or draw the data; nothing is compiled before its first use."""
        self.study, self.config = study, config.load(study.model, study.settings)
        self.family = family(self.config.model)
        self.execution = Execution(Mesh(np.array(jax.devices()[:1]).reshape(1, 1, 1, 1), ALL))
        self.examples_NS = _records(self.config, study.trained + study.held_out)
        self.init = jax.jit(lambda key: self.family.init(self.config.model, key))
        self.evaluate = jax.jit(self._evaluate)
        self.steps = {
            name: jax.jit(functools.partial(self._step, name), donate_argnums=(0, 1, 2)) for name in study.optimizers
        }

    def train(self, optimizer: str, rate: float, batch: int, seed: int) -> dict[str, float]:
        """Return the held-out accuracy and loss after a run; the accuracy is 0 if the loss is not finite."""
        steps = self.study.examples // batch
        optim = dataclasses.replace(self.config.optim, name=optimizer, lr=rate, warmup=math.ceil(WARMUP * steps))
        rates, random = np.asarray(learning_rate.schedule(optim, steps)(np.arange(steps))), np.random.default_rng(seed)
        params = self.init(jax.random.key(seed))
        averages = self.family.averages(self.config.model)
        state = jax.jit(self._optimizer(optimizer, 0.0).init)(params)
        order = np.concatenate(
            [random.permutation(self.study.trained) for _ in range(-(-steps * batch // self.study.trained))]
        )
        for at in range(steps):
            rows = self.examples_NS[order[at * batch : (at + 1) * batch]]
            step = self.steps[optimizer]
            params, state, averages = step(params, state, averages, rows, np.int32(at), np.float32(rates[at]))
        loss, accuracy = self._held_out(params, averages)
        return {"accuracy": accuracy if math.isfinite(loss) else 0.0, "loss": loss}

    def _held_out(self, params: Any, averages: Any) -> tuple[float, float]:
        sums = np.zeros(3)
        for at in range(self.study.trained, self.study.trained + self.study.held_out, EVALUATED):
            sums += np.array(self.evaluate(params, averages, self.examples_NS[at : at + EVALUATED]))
        return float(sums[0] / sums[1]), float(sums[2] / sums[1])

    def _step(
        self, name: str, params: Any, state: Any, averages: Any, rows_BS: Any, at: Any, rate: Any
    ) -> tuple[Any, Any, Any]:
        def loss(params: Any) -> tuple[Any, Any]:
            context, weight_B = Context(averages, at, None), jnp.ones(rows_BS.shape[0])
            sums = self.family.sums(self.config.model, self.execution, params, context, rows_BS, weight_B)
            return sums.loss / sums.weight, sums.averages

        grads, averages = jax.grad(loss, has_aux=True)(params)
        updates, state = self._optimizer(name, rate).update(grads, state, params)
        return optax.apply_updates(params, updates), state, averages

    def _evaluate(self, params: Any, averages: Any, rows_BS: Any) -> tuple[Any, Any, Any]:
        context, weight_B = Context(averages, None, None), jnp.ones(rows_BS.shape[0])
        sums = self.family.sums(self.config.model, self.execution, params, context, rows_BS, weight_B)
        return sums.loss, sums.weight, sums.correct

    def _optimizer(self, name: str, rate: Any) -> optax.GradientTransformation:
        """Return the optimizer with a rate that may be traced; the schedule is computed outside."""
        optim: Optim = dataclasses.replace(self.config.optim, name=name, lr=rate, warmup=0, schedule="constant")
        return optimizers.optimizer(optim, 1, self.family)


def _records(asked: config.Config, count: int) -> Any:
    """Return examples: synthetic images, or pieces of the text of Python's library."""
    if asked.model.family == "resnet":
        return np.stack([np.frombuffer(synthetic_images.draw(n, asked.model.image), np.uint8) for n in range(count)])
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    text = b"".join(file.read_bytes() for file in files)[: count * asked.model.seq_len]
    pieces = np.frombuffer(text, np.uint8).astype(np.int32).reshape(count, asked.model.seq_len)
    return pieces[np.random.default_rng(0).permutation(count)]


def runs(study: Study, seeds: int, earlier: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the runs of a study: the sweep at every batch, then the scaled rate with every other seed.

    Those that are among the `earlier` ones are not repeated.
    """
    learner, best = Learner(study), dict[str, float]()
    known = {_key(run): run for run in earlier}
    for batch in study.batches:
        factor = (batch / study.batches[0]) ** study.exponent
        for name, first in study.optimizers.items():
            rates = [first * times * factor for times in SWEEP]
            sweep = list[dict[str, Any]]()
            for rate in rates:
                sweep.append(_run(learner, name, rate, batch, 0, known))
                yield sweep[-1]
            if batch == study.batches[0]:
                best[name] = max(sweep, key=lambda run: run["accuracy"])["rate"]
            for seed in range(1, seeds):
                yield _run(learner, name, best[name] * factor, batch, seed, known)


def _key(run: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(run[name] for name in ("model", "optimizer", "batch", "rate", "seed"))


def _run(
    learner: Learner, name: str, rate: float, batch: int, seed: int, known: dict[tuple[Any, ...], dict[str, Any]]
) -> dict[str, Any]:
    size = {"model": learner.study.model, "optimizer": name, "batch": batch, "rate": rate, "seed": seed}
    if _key(size) in known:
        return known[_key(size)]
    began = time.monotonic()
    result = learner.train(name, rate, batch, seed)
    print(*size.values(), f"{result['accuracy']:.1%} in {time.monotonic() - began:.0f} s", flush=True, file=sys.stderr)
    return size | result


def summary(study: Study, done: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return, for each optimizer and batch, the accuracies with the scaled rate, and the best of the sweep there."""
    rows = []
    for name in study.optimizers:
        own = [run for run in done if (run["model"], run["optimizer"]) == (study.model, name)]
        smallest = [run for run in own if run["batch"] == study.batches[0] and run["seed"] == 0]
        rate = max(smallest, key=lambda run: run["accuracy"])["rate"]
        for batch in study.batches:
            at = [run for run in own if run["batch"] == batch]
            scaled = rate * (batch / study.batches[0]) ** study.exponent
            accuracies = [run["accuracy"] for run in at if math.isclose(run["rate"], scaled)]
            tuned = max((run for run in at if run["seed"] == 0), key=lambda run: run["accuracy"])
            row = {"model": study.model, "optimizer": name, "batch": batch, "steps": study.examples // batch}
            rows.append(
                row | {"rate": scaled, "accuracies": accuracies, "tuned": {k: tuned[k] for k in ("rate", "accuracy")}}
            )
    return rows


def table(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the lines of a Markdown table."""
    yield "| model | optimizer | batch | steps | scaled rate | accuracy: median (range) | best rate | accuracy |"
    yield "|---|---|---:|---:|---:|---:|---:|---:|"
    for row in rows:
        low, middle, high = min(row["accuracies"]), statistics.median(row["accuracies"]), max(row["accuracies"])
        cells = (f"`{row['model']}`", row["optimizer"], row["batch"], row["steps"], f"{row['rate']:.3g}")
        tuned = row["tuned"]
        accuracy = f"{middle:.1%} ({low:.1%} to {high:.1%})"
        yield f"| {' | '.join(map(str, cells))} | {accuracy} | {tuned['rate']:.3g} | {tuned['accuracy']:.1%} |"


def main() -> None:
    """Train, print the table, and write the results and the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--model", action="append", choices=[study.model for study in STUDIES], help="only this one")
    asked = parser.parse_args()
    file = RESULTS / f"convergence-{datetime.now(UTC).date().isoformat()}.json"
    chosen = [study for study in STUDIES if study.model in (asked.model or [study.model])]
    content = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {"runs": [], "studies": {}}
    complete = [study for study in STUDIES if study not in chosen and study.model in content["studies"]]
    for study in chosen:
        others = [run for run in content["runs"] if run["model"] != study.model]
        own = [run for run in content["runs"] if run["model"] == study.model]
        is_same = content["studies"].get(study.model) == _as_json(study)
        done = list[dict[str, Any]]()
        for run in runs(study, asked.seeds, own if is_same else []):
            done.append(run)
            rest = [run for run in own if _key(run) not in set(map(_key, done))] if is_same else []
            content = report(others + done + rest, complete)
            file.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        complete.append(study)
        content = report(others + done, complete)
        file.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    draw_convergence(content, PICTURE)
    print(*table(content["summary"]), sep="\n")


def _as_json(study: Study) -> Any:
    return json.loads(json.dumps(dataclasses.asdict(study)))


def report(done: list[dict[str, Any]], complete: list[Study]) -> dict[str, Any]:
    """Return the content of the results: the machine, the studies and their runs, and a summary of complete ones."""
    studies = [study for study in STUDIES if study.model in {run["model"] for run in done}]
    return {
        "machine": {"cores": os.cpu_count(), "python": sys.version.split()[0], "jax": version("jax")},
        "studies": {study.model: dataclasses.asdict(study) for study in studies},
        "summary": [row for study in STUDIES if study in complete for row in summary(study, done)],
        "runs": done,
    }


if __name__ == "__main__":
    main()
