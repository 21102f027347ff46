"""The command `compile` without a TPU compiler: its reports, and errors of a compiler."""

import json
import math
import os
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import pytest
from jax.experimental import topologies

from tests.trainer.small import SETTINGS
from trainer import config
from trainer.errors import FatalError
from trainer.estimate import aot
from trainer.estimate.accelerators import find_slice
from trainer.estimate.memory import memory
from trainer.estimate.traffic import traffic
from trainer.main import main
from trainer.parallel import layout

ALWAYS = {"peak_gib", "hbm_gib", "state_gib", "fits", "dcn_gib_per_step", "flops_per_step", "compile_seconds"}
TOO_LARGE = (
    "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 19.50G of 15.75G hbm. Exceeded it by 3.75G."
)
REFUSED = "RESOURCE_EXHAUSTED: Allocation (size=20937965568) (19.50G) exceeds the limit"
V5E = find_slice("v5e-4")
TWO_SLICES = ("--tpu-type", "v5e-4", "--num-slices", "2")


class Compiler:
    """Replaces XLA's compiler, which reports `says` for every program."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, says: str) -> None:
        self.says, self.asked = says, 0
        if find_spec("libtpu") is None:
            (folder / "libtpu").mkdir()
            monkeypatch.syspath_prepend(folder)
        for name in aot.NO_TPU:  # restored afterwards
            monkeypatch.setenv(name, os.environ.get(name, ""))
        monkeypatch.setattr(topologies, "get_topology_desc", self.describe)
        monkeypatch.setattr(jax.stages.Lowered, "compile", self.compile)

    def describe(self, *, topology_name: str, num_slices: int = 1, **_: Any) -> Any:
        chips = math.prod(map(int, topology_name.partition(":")[2].split("x")))
        return SimpleNamespace(devices=jax.devices()[: chips * num_slices])

    def compile(self, *_: Any) -> Any:
        self.asked += 1
        raise jax.errors.JaxRuntimeError(self.says)


def asked(*words: str) -> list[str]:
    return ["compile", "--config", "tiny", *(word for item in SETTINGS for word in ("--set", item)), *words]


def told(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as end:
        main(asked(*words))
    out, err = capsys.readouterr()
    return int(end.value.code or 0), out, err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("says", "peak"), [(TOO_LARGE, 19.5), (REFUSED, 19.5), ("RESOURCE_EXHAUSTED: it is too large", 15.75)]
)
def test_a_program_that_does_not_fit_has_all_fields(
    says: str, peak: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Compiler(tmp_path, monkeypatch, says)
    code, out, _ = told(capsys, *TWO_SLICES, "-o", "json")
    result = json.loads(out)
    assert code == 0 and result.keys() >= ALWAYS
    assert (result["fits"], result["peak_gib"]) == (False, peak)
    made = config.load("tiny", SETTINGS)
    sizes = layout.layout(made, layout.Chips(2, 1, 4))
    assert result["state_gib"] == round(memory(made, sizes).state / 2**30, 3)
    assert result["dcn_gib_per_step"] == round(traffic(made, sizes).dcn / 2**30, 4)
    assert result["estimated"] == [*(["peak_gib"] if peak == 15.75 else []), "state_gib", "dcn_gib_per_step"]
    code, out, _ = told(capsys, *TWO_SLICES)
    assert code == 0 and "state_gib; dcn_gib_per_step\n" in out


@pytest.mark.slow
def test_without_closed_forms_the_report_has_state_and_gradients(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Compiler(tmp_path, monkeypatch, TOO_LARGE)
    made = config.load("tiny", ["model.family=transformer", "model.embed=256", "model.mlp=1024", "model.seq_len=16"])
    result = aot.compile_step(made, V5E, 2)
    assert result.keys() >= ALWAYS
    params = 4 * result["parameters"] / 2**30
    assert result["state_gib"] > params / 4
    assert params / 4 * 0.99 < result["dcn_gib_per_step"] < params / 4 * 1.05


def test_other_errors_of_the_compiler_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Compiler(tmp_path, monkeypatch, "INTERNAL: Mosaic failed\nwith a long tale")
    line = (
        "error: XLA cannot compile this step for v5e-4: INTERNAL: Mosaic failed with a long tale. Change the settings"
    )
    code, out, err = told(capsys, *TWO_SLICES)
    assert (code, out, err) == (42, "", f"{line} of mesh or model\n")


def test_an_unwritable_output_is_reported_before_compiling(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    compiler = Compiler(tmp_path, monkeypatch, TOO_LARGE)
    for file, why in ((tmp_path / "no" / "program", "No such file or directory"), (tmp_path, "Is a directory")):
        code, _, err = told(capsys, *TWO_SLICES, "--executable", str(file))
        assert (code, err) == (42, f"error: {file} cannot be written: {why}. Use another --executable\n")
    assert compiler.asked == 0
    saved = tmp_path / "kept"
    saved.write_text("of an earlier one")
    for file in (saved, tmp_path / "new"):
        assert told(capsys, *TWO_SLICES, "--executable", str(file))[0] == 0
    assert saved.read_text() == "of an earlier one" and not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (jax.errors.JaxRuntimeError("INVALID_ARGUMENT: no 2x2"), "libtpu has no topology v5e:2x2: INVALID_ARGUMENT"),
        (NotImplementedError("no such thing"), "libtpu has no topology v5e:2x2: no such thing"),
        (OSError("libtpu.so: no GLIBC_2.99"), "libtpu failed: OSError: libtpu.so: no GLIBC_2.99"),
        (jax.errors.JaxRuntimeError("ABORTED: in use"), "libtpu failed: JaxRuntimeError: ABORTED: in use"),
    ],
)
def test_failures_of_libtpu_are_reported_with_their_cause(
    error: Exception, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(**_: Any) -> None:
        raise error

    monkeypatch.setattr("jax.experimental.topologies.get_topology_desc", fail)
    with pytest.raises(FatalError) as result:
        aot._devices(V5E, 1)
    (problem,) = result.value.problems
    assert problem.message.startswith(says)
    assert ("--tpu-type" in problem.hint) == ("no topology" in says)


def test_the_two_cores_of_a_v4_chip_are_one_device(monkeypatch: pytest.MonkeyPatch) -> None:
    described: dict[str, Any] = {}

    def describe(**options: Any) -> Any:
        described.update(options)
        return SimpleNamespace(devices=jax.devices()[:4])

    monkeypatch.setattr("jax.experimental.topologies.get_topology_desc", describe)
    assert len(aot._devices(find_slice("v4-8"), 1)) == 4
    assert (described["topology_name"], described["chip_config_name"]) == ("v4:2x2x1", "megacore")
