"""Differing copies of the state are found, and named with chip and array."""

import functools
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from tests.trainer.emulated import Trainer, on
from tests.trainer.planted import flipped
from tests.trainer.small import start
from trainer.checkpoint.replica_check import Replicas, checksum
from trainer.errors import CorruptError
from trainer.hosts.bootstrap import Host
from trainer.storage import open_place
from trainer.telemetry.metrics import Events, JsonLines


@functools.cache
def fresh(dp: int, fsdp: int, tp: int, *settings: str) -> tuple[Trainer, Any]:
    trainer = Trainer(dp, fsdp, tp, *settings)
    return trainer, trainer.init(np.uint32(0))


def checks(trainer: Trainer, folder: Path) -> Replicas:
    events = Events(JsonLines(open_place(folder) / "events.jsonl"), 0, 0, 0, 0.0)
    made = Replicas(5, trainer.mesh, trainer.programs.state, Host(), events)
    made.compile(lambda name, program, state: program.lower(state).compile())
    return made


def with_flip(state: Any, name: str, chip: int) -> Any:
    """Return the state with one flipped bit of an array on one chip."""
    result = {key: value for key, value in state["params"].items() if key != name}
    return state | {"params": result | {name: flipped(state["params"][name], chip)}}


@pytest.mark.slow
def test_copies_of_a_trained_state_are_the_same(tmp_path: Path) -> None:
    trainer = on(2, 2, 2)
    state, check = trainer.init(np.uint32(0)), checks(trainer, tmp_path)
    for step in (1, 2):
        state, _ = trainer.train()(state, trainer.blocks(np.arange(8)), trainer.flags)
        check.require(step, state)


def test_a_bit_that_changed_on_one_of_many_chips_is_named(tmp_path: Path) -> None:
    trainer, state = fresh(4, 2, 1, "optim.update_axes=fsdp,dp")
    with pytest.raises(CorruptError) as raised:
        checks(trainer, tmp_path).require(7, with_flip(state, "embed", 5))
    expected = "replicas differ after step 7: params.embed on slice 0 host 0 chip 5 differs from the 3 other copies"
    assert (str(raised.value), raised.value.suspects) == (expected, (0,))
    (event,) = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert event["arrays"] == [{"array": "params.embed", "chips": ["slice 0 host 0 chip 5"], "sure": True}]


def test_both_of_two_differing_copies_are_named(tmp_path: Path) -> None:
    trainer = on(2, 2, 2)
    state = trainer.init(np.uint32(0))
    with pytest.raises(CorruptError) as raised:
        checks(trainer, tmp_path).require(7, with_flip(state, "embed", 5))
    assert "params.embed on slice 0 host 0 chip 5 differs from slice 0 host 0 chip 1" in str(raised.value)


def test_replicated_arrays_are_compared_within_one_replica(tmp_path: Path) -> None:
    trainer, state = fresh(1, 4, 1)
    checks(trainer, tmp_path).require(1, state)
    with pytest.raises(
        CorruptError, match=r"params\.final_norm on slice 0 host 0 chip 2 differs from the 3 other copies"
    ):
        checks(trainer, tmp_path).require(1, with_flip(state, "final_norm", 2))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32"])
def test_any_bit_of_any_value_changes_the_checksum(dtype: str) -> None:
    x = np.random.default_rng(0).normal(0, 100, (3, 4, 5)).astype(dtype)
    bits = x.view(f"uint{8 * x.itemsize}")
    summed = jax.jit(checksum)
    whole = int(summed(x))
    for place in range(0, 60, 7):
        for bit in range(0, 8 * x.itemsize, 5):
            bits.reshape(-1)[place] ^= 1 << bit
            assert int(summed(x)) != whole, (place, bit)
            bits.reshape(-1)[place] ^= 1 << bit
    assert int(summed(x)) == whole
    assert int(summed(np.flip(x, 0).copy())) != whole


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_host_that_miscalculates_ends_the_job_before_its_state_is_saved(tmp_path: Path) -> None:
    settings = ["run.steps=1000", "run.eval_every=0", "data.max_bytes=50000", "checkpoint.every=4"]
    job = start(tmp_path, [*settings, "observe.checksum_every=3"], faults={1: "flip:7"})
    assert job.exit_codes() == [77, 77], job.logs()
    message = "replicas differ after step 8: params.embed on slice 1 host 0 chip 1 differs from slice 0 host 0 chip 1"
    assert f"error: {message}" in job.logs()
    assert [path.name for path in (tmp_path / "checkpoints").iterdir() if path.name.isdigit()] == ["4"]


def test_the_checksum_of_a_whole_array_has_the_parts_of_all_chips(tmp_path: Path) -> None:
    """Elastic slices compare it. On a slice without copies only they notice a change."""
    trainer, state = fresh(1, 4, 1)
    check = checks(trainer, tmp_path)
    sums = [
        check.array_checksums(step, changed)
        for step, changed in enumerate([state, state, with_flip(state, "embed", 3)])
    ]
    assert sums[0] == sums[1]
    assert sum(one != other for one, other in zip(sums[0], sums[2], strict=True)) == 1
