"""Resuming with fewer slices, or more, or another mesh: the same batches, records and losses."""

# mypy: disallow-untyped-calls=False

import itertools
import json
import math
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from tests.trainer.checkpoint.stores import Store
from tests.trainer.emulated import TEXT, Trainer
from tests.trainer.small import Cluster, arguments, run_alone, start
from trainer.data import batches
from trainer.data.sampler import Order
from trainer.step.compile_cache import CompileCache
from trainer.step.compiler import Compiler

TOLERANCE = 1e-5  # of a loss of about 5.5, in float32: sums are computed in another order
STEPS = 2  # on each mesh
SPREAD = "optim.update_axes=fsdp,dp"


def on_slices(dp: int, fsdp: int, tp: int, *settings: str) -> Trainer:
    return Trainer(dp, fsdp, tp, *settings, num_slices=dp)


def go_on(trainer: Trainer, state: Any, at: int, steps: int) -> tuple[Any, list[float]]:
    """Train on from step `at`; return the state and the losses."""
    ids, losses = batches.train_ids(Order(7, trainer.batch, len(TEXT)), at), []
    for ids_B in itertools.islice(ids, steps):
        state, out = trainer.train()(state, trainer.blocks(ids_B), trainer.flags)
        losses.append(float(out["loss"]))
    return state, losses


def moved(state: Any, to: Trainer, folder: Path, step: int) -> Any:
    """Return a state as after a restart on another mesh."""
    store = Store(folder)
    assert store.save(step, state) == ""
    return store.checkpoints.restore(
        step, {}, to.mesh, to.programs.state, Compiler(CompileCache(folder, None), store.peers)
    )()[0]


def parts(tree: Any) -> int:
    """Return the maximum number of parts of an array."""
    shares = [leaf.size // math.prod(leaf.sharding.shard_shape(leaf.shape)) for leaf in jax.tree.leaves(tree)]
    return int(max(shares))


def check(several: Trainer, one: Trainer, folder: Path) -> None:
    """Train on `several` slices, continue on `one` and then on `several` again, and compare with no change."""
    fresh = several.init(np.uint32(0))
    _, expected = go_on(several, fresh, 0, 3 * STEPS)
    state, losses = several.init(np.uint32(0)), []
    for n, (trainer, after) in enumerate([(several, one), (one, several), (several, several)]):
        state, more = go_on(trainer, state, n * STEPS, STEPS)
        losses += more
        state = moved(state, after, folder, (n + 1) * STEPS) if after is not trainer else state
        for leaf, target in zip(jax.tree.leaves(state), jax.tree.leaves(after.programs.state), strict=True):
            assert leaf.sharding.is_equivalent_to(target.sharding, leaf.ndim)
    np.testing.assert_allclose(losses, expected, atol=TOLERANCE)
    assert losses[:STEPS] == expected[:STEPS]


@pytest.mark.slow
def test_a_run_resumes_on_fewer_slices_without_tp_and_back(tmp_path: Path) -> None:
    several, one = on_slices(2, 2, 2, SPREAD), on_slices(1, 2, 1, SPREAD)
    assert (parts(several.programs.state["opt"]), parts(one.programs.state["opt"])) == (8, 2)
    check(several, one, tmp_path)


@pytest.mark.slow
def test_layer_norms_do_not_depend_on_the_mesh(tmp_path: Path) -> None:
    lamb = (SPREAD, "optim.name=lamb", "optim.lr=0.01")
    check(on_slices(2, 1, 2, *lamb), on_slices(1, 4, 1, *lamb), tmp_path)


def test_a_batch_that_remaining_slices_cannot_divide_is_reported_in_one_line() -> None:
    settings = ["--hosts-per-slice", "1", "--chips-per-host", "2", "--no-data", *arguments(["data.global_batch=8"])]
    for slices, problems in ((4, 0), (2, 0), (3, 1)):
        ran = run_alone("check", "--num-slices", str(slices), *settings)
        report = json.loads(ran.stdout)["problems"] if problems else []
        assert (ran.returncode == 0, len(report)) == (problems == 0, problems), ran.stdout
    assert report[0]["message"] == "the global batch = 8 is not divisible by dp x fsdp = 3 x 2"
    assert report[0]["hint"] == "Nearest valid values: 6 or 12"


def run(out: Path, slices: int, attempt: int, steps: int, *settings: str) -> Cluster:
    fixed = ["data.max_bytes=50000", "run.eval_every=0", "optim.schedule=constant", "checkpoint.every=100", *settings]
    job = start(out, [f"run.steps={steps}", *fixed], slices=slices, attempt=attempt)
    assert job.exit_codes(200) == [0] * slices, job.logs()
    return job


@pytest.mark.slow
def test_a_job_resumes_after_losing_and_regaining_a_slice(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", 2, 0, 9).losses()
    losses: dict[int, str] = {}
    for attempt, slices in enumerate((2, 1, 2)):
        job = run(tmp_path / "cut", slices, attempt, 3 * (attempt + 1), "checkpoint.max_to_keep=1")
        losses |= job.losses()
        assert "warning" not in job.logs()
    assert sorted(losses) == list(range(1, 10))
    for step, loss in losses.items():
        assert float.fromhex(loss) == pytest.approx(float.fromhex(whole[step]), abs=TOLERANCE), step
    job = run(tmp_path / "cut", 1, 3, 10, "data.global_batch=4", "data.eval_fraction=0.02")
    assert "warning: the order of records has changed: data.global_batch 8 -> 4, the number of trained" in job.logs()
    assert "warning: the evaluation split changed" in job.logs()
