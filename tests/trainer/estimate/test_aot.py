"""Checks against XLA's own TPU compiler; only where the extra `tpu` is installed."""

import itertools
import json
import math
import pickle
from pathlib import Path
from typing import Any

import pytest

from bench.compiled import estimated, until_buffers
from tests.trainer.small import WORKLOADS, run_alone
from trainer import config
from trainer.estimate.hlo_transfers import Transfer
from trainer.models.mfu import parameters

libtpu = pytest.importorskip("libtpu", reason="the extra `tpu` is not installed")

SETTINGS = ("model.embed=256", "model.mlp=1024", "model.compute_dtype=bfloat16", "model.remat=full", "mesh.tp=2")


@pytest.fixture(autouse=True)
def _programs_as_for_chips(monkeypatch: pytest.MonkeyPatch) -> None:
    """Emulated chips are compiled for in haste."""
    monkeypatch.delenv("XLA_FLAGS", raising=False)


def compiled(*words: str, settings: tuple[str, ...] = ()) -> dict[str, Any]:
    chosen = [word for setting in (*SETTINGS, *settings) for word in ("--set", setting)]
    path = f"{WORKLOADS}:{Path(libtpu.__file__).parents[1]}"
    ran = run_alone(
        "compile", "--config", "tiny", "--tpu-type", "v5e-4", "-o", "json", *chosen, *words, PYTHONPATH=path
    )
    assert ran.returncode == 0, ran.stderr
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


def test_gradients_cross_slices_once_and_in_the_compute_type(tmp_path: Path) -> None:
    program = tmp_path / "program"
    found = compiled("--num-slices", "2", "--executable", str(program))
    assert found["fits"]
    assert found["state_gib"] < found["peak_gib"] < found["hbm_gib"] == 15.75
    asked = config.load("tiny", SETTINGS).model
    table, gains = asked.vocab * asked.embed, (2 * asked.layers + 1) * asked.embed
    largest = Transfer(**found["dcn_transfers"][0])
    assert (largest.kind, largest.dtype) == ("ALL_REDUCE", "bf16")
    # Each chip sends its own quarter of every gradient, that of the table of its use as input among them.
    assert largest.bytes == 2 * (parameters(asked) - gains) // 4
    assert sum(each["bytes"] for each in found["dcn_transfers"][1:]) < math.ceil(1.5 * 4 * (table / 4 + 2 * gains))
    assert not [each for each in found["dcn_transfers"] if each["kind"] != "ALL_REDUCE"]
    serialized, *_ = pickle.loads(program.read_bytes())
    assert len(serialized) > 100_000


def test_what_the_compiler_refuses_has_a_size_and_does_not_fit() -> None:
    found = compiled(settings=("data.global_batch=2097152",))
    assert not found["fits"]
    assert found["peak_gib"] > found["hbm_gib"]


@pytest.mark.parametrize(
    ("model", "slices"), [*itertools.product(("16b", "32b", "64b", "128b"), (1, 2)), ("128b", 199)]
)
def test_estimates_are_near_what_the_compiler_says(model: str, slices: int) -> None:
    """From two slices on their number changes nothing, which the last one shows. Arguments are the state and tokens."""
    found, guess = until_buffers(model, slices), estimated(model, slices)
    assert guess["peak_gib"] == pytest.approx(found["peak_gib"], rel=0.1)
    assert guess["state_gib"] == pytest.approx(found["state_gib"], rel=0.01)
    assert guess["dcn_gib_per_step"] == pytest.approx(found["dcn_gib_per_step"], rel=0.02)
    assert guess["fits"] == (found["peak_gib"] <= found["hbm_gib"])
    if (model, slices) == ("32b", 2):
        asked, tp = config.load(model).model, found["mesh"]["tp"]
        heads = asked.heads * asked.head_dim
        weights = {asked.embed * size // tp for size in (asked.mlp, heads, 3 * heads)}
        whole = [shape for shape in found["reduced_whole"] if math.prod(shape) in weights]
        assert not whole, "gradients of weights are scattered, not added up whole on each chip"
