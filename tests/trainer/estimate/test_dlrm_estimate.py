"""The estimate of DLRM against its programs: state, FLOPs and exchanged bytes."""

import json
import math
from typing import Any

import jax
import pytest
from jax.sharding import AbstractMesh

from tests.trainer.clicks import SETTINGS, clicks_on
from tests.trainer.collectives import collectives
from tests.trainer.small import run_alone
from trainer import config
from trainer.data import batches
from trainer.estimate import dlrm
from trainer.estimate.accelerators import find_slice
from trainer.estimate.closed_form import estimate
from trainer.estimate.flops import training_flops
from trainer.models import registry
from trainer.parallel import layout
from trainer.parallel.mesh import ALL
from trainer.step import programs

TINY = config.load("tiny", SETTINGS)


@pytest.mark.parametrize("name", ["dlrm", "dlrm-tiny"])
@pytest.mark.parametrize("settings", [(), ("optim.update_axes=fsdp,dp",), ("optim.update_axes=", "optim.name=lars")])
def test_the_estimated_state_is_that_of_the_programs(name: str, settings: tuple[str, ...]) -> None:
    configuration, chips = config.load(name, settings), layout.Chips(2, 2, 4)
    sizes = layout.layout(configuration, chips)
    described: Any = AbstractMesh((sizes.dp, sizes.stages, sizes.fsdp, sizes.tp), ALL)
    slots = batches.Slots(chips.total, tuple(range(chips.total)), sizes.global_batch // chips.total)
    leaves = jax.tree.leaves(programs.build(configuration, described, slots, sizes).state)
    state_bytes = sum(math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in leaves)
    # Tensors that the axes do not divide are on all chips.
    assert dlrm.memory(configuration, sizes).state == pytest.approx(
        state_bytes, rel=0.02 if name == "dlrm-tiny" else 1e-4
    )


def test_the_estimated_flops_are_those_of_the_model() -> None:
    assert dlrm.flops_per_example(TINY.model) == registry.flops_per_record(TINY.model)
    # The first layer has no gradient of its input.
    first = 2 * TINY.model.dense_features * 16
    assert sum(training_flops(TINY).values()) == registry.flops_per_record(TINY.model) - first


@pytest.mark.slow
def test_the_estimated_traffic_has_the_all_to_alls_of_the_program() -> None:
    trainer = clicks_on(1, 4, "model.placements=rows,rows,replicated,replicated")
    sent = sum(one.bytes for one in collectives(trainer.train().as_text()) if one.kind == "all-to-all") * 3 / 4
    sizes = layout.layout(trainer.config, layout.Chips(1, 1, 4))
    replicated = dlrm.traffic(config.load("tiny", [*SETTINGS, "model.placements=replicated"]), sizes).ici
    tables = (2048 + 2048) * 16 * 4 * 2 * 3 / 4  # the all-reduce of their gradients
    assert dlrm.traffic(trainer.config, sizes).ici == pytest.approx(replicated - tables + sent)


def test_the_estimate_agrees_with_the_tpu_compiler() -> None:
    """Compare with `python -m trainer compile --config dlrm --tpu-type v5litepod-64 --num-slices 2`."""
    compiled = {"peak_gib": 5.621, "state_gib": 4.207, "dcn_gib_per_step": 0.0065, "ici_gib_per_step": 0.048}
    figures = dlrm.estimate(config.load("dlrm"), find_slice("v5litepod-64"), 2)
    assert {key: figures[key] for key in compiled} == pytest.approx(compiled, rel=0.03)


def test_the_estimate_has_the_fields_of_a_decoders() -> None:
    pod = find_slice("v5litepod-256")
    figures = dlrm.estimate(config.load("dlrm"), pod, 2)
    assert figures.keys() == estimate(config.load("16b"), pod, 2).keys()
    assert figures["parameters"] == registry.parameters(config.load("dlrm").model)
    assert figures["fits"] and not dlrm.estimate(config.load("dlrm"), find_slice("v5litepod-16"), 2)["fits"]
    assert 1 > figures["step_seconds"] < figures["expected_step_seconds"]


def test_the_command_estimates_a_dlrm() -> None:
    ran = run_alone("estimate", "--config", "dlrm", "--tpu-type", "v5litepod-64", "-o", "json")
    assert ran.returncode == 0 and json.loads(ran.stdout)["fits"]
