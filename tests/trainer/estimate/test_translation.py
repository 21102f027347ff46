"""Estimates of models that translate: their state is that of the programs, and their fields those of a decoder's."""

import json
import math
from typing import Any

import jax
import pytest
from jax.sharding import AbstractMesh

from trainer import config
from trainer.data import batches
from trainer.estimate import closed_form, translation
from trainer.estimate.accelerators import find_slice
from trainer.main import main
from trainer.parallel import layout
from trainer.parallel.mesh import ALL
from trainer.step import programs as step

SLICE = find_slice("v5litepod-16")


@pytest.mark.parametrize("name", ["transformer", "gnmt"])
@pytest.mark.parametrize("tp", [1, 2])
def test_the_estimated_state_equals_that_of_the_programs(name: str, tp: int) -> None:
    configuration = config.load(name, [f"mesh.tp={tp}"])
    chips = layout.Chips(2, SLICE.hosts, SLICE.chips_per_host)
    sizes = layout.layout(configuration, chips)
    described: Any = AbstractMesh((sizes.dp, sizes.stages, sizes.fsdp, sizes.tp), ALL)
    slots = batches.Slots(chips.total, tuple(range(chips.total)), -(-sizes.global_batch // chips.total))
    state = step.build(configuration, described, slots, sizes).state
    on_a_chip = sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in jax.tree.leaves(state)
    )
    assert translation.memory(configuration, sizes).state == pytest.approx(on_a_chip, rel=0.01)


@pytest.mark.parametrize("name", ["transformer", "gnmt"])
def test_an_estimate_has_the_fields_of_a_decoders(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["estimate", "--config", name, "--tpu-type", SLICE.name, "--num-slices", "2", "-o", "json"])
    assert not ended.value.code
    report = json.loads(capsys.readouterr().out)
    assert set(report) == set(closed_form.estimate(config.load("tiny", ["data.global_batch=64"]), SLICE, 2))
    assert report["fits"] and 0 < report["state_gib"] < report["peak_gib"]
    assert 0 < report["mfu_bound"] < 1
    alone = translation.estimate(config.load(name), SLICE, 1)
    assert alone["dcn_gib_per_step"] == 0 < report["dcn_gib_per_step"]
    elastic = translation.estimate(config.load(name, ["data.global_batch=512"]), SLICE, 2, is_elastic=True)
    # float32 gradients twice; joined slices send bfloat16 gradients twice, and new parameters in float32
    assert elastic["dcn_gib_per_step"] == report["dcn_gib_per_step"]


def test_memory_grows_with_the_batch_and_what_is_saved() -> None:
    for name in ("transformer", "gnmt"):
        peaks = [
            translation.estimate(config.load(name, [f"model.remat={remat}", f"data.batch_per_chip={rows}"]), SLICE, 1)
            for remat, rows in (("full", 8), ("none", 8), ("none", 32))
        ]
        assert peaks[0]["peak_gib"] < peaks[1]["peak_gib"] < peaks[2]["peak_gib"]


def test_parts_of_a_batch_and_an_explicit_reduction_change_what_is_sent() -> None:
    names = ("whole", "parts", "explicit")
    settings = ((), ("optim.grad_accum_steps=2",), ("mesh.grad_reduction=explicit", "optim.grad_accum_steps=2"))
    shared = ["model.compute_dtype=float32", "optim.update_axes=", "data.batch_per_chip=16"]
    sent = {
        name: translation.estimate(config.load("transformer", [*shared, *own]), SLICE, 2)
        for name, own in zip(names, settings, strict=True)
    }
    dcn, ici = ({name: one[key] for name, one in sent.items()} for key in ("dcn_gib_per_step", "ici_gib_per_step"))
    assert dcn["parts"] == pytest.approx(2 * dcn["whole"], rel=0.01), "gradients are sent for every part"
    assert dcn["explicit"] == pytest.approx(dcn["whole"] / 2, rel=0.01), "once, in bfloat16"
    assert ici["parts"] == ici["explicit"] == pytest.approx(2 * ici["whole"], rel=0.01)
