"""Workloads that write to a bucket: create, status, report, resume, --fresh and delete, and their errors."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e import bucket
from tests.cli.conftest import Xpk
from xpk.storage import open_folder

ROOT = "gs://runs/ada"
# A short version of the trainer: metrics and events of one host, written with the variables of every host.
PROGRAM = """
import json, os, time, urllib.parse, urllib.request
url = os.environ["XPK_OUTPUT_DIR"]
name, _, prefix = url.removeprefix("gs://").partition("/")
def put(path, rows):
    place = f"/upload/storage/v1/b/{name}/o?uploadType=media&name=" + urllib.parse.quote(f"{prefix}/{path}")
    text = "".join(json.dumps(row) + "\\n" for row in rows).encode()
    urllib.request.urlopen(urllib.request.Request(os.environ["STORAGE_EMULATOR_HOST"] + place, text)).close()
if os.environ["TPU_WORKER_ID"] == "0":
    now, who = time.time(), {"slice": 0, "host": 0, "attempt": 0}
    put("events/s0-h0.jsonl", [{"time": now, "event": "start", **who, "step": None, "seconds": None}])
    put("metrics.jsonl", [{"time": now + s, "attempt": 0, "step": s, "loss": 9 - s, "step_seconds": 1} for s in (1, 2)])
    put("checkpoints/2/manifest.json", [{}])
"""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[bucket.BucketServer]:
    """Return a storage server with one bucket."""
    if bucket.missing():
        pytest.skip(bucket.missing())
    with bucket.bucket_server() as running:
        running.create_bucket("runs")
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", running.url)
        yield running


@pytest.fixture
def create(tmp_path: Path) -> tuple[str, ...]:
    """Return the command that runs the program above."""
    (tmp_path / "put.py").write_text(PROGRAM)
    return ("workload", "create", "run", "--wait", "--timeout", "60", "--command", f"python {tmp_path}/put.py")


def test_from_create_to_delete(
    dev: Xpk, server: bucket.BucketServer, create: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XPK_OUTPUT_ROOT", f"{ROOT}/")
    created = dev(*create)
    assert created.code == 0, created.err
    status = dev("workload", "status", "run", "-o", "json").data
    assert status["output_dir"] == f"{ROOT}/run"
    progress = status["progress"]
    assert (progress["step"], progress["loss"], progress["step_seconds"], progress["replacements"]) == (2, 7, 1, 0)
    shown = dev("workload", "status", "run").out
    assert "step 2, loss 7.0000" in shown and "xpk workload report run" in shown
    figures = dev("workload", "report", "run", "-o", "json").data
    assert (figures["steps"], figures["final_loss"]) == (2, 7)
    assert dev("workload", "report", "run").code == 0 and "<svg" in Path("run.html").read_text()
    running = dev(*create)
    assert running.code == 4 and "already exists" in running.err
    dev("workload", "delete", "run")
    refused = dev(*create)
    assert refused.code == 4 and "it reached step 2" in refused.err and f"{ROOT}/run" in refused.err
    assert dev(*create, "--resume").code == 0
    dev("workload", "delete", "run")
    fresh = dev(*create, "--fresh")
    assert fresh.code == 0 and "the earlier output is now 'run." in fresh.err
    aside = fresh.err.partition("now '")[2].partition("'")[0]
    assert open_folder(f"{ROOT}/{aside}").has("checkpoints/2/manifest.json")
    assert dev("workload", "delete", "run", "--with-output").code == 0
    assert open_folder(f"{ROOT}/run").is_empty() and not open_folder(f"{ROOT}/{aside}").is_empty()


def test_an_unreachable_bucket_gives_a_warning(dev: Xpk, server: bucket.BucketServer, create: tuple[str, ...]) -> None:
    assert dev(*create, "--output-root", ROOT).code == 0
    server.pause()
    for command in ("status", "describe"):
        began = time.monotonic()
        message = dev("workload", command, "run")
        assert time.monotonic() - began < 10
        assert message.code == 0 and "Succeeded" in message.out
        assert message.err.count("warning: cannot read the progress: cannot read gs://runs/ada/run") == 1
    assert dev("workload", "status", "run", "-o", "json").data["progress"] is None


@pytest.mark.parametrize(
    ("root", "emulator", "code", "says"),
    [
        ("gs://no-such-bucket/x", "", 3, "bucket 'no-such-bucket' not found"),
        ("gs://", "", 2, "invalid bucket name"),
        ("s3://runs", "", 2, "is neither a folder nor gs://"),
        ("gs://runs", "http://127.0.0.1:9", 1, "no answer from the storage emulator"),
        ("gs://runs", "localhost:9", 2, "expected a URL"),
    ],
)
def test_problems_are_reported_before_anything_is_created(
    dev: Xpk,
    server: bucket.BucketServer,
    monkeypatch: pytest.MonkeyPatch,
    root: str,
    emulator: str,
    code: int,
    says: str,
) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", emulator or server.url)
    outcome = dev("workload", "create", "run", "--command", "true", "--output-root", root)
    assert outcome.code == code and says in outcome.err, outcome.err
    assert len(outcome.err.splitlines()) == 2 and "  hint: " in outcome.err
    assert dev("workload", "list", "-o", "json").data == []


def test_output_in_another_folder(dev: Xpk, tmp_path: Path) -> None:
    command = 'mkdir -p $XPK_OUTPUT_DIR; echo {\\"step\\": 3, \\"loss\\": 1.5} > $XPK_OUTPUT_DIR/metrics.jsonl'
    create = ("workload", "create", "run", "--command", command, "--output-root", "elsewhere")
    assert dev(*create, "--wait", "--timeout", "30").code == 0
    result = json.loads(dev("workload", "status", "run", "-o", "json").out)
    assert result["output_dir"] == str(tmp_path / "elsewhere" / "run") and result["progress"]["step"] == 3
