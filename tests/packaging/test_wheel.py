"""The wheel, installed like a user does: it must contain manifests and trainer, with only its declared dependencies."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.offline.guard import ONLINE

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of programs of a new environment with only the wheel and its base dependencies."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)], cwd=ROOT, check=True)
    (wheel,) = folder.glob("*.whl")
    venv.create(folder / "venv")
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "venv" / "bin" / "python"), "install", "--quiet"]
    subprocess.run([*pip, "--constraint", str(ROOT / "constraints.txt"), str(wheel)], check=True, env=ONLINE)
    return folder / "venv" / "bin"


def run(program: Path, *arguments: str, state: Path) -> subprocess.CompletedProcess[str]:
    """Run a program outside the checkout."""
    env = {"PATH": os.defpath, "HOME": str(state), "XPK_STATE_DIR": str(state)}
    return subprocess.run([str(program), *arguments], cwd=state, env=env, capture_output=True, text=True, check=False)


def test_help_and_dry_runs(installed: Path, tmp_path: Path) -> None:
    assert "workload" in run(installed / "xpk", "--help", state=tmp_path).stdout
    create = ("cluster", "create", "dev", "--tpu-type", "v5litepod-8")
    assert "1. create the store" in run(installed / "xpk", *create, "--dry-run", state=tmp_path).stdout
    assert run(installed / "xpk", *create, state=tmp_path).returncode == 0
    dry = run(installed / "xpk", "workload", "create", "w", "--command", "true", "--dry-run", state=tmp_path)
    assert dry.returncode == 0 and "kind: JobSet" in dry.stdout, dry.stderr
    assert run(installed / "python", "-m", "xpk_run", "step=1", state=tmp_path).returncode == 0
    assert "xpk queue create" in run(installed / "xpk", "docs", "queues", state=tmp_path).stdout


def test_the_wheel_contains_the_sources_of_the_trainers_image(installed: Path, tmp_path: Path) -> None:
    from xpk.capacity.images.trainer_image import trainer_image

    show = "from xpk.capacity.images.trainer_image import trainer_image; print(trainer_image().name)"
    assert run(installed / "python", "-c", show, state=tmp_path).stdout.strip() == trainer_image().name


def test_the_trainer_reports_missing_packages(installed: Path, tmp_path: Path) -> None:
    assert (
        run(installed / "xpk", "cluster", "create", "dev", "--tpu-type", "v5litepod-8", state=tmp_path).returncode == 0
    )
    outcome = run(installed / "xpk", "workload", "create", "w", state=tmp_path)
    assert outcome.returncode == 7 and "xpk-multislice[trainer]" in outcome.stderr, outcome.stderr
    asked = ("workload", "create", "w", "--launcher", "ray", "--command", "true")
    outcome = run(installed / "xpk", *asked, state=tmp_path)
    assert outcome.returncode == 7 and "xpk-multislice[ray]" in outcome.stderr, outcome.stderr
    unpacked = next((installed.parent / "lib").glob("python*/site-packages/xpk"))
    check = subprocess.run(
        [str(installed / "python"), "-m", "trainer", "check", "--num-slices", "1", "--hosts-per-slice", "1",
         "--chips-per-host", "4", "--no-data", "--config", "nope"],
        env={"PATH": os.defpath, "PYTHONPATH": str(unpacked / "_workloads")},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert check.returncode == 42 and "nope" in check.stdout, check.stderr
