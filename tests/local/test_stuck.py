"""Full disks and stuck processes: a full disk loses log lines but no host, and every cluster can be deleted."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import sqlite3
import subprocess
import threading
import time
from pathlib import Path

import pytest

from tests.local.cases import jobset, pid, running, set_up
from tests.waiting import until
from xpk.local import logs, process
from xpk.local.api import LocalApi
from xpk.local.cluster import create_cluster, delete_cluster
from xpk.local.store import explained
from xpk.model.errors import XpkError

STEPS = (
    "step() { while [ ! -e $1 ]; do sleep 0.02; done; }; echo on; step {0}/a; seq 1000; step {0}/b; echo back; exit 7"
)


def launch(tmp_path: Path, script: str) -> tuple[Path, subprocess.Popen[bytes]]:
    folder = tmp_path / "pod"
    spec = {"command": ["sh", "-c", script], "environment": dict(os.environ), "folder": "/"}
    supervisor = process.launch(folder, spec, tmp_path / "bell")
    until(lambda: process.observe(folder).state == "running")
    return folder, supervisor


def allow(folder: Path, size: int) -> None:
    """Let a host's supervisor write no file larger than this, as on a full disk."""
    supervisor = int((folder / "lock").read_text())
    resource.prlimit(supervisor, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def said(folder: Path) -> list[str]:
    return [line.text for line in logs.read(folder, follow=False, since=None, tail=None)]


def test_a_full_disk_loses_log_lines_but_not_the_host(tmp_path: Path) -> None:
    folder, supervisor = launch(tmp_path, STEPS.replace("{0}", str(tmp_path)))
    until(lambda: said(folder) == ["on"])
    allow(folder, 2000)
    (tmp_path / "a").touch()
    until(lambda: (folder / "log").stat().st_size == 2000)
    time.sleep(0.3)
    kept = said(folder)
    allow(folder, resource.RLIM_INFINITY)
    (tmp_path / "b").touch()
    assert supervisor.wait(10) == 0
    assert process.observe(folder).facts["exitCode"] == 7
    whole = len([line for line in (folder / "log").read_bytes()[:2000].split(b"\n")[1:-1] if line])
    assert kept[:10] == ["on", *map(str, range(1, 10))]
    assert said(folder)[-2:] == [f"xpk: {1000 - whole} lines were dropped, the disk was full", "back"]


def test_the_exit_record_is_written_once_space_is_available(tmp_path: Path) -> None:
    folder, supervisor = launch(tmp_path, f"while [ ! -e {tmp_path}/a ]; do sleep 0.02; done; exit 7")
    allow(folder, 0)
    (tmp_path / "a").touch()
    time.sleep(0.7)
    assert process.observe(folder).state == "running"
    assert supervisor.poll() is None
    allow(folder, resource.RLIM_INFINITY)
    assert supervisor.wait(10) == 0
    assert process.observe(folder).facts["exitCode"] == 7


def test_the_supervisor_exits_when_its_folder_is_removed(tmp_path: Path) -> None:
    folder, supervisor = launch(tmp_path, "sleep 0.5")
    shutil.rmtree(folder)
    assert supervisor.wait(10) == 1


def test_a_full_disk_is_reported(tmp_path: Path) -> None:
    with pytest.raises(XpkError, match="database or disk is full") as raised, explained(tmp_path):
        raise sqlite3.OperationalError("database or disk is full")
    assert raised.value.hint == f"free space in '{tmp_path}'"


def test_a_stopped_supervisor_and_host_do_not_block_delete_cluster(api: LocalApi, folder: Path) -> None:
    api.create(jobset("a", "setsid sleep 600 & echo up; exec sleep 600"))
    pods = running(api, "a")
    until(lambda: all(list(api.logs(pod)) for pod in pods))
    folders = [folder / process.PODS / pod["metadata"]["uid"] for pod in pods]
    assert process.tell(folders[0] / "lock", signal.SIGSTOP)
    os.kill(pid(pods[1]), signal.SIGSTOP)
    begin = time.monotonic()
    delete_cluster(folder, force=True)
    assert time.monotonic() - begin < 12
    assert not any(process.strays(item) for item in folders)
    create_cluster(folder)


def test_a_cluster_can_be_deleted_concurrently(tmp_path: Path) -> None:
    folder, problems = tmp_path / "demo", list[BaseException]()
    api = create_cluster(folder)
    set_up(api)
    api.create(jobset("a", "trap 'sleep 0.2; exit 143' TERM; while :; do sleep 0.02; done"))
    running(api, "a")

    def delete() -> None:
        try:
            delete_cluster(folder, force=True)
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=delete) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert not folder.exists()
