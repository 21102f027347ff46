"""Former names of settings: accepted with one warning, also in checkpoints and prepared data sets."""

import dataclasses
import json
from pathlib import Path

import pytest

from tests.trainer.small import run_alone
from trainer import config
from trainer.checkpoint import compatibility
from trainer.config import Model, Optim
from trainer.data import synthetic_images
from trainer.former_names import RENAMED
from trainer.storage import open_place

VALUES = {
    "checkpoint.keep": "7",
    "mesh.reduction": "explicit",
    "mesh.reduction_dtype": "float32",
    "model.masked": "0.25",
    "observe.pace_every": "9",
    "optim.accumulate": "2",
    "optim.clip": "0.5",
    "optim.trust": "0.5",
    "quant.dots": "forward",
}


@pytest.mark.parametrize(("former", "name"), RENAMED.items())
def test_a_former_name_is_accepted_with_one_warning(former: str, name: str, tmp_path: Path) -> None:
    section, key = former.split(".")
    file = tmp_path / "own.yaml"
    file.write_text(f"{section}: {{{key}: {VALUES[former]}}}\n")
    current = tmp_path / "current" / "own.yaml"
    current.parent.mkdir()
    current.write_text("")
    warnings: list[str] = []
    loaded = [
        config.load(str(file), warn=warnings.append),
        config.load(str(current), [f"{former}=1", f"{former}={VALUES[former]}"], warn=warnings.append),
    ]
    assert warnings == [f"setting '{former}' is deprecated; use '{name}'"] * 2
    assert loaded == [config.load(str(current), [f"{name}={VALUES[former]}"])] * 2
    assert loaded[0] != config.load(str(current))


def test_the_last_value_counts_under_any_name() -> None:
    overrides = ["checkpoint.keep=5", "checkpoint.max_to_keep=6"]
    for names, expected in ((overrides, 6), (overrides[::-1], 5)):
        assert config.load("tiny", names, warn=lambda _: None).checkpoint.max_to_keep == expected


def test_the_warning_is_one_line_on_stderr() -> None:
    settings = ("--set", "optim.clip=2", "--set", "optim.clip=0")
    ran = run_alone("check", "--num-slices", "2", "--hosts-per-slice", "2", "--chips-per-host", "4", *settings)
    assert (ran.returncode, ran.stdout) == (0, "")
    assert ran.stderr == "warning: setting 'optim.clip' is deprecated; use 'optim.grad_clip_norm'\n"


def test_the_former_name_of_the_synthetic_images_is_accepted() -> None:
    warnings: list[str] = []
    loaded = config.load("resnet-tiny", ["data.path=drawn"], warn=warnings.append)
    assert loaded == config.load("resnet-tiny")
    assert warnings == ["data.path=drawn is deprecated; use data.path=synthetic"]


def test_checkpoints_with_former_names_are_accepted() -> None:
    model = dataclasses.asdict(Model(family="bert", mask_rate=0.2))
    notes = {"model": model, "optimizer": Optim().state_notes()}
    former = {key: value for key, value in model.items() if key != "mask_rate"} | {"masked": 0.2}
    assert compatibility.mismatch("/out/checkpoints/3", notes, notes | {"model": former}) is None
    other = str(compatibility.mismatch("/out/checkpoints/3", notes, notes | {"model": former | {"masked": 0.3}}))
    assert "model.mask_rate 0.3 -> 0.2" in other


def test_images_prepared_under_the_former_name_are_found(tmp_path: Path) -> None:
    model, size = Model(family="resnet", image=8), 4 * (3 * 8 * 8 + 4)
    made = synthetic_images.prepare(model, open_place(tmp_path), size)
    manifest = Path(made.path)
    notes = json.loads(manifest.read_text())
    notes["asked"]["source"] = "drawn"
    manifest.write_text(json.dumps(notes))
    assert synthetic_images.prepare(model, open_place(tmp_path), size) == made
    assert json.loads(manifest.read_text()) == notes, "it is not prepared a second time"
