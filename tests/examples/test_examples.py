"""The programs of `examples/`, run by the commands of their README on local hosts."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from e2e.harness import Lab, Workload, own_cluster

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
SECONDS = 300.0  # alone: 10; other tests may run at the same time
TORCH = os.environ.get("XPK_E2E_TORCH_PYTHON", "")  # a Python with PyTorch, which is not a dependency of xpk
SHIPPED = ("--script-dir", str(EXAMPLES))


def create(lab: Lab, name: str, *options: str) -> Workload:
    lab.xpk("workload", "create", name, "--cluster", lab.cluster, *options)
    return Workload(lab, name)


def logs(run: Workload) -> str:
    return run.lab.xpk("workload", "logs", run.name, "--cluster", run.lab.cluster, "--no-prefix", capture=True)


def suspend_and_resume(run: Workload, checkpoints: str) -> None:
    """Suspend a workload after its first checkpoint, resume it, and wait for its end: no restart is counted."""
    run.await_(lambda: any(run.folder.glob(checkpoints)), SECONDS)
    for verb in ("suspend", "resume"):
        run.lab.xpk("workload", verb, run.name, "--cluster", run.lab.cluster)
    run.wait(SECONDS)
    described = run.describe()
    assert (described["phase"], described["restarts_counted"]) == ("Succeeded", 0)


def test_every_example_is_in_the_readme() -> None:
    text = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    files = [file.name for file in EXAMPLES.iterdir() if file.is_file() and file.name != "README.md"]
    assert len(files) >= 4 and [name for name in files if f"`{name}`" not in text] == []


@pytest.mark.slow
def test_hosts_without_a_framework_reduce_over_sockets(tmp_path: Path) -> None:
    with own_cluster(tmp_path, "examples", "n2-standard-4-2", 1) as lab:
        run = create(lab, "plain", *SHIPPED, "--command", "python numpy_allreduce.py")
        run.wait(SECONDS)
        assert sorted(logs(run).splitlines()) == [
            "host 0 of 2: error 0.000",
            "host 1 of 2: error 0.000",
        ]


@pytest.mark.slow
def test_programs_without_a_framework_show_their_progress(tmp_path: Path) -> None:
    with own_cluster(tmp_path, "examples", "n2-standard-4-2", 1) as lab:
        plain = "/usr/bin/python3 -S" if os.path.exists("/usr/bin/python3") else "python3"
        told = create(lab, "told", *SHIPPED, "--max-restarts", "1", "--command", f"{plain} progress.py")
        told.wait(SECONDS)
        asked = ("--cluster", lab.cluster, "-o", "json")
        progress = json.loads(lab.xpk("workload", "status", "told", *asked, capture=True))["progress"]
        assert (progress["step"], progress["total_steps"], progress["loss"]) == (60, 60, pytest.approx(4 / 60))
        assert progress["step_seconds"] >= 0.05 and progress["throughput_unit"] == "examples/s"
        page = ("--file", str(tmp_path / "told.html"))
        report = json.loads(lab.xpk("workload", "report", "told", *page, *asked, capture=True))
        assert (report["steps"], report["restarts"], report["lost_steps"], report["initial_loss"]) == (60, 1, 10, 4.0)
        assert 0 < report["goodput"] < 1 and report["seconds_by_cause"]["lost"] > 0.4
        shell = create(lab, "shell", *SHIPPED, "--command", "bash progress.sh")
        shell.wait(SECONDS)
        progress = json.loads(lab.xpk("workload", "status", "shell", *asked, capture=True))["progress"]
        assert (progress["step"], progress["total_steps"], progress["loss"]) == (20, 20, 0.3)
        assert progress["step_seconds"] > 0.1 and progress["goodput"] > 0.5


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_jax_program_saves_when_it_is_suspended_and_resumes(tmp_path: Path) -> None:
    with own_cluster(tmp_path, "examples", "v5litepod-8", 2) as lab:
        size = ("--num-slices", "2", "--env", "STEPS=600")
        run = create(lab, "mine", *SHIPPED, *size, "--command", "python jax_train.py")
        suspend_and_resume(run, "step-*.npy")
        weights = np.load(max(run.folder.glob("step-*.npy")))
        assert np.allclose(weights, np.arange(len(weights)), atol=1e-3)
        (first,) = re.findall(r"^16 chips, starting after step (\d+)$", logs(run), re.MULTILINE)
        assert 0 < int(first) < 600


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(not TORCH, reason="XPK_E2E_TORCH_PYTHON names no Python with PyTorch; e2e/environment/up sets it")
def test_a_torch_program_saves_when_it_is_suspended_and_resumes(tmp_path: Path) -> None:
    with own_cluster(tmp_path, "examples", "n2-standard-4-2", 1) as lab:
        run = create(lab, "net", *SHIPPED, "--env", "STEPS=1500", "--command", f"{TORCH} torch_train.py")
        suspend_and_resume(run, "step-*.pt")
        pattern = r"^2 hosts, starting after step (\d+)$|^step (\d+): loss (.*)$"
        result = re.findall(pattern, logs(run), re.MULTILINE)
        first, (_, last, loss) = int(result[0][0]), result[-1]
        assert 0 < first < int(last) == 1500 and float(loss) < 0.1  # the first is 0.3


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_bundled_trainer_takes_settings_from_a_file(tmp_path: Path) -> None:
    with own_cluster(tmp_path, "examples", "v5litepod-8", 2) as lab:
        run = create(lab, "lm", "-f", str(EXAMPLES / "trainer.yaml"))
        run.wait(SECONDS)
        page = ("--file", str(tmp_path / "lm.html"), "-o", "json")
        report = json.loads(
            lab.xpk("workload", "report", "lm", "--cluster", lab.cluster, *page, capture=True),
        )
        assert (report["steps"], report["slices"]) == (40, 2) and report["final_loss"] < report["initial_loss"]


@pytest.mark.slow
@pytest.mark.extended  # tests/xpk_ray runs such a program, too
@pytest.mark.timeout(600)
def test_a_ray_driver_runs_a_function_on_all_hosts(tmp_path: Path) -> None:
    with own_cluster(tmp_path, "examples", "v5litepod-8", 2) as lab:
        run = create(
            lab, "rays", *SHIPPED, "--num-slices", "2", "--launcher", "ray", "--command", "python ray_hosts.py"
        )
        run.wait(SECONDS)
        for slice_id, host in ((0, 0), (0, 1), (1, 0), (1, 1)):
            assert f"slice {slice_id} host {host}: mean 3.0 over 16 chips" in logs(run)


def test_the_notebook_submits_follows_and_deletes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XPK_STATE_DIR", str(tmp_path))
    notebook = json.loads((EXAMPLES / "python_api.ipynb").read_text(encoding="utf-8"))
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    program = [sys.executable, "-m", "xpk", "cluster"]
    create = [*program, "create", "dev", "--tpu-type", "v5litepod-8", "--num-slices", "2"]
    subprocess.run(create, check=True, capture_output=True)
    try:
        names: dict[str, object] = {}
        for cell in cells:
            exec(cell, names)  # noqa: S102  # the notebook under test
        assert names["results"] == {"slow": ["0 0.1"], "fast": ["0 0.5"]}
        assert "slow Succeeded" in (printed := capsys.readouterr().out) and "already exists" in printed
    finally:
        subprocess.run([*program, "delete", "dev", "--yes"], check=True, capture_output=True)
