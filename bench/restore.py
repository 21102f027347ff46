"""What a restart reads from the object store, for 1, 2 and 4 slices, and where a slice has lost its local tier.

    eval "$(e2e/environment/up)"
    PYTHONPATH=workloads python -m bench.restore

Runs the trainer against fake-gcs-server, behind a proxy that adds up the sizes of its answers. Writes
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

from e2e.bucket import bucket_server
from e2e.reading import Answer, Reading, reading
from tests.trainer.small import Cluster, start
from trainer import models
from trainer.bucket import Bucket, open_bucket
from trainer.config import load

RESULTS = Path(__file__).parent / "results"
SLICES = (1, 2, 4)
MODEL = ("model.embed=256", "model.heads=4", "model.head_dim=64", "model.mlp=1024", "model.layers=4")
RUN = ("run.eval_every=0", "data.eval_fraction=0", "data.max_bytes=50000", "optim.schedule=constant")
_BUCKET = "restore"


@contextmanager
def store() -> Iterator[Reading]:
    """Run a server that this process and those that it starts take for Google's."""
    with bucket_server() as server, reading(server.url) as proxy:
        server.create_bucket(_BUCKET)
        before = os.environ.get("STORAGE_EMULATOR_HOST")
        os.environ["STORAGE_EMULATOR_HOST"] = proxy.url
        try:
            yield proxy
        finally:
            os.environ.pop("STORAGE_EMULATOR_HOST")
            if before is not None:
                os.environ["STORAGE_EMULATOR_HOST"] = before


def measure(server: Reading, folder: Path, slices: Sequence[int], model: Sequence[str] = MODEL) -> dict[str, Any]:
    """Save one checkpoint and restore it on so many slices in turn; return what each restore read."""
    settings = [*model, *RUN, "run.steps=1"]
    _run(folder, settings, 1, 0)
    parameters = models.parameters(load("tiny", [*model, "model.vocab=256"]).model)
    found = []
    for attempt, count in enumerate(slices, 1):
        seen = len(server.answers)
        job = _run(folder, settings, count, attempt)
        found.append({"slices": count, **_read(job, server.answers[seen:])})
    return {"parameters": parameters, "state_bytes": 12 * parameters, "restores": found}


def measure_lost_slice(server: Reading, folder: Path, model: Sequence[str] = MODEL) -> dict[str, Any]:
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
    seen = len(server.answers)
    second = _start(folder, [*settings, f"run.steps={max(first.losses()) + 1}"], 2, 1, "lost")
    assert second.exit_codes(600) == [0, 0], second.logs()
    return {"slices": 2, **_read(second, server.answers[seen:])}


def _run(folder: Path, settings: Sequence[str], slices: int, attempt: int) -> Cluster:
    job = _start(folder, settings, slices, attempt, "out")
    assert job.exit_codes(600) == [0] * slices, job.logs()
    return job


def _start(folder: Path, settings: Sequence[str], slices: int, attempt: int, name: str) -> Cluster:
    place: Bucket = open_bucket(f"gs://{_BUCKET}/{name}")

    def read(file: str) -> str:
        time.sleep(0.2)  # whoever waits for a step asks without a pause, which costs the machine as much as the steps
        return (place / file).read().decode() if (place / file).is_file() else ""

    return start(folder / name, settings, slices=slices, attempt=attempt, bucket=f"gs://{_BUCKET}/{name}", read=read)


def _read(job: Cluster, answers: Sequence[Answer]) -> dict[str, Any]:
    """Return what a job's hosts have read of checkpoints, by what it was, and how the restore went."""
    events = [event for n in range(len(job.processes)) for event in job.events(n) if event["event"] == "restore"]
    sizes = {"arrays": 0, "manifests": 0, "listings": 0}
    count = 0
    for path, size in ((answer.path, answer.size) for answer in answers):
        # A save reads what it has just written, of another step.
        if f"/checkpoints/{events[0]['step']}/" not in path and not path.endswith(("/o", ".json")):
            continue
        count += 1
        kind = "listings" if path.endswith("/o") else "manifests" if path.endswith(".json") else "arrays"
        sizes[kind] += size
    return {
        "bytes": sizes,
        "requests": count,
        "source": events[0]["source"],
        "hosts_that_read": sum(event["read"] for event in events),
        "seconds": max(event["seconds"] for event in events),
    }


def table(report: dict[str, Any]) -> Iterator[str]:
    """Yield a row for every restore."""
    yield "| slices | from | arrays read from the store, MB | times the state | hosts that read | requests |"
    yield "|---:|---|---:|---:|---:|---:|"
    for one in (*report["restores"], report["lost_slice"]):
        arrays = one["bytes"]["arrays"]
        cells = (
            f"{arrays / 1e6:.2f}",
            f"{arrays / report['state_bytes']:.2f}",
            one["hosts_that_read"],
            one["requests"],
        )
        yield f"| {one['slices']} | {one['source']} | " + " | ".join(map(str, cells)) + " |"


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
