"""The smallest model that uses all features, and helpers to run it in one or several processes."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.ports import free_port

WORKLOADS = Path(__file__).parents[2] / "workloads"

SETTINGS = (
    "model.embed=32",
    "model.heads=2",
    "model.head_dim=8",
    "model.mlp=64",
    "model.layers=2",
    "model.seq_len=16",
    "data.global_batch=8",
    "optim.warmup=2",
)


def arguments(settings: Sequence[str]) -> list[str]:
    """Return `--set` options for a small tiny configuration, then `settings`."""
    return ["--config", "tiny", *(word for setting in (*SETTINGS, *settings) for word in ("--set", setting))]


@dataclasses.dataclass
class Cluster:
    """Processes of one job on this machine, with the given number of slices of one host each."""

    out: Path  # of the logs
    processes: list[subprocess.Popen[bytes]]
    attempt: int
    read: Callable[[str], str]  # returns the content of a file of the run, or nothing

    def losses(self) -> dict[int, str]:
        """Return this attempt's losses as hex, by step."""
        return {r["step"]: r["loss_hex"] for r in self.metrics() if "loss_hex" in r}

    def step_seconds(self) -> dict[int, float]:
        """Return the durations of this attempt's steps."""
        return {r["step"]: r["step_seconds"] for r in self.metrics() if "step_seconds" in r}

    def metrics(self) -> list[dict[str, Any]]:
        """Return the lines of this attempt's metrics."""
        return self._records("metrics.jsonl")

    def events(self, slice_id: int) -> list[dict[str, Any]]:
        """Return the events of a slice's host in this attempt."""
        return self._records(f"events/s{slice_id}-h0.jsonl")

    def _records(self, name: str) -> list[dict[str, Any]]:
        """Return this attempt's complete lines of a file."""
        complete = [json.loads(line) for line in self.read(name).splitlines() if line.endswith("}")]
        return [record for record in complete if record["attempt"] == self.attempt]

    def wait_for_step(self, step: int, seconds: float = 120) -> None:
        """Wait until a step is finished; fail if the job ends before."""
        self._wait_for(lambda: max(self.losses(), default=0) >= step, f"step {step}", seconds)

    def wait_for_save(self, seconds: float = 120) -> None:
        """Wait until a checkpoint is complete; fail if the job ends before."""
        self._wait_for(lambda: any(event["event"] == "save" for event in self.events(0)), "checkpoint", seconds)

    def _wait_for(self, condition: Callable[[], bool], what: str, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline or any(p.poll() is not None for p in self.processes):
                self.kill()
                raise AssertionError(f"no {what} in {seconds} s, or a host has ended:\n{self.logs()}")
            time.sleep(0.02)

    def exit_codes(self, seconds: float = 120) -> list[int]:
        """Wait for all hosts to end."""
        deadline = time.monotonic() + seconds
        try:
            return [p.wait(max(0.1, deadline - time.monotonic())) for p in self.processes]
        except subprocess.TimeoutExpired as error:
            raise AssertionError(f"hosts still run:\n{self.logs()}") from error
        finally:
            self.kill()

    def kill(self) -> None:
        """End what still runs."""
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                process.wait()

    def logs(self) -> str:
        """Return the output of all hosts."""
        return "\n".join(path.read_text() for path in sorted(self.out.glob(f"log-{self.attempt}-*")))


def start(
    out: Path,
    settings: Sequence[str],
    *,
    slices: int = 2,
    attempt: int = 0,
    blind: Path | str = "",
    bucket: str = "",
    chips: int = 2,
    faults: Mapping[int, str] | None = None,
    read: Callable[[str], str] | None = None,
) -> Cluster:
    """Start a job of `slices` slices with one host each, of two chips if not told otherwise.

    With `blind` the hosts of all slices but the first get that folder for their output: they cannot see
    checkpoints or data. With `bucket` the output goes to that address, of which `read` reads files. `faults`
    are planted in the hosts of these slices (planted.py); these compile their programs themselves. Other hosts share
    programs by a secret.
    """
    out.mkdir(parents=True, exist_ok=True)
    secret = "" if faults else write_secret(out)
    address = f"127.0.0.1:{free_port()}"
    processes = []
    for slice_id in range(slices):
        env = {
            "MEGASCALE_NUM_SLICES": str(slices),
            "MEGASCALE_SLICE_ID": str(slice_id),
            "TPU_WORKER_ID": "0",
            "XPK_HOSTS_PER_SLICE": "1",
            "XPK_COORDINATOR_ADDRESS": address,
            "XPK_RESTART_ATTEMPT": str(attempt),
            "XPK_OUTPUT_DIR": str(blind if blind and slice_id else bucket or out),
            "JAX_PLATFORMS": "cpu",
            "JAX_NUM_CPU_DEVICES": str(chips),
            "XPK_PEER_SECRET_FILE": str(secret),
            "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo",
            "PYTHONPATH": f"{WORKLOADS}:{WORKLOADS.parent}",
        }
        fault = (faults or {}).get(slice_id)
        program = ["tests.trainer.planted", fault] if fault else ["trainer"]
        command = [sys.executable, "-m", *program, "train", *arguments(settings)]
        with (out / f"log-{attempt}-{slice_id}").open("wb") as log:
            processes.append(subprocess.Popen(command, env=os.environ | env, stdout=log, stderr=subprocess.STDOUT))
    return Cluster(out, processes, attempt, read or (lambda name: _text(out / name)))


def killed_and_resumed(
    folder: Path, settings: Sequence[str], step: int, seconds: float = 120
) -> tuple[Cluster, Cluster]:
    """Run a job undisturbed, and another one that resumes after a host was killed: with the same losses.

    The host is killed after `step`, once a checkpoint is complete. Returns the undisturbed job and the resumed attempt;
    each wait takes at most `seconds`.
    """
    whole = start(folder / "whole", settings)
    assert whole.exit_codes(seconds) == [0, 0], whole.logs()
    first = start(folder / "cut", settings)
    first.wait_for_step(step, seconds)
    first.wait_for_save(seconds)
    first.processes[1].send_signal(signal.SIGKILL)
    assert first.exit_codes(seconds) == [75, -9], first.logs()
    second = start(folder / "cut", settings, attempt=1)
    assert second.exit_codes(seconds) == [0, 0], second.logs()
    assert first.losses() | second.losses() == whole.losses()
    return whole, second


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def run_alone(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a command of the trainer like a user, outside any job, for at most two minutes."""
    return _run(words, env, 120)


def run_long(seconds: float, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command of the trainer like `run_alone`, for at most `seconds`."""
    return _run(words, {}, seconds)


def _run(words: Sequence[str], env: Mapping[str, str], seconds: float) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("XPK_", "MEGASCALE_", "TPU_", "JAX_"))}
    clean |= {"PYTHONPATH": str(WORKLOADS), "JAX_PLATFORMS": "cpu", **env}
    command = [sys.executable, "-m", "trainer", *words]
    return subprocess.run(command, env=clean, capture_output=True, text=True, timeout=seconds)


def one_host(folder: Path, attempt: int) -> dict[str, str]:
    """Return the environment of a workload of one host; its temporary folder is new in each attempt, like a pod's."""
    secret, scratch = write_secret(folder), folder / f"tmp-{attempt}"
    scratch.mkdir(parents=True)
    return {
        "MEGASCALE_NUM_SLICES": "1",
        "MEGASCALE_SLICE_ID": "0",
        "TPU_WORKER_ID": "0",
        "XPK_HOSTS_PER_SLICE": "1",
        "XPK_COORDINATOR_ADDRESS": "127.0.0.1:8476",
        "XPK_RESTART_ATTEMPT": str(attempt),
        "XPK_PEER_SECRET_FILE": str(secret),
        "JAX_NUM_CPU_DEVICES": "1",
        "TMPDIR": str(scratch),
    }


def write_secret(folder: Path) -> Path:
    """Write the secret of a job to a file in `folder`, and return the file."""
    file = folder / "secret"
    file.write_text("0" * 64)
    return file
