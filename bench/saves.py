"""Cost of saves to the steps: without saves, with persistent ones, with local ones, and with both, in turn.

    PYTHONPATH=workloads python -m bench.saves [--repeat 3]

Every case is a run of the trainer on two emulated chips; the model's state has 76 MB. Writes
bench/results/saves-<date>.json.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.trainer.small import start
from trainer.config import load
from trainer.models import registry

RESULTS = Path(__file__).parent / "results"
STEPS, EVERY, FIRST = 44, 10, 3  # the first steps are slower and not counted
MODEL = ("model.embed=256", "model.heads=4", "model.head_dim=64", "model.mlp=1024", "model.layers=8")
RUN = (
    f"run.steps={STEPS}",
    "run.eval_every=0",
    "data.eval_fraction=0",
    "data.max_bytes=50000",
    "checkpoint.max_to_keep=1",
)
NEAR = 3  # steps after a save that may feel it
NEVER = 1_000_000
RAM = Path("/dev/shm")
CASES = {
    "no saves": (NEVER, 0),
    "persistent": (EVERY, 0),
    "local": (NEVER, EVERY),
    "both": (EVERY, EVERY),
}


def run(folder: Path, ram: Path, every: int, local_every: int) -> dict[str, Any]:
    """Train once; return the time from the end of a step to the end of the next, and what the saves told."""
    settings = [*MODEL, *RUN, f"checkpoint.every={every}", f"checkpoint.local_every={local_every}"]
    job = start(folder, [*settings, f"checkpoint.local_path={ram}"], slices=1)
    assert job.exit_codes(900) == [0], job.logs()
    lines = [json.loads(line) for line in job.read("metrics.jsonl").splitlines()]
    ends = [line["time"] for line in lines if "loss" in line]
    steps = {n: after - before for n, (before, after) in enumerate(itertools.pairwise(ends), 2) if n > FIRST}
    steps.pop(STEPS)  # the last state is saved in any case
    saves = {kind: [e for e in job.events(0) if e["event"] == kind and e["step"] < STEPS] for kind in _KINDS}
    figures = {
        _KINDS[kind]: [{key: event.get(key) for key in ("step", "seconds", "blocked")} for event in events]
        for kind, events in saves.items()
    }
    return {"step_seconds": steps, "saves": figures}


_KINDS = {"save": "persistent", "local_save": "local"}


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return medians of a case; steps near saves are held against the other ones of the same run, for load changes."""
    ratios, costs, steps = list[float](), list[float](), list[float]()
    for run in runs:
        taken = {int(n): seconds for n, seconds in run["step_seconds"].items()}
        usual = statistics.median(seconds for n, seconds in taken.items() if not 1 <= n % EVERY <= NEAR)
        steps.append(usual)
        for at in range(EVERY, STEPS - NEAR, EVERY):
            ratios.append(taken[at + 1] / usual)
            costs.append(sum(taken[at + n] for n in range(1, NEAR + 1)) / usual - NEAR)
    made = {kind: [save for run in runs for save in run["saves"][kind]] for kind in ("persistent", "local")}
    blocked = {
        kind: {part: round(statistics.median(save[part] for save in saves), 4) for part in ("blocked", "seconds")}
        for kind, saves in made.items()
        if saves
    }
    return {
        "step_seconds": round(statistics.median(steps), 4),
        "step_after_a_save": round(statistics.median(ratios), 3),
        "cost_of_a_save": round(statistics.median(costs), 3),
        "saves": blocked,
    }


def table(cases: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Yield a row for every case."""
    yield "| saves | step, s | the step after, steps | one costs in all, steps | steps wait, s | committed after, s |"
    yield "|---|---:|---:|---:|---:|---:|"
    for name, case in cases.items():
        cells = [" + ".join(f"{save[part]:.2f}" for save in case["saves"].values()) for part in ("blocked", "seconds")]
        numbers = f"{case['step_seconds']:.2f} | {case['step_after_a_save']:.2f} | {case['cost_of_a_save']:+.2f}"
        yield f"| {name} | {numbers} | {cells[0]} | {cells[1]} |"


def main() -> None:
    """Measure the cases in turn, print the table and keep everything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=3)
    asked = parser.parse_args()
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in CASES}
    for _ in range(asked.repeat):
        for name, every in CASES.items():
            with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory(dir=RAM) as ram:
                runs[name].append(run(Path(folder), Path(ram), *every))
    cases = {name: summary(made) for name, made in runs.items()}
    print(*table(cases), sep="\n")
    state = 12 * registry.parameters(load("tiny", MODEL).model)
    machine = {
        "cores": os.cpu_count(),
        "load": os.getloadavg(),
        "python": sys.version.split()[0],
        "jax": version("jax"),
    }
    report = {"machine": machine, "model": MODEL, "state_bytes": state, "every": EVERY, "cases": cases, "runs": runs}
    RESULTS.mkdir(exist_ok=True)
    file = RESULTS / f"saves-{datetime.now(UTC).date().isoformat()}.json"
    file.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
