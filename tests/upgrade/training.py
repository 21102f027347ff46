"""A run of the trainer that an earlier version has begun, and the losses with which that version continues it."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.ports import free_port
from tests.trainer.small import Cluster
from tests.upgrade.release import FOLDER, ROOT, Release, pack

ARCHIVE, EXPECTED = "training.tar.xz", "training.json"
SLICES = 2
_FIRST_STEPS, _MORE_STEPS = 4, 4
_MODEL = (
    "model.embed=16",
    "model.heads=2",
    "model.head_dim=8",
    "model.mlp=32",
    "model.layers=1",
    "model.seq_len=16",
    "data.global_batch=8",
    "optim.warmup=2",
    "optim.schedule=constant",  # does not depend on the number of steps
    "checkpoint.max_to_keep=1",
    "run.log_every=1",
    "run.eval_every=0",
)


def settings(release: Release) -> list[str]:
    """Return the settings of a small run on data that the release prepares: every Python has another library."""
    if not list(release.folder.glob("data/*.json")):
        source = release.folder / "text"
        source.mkdir()
        text = (release.tree / "docs" / "concepts.md").read_bytes()
        (source / "text.md").write_bytes((text * 8)[: 1 << 15])
        release.run("-m", "trainer", "prepare", str(source), "--out", str(release.folder / "data"))
    return _settings(release.folder)


def _settings(folder: Path) -> list[str]:
    (manifest,) = folder.glob("data/*.json")
    return [*_MODEL, f"data.path={manifest}"]


def continue_run(
    folder: Path, steps: int, *extra: str, attempt: int, python: str, paths: Sequence[Path] = ()
) -> Cluster:
    """Start the run in `folder`, which has its data, output and local tier, with a version's Python."""
    out, address = folder / "out", f"127.0.0.1:{free_port()}"
    local = [f"checkpoint.local_path={folder / 'ram'}", "checkpoint.local_every=2"]
    words = [*_settings(folder), *local, f"run.steps={steps}", *extra]
    command = [python, "-m", "trainer", "train", "--config", "tiny"]
    command += [word for setting in words for word in ("--set", setting)]
    processes = []
    out.mkdir(exist_ok=True)
    for slice_id in range(SLICES):
        env = _environment(folder, slice_id, attempt, address) | {"PYTHONPATH": os.pathsep.join(map(str, paths))}
        with (folder / f"log-{attempt}-{slice_id}").open("wb") as log:
            processes.append(subprocess.Popen(command, env=env, stdout=log, stderr=subprocess.STDOUT))
    return Cluster(folder, processes, attempt, lambda name: (out / name).read_text() if (out / name).exists() else "")


def _environment(folder: Path, slice_id: int, attempt: int, address: str) -> dict[str, str]:
    """Return an environment that is the same for all versions: flags of XLA change the last bits of losses."""
    return {
        "PATH": os.defpath,
        "HOME": str(folder),
        "MEGASCALE_NUM_SLICES": str(SLICES),
        "MEGASCALE_SLICE_ID": str(slice_id),
        "TPU_WORKER_ID": "0",
        "XPK_HOSTS_PER_SLICE": "1",
        "XPK_COORDINATOR_ADDRESS": address,
        "XPK_RESTART_ATTEMPT": str(attempt),
        "XPK_OUTPUT_DIR": str(folder / "out"),
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": "2",
        "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo",
    }


def record(release: Release, to: Path) -> None:
    """Train some steps to the end, then some more until SIGKILL; keep the files, and the losses of their continuation.

    The persistent checkpoint is of the first part, the local ones are newer.
    """
    settings(release)
    folder, python = release.folder, release.python
    first = continue_run(folder, _FIRST_STEPS, attempt=0, python=python)
    assert first.exit_codes() == [0] * SLICES, first.logs()
    killed = continue_run(folder, 10**6, "checkpoint.every=1000000", attempt=1, python=python)
    killed.wait_for_step(_FIRST_STEPS + 6)
    for process in killed.processes:
        process.send_signal(signal.SIGKILL)
    killed.exit_codes()
    names = ("out", "ram", "data")
    pack(to / ARCHIVE, folder, *names)
    kept = folder / "kept"
    for name in names:
        shutil.copytree(folder / name, kept / name, symlinks=True)
    continuations = {}
    for tier in ("local", "persistent"):
        if tier == "persistent":
            for name in names:
                shutil.rmtree(folder / name)
                shutil.copytree(kept / name, folder / name, symlinks=True)
            shutil.rmtree(folder / "ram")
        step = newest_step(folder)
        job = continue_run(folder, step + _MORE_STEPS, attempt=2, python=python)
        assert job.exit_codes() == [0] * SLICES, job.logs()
        assert f"resuming from step {step} " in job.logs(), job.logs()
        continuations[tier] = {"step": step, "losses": job.losses()}
    recorded = {"machine": machine(), "continuations": continuations}
    (to / EXPECTED).write_text(json.dumps(recorded, indent=1) + "\n", encoding="utf-8")


def newest_step(folder: Path) -> int:
    """Return the step of the newest checkpoint in the output or the local tier."""
    files = [*folder.glob("out/checkpoints/[0-9]*"), *folder.glob("ram/*/*/[0-9]*")]
    return max(int(file.name) for file in files)


def machine() -> dict[str, str]:
    """Return what determines the last bits of a loss: the compiler, and the instructions of the CPU."""
    cpu = Path("/proc/cpuinfo")
    lines = cpu.read_text(encoding="utf-8").splitlines() if cpu.exists() else []
    flags = next((line.partition(":")[2] for line in lines if line.startswith(("flags", "Features"))), "")
    digest = hashlib.sha256(" ".join(sorted(flags.split())).encode()).hexdigest()[:16]
    return {"jaxlib": importlib.metadata.version("jaxlib"), "architecture": platform.machine(), "instructions": digest}


def unpack(fixture: Path, folder: Path) -> Any:
    """Unpack a fixture in `folder`; return the recorded machine and losses."""
    with tarfile.open(fixture / ARCHIVE) as tar:
        tar.extractall(folder, filter="data")
    stores = [hashlib.sha256(str(place / "out").encode()).hexdigest()[:16] for place in (FOLDER, folder)]
    (folder / "ram" / f"xpk-{stores[0]}").rename(folder / "ram" / f"xpk-{stores[1]}")
    return json.loads((fixture / EXPECTED).read_text(encoding="utf-8"))


def resume(folder: Path, steps: int) -> Cluster:
    """Continue the run with this version."""
    return continue_run(folder, steps, attempt=2, python=sys.executable, paths=(ROOT / "workloads", ROOT))
