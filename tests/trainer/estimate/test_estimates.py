"""Estimates before a run: TPU types, the closed form, and the traffic of a compiled program."""

import dataclasses
import itertools
import json
import math
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.trainer.emulated import Trainer, on
from tests.trainer.small import WORKLOADS, run_alone
from trainer import config
from trainer.errors import FatalError
from trainer.estimate.accelerators import CHIPS, find_slice
from trainer.estimate.closed_form import compute_seconds, computed_flops_per_token, estimate
from trainer.estimate.flops import flops
from trainer.estimate.hlo_transfers import Collectives, Transfer, slice_collectives, transfers
from trainer.estimate.memory import memory
from trainer.estimate.step_time import Factors, StepTerms, step_terms
from trainer.estimate.traffic import traffic
from trainer.models import decoder
from trainer.models.mfu import flops_per_token, mfu, parameters
from trainer.parallel import layout
from trainer.parallel.partitioning import Execution
from xpk.model.accelerators import SliceShape, all_shapes

POD = find_slice("v5litepod-256")
NAMED = ("16b", "32b", "64b", "128b")
SIZES = ("--config", "128b", "--tpu-type", "v5litepod-256", "--num-slices", "199", "-o", "json")


def test_tpu_types_are_those_of_xpk() -> None:
    shapes = [shape for shape in all_shapes() if shape.family in CHIPS]
    assert {shape.family for shape in shapes} | {"v5e"} == set(CHIPS)
    for shape in shapes:
        same_as(shape, shape.name)
        if shape.chips <= 256:
            for name in shape.other_names:
                same_as(shape, name)


def same_as(shape: SliceShape, name: str) -> None:
    mine = find_slice(name)
    assert ("x".join(map(str, mine.topology)), mine.hosts) == (shape.topology, shape.hosts), name
    assert (mine.chips, mine.chips_per_host) == (shape.chips, shape.chips_per_host), name
    assert (mine.chip.peak_bf16, mine.chip.peak_int8) == (shape.peak_bf16, shape.peak_int8), name
    assert 0.95 < mine.chip.hbm_gib / (shape.hbm_gib or 0) < 1.01, name


@pytest.mark.parametrize(
    ("name", "hint"), [("v5lite-256", "Did you mean v5litepod-256?"), ("v5e-300", "v5e-256"), ("256", "Families are")]
)
def test_an_unknown_type_lists_the_valid_ones(name: str, hint: str) -> None:
    with pytest.raises(FatalError) as error:
        find_slice(name)
    assert hint in str(error.value.problems[0])


def test_the_estimated_state_equals_that_of_the_programs() -> None:
    trainer = on(2, 2, 2)
    sizes = layout.layout(trainer.config, layout.Chips(1, 1, 8))
    on_a_chip = sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(trainer.programs.state)
        if leaf.ndim  # counters are not in the formula
    )
    assert memory(trainer.config, sizes).state == on_a_chip


@pytest.mark.parametrize("variant", [(), ("model.kv_heads=2", "model.activation=swiglu")])
def test_flops_equal_those_that_xla_counts(variant: tuple[str, ...]) -> None:
    sizes = ["embed=256", "heads=4", "head_dim=64", "mlp=1024", "layers=1", "vocab=512", "seq_len=256", "remat=none"]
    one = Trainer(1, 1, 1)
    asked = config.load(
        "tiny", [*(f"model.{size}" for size in sizes), *variant]
    ).model  # one layer: XLA counts a loop's body once
    params = jax.eval_shape(lambda: decoder.init(asked, jax.random.key(0)))
    grad = jax.grad(lambda *args: decoder.loss_sums(asked, Execution(one.mesh), *args)[0])
    counted = jax.jit(grad).lower(params, jnp.zeros((4, 257), jnp.int32), jnp.ones(4)).cost_analysis() or {}
    assert counted["flops"] == pytest.approx(flops_per_token(asked) * 4 * 256, rel=0.02)


def test_recomputation_counts_for_the_chip_but_not_for_the_model() -> None:
    saved, again, chunks = (
        config.load(
            "16b", [f"model.remat={remat}", f"model.attention_chunk={chunk}", f"model.loss_chunk={chunk}"]
        ).model
        for remat, chunk in (("none", 0), ("full", 0), ("full", 512))
    )
    assert computed_flops_per_token(saved) == flops_per_token(saved) == flops_per_token(again)
    assert 1.2 < computed_flops_per_token(again) / flops_per_token(again) < 4 / 3  # all but a layer's last product
    assert computed_flops_per_token(chunks) > computed_flops_per_token(again)


def test_int8_products_take_half_the_time() -> None:
    plain, forward, every = (
        estimate(config.load("128b", [f"quant.matmuls={dots}"]), POD, 1)
        for dots in ("", "forward", "forward,dgrad,wgrad")
    )
    assert 1.25 < plain["step_seconds"] / forward["step_seconds"] < 1.3  # 5 of 11 products at twice the speed
    assert 1.8 < plain["step_seconds"] / every["step_seconds"] < 2
    assert plain["mfu_bound"] == plain["emfu_bound"] < 0.81 < 1.4 < every["emfu_bound"] < 1.6
    assert every["mfu_bound"] < 0.81


# Published for these four models: MaxText's README of 2024, TPU v5e; slices, then (TFLOP/s per chip, MFU in percent).
PUBLISHED = {
    1: ((120, 61.10), (132, 66.86), (118, 59.90), (110, 56.06)),
    2: ((117, 59.37), (128, 64.81), (112, 56.66), (110, 55.82)),
    4: ((117, 59.14), (126, 64.10), (110, 55.85), (108, 54.93)),
    8: ((115, 58.27), (125, 63.67), (108, 54.96), (104, 52.93)),
    16: ((111, 56.56), (123, 62.26), (105, 53.29), (100, 50.86)),
    32: ((108, 54.65), (119, 60.40), (99, 50.18), (91, 46.25)),
}


@pytest.mark.parametrize("slices", PUBLISHED)
def test_mfu_equals_the_published_one_and_is_below_the_bound(slices: int) -> None:
    for name, (tera, percent) in zip(NAMED, PUBLISHED[slices], strict=True):
        asked = config.load(name)
        chips = 256 * slices
        tokens_per_second = chips * tera * 1e12 / flops_per_token(asked.model)
        result = mfu(flops_per_token(asked.model), tokens_per_second, chips, POD.chip.peak_bf16)
        assert result == pytest.approx(percent / 100, abs=0.5 / 197 + 0.001)  # their TFLOP/s are rounded
        assert percent / 100 < estimate(asked, POD, slices)["mfu_bound"] < 0.81  # recomputation does not count


PUBLISHED_199 = 44.67  # percent, of 32B on 199 slices


def published() -> list[tuple[str, int, float]]:
    """Return (model, slices, MFU) of every published measurement."""
    cases = [
        (name, slices, percent / 100)
        for slices, row in PUBLISHED.items()
        for name, (_, percent) in zip(NAMED, row, strict=True)
    ]
    return [*cases, ("32b", 199, PUBLISHED_199 / 100)]


def published_terms(name: str, slices: int) -> tuple[float, StepTerms]:
    """Return (seconds of the model's FLOPs at the peak, terms of the step); 32B without tp, which fits best."""
    asked = config.load(name, ["mesh.tp=1"] if name == "32b" else [])
    sizes = layout.layout(asked, layout.Chips(slices, 64, 4))
    tokens = sizes.global_batch * asked.model.seq_len / (256 * slices)
    arithmetic = compute_seconds(asked, sizes, POD.chip) * tokens
    return (
        flops_per_token(asked.model) * tokens / POD.chip.peak_bf16,
        step_terms(asked, sizes, POD, arithmetic, traffic(asked, sizes)),
    )


def fitted(cases: list[tuple[str, int, float]]) -> Factors:
    """Return the factors with the least squares of the relative errors of step times."""
    rows, values = [], []
    for name, slices, known in cases:
        model_seconds, terms = published_terms(name, slices)
        seconds = model_seconds / known
        rows.append([term / seconds for term in (terms.scores, terms.ici, terms.dcn, terms.hops)])
        values.append((seconds - terms.arithmetic - terms.update) / seconds)
    score_bytes, ici_exposed, dcn_slowdown, hop_seconds = np.linalg.lstsq(np.array(rows), np.array(values))[0]
    return Factors(score_bytes=score_bytes, ici_exposed=ici_exposed, dcn_slowdown=dcn_slowdown, hop_seconds=hop_seconds)


def errors(cases: list[tuple[str, int, float]], factors: Factors) -> list[float]:
    terms = [(published_terms(name, slices), known) for name, slices, known in cases]
    return [seconds / term.seconds(factors) - known for (seconds, term), known in terms]


def test_the_factors_of_step_times_are_the_fitted_ones() -> None:
    factors = fitted(published())
    for field in dataclasses.fields(Factors):
        assert getattr(factors, field.name) == pytest.approx(getattr(Factors(), field.name), rel=0.01)
    assert max(map(abs, errors(published(), Factors()))) < 0.015


def test_step_times_predict_measurements_that_were_left_out() -> None:
    every = published()
    alone = [errors([case], fitted([other for other in every if other != case]))[0] for case in every]
    assert (
        np.mean(np.abs(alone)) < 0.0085 and np.max(np.abs(alone)) < 0.027
    )  # the largest: 199 slices, from 32 and fewer
    for name in NAMED:
        rest = fitted([case for case in every if case[0] != name])
        assert max(map(abs, errors([case for case in every if case[0] == name], rest))) < 0.028


def test_expected_mfu_ranks_the_models_and_falls_with_slices() -> None:
    rows = {
        slices: [estimate(config.load(name), POD, slices)["expected_mfu"] for name in NAMED] for slices in PUBLISHED
    }
    for row in rows.values():
        small, best, large, largest = row
        assert best > small > large > largest
    for fewer, more in itertools.pairwise(rows.values()):
        assert all(before > after for before, after in zip(fewer, more, strict=True))
    assert all(expected < estimate(config.load("32b"), POD, n)["mfu_bound"] for n, (_, expected, *_) in rows.items())


@pytest.mark.parametrize("variant", [(), ("model.kv_heads=1", "model.activation=swiglu")])
@pytest.mark.parametrize("remat", ["none", "dots", "attention", "full"])
def test_computed_flops_are_those_of_the_program(remat: str, variant: tuple[str, ...]) -> None:
    settings = (f"model.remat={remat}", "model.attention_chunk=8", "model.loss_chunk=8", "model.embed=256", *variant)
    trainer = Trainer(1, 2, 1, *settings)
    programs, tokens = trainer.programs, trainer.batch * trainer.config.model.seq_len
    traced = programs.train.trace(programs.state, programs.blocks, programs.flags)
    counted = sum(flops(traced.jaxpr.jaxpr).values())
    assert counted == pytest.approx(computed_flops_per_token(trainer.config.model) * tokens, rel=0.02)


@pytest.mark.parametrize("slices", [1, 2, 16, 199])
def test_named_models_fit_the_pods_they_were_trained_on(slices: int) -> None:
    for name in NAMED:
        result = estimate(config.load(name), POD, slices)
        assert result["fits"], result
        assert result["peak_gib"] > result["state_gib"] + result["activations_gib"]
    assert not estimate(config.load("128b", ["data.batch_per_chip=8"]), POD, slices)["fits"]
    assert not estimate(config.load("128b", ["mesh.tp=1"]), POD, slices)["fits"]


COMPILED = sorted((Path(__file__).parents[3] / "bench" / "results").glob("compiled-*.json"))[-1]


def test_estimates_match_recorded_compiler_reports() -> None:
    rows = json.loads(COMPILED.read_text())
    assert {(row["config"], row["num_slices"]) for row in rows} == {(m, n) for m in NAMED for n in (1, 2, 16, 199)}
    for row in rows:
        result = estimate(config.load(row["config"]), find_slice(row["tpu_type"]), row["num_slices"])
        assert result["peak_gib"] == pytest.approx(row["peak_gib"], rel=0.1), row
        assert result["state_gib"] == pytest.approx(row["state_gib"], rel=0.01), row
        assert result["dcn_gib_per_step"] == pytest.approx(row["dcn_gib_per_step"], rel=0.06), row
        assert result["ici_gib_per_step"] == pytest.approx(row["ici_gib_per_step"], rel=0.03), row
        assert row["peak_gib"] < row["hbm_gib"] == result["hbm_gib"]


def test_dcn_traffic_grows_to_twice_the_gradients_and_is_zero_in_one_slice() -> None:
    asked = config.load("128b")
    sizes = [layout.layout(asked, layout.Chips(slices, 64, 4)) for slices in (1, 2, 199)]
    alone, two, many = (traffic(asked, size).dcn for size in sizes)
    assert alone == 0
    assert many / two == pytest.approx(2 * 198 / 199)
    assert many == pytest.approx(2 * 2 * parameters(asked.model) / 256, rel=0.02)


def test_replicas_of_a_slice_divide_the_dcn_traffic() -> None:
    settings = ["model.compute_dtype=bfloat16", "mesh.grad_reduction=explicit", "mesh.dp=4"]
    asked = config.load("tiny", settings)
    compiled = 216_064  # by XLA's TPU compiler for two slices of v5litepod-4: docs/parallelism.md
    assert traffic(asked, layout.layout(asked, layout.Chips(2, 1, 4))).dcn == pytest.approx(compiled, rel=0.1)


def test_elastic_slices_hold_the_whole_state_and_send_gradients_of_full_width() -> None:
    """Each is a world of one slice, with one share of the batch."""
    asked = config.load("32b", ["optim.update_axes=fsdp,dp", "data.global_batch=4096"])
    joined, elastic = (estimate(asked, POD, 4, is_elastic=is_elastic) for is_elastic in (False, True))
    alone = estimate(config.load("32b", ["data.global_batch=1024"]), POD, 1)
    same_work = ("chips", "global_batch", "flops_per_step")
    assert [joined[key] for key in same_work] == [elastic[key] for key in same_work]
    assert elastic["state_gib"] == alone["state_gib"] > joined["state_gib"]
    assert (elastic["mesh"], elastic["peak_gib"]) == (alone["mesh"], alone["peak_gib"])
    assert elastic["dcn_gib_per_step"] == pytest.approx(2 * joined["dcn_gib_per_step"], rel=0.02)  # float32
    narrow = ["mesh.grad_reduction=explicit", "mesh.grad_reduction_dtype=bfloat16", "mesh.tp=1"]
    sent = [estimate(config.load("32b", narrow[:n]), POD, 4, is_elastic=True)["dcn_gib_per_step"] for n in (0, 3)]
    assert sent[1] == pytest.approx(sent[0] / 2, rel=0.01)


def test_the_vectors_of_elastic_slices_count_where_activations_are_small() -> None:
    settings = ["model.layers=64", "model.seq_len=16", "model.remat=full", "data.global_batch=8"]
    asked = config.load("tiny", settings)
    one, elastic = (estimate(asked, find_slice("v5litepod-4"), 2, is_elastic=is_on) for is_on in (False, True))
    gradients = 4 * parameters(asked.model) / 4 / 2**30
    assert elastic["activations_gib"] < gradients
    assert one["peak_gib"] < elastic["peak_gib"] == pytest.approx(elastic["state_gib"] + 2 * gradients, abs=0.002)


def test_elastic_slices_are_checked_like_those_of_a_run() -> None:
    words = ("estimate", "--config", "16b", "--tpu-type", "v5e-256", "--num-slices", "3")
    few = run_alone(*words, "--min-slices", "4")
    assert (few.returncode, few.stderr.count("error: ")) == (42, 1)
    assert "--min-slices must be from 1 to --num-slices = 3, got 4" in few.stderr
    uneven = run_alone(*words, "--min-slices", "2", "--set", "data.global_batch=1024")
    assert "data.global_batch = 1024 is not divisible by the 3 elastic slices" in uneven.stderr


QUICK = """
import sys
from trainer import main
try:
    main.main(sys.argv[1:])
except SystemExit as end:
    print(end.code, "jax" in sys.modules, "numpy" in sys.modules, file=sys.stderr)
"""


def test_an_estimate_is_fast_and_does_not_import_jax() -> None:
    began = time.process_time()
    command = [sys.executable, "-c", QUICK, "estimate", *SIZES]
    ran = subprocess.run(command, env={"PYTHONPATH": str(WORKLOADS)}, capture_output=True, text=True)
    assert ran.stderr == "0 False False\n"
    assert time.process_time() - began < 1
    result = json.loads(ran.stdout)
    expected = {"peak_gib", "hbm_gib", "state_gib", "fits", "dcn_gib_per_step", "flops_per_step", "step_seconds"}
    assert expected <= result.keys()
    assert (result["chips"], result["hbm_gib"], result["fits"]) == (50_944, 15.75, True)


def test_without_libtpu_one_line_names_the_package() -> None:
    hidden = f"import sys; sys.modules['libtpu'] = None\n{QUICK}"
    command = [sys.executable, "-c", hidden, "compile", *SIZES]
    ran = subprocess.run(command, env={"PYTHONPATH": str(WORKLOADS)}, capture_output=True, text=True)
    first, last = ran.stderr.splitlines()
    assert (
        first == "error: libtpu, which contains the TPU compiler, is not installed. pip install 'xpk-multislice[tpu]'"
    )
    assert last == "42 False False"


def test_all_problems_of_an_estimate_are_reported_together() -> None:
    ran = run_alone("estimate", "--config", "128bb", "--tpu-type", "v9-1", "--num-slices", "0")
    assert (ran.returncode, ran.stdout, ran.stderr.count("error: ")) == (42, "", 3)
    indivisible = run_alone(
        "estimate", "--config", "16b", "--tpu-type", "v5e-256", "--set", "model.attention_chunk=700"
    )
    assert "model.seq_len = 2048 is not divisible by model.attention_chunk = 700" in indivisible.stderr


@pytest.mark.parametrize("output", ["json", "table"])
def test_an_estimate_whose_output_is_not_read_ends_quietly(output: str) -> None:
    command = [sys.executable, "-m", "trainer", "estimate", "--tpu-type", "v5e-4", "-o", output]
    with subprocess.Popen(
        command, env={"PYTHONPATH": str(WORKLOADS)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert (process.wait(), process.stderr and process.stderr.read()) == (0, "")


def test_a_kernel_of_attention_stores_no_scores_and_skips_the_future() -> None:
    plain, fused = (
        estimate(config.load("16b", ["model.attention_chunk=0", f"model.fused_attention={fused}"]), POD, 1)
        for fused in ("false", "true")
    )
    scores = 6 * 2048 * 2048 * 32 * (4 + 2)  # of one layer, of a chip's 6 sequences
    assert (plain["peak_gib"] - fused["peak_gib"]) * 2**30 > 0.5 * scores
    assert fused["flops_per_step"] == plain["flops_per_step"]
    assert fused["computed_flops_per_step"] < plain["computed_flops_per_step"]
    assert fused["expected_step_seconds"] < plain["expected_step_seconds"]


SENDS = """
%body (p: (s32[], bf16[8,4])) -> (s32[], bf16[8,4]) {
  %p = (s32[], bf16[8,4]) parameter(0)
  %send.1 = (bf16[4,8,128]{2,1,0:T(8,128)}, u32[], token[]) send(%x, %after), {KIND="ALL_REDUCE"}
  %recv.1 = (bf16[4,8,128]{2,1,0:T(8,128)}, u32[], token[]) recv(%after), {KIND="ALL_REDUCE"}
}

%condition (p: (s32[], bf16[8,4])) -> pred[] {
  %limit = s32[]{:T(128)} constant(8)
  %p = (s32[], bf16[8,4]) parameter(0)
  %at = s32[]{:T(128)} get-tuple-element(%p), index=0
  ROOT %lt = pred[] compare(%at, %limit), direction=LT, metadata={}
}

ENTRY %main (a: bf16[8,4]) -> bf16[8,4] {
  %one = s32[]{:T(128)} constant(1)
  %first = s32[]{:T(128)} copy(%one)
  %state = (s32[], bf16[8,4]) tuple(%first, %a)
  %loop = (s32[], bf16[8,4]) while(%state), condition=%condition, body=%body
  %send.2 = (bf16[4,8,128]{2,1,0:T(8,128)}, u32[], token[]) send(%y, %after), {KIND="ALL_REDUCE"}
  %send.3 = (f32[2,128]{1,0}, u32[], token[]) send(%z, %after), {KIND="ONE_TO_ONE"}
}
""".replace("KIND", "_xla_megascale_transfer_type")


def test_transfers_in_loops_count_once_per_trip() -> None:
    reduced, moved = transfers(SENDS)
    assert reduced == Transfer("ALL_REDUCE", "bf16", 8, 8 * 4 * 8 * 128 * 2)
    assert moved == Transfer("ONE_TO_ONE", "f32", 1, 2 * 128 * 4)
    assert reduced.sent(2) == reduced.bytes
    assert reduced.sent(199) == pytest.approx(2 * reduced.bytes, rel=0.01)
    assert moved.sent(199) == moved.bytes


BRANCHES = """
%short (p: (bf16[8,4])) -> bf16[] {
  %send.1 = (bf16[1,8,128]{2,1,0}, u32[], token[]) send(%x, %after), {_xla_megascale_transfer_type="ALL_REDUCE"}
}

%long (p: (bf16[8,4])) -> bf16[] {
  %send.2 = (bf16[4,8,128]{2,1,0}, u32[], token[]) send(%x, %after), {_xla_megascale_transfer_type="ALL_REDUCE"}
}

ENTRY %main (a: bf16[8,4]) -> bf16[] {
  ROOT %chosen = bf16[] conditional(%which, %a, %a), branch_computations={%short, %long}, metadata={op_name="cond"}
}
"""


def test_transfers_of_pairs_are_those_of_the_longest() -> None:
    assert transfers(BRANCHES) == [Transfer("ALL_REDUCE", "bf16", 1, 4 * 8 * 128 * 2)]


COLLECTIVES = """
%start (x: bf16[8,16]) -> bf16[32,16] {
  %gather = bf16[32,16]{1,0} all-gather(%x), channel_id=1, replica_groups=mesh['a'=4,'b'=2], device_ids=([8]) {'a'}
  ROOT %begin = (bf16[8,16], bf16[32,16]) custom-call(%gather), custom_call_target="AsyncCollectiveStart"
}

%async_collective_fusion.1 (x: bf16[8,16]) -> bf16[32,16] {
  %gather.1 = bf16[32,16]{1,0} all-gather(%x), channel_id=1, replica_groups=mesh['a'=4,'b'=2] {'a'}
}

%done (x: bf16[8,16]) -> bf16[32,16] {
  %gather.2 = bf16[32,16]{1,0} all-gather(%x), channel_id=1, replica_groups=mesh['a'=4,'b'=2] {'a'}
  ROOT %end = bf16[32,16] custom-call(%gather.2), custom_call_target="AsyncCollectiveDone"
}

%all-reduce-scatter.3 (x: f32[16,16]) -> f32[4,16] {
  ROOT %sum = f32[16,16]{1,0} all-reduce(%x), replica_groups=[2,4]<=[8], to_apply=%add
}

ENTRY %main (a: bf16[8,16]) -> bf16[8,16] {
  %fusion.1 = (bf16[8,16], bf16[32,16]) fusion(%a), kind=kCustom, calls=%start
  %fusion.2 = bf16[32,16] fusion(%a), kind=kOutput, calls=%async_collective_fusion.1
  %fusion.3 = bf16[32,16] fusion(%a), kind=kCustom, calls=%done
  %fusion.4 = f32[4,16] fusion(%b), kind=kCustom, calls=%all-reduce-scatter.3
  %scatter = f32[2,16]{1,0} reduce-scatter(%b), replica_groups={{0,1,2,3},{4,5,6,7}}, to_apply=%add
  %move = (f32[2,16]{1,0}, f32[2,16]{1,0}) collective-permute-start(%b), source_target_pairs={{0,1},{1,0}}
}
"""


def test_collectives_count_once_with_the_bytes_that_a_chip_sends() -> None:
    assert slice_collectives(COLLECTIVES) == [
        Collectives("reduce-scatter", False, 2, 16 * 16 * 4 * 3 // 4 + 2 * 16 * 4 * 3),
        Collectives("all-gather", True, 1, 32 * 16 * 2 * 3 // 4),
        Collectives("collective-permute", True, 1, 2 * 16 * 4),
    ]
