"""Bytes that a restart reads from the object store, for 1, 2 and 4 slices, and where a slice has lost its local tier.

    eval "$(e2e/environment/up)"
    PYTHONPATH=workloads python -m bench.restore

Runs the trainer against fake-gcs-server, of which the kernel counts what it writes. Writes
bench/results/restore-<date>.json.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from e2e.bucket import BucketServer, bucket_server
from tests.trainer.small import Cluster, start
from trainer.config import load
from trainer.models import registry
from trainer.storage import open_place

RESULTS = Path(__file__).parent / "results"
SLICES = (1, 2, 4)
MODEL = ("model.embed=256", "model.heads=4", "model.head_dim=64", "model.mlp=1024", "model.layers=4")
RUN = ("run.eval_every=0", "data.eval_fraction=0", "data.max_bytes=50000", "optim.schedule=constant")
_BUCKET = "restore"


@contextmanager
def store() -> Iterator[BucketServer]:
    """Run a server that this process and those that it starts take for Google's."""
    with bucket_server() as server:
        server.create_bucket(_BUCKET)
        before = os.environ.get("STORAGE_EMULATOR_HOST")
        os.environ["STORAGE_EMULATOR_HOST"] = server.url
        try:
            yield server
        finally:
            os.environ.pop("STORAGE_EMULATOR_HOST")
            if before is not None:
                os.environ["STORAGE_EMULATOR_HOST"] = before


def measure(server: BucketServer, folder: Path, slices: Sequence[int], model: Sequence[str] = MODEL) -> dict[str, Any]:
    """Save one checkpoint and restore it on so many slices in turn; return what each restore read."""
    settings = [*model, *RUN, "run.steps=1"]
    _run(folder, settings, 1, 0)
    parameters = registry.parameters(load("tiny", [*model, "model.vocab=256"]).model)
    rows = []
    for attempt, count in enumerate(slices, 1):
        before = server.sent()
        job = _run(folder, settings, count, attempt)
        rows.append({"slices": count, **_read(job, server.sent() - before)})
    return {"parameters": parameters, "state_bytes": 12 * parameters, "restores": rows}


def measure_lost_slice(server: BucketServer, folder: Path, model: Sequence[str] = MODEL) -> dict[str, Any]:
    """Take slice 1's local tier away between two attempts of two slices; return what the second read."""
    local = folder / "ram"
    settings = [*model, *RUN, "checkpoint.every=1000000", "checkpoint.local_every=2", f"checkpoint.local_path={local}"]
    first = _start(folder, [*settings, "run.steps=1000000"], 2, 0, "lost")
    try:
        first.wait_for_step(5, 600)
        first.processes[1].send_signal(signal.SIGKILL)
        first.exit_codes()
    finally:
        first.kill()
    (gone,) = local.glob("*/s1-h0")
    shutil.rmtree(gone)
    before = server.sent()
    second = _start(folder, [*settings, f"run.steps={max(first.losses()) + 1}"], 2, 1, "lost")
    assert second.exit_codes(600) == [0, 0], second.logs()
    return {"slices": 2, **_read(second, server.sent() - before)}


def _run(folder: Path, settings: Sequence[str], slices: int, attempt: int) -> Cluster:
    job = _start(folder, settings, slices, attempt, "out")
    assert job.exit_codes(600) == [0] * slices, job.logs()
    return job


def _start(folder: Path, settings: Sequence[str], slices: int, attempt: int, name: str) -> Cluster:
    place = open_place(f"gs://{_BUCKET}/{name}")

    def read(file: str) -> str:
        time.sleep(0.2)  # whoever waits for a step asks without a pause, which costs the machine as much as the steps
        return (place / file).read().decode() if (place / file).is_file() else ""

    return start(folder / name, settings, slices=slices, attempt=attempt, bucket=f"gs://{_BUCKET}/{name}", read=read)


def _read(job: Cluster, sent: int) -> dict[str, Any]:
    """Return what a job's hosts were sent by the store, and how the restore went."""
    events = [event for n in range(len(job.processes)) for event in job.events(n) if event["event"] == "restore"]
    return {
        "bytes": sent,
        "source": events[0]["source"],
        "hosts_that_read": sum(event["read"] for event in events),
        "seconds": max(event["seconds"] for event in events),
    }


def table(report: dict[str, Any]) -> Iterator[str]:
    """Yield a row for every restore."""
    yield "| slices | from | read from the store, MB | times the state | hosts that read |"
    yield "|---:|---|---:|---:|---:|"
    for one in (*report["restores"], report["lost_slice"]):
        read = one["bytes"]
        cells = (one["slices"], one["source"], f"{read / 1e6:.2f}", f"{read / report['state_bytes']:.2f}")
        yield f"| {' | '.join(map(str, cells))} | {one['hosts_that_read']} |"


def main() -> None:
    """Measure, print the table and keep everything."""
    with store() as server, tempfile.TemporaryDirectory() as folder:
        report = measure(server, Path(folder), SLICES)
        report["lost_slice"] = measure_lost_slice(server, Path(folder))
    print(*table(report), sep="\n")
    report["machine"] = {"cores": os.cpu_count(), "python": sys.version.split()[0], "jax": version("jax")}
    RESULTS.mkdir(exist_ok=True)
    file = RESULTS / f"restore-{datetime.now(UTC).date().isoformat()}.json"
    file.write_text(json.dumps({"model": MODEL, **report}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
