"""The search of meshes: named models, what it leaves out, and its command."""

import dataclasses
import itertools
import json
import time
from typing import Any

import pytest

from trainer import config as configs
from trainer.errors import FatalError
from trainer.estimate.accelerators import find_slice
from trainer.estimate.closed_form import estimate
from trainer.estimate.search import REMAT, Grid, search
from trainer.main import main
from trainer.parallel import layout

POD = find_slice("v5litepod-256")
NAMED = ("16b", "32b", "64b", "128b")


def seconds_per_example(figures: dict[str, Any], key: str = "step_seconds") -> float:
    seconds: float = figures[key]
    examples: int = figures["global_batch"]
    return seconds / examples


@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize("num_slices", [1, 16])
def test_named_models_get_their_published_mesh_or_a_lower_bound(name: str, num_slices: int) -> None:
    config = configs.load(name)
    published = estimate(config, POD, num_slices)
    (best,) = search(config, Grid(slices=[POD], num_slices=[num_slices]))["best"]
    assert best["fits"]
    # 128B's bound is that of its arithmetic on any mesh; the expected time decides between equal bounds.
    times = [
        [seconds_per_example(one, key) for key in ("step_seconds", "expected_step_seconds")]
        for one in (best, published)
    ]
    assert best["mesh"] == published["mesh"] or times[0] < times[1]
    (expected,) = search(config, Grid(slices=[POD], num_slices=[num_slices], rank_by="expected"))["best"]
    key = "expected_step_seconds"
    assert seconds_per_example(expected, key) <= seconds_per_example(published, key) * 1.0001


def test_the_settings_of_the_best_reproduce_its_estimate() -> None:
    for one in search(configs.load("64b"), Grid(slices=[POD], num_slices=[4]))["best"]:
        again = estimate(configs.load("64b", one["settings"]), POD, 4)
        assert {key: one[key] for key in again} == again
        assert one["tokens_per_step"] == one["global_batch"] * 2048


def test_no_combination_that_fits_is_better() -> None:
    """The search compares only the least recomputation that fits; here all combinations are compared."""
    config, slice_ = configs.load("16b"), find_slice("v5litepod-64")
    grid = Grid(slices=[slice_], num_slices=[2])
    chips = layout.Chips(2, slice_.hosts, slice_.chips_per_host)
    bounds = []
    for tp, copies, batch, remat in itertools.product(grid.tp, grid.replicas, grid.batch_per_chip, REMAT):
        variant = dataclasses.replace(
            config,
            model=dataclasses.replace(config.model, remat=remat),
            mesh=dataclasses.replace(config.mesh, tp=tp, dp=2 * copies),
            data=dataclasses.replace(config.data, batch_per_chip=batch),
        )
        if not layout.check(variant, chips) and (figures := estimate(variant, slice_, 2))["fits"]:
            bounds.append(seconds_per_example(figures))
    (best,) = search(config, grid)["best"]
    assert seconds_per_example(best) == min(bounds)


def test_steps_of_small_models_have_a_time() -> None:
    (best,) = search(configs.load("tiny"), Grid(slices=[find_slice("v5litepod-16")], num_slices=[1]))["best"]
    assert 0 < best["step_seconds"] < best["expected_step_seconds"] < 0.01


def test_ten_thousand_candidates_take_less_than_ten_seconds() -> None:
    slices = [find_slice(name) for name in ("v5litepod-64", "v5litepod-256", "v5p-256", "v6e-64", "v6e-256")]
    began = time.process_time()
    candidates = search(configs.load("64b"), Grid(slices=slices, num_slices=[1, 2, 4, 8, 16, 32, 64]))
    assert candidates["candidates"] > 10_000 and time.process_time() - began < 10


def test_limits_of_chips_and_batch_are_kept() -> None:
    grid = Grid(slices=[POD], num_slices=[1, 2, 4, 8], max_chips=1024, max_global_batch=1024)
    best = search(configs.load("16b"), grid)["best"]
    assert [one["num_slices"] for one in best] == [1, 2, 4]
    assert all(one["global_batch"] <= 1024 for one in best)


def test_a_model_that_fits_nowhere_has_no_best() -> None:
    candidates = search(configs.load("128b"), Grid(slices=[find_slice("v5litepod-16")], num_slices=[1]))
    assert candidates["best"] == [] and candidates["candidates"] > 100


def test_models_without_an_estimate_are_refused() -> None:
    with pytest.raises(FatalError, match="estimates require"):
        search(configs.load("resnet50"), Grid(slices=[POD], num_slices=[1]))


def test_the_command_prints_json_and_reports_all_unknown_types(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["search", "--config", "16b", "--num-slices", "1,2", "--products", "forward"]
    with pytest.raises(SystemExit) as end:
        main([*words, "--tpu-types", "v5litepod-256,v6e-256"])
    best = json.loads(capsys.readouterr().out)["best"]
    assert end.value.code == 0 and len(best) == 8
    assert sum("quant.matmuls=forward" in one["settings"] for one in best) == 4
    with pytest.raises(SystemExit) as end:
        main([*words, "--tpu-types", "v5litepod-3,v9-4"])
    assert end.value.code == 42 and len(capsys.readouterr().err.splitlines()) == 2


def test_settings_of_the_command_line_are_kept(capsys: pytest.CaptureFixture[str]) -> None:
    kept = ["mesh.tp=4", "mesh.dp=2", "model.remat=full", "data.batch_per_chip=1"]
    words = ["search", "--config", "64b", "--num-slices", "2", "--tpu-types", "v6e-256"]
    with pytest.raises(SystemExit):
        main([*words, *(word for setting in kept for word in ("--set", setting))])
    (best,) = json.loads(capsys.readouterr().out)["best"]
    assert best["settings"] == [] and best["global_batch"] == 512
    assert best["mesh"] == {"dp": 2, "stages": 1, "fsdp": 64, "tp": 4}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--num-slices", "0"], "--num-slices must be at least 1, got 0"),
        (["--num-slices=1,-1"], "--num-slices must be at least 1, got -1"),
        (["--num-slices", "1", "--products", "forwards"], "quant.matmuls has 'forwards', which is not a product"),
    ],
)
def test_values_that_cannot_be_searched_are_one_line(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(["search", "--config", "16b", "--tpu-types", "v5litepod-256", *words])
    (line,) = capsys.readouterr().err.splitlines()
    assert end.value.code == 42 and line.startswith(f"error: {says}. ")
