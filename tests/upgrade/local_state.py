"""The state folder and the preferences that an earlier version has written, as it left them when it was killed."""

from __future__ import annotations

import json
import sqlite3
import tarfile
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.upgrade import training
from tests.upgrade.release import FOLDER, Release, pack
from tests.waiting import until

ARCHIVE, EXPECTED = "state.tar.xz", "state.json"
_KEPT_SECONDS = "315360000"  # ten years: `list` must show finished workloads whenever the tests run
_UNTIL_TOLD = """echo "attempt $XPK_RESTART_ATTEMPT"
trap 'exit 143' TERM
while [ ! -e "$XPK_OUTPUT_DIR/go" ]; do sleep 0.05; done
echo finished
"""
PREFERENCES = {"cluster": "dev", "priority": "high", "max-restarts": "1"}


def record(release: Release, to: Path) -> None:
    """Run workloads that end in every state, kill everything, and keep the files and what the version told of them."""
    release.xpk("config", "set", *(word for setting in PREFERENCES.items() for word in setting))
    release.xpk("cluster", "create", "dev", "--tpu-type", "v5litepod-4", "--num-slices", "5")
    release.xpk("cluster", "create", "spare", "--tpu-type", "v5litepod-8", "--num-slices", "1")
    release.xpk("queue", "create", "red", "--namespace", "team-red", "--quota", "1", "--create-namespace", "--yes")
    _create_ended(release)
    _create_unfinished(release)
    expected = {
        "list": json.loads(release.xpk("workload", "list", "--all-namespaces", "-o", "json")),
        "clusters": json.loads(release.xpk("cluster", "list", "-o", "json")),
        "queues": json.loads(release.xpk("queue", "list", "-o", "json")),
        "report": json.loads(release.xpk("workload", "report", "lm", "-o", "json")),
    }
    release.kill()
    (to / EXPECTED).write_text(json.dumps(expected, indent=1) + "\n", encoding="utf-8")
    pack(to / ARCHIVE, release.folder, "state", "config")


def _create(release: Release, name: str, *words: str) -> None:
    release.xpk("workload", "create", name, "--ttl-seconds-after-finished", _KEPT_SECONDS, *words)


def _create_ended(release: Release) -> None:
    code = release.folder / "code"
    code.mkdir()
    (code / "run.sh").write_text(_UNTIL_TOLD, encoding="utf-8")
    settings = [*training.settings(release), "run.steps=6", "checkpoint.every=3"]
    trainer = [word for setting in settings for word in ("--set", setting)]
    _create(release, "lm", "--num-slices", "2", "--", "--config", "tiny", *trainer)
    _create(release, "done", "--command", "echo hello")
    _create(release, "red-done", "--namespace", "team-red", "--command", "true")
    _create(release, "failed", "--command", "exit 42")
    _create(release, "retried", "--command", "exit 3")
    _create(release, "deleted", "--num-slices", "2", "--command", "echo deleted; sleep 1000")
    for name, code_ in (("lm", 0), ("done", 0), ("failed", None), ("retried", None)):
        release.xpk("workload", "wait", name, "--timeout", "120s", code=code_)
    _await(release, "deleted", "Running")
    release.xpk("workload", "delete", "deleted", "--yes")


def _create_unfinished(release: Release) -> None:
    shipped = ["--script-dir", str(release.folder / "code"), "--command", "bash run.sh"]
    _create(release, "paused", *shipped)
    _await(release, "paused", "Running")
    release.xpk("workload", "suspend", "paused")
    _await(release, "paused", "Suspended")
    _create(release, "running", "--num-slices", "2", *shipped)
    _create(release, "once", "--max-restarts", "0", *shipped)
    for name in ("running", "once"):
        _await(release, name, "Running")
    _create(release, "waiting", "--num-slices", "4", "--command", "echo started")
    _await(release, "waiting", "Queued")


def _await(release: Release, name: str, phase: str) -> None:
    def read() -> str:
        return str(json.loads(release.xpk("workload", "status", name, "-o", "json"))["phase"])

    until(lambda: read() == phase, report=read)


def unpack(fixture: Path, folder: Path) -> Any:
    """Unpack a fixture, as if it had been recorded in `folder`; return what the earlier version told of it."""
    with tarfile.open(fixture / ARCHIVE) as tar:
        tar.extractall(folder, filter="tar")  # "data" would refuse the pipe that wakes up the daemon
    for database in folder.glob("state/clusters/*/store.db"):
        with closing(sqlite3.connect(database)) as db, db:
            places = {"recorded": str(FOLDER), "folder": str(folder)}
            for statement in (
                "UPDATE objects SET json = replace(json, :recorded, :folder)",
                "UPDATE objects SET applied = replace(applied, :recorded, :folder)",
                "UPDATE changes SET json = replace(json, :recorded, :folder)",
            ):
                db.execute(statement, places)
    for file in folder.glob("state/clusters/*/pods/*/spec.json"):
        file.write_text(file.read_text(encoding="utf-8").replace(str(FOLDER), str(folder)), encoding="utf-8")
    return json.loads((fixture / EXPECTED).read_text(encoding="utf-8").replace(str(FOLDER), str(folder)))
