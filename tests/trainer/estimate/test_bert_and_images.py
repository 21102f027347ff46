"""Estimates of BERT and of models of images: parameters, FLOPs and state are those of the models; compiled reports."""

import json
import math
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import pytest
from jax.sharding import AbstractMesh

from tests.trainer.emulated import Trainer
from tests.trainer.small import WORKLOADS
from trainer import config
from trainer.config import Config
from trainer.data import batches
from trainer.estimate import bert, closed_form, images
from trainer.estimate.accelerators import find_slice
from trainer.estimate.cli import _estimate_of
from trainer.estimate.flops import flops, int8_share, training_flops
from trainer.models import registry
from trainer.parallel import layout
from trainer.parallel.mesh import ALL
from trainer.step import programs as step

SLICE = find_slice("v5litepod-16")
COMMAND = """
import sys
from trainer import main
try:
    main.main(sys.argv[1:])
except SystemExit as end:
    print(end.code, "jax" in sys.modules, file=sys.stderr)
"""
SMALL_BERT = ("model.family=bert", "model.seq_len=16", "model.remat=none")


def bytes_of_state(configuration: Config, chips: layout.Chips) -> int:
    """Return the bytes of the state on a chip, by the shardings of the programs."""
    sizes = layout.layout(configuration, chips)
    described: Any = AbstractMesh((sizes.dp, sizes.stages, sizes.fsdp, sizes.tp), ALL)
    slots = batches.Slots(chips.total, tuple(range(chips.total)), -(-sizes.global_batch // chips.total))
    leaves = jax.tree.leaves(step.build(configuration, described, slots, sizes).state)
    return sum(math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in leaves)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("bert-large", ()),
        ("bert-mlperf", ("mesh.tp=2",)),
        ("bert-mlperf", ("optim.name=lars", "optim.moment_dtype=bfloat16")),
        ("resnet50", ()),
        ("resnet50", ("optim.update_axes=dp",)),
        ("resnet50", ("optim.name=adamw", "optim.update_axes=fsdp")),
        ("ssd", ()),
        ("ssd", ("optim.name=adamw", "optim.update_axes=dp")),
        ("mask-rcnn", ()),
        ("mask-rcnn", ("optim.update_axes=fsdp", "mesh.tp=4", "data.global_batch=8")),
    ],
)
def test_the_estimated_state_is_that_of_the_programs(name: str, settings: Sequence[str]) -> None:
    configuration, chips = config.load(name, settings), layout.Chips(2, SLICE.hosts, SLICE.chips_per_host)
    module: Any = bert if configuration.model.family == "bert" else images
    estimated = module.memory(configuration, layout.layout(configuration, chips)).state
    # Without counters and batch norm's averages.
    assert estimated == pytest.approx(bytes_of_state(configuration, chips), rel=0.005)


@pytest.mark.parametrize("name", ["bert-tiny", "bert-large", "bert-mlperf"])
def test_parameters_and_flops_of_bert_are_those_of_the_model(name: str) -> None:
    model = config.load(name).model
    assert sum(bert.numbers(model)) == registry.parameters(model)
    assert bert.flops_per_token(model) * model.seq_len == pytest.approx(registry.flops_per_record(model), rel=1e-12)


@pytest.mark.parametrize(
    "settings",
    [
        (),
        ("model.blocks=1,2", "model.image=24"),
        ("model.blocks=3", "model.width=24"),
        ("model.block=basic",),
        ("model.block=basic", "model.blocks=2,1", "model.width=24"),
    ],
)
@pytest.mark.parametrize("name", ["resnet-tiny", "resnet50"])
def test_parameters_and_flops_of_resnet_are_those_of_the_model(name: str, settings: Sequence[str]) -> None:
    model = config.load(name, settings).model
    assert images.parameters(model) == registry.parameters(model)
    assert images.flops_per_image(model) == pytest.approx(registry.flops_per_record(model), rel=1e-12)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("ssd-tiny", ()),
        ("ssd", ()),
        ("ssd", ("model.image=301", "model.blocks=1,2", "model.width=24")),
        ("ssd", ("model.image=150", "model.blocks=1,1,2,1", "model.classes=7")),
        ("mask-rcnn-tiny", ()),
        ("mask-rcnn", ()),
        ("mask-rcnn", ("model.image=96", "model.blocks=1,2", "model.width=24", "model.mask_layers=0")),
        ("mask-rcnn", ("model.image=832", "model.image_width=1344", "model.short_side=800", "model.long_side=1333")),
        ("mask-rcnn", ("model.region_samples=3", "model.pyramid=64", "model.mlp=96")),
        ("mask-rcnn", ("model.frozen_norm=true", "model.frozen_stages=2")),
    ],
)
def test_parameters_and_flops_of_detection_are_those_of_the_model(name: str, settings: Sequence[str]) -> None:
    model = config.load(name, settings).model
    assert images.parameters(model) == registry.parameters(model)
    assert images.flops_per_image(model) == pytest.approx(registry.flops_per_record(model), rel=1e-12)


def test_the_products_of_a_step_of_bert_are_counted() -> None:
    small = config.load("tiny", [*SMALL_BERT, "model.embed=64", "model.heads=4", "model.head_dim=16"])
    counted = sum(training_flops(small).values())
    assert counted == pytest.approx(bert.flops_per_token(small.model) * small.model.seq_len, rel=0.01)


@pytest.mark.parametrize("remat", ["none", "dots", "attention", "full"])
def test_recomputation_of_bert_is_counted(remat: str) -> None:
    settings = ("model.family=bert", "model.embed=256", f"model.remat={remat}", "model.attention_chunk=8")
    made = Trainer(1, 1, 1, *settings)
    traced = made.programs.train.trace(made.programs.state, made.programs.blocks, made.programs.flags)
    tokens = made.batch * made.config.model.seq_len
    counted = sum(flops(traced.jaxpr.jaxpr).values())
    assert counted == pytest.approx(bert.computed_flops_per_token(made.config.model) * tokens, rel=0.03)


@pytest.mark.parametrize("name", ["bert-mlperf", "transformer"])
def test_int8_products_take_half_the_time(name: str) -> None:
    estimate, batch = _estimate_of(config.load(name).model.family), ["data.batch_per_chip=64", "data.global_batch=0"]
    products = ["quant.matmuls=forward,dgrad,wgrad"]
    plain, int8 = (estimate(config.load(name, [*batch, *more]), SLICE, 1) for more in ([], products))
    assert plain["bound_by"] == int8["bound_by"] == "compute" and plain["mfu_bound"] == plain["emfu_bound"]
    # Of the FLOPs at the peaks, the share that is computed in int8 takes 197 / 393 of the time.
    share, saved = int8_share(config.load(name, [*batch, *products])), 1 - SLICE.chip.peak_bf16 / SLICE.chip.peak_int8
    assert 1 - int8["mfu_bound"] / int8["emfu_bound"] == pytest.approx(share * saved, rel=0.02)
    assert int8["mfu_bound"] == pytest.approx(plain["mfu_bound"], rel=0.1), "of all products at their peaks"
    assert int8["step_seconds"] < 0.75 * plain["step_seconds"]
    forward = estimate(config.load(name, [*batch, "quant.matmuls=forward"]), SLICE, 1)
    assert int8["step_seconds"] < forward["step_seconds"] < plain["step_seconds"]


@pytest.mark.parametrize("name", ["bert-mlperf", "resnet50", "ssd", "mask-rcnn"])
def test_an_estimate_has_the_fields_of_a_decoders_and_does_not_import_jax(name: str) -> None:
    command = [sys.executable, "-c", COMMAND, "estimate", "--config", name, "--tpu-type", SLICE.name, "-o", "json"]
    command += ["--num-slices", "2"]
    ran = subprocess.run(command, env={"PYTHONPATH": str(WORKLOADS)}, capture_output=True, text=True)
    assert ran.stderr == "0 False\n"
    report = json.loads(ran.stdout)
    assert report.keys() == closed_form.estimate(config.load("tiny", ["data.global_batch=64"]), SLICE, 2).keys()
    assert report["fits"] and 0 < report["state_gib"] < report["peak_gib"]
    assert 0 < report["mfu_bound"] < 1 and report["expected_step_seconds"] == report["step_seconds"]


@pytest.mark.parametrize(
    ("name", "module"), [("bert-mlperf", bert), ("resnet50", images), ("ssd", images), ("mask-rcnn", images)]
)
def test_slices_send_gradients_and_elastic_ones_send_them_in_full_width(name: str, module: Any) -> None:
    alone, two = (module.estimate(config.load(name), SLICE, slices) for slices in (1, 2))
    assert alone["dcn_gib_per_step"] == 0 < two["dcn_gib_per_step"]
    batch = f"data.global_batch={two['global_batch']}"
    elastic_config = config.load(name, [batch, "data.batch_per_chip=1"])
    elastic = module.estimate(elastic_config, SLICE, 2, is_elastic=True)
    assert elastic["dcn_gib_per_step"] > two["dcn_gib_per_step"]
    assert (elastic["chips"], elastic["global_batch"]) == (two["chips"], two["global_batch"])


def test_memory_grows_with_the_batch_and_shrinks_with_rematerialization() -> None:
    peaks = [
        bert.estimate(config.load("bert-large", [f"model.remat={remat}", f"data.batch_per_chip={rows}"]), SLICE, 1)
        for remat, rows in (("full", 8), ("dots", 8), ("none", 8), ("none", 16))
    ]
    assert [row["peak_gib"] for row in peaks] == sorted({row["peak_gib"] for row in peaks})
    for name, small, large in (("resnet50", 64, 512), ("ssd", 16, 256), ("mask-rcnn", 1, 16)):
        rows = [images.estimate(config.load(name, [f"data.batch_per_chip={n}"]), SLICE, 1) for n in (small, large)]
        assert [row["fits"] for row in rows] == [True, False]


FAMILY_CONFIGS = {"bert-mlperf", "bert-large", "resnet50", "ssd", "mask-rcnn", "transformer", "gnmt", "dlrm"}
RESULTS = Path(__file__).parents[3] / "bench" / "results"


@pytest.mark.parametrize(("kind", "without"), [("families", set()), ("updates", {"dlrm"})])
def test_estimates_are_near_recorded_compiler_reports(kind: str, without: set[str]) -> None:
    rows = json.loads(sorted(RESULTS.glob(f"{kind}-*.json"))[-1].read_text())
    assert {row["config"] for row in rows} == FAMILY_CONFIGS - without
    for row in rows:
        configuration = config.load(row["config"], row["settings"])
        result = _estimate_of(configuration.model.family)(configuration, find_slice(row["tpu_type"]), row["num_slices"])
        assert row["peak_gib"] < row["hbm_gib"] == result["hbm_gib"]
        assert result["peak_gib"] == pytest.approx(row["peak_gib"], rel=0.4), row
        assert result["dcn_gib_per_step"] == pytest.approx(row["dcn_gib_per_step"], rel=0.3), row
        if row["config"] != "dlrm" or row["num_slices"] > 1:  # replicas of DLRM inside a slice are not counted
            assert result["ici_gib_per_step"] == pytest.approx(row["ici_gib_per_step"], rel=0.3), row
