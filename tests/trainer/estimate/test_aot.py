"""Comparisons with XLA's own TPU compiler; only if the extra `tpu` is installed."""

import itertools
import json
import math
import pickle
from pathlib import Path
from typing import Any

import pytest

from bench.compiled import Program, estimated, until_buffers
from tests.trainer.small import WORKLOADS, run_alone
from trainer import config
from trainer.estimate.hlo_transfers import Transfer
from trainer.models.mfu import parameters

libtpu = pytest.importorskip("libtpu", reason="the extra `tpu` is not installed")

SETTINGS = ("model.embed=256", "model.mlp=1024", "model.compute_dtype=bfloat16", "model.remat=full", "mesh.tp=2")


@pytest.fixture(autouse=True)
def _programs_as_for_chips(monkeypatch: pytest.MonkeyPatch) -> None:
    """Emulated chips are compiled with few optimizations."""
    monkeypatch.delenv("XLA_FLAGS", raising=False)


def compiled(*words: str, settings: tuple[str, ...] = ()) -> dict[str, Any]:
    chosen = [word for setting in (*SETTINGS, *settings) for word in ("--set", setting)]
    path = f"{WORKLOADS}:{Path(libtpu.__file__).parents[1]}"
    ran = run_alone(
        "compile", "--config", "tiny", "--tpu-type", "v5e-4", "-o", "json", *chosen, *words, PYTHONPATH=path
    )
    assert ran.returncode == 0, ran.stderr
    result: dict[str, Any] = json.loads(ran.stdout)
    return result


def test_gradients_are_sent_over_dcn_once_in_the_compute_dtype(tmp_path: Path) -> None:
    program = tmp_path / "program"
    result = compiled("--num-slices", "2", "--executable", str(program))
    assert result["fits"]
    assert result["state_gib"] < result["peak_gib"] < result["hbm_gib"] == 15.75
    asked = config.load("tiny", SETTINGS).model
    table, gains = asked.vocab * asked.embed, (2 * asked.layers + 1) * asked.embed
    largest = Transfer(**result["dcn_transfers"][0])
    assert (largest.kind, largest.dtype) == ("ALL_REDUCE", "bf16")
    # Each chip sends its own quarter of every gradient, including that of the table as input.
    assert largest.bytes == 2 * (parameters(asked) - gains) // 4
    assert sum(item["bytes"] for item in result["dcn_transfers"][1:]) < math.ceil(1.5 * 4 * (table / 4 + 2 * gains))
    assert not [item for item in result["dcn_transfers"] if item["kind"] != "ALL_REDUCE"]
    serialized, *_ = pickle.loads(program.read_bytes())
    assert len(serialized) > 100_000


def test_the_kernel_of_attention_compiles_and_stores_no_scores() -> None:
    sizes = ("model.heads=4", "model.kv_heads=2", "model.head_dim=128", "model.seq_len=2048", "data.global_batch=8")
    plain, fused = (compiled(settings=(*sizes, f"model.fused_attention={fused}")) for fused in ("false", "true"))
    scores = 4 * 8 // 2 * 4 // 2 * 2048**2  # float32, of a chip's examples and heads
    assert (plain["peak_gib"] - fused["peak_gib"]) * 2**30 > scores / 2


def test_a_program_rejected_by_the_compiler_has_a_size() -> None:
    result = compiled(settings=("data.global_batch=2097152",))
    assert not result["fits"]
    assert result["peak_gib"] > result["hbm_gib"]


@pytest.mark.parametrize(
    ("model", "slices"), [*itertools.product(("16b", "32b", "64b", "128b"), (1, 2)), ("8b", 2), ("128b", 199)]
)
def test_estimates_match_the_compiler(model: str, slices: int) -> None:
    """Beyond two slices the number has no effect, as the last one shows. Arguments are the state and tokens."""
    result, guess = until_buffers(Program(model, slices)), estimated(Program(model, slices))
    assert guess["peak_gib"] == pytest.approx(result["peak_gib"], rel=0.1)
    assert guess["state_gib"] == pytest.approx(result["state_gib"], rel=0.01)
    assert guess["dcn_gib_per_step"] == pytest.approx(result["dcn_gib_per_step"], rel=0.06)
    assert guess["fits"] == (result["peak_gib"] <= result["hbm_gib"])
    assert guess["ici_gib_per_step"] == pytest.approx(result["ici_gib_per_step"], rel=0.03)
    asked, tp = config.load(model).model, result["mesh"]["tp"]
    heads, keys = asked.heads * asked.head_dim, asked.key_heads * asked.head_dim
    widths = (asked.mlp, asked.mlp_input_matrices * asked.mlp, heads, heads + 2 * keys, asked.vocab)
    weights = {asked.embed * width // tp for width in widths}
    whole = [shape for shape in result["reduced_whole"] if math.prod(shape) in weights]
    assert not whole, "gradients of weights are scattered, not all-reduced in full"
