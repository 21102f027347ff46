"""The state folder: its owner, its permissions, and errors for damage."""

from __future__ import annotations

import fcntl
import os
import shutil
import sqlite3
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from tests.local.cases import jobset
from tests.local.killing import kill_daemon
from xpk.capacity.local.provider import LocalProvider
from xpk.capacity.state import state_of
from xpk.local import daemon_control, process
from xpk.local.api import LocalApi
from xpk.local.cluster import create_cluster, delete_cluster, open_cluster
from xpk.local.store import FILE, Store
from xpk.model.accelerators import find_shape
from xpk.model.errors import ConflictError, TimedOutError, XpkError
from xpk.model.specs import ClusterSpec
from xpk.model.usage import Capacity

NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to somebody else")
DEV = ClusterSpec(name="dev", shape=find_shape("v5litepod-8"), num_slices=1)


@contextmanager
def umask(bits: int) -> Iterator[None]:
    """Remove these permissions from files that this process creates."""
    before = os.umask(bits)
    try:
        yield
    finally:
        os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@as_root
def test_a_state_folder_of_another_user_is_rejected(tmp_path: Path) -> None:
    """Its daemon and its commands would run as another user."""
    provider = LocalProvider(tmp_path)
    provider.plan_create(DEV).carry_out(lambda title: None)
    folder = tmp_path / "clusters" / "dev"
    os.chown(folder, NOBODY, -1)
    for use in (open_cluster, create_cluster, lambda item: delete_cluster(item, force=True)):
        with pytest.raises(XpkError, match=f"'{folder}' belongs to user nobody, not to you") as caught:
            use(folder)
        assert "XPK_STATE_DIR" in caught.value.hint
    os.chown(folder, 0, -1)
    os.chown(folder.parent, NOBODY, -1)
    for kind in ("clusters", "kind"):
        (tmp_path / kind).mkdir(exist_ok=True)
        os.chown(tmp_path / kind, NOBODY, -1)
        with pytest.raises(XpkError, match="belongs to user nobody"):
            state_of(kind, tmp_path)
    os.chown(folder.parent, 0, -1)
    delete_cluster(folder, force=True)


@as_root
def test_a_state_folder_that_only_root_may_read_is_one_line(tmp_path: Path) -> None:
    os.seteuid(NOBODY)
    try:
        for kind in ("clusters", "kind", "adapted"):
            with pytest.raises(XpkError, match=f"cannot access '{tmp_path / kind}': Permission denied") as caught:
                state_of(kind, tmp_path)
            assert "XPK_STATE_DIR" in caught.value.hint
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("bits", [0o000, 0o022, 0o277])
def test_permissions_do_not_depend_on_the_umask(tmp_path: Path, bits: int) -> None:
    provider = LocalProvider(tmp_path / "state")
    with umask(bits):
        provider.plan_create(DEV).carry_out(lambda title: None)
        folder = tmp_path / "state" / "clusters" / "dev"
        daemon_control.ensure(folder, "")
    try:
        for item in (folder, folder.parent, folder.parent.parent, tmp_path / "state" / "locks", folder / process.PODS):
            assert mode(item) == 0o700, item
        names = (FILE, process.BELL, daemon_control.INFO, daemon_control.LOCK, daemon_control.LOG)
        for file in (*(folder / name for name in names), tmp_path / "state" / "locks" / "dev.lock"):
            assert mode(file) == 0o600, file
    finally:
        delete_cluster(folder, force=True)


def test_files_readable_by_others_from_older_versions_become_private(tmp_path: Path) -> None:
    folder = tmp_path / "clusters" / "dev"
    folder.mkdir(parents=True)
    for item in (folder, tmp_path / "clusters"):
        item.chmod(0o777)
    create_cluster(folder)
    assert mode(folder) == 0o755, "no other user may put a file there"


def test_the_state_of_a_newer_version_is_refused_but_can_be_removed(tmp_path: Path) -> None:
    """An older version must not write objects that it understands only in part."""
    provider = LocalProvider(tmp_path)
    provider.plan_create(DEV).carry_out(lambda title: None)
    folder = tmp_path / "clusters" / "dev"
    daemon_control.stop(folder)  # it records usage
    with closing(sqlite3.connect(folder / FILE)) as db:
        (number,) = db.execute("PRAGMA user_version").fetchone()
        db.execute(f"PRAGMA user_version = {number + 1}")
        before = list(db.iterdump())
    uses = [partial(use, folder) for use in (open_cluster, create_cluster, delete_cluster)]
    for use in (*uses, partial(provider.connect, "dev"), partial(provider.describe, "dev"), lambda: Store(folder)):
        with pytest.raises(XpkError, match=r"cluster 'dev' was written by a newer version of xpk \(format 2") as caught:
            use()
        assert caught.value.hint.startswith("upgrade xpk")
    with closing(sqlite3.connect(folder / FILE)) as db:
        assert list(db.iterdump()) == before
    delete_cluster(folder, force=True)
    assert not folder.exists()


def test_a_lock_is_not_opened_through_a_link(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / "locks").mkdir()
    (tmp_path / "locks" / "dev.lock").symlink_to(victim)
    with pytest.raises(XpkError, match="cannot write to"):
        LocalProvider(tmp_path).plan_create(DEV).carry_out(lambda title: None)
    assert victim.read_text() == "mine"


def test_waiting_for_a_lock_is_reported_and_times_out(tmp_path: Path) -> None:
    (tmp_path / "locks").mkdir()
    message: list[str] = []
    plan = LocalProvider(tmp_path, lock_seconds=1.3).plan_create(DEV)
    with (tmp_path / "locks" / "dev.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        began = time.monotonic()
        with pytest.raises(TimedOutError, match="another xpk command holds cluster 'dev'"):
            plan.carry_out(lambda title: None, warn=message.append)
        assert time.monotonic() - began >= 1.3
    assert message == ["waiting for cluster 'dev', which another xpk command holds"]
    assert not (tmp_path / "clusters" / "dev").exists()


def test_a_resize_that_was_planned_before_another_one_changes_nothing(tmp_path: Path) -> None:
    provider = LocalProvider(tmp_path)
    provider.plan_create(replace(DEV, num_slices=3)).carry_out(lambda title: None)
    shrink = provider.plan_resize("dev", 2, force=False)
    provider.plan_resize("dev", 4, force=False).carry_out(lambda title: None)
    with pytest.raises(ConflictError, match="cluster 'dev' was modified concurrently"):
        shrink.carry_out(lambda title: None)
    assert provider.describe("dev").num_slices == 4


def test_an_interrupted_removal_can_be_repeated(tmp_path: Path) -> None:
    folder = tmp_path / "clusters" / "dev"
    create_cluster(folder)
    (folder / "output").mkdir()

    def interrupted(part: Path) -> None:
        if part.name == "output":
            raise KeyboardInterrupt
        shutil.rmtree(part)

    with pytest.raises(KeyboardInterrupt):
        delete_cluster(folder, force=True, remove=interrupted)
    provider = LocalProvider(tmp_path)
    assert provider.names() == ["dev"], "its output would be left behind"
    provider.plan_delete("dev", force=True).carry_out(lambda title: None)
    assert not folder.exists()


def test_a_create_with_other_slices_removes_those_of_an_interrupted_one(tmp_path: Path) -> None:
    provider = LocalProvider(tmp_path)
    for step in provider.plan_create(replace(DEV, num_slices=3)).steps[:-1]:
        step.act()
    plan = provider.plan_create(replace(DEV, shape=find_shape("v5litepod-4"), num_slices=2))
    assert plan.steps[0].title == "remove 4 hosts of an interrupted create of 'dev'"
    plan.carry_out(lambda title: None)
    info = provider.describe("dev")
    assert (info.num_slices, info.chips, info.state) == (2, 8, "Ready")
    assert [item.accelerator_type for item in info.slices] == ["v5litepod-4"] * 2


def test_a_workload_that_came_while_the_prompt_waited_keeps_its_cluster(tmp_path: Path) -> None:
    provider = LocalProvider(tmp_path)
    provider.plan_create(DEV).carry_out(lambda title: None)
    plan = provider.plan_delete("dev", force=False)
    provider.connect("dev").create(jobset("late", "sleep 60"))
    try:
        with pytest.raises(ConflictError, match="workloads are on cluster 'dev': late"):
            plan.carry_out(lambda title: None)
        assert provider.names() == ["dev"]
    finally:
        provider.plan_delete("dev", force=True).carry_out(lambda title: None)
    assert provider.names() == []


@pytest.mark.parametrize(
    ("name", "content"),
    [
        (daemon_control.INFO, None),
        (daemon_control.LOCK, None),
        (daemon_control.LOG, None),
        (daemon_control.INFO, b"\xff\xfe"),
    ],
)
def test_damaged_files_are_named_and_the_cluster_can_be_removed(
    tmp_path: Path, name: str, content: bytes | None
) -> None:
    """`content`: None for a folder in place of the file."""
    folder = tmp_path / "dev"
    api = create_cluster(folder)
    api.create(jobset("w", "true"))  # starts the daemon
    daemon_control.stop(folder)
    (folder / name).unlink(missing_ok=True)
    if content is None:
        (folder / name).mkdir()
    else:
        (folder / name).write_bytes(content)
    with pytest.raises(XpkError, match=rf"the store of cluster '{folder.name}' is damaged \({name} is not") as caught:
        api.list("JobSet")
    assert caught.value.hint == f"xpk cluster delete {folder.name} --provider local --force"
    delete_cluster(folder, force=True)
    assert not folder.exists()


@pytest.mark.parametrize("text", ["[1]", "null", "{}", '{"metadata": 3}', "no JSON", "[" * 5000])
def test_an_invalid_object_in_the_store_is_damage(api: LocalApi, folder: Path, text: str) -> None:
    with closing(sqlite3.connect(folder / FILE)) as db, db:
        db.execute("INSERT INTO objects VALUES ('Event', 'default', 'c', 1, ?, NULL)", (text,))
    with pytest.raises(XpkError, match="is damaged") as caught:
        api.list("Event")
    assert "--force" in caught.value.hint


def test_an_object_without_its_spec_is_damage(api: LocalApi, folder: Path) -> None:
    with closing(sqlite3.connect(folder / FILE)) as db, db:
        db.execute("UPDATE objects SET json = json_remove(json, '$.spec') WHERE kind = 'Node'")
    with pytest.raises(XpkError, match="is damaged"):
        api.list("Node")


def test_a_cluster_that_has_never_had_a_workload_needs_no_daemon(api: LocalApi, folder: Path) -> None:
    (queue,) = api.list("ClusterQueue")
    assert queue["status"]["pendingWorkloads"] == 0
    assert api.list("JobSet") == api.list("Workload") == []
    capacities = [record for record in api.open_usage() if isinstance(record, Capacity)]
    assert (capacities[-1].total, sum(capacities[-1].slices.values())) == (16, 2)
    assert not process.is_locked(folder / daemon_control.LOCK)
    api.create(jobset("w", "true"))
    assert process.is_locked(folder / daemon_control.LOCK)


class Killer:
    """A Python that is killed when it launches a daemon, the first `times` times."""

    def __init__(self, folder: Path, times: int) -> None:
        folder.mkdir(exist_ok=True)
        self.program = folder / "python"
        count = folder / "count"
        self.program.write_text(
            f"#!/bin/sh\necho x >> {count}\n[ $(wc -l < {count}) -gt {times} ] || kill -9 $$\n"
            f'exec {sys.executable} "$@"\n'
        )
        self.program.chmod(0o755)


def test_a_killed_launcher_is_retried(
    api: LocalApi, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(Killer(tmp_path, 1).program))
    api.create(jobset("a", "true"))
    assert process.is_locked(folder / daemon_control.LOCK)


def test_an_error_of_the_launcher_explains_the_state_of_the_change(
    api: LocalApi, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(Killer(tmp_path, 2).program))
    with pytest.raises(XpkError, match=r"did not start \(exit code -9\); nothing was changed"):
        api.create(jobset("a", "true"))
    api.create(jobset("a", "true"))  # the third launch
    with pytest.raises(XpkError, match=r"the change was made") as caught, api._change("JobSet"):
        kill_daemon(folder)
        monkeypatch.setattr(sys, "executable", str(Killer(tmp_path / "again", 9).program))
    assert str(daemon_control.LOG) in caught.value.hint
