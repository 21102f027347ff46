"""A console with runs in several phases: hosts of a local cluster wait, and a program writes their trainer's files."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.jobs.report.runs import RunWriter
from tests.waiting import until
from xpk import Cluster, Workload, create_cluster

CLUSTER, STEPS = "dev", 400
RUN, OTHER = f"run={CLUSTER}/default/lm", f"run={CLUSTER}/default/lm-lr2"
_LOG = "for i in $(seq 120 200); do echo step $i of host $TPU_WORKER_ID; done; sleep 600"


@dataclass(frozen=True, slots=True)
class Scene:
    """A served console: the address of the page, its first address with the token, and the writer of the run `lm`."""

    page: str
    entrance: str
    run: RunWriter


@contextmanager
def console() -> Iterator[Scene]:
    """Create a cluster with four runs and serve its console. XPK_STATE_DIR must name an empty folder."""
    create_cluster(CLUSTER, "v5litepod-8", num_slices=2)
    try:
        run = submit_runs()
        with served() as url:
            yield Scene(url.partition("?")[0], url, run)
    finally:
        Cluster(CLUSTER).delete(force=True)


def submit_runs() -> RunWriter:
    """Create runs in several phases and return the writer of one that trains."""
    cluster = Cluster(CLUSTER)
    cluster.submit(Workload(name="typo", command="echo 'No module named jaxx'; exit 42"))
    until(lambda: cluster.workload("typo").status().phase.is_final, seconds=60)
    for name in ("lm", "lm-lr2"):
        cluster.submit(Workload(name=name, command=_LOG, max_restarts=3))
        until(lambda name=name: cluster.workload(name).status().phase == "Running", seconds=60)  # type: ignore[misc]
    cluster.submit(Workload(name="next", command="true", num_slices=2, priority="low"))
    write(RunWriter(folder_of("lm-lr2"), slices=1, hosts=2, now=time.time() - 130), offset=0.25, last=190)
    run = RunWriter(folder_of("lm"), slices=1, hosts=2, now=time.time() - 160)
    run.train(0, 98)
    run.kill((0, 1))
    run.bring_up(60, compile_=1.2)
    run.steps(61, 150)
    run.save(150)
    run.evaluate(150)
    finding = {"host": "s0/h1", "reason": "data", "own": 0.31, "median": 0.02, "conclusive": True}
    run.event("pace", (0, 0), step=100, slow=[finding])
    complete(run)
    return run


def write(run: RunWriter, *, offset: float, last: int) -> None:
    """Write a run without failures whose loss is higher."""
    run.bring_up(0)
    run.steps(1, last, step_seconds=0.6)
    complete(run, offset)


def complete(run: RunWriter, offset: float = 0.0) -> None:
    """Write the files of a run, with the number of steps and the MFU of its lines."""
    lines = [json.loads(line) for line in run.metrics]
    more = {"total_steps": STEPS, "mfu": 0.41}
    run.metrics = [
        json.dumps({**line, **more, "loss": line["loss"] + offset} if "loss" in line else line) for line in lines
    ]
    run.write()


def make_step(run: RunWriter, step: int) -> None:
    """Write one more step, finished now."""
    run.now = time.time()
    run.steps(step, step)
    complete(run)


def folder_of(name: str) -> Path:
    """Return the output folder of a run."""
    return Path(Cluster(CLUSTER).workload(name).status().output_dir)


@contextmanager
def served() -> Iterator[str]:
    """Serve the console and yield its address with the token."""
    command = [sys.executable, "-u", "-m", "xpk", "serve", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()
