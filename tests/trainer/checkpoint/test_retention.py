"""In any order of events the last complete checkpoint is never removed, and committed ones are complete."""

import errno
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from trainer.checkpoint.manager import Checkpoints
from trainer.checkpoint.stores import manifest, open_store
from trainer.checkpoint.stores.folder import FolderStore
from trainer.errors import SaveError, StorageError
from trainer.hosts import job
from trainer.hosts.peers import Peers
from trainer.storage import open_place
from trainer.telemetry.metrics import Events, JsonLines


@pytest.mark.parametrize(
    ("steps", "newest", "damaged", "gone"),
    [
        ([1, 2, 3, 4], 2, set(), [1, 2]),
        ([1, 2, 3, 4], 2, {4}, [1]),
        ([1, 2, 3, 4], 1, {3, 4}, [1]),
        ([1, 2], 1, {1, 2}, []),
        ([1, 2], 3, set(), []),
        ([], 1, set(), []),
    ],
)
def test_only_complete_checkpoints_count_toward_max_to_keep(
    steps: list[int], newest: int, damaged: set[int], gone: list[int]
) -> None:
    assert manifest.outdated(steps, newest, lambda step: step not in damaged) == gone


class Life(RuleBasedStateMachine):
    """A folder of checkpoints with successful, failed and interrupted saves, damage, restarts and failing removals."""

    @initialize(keep=st.integers(1, 3))
    def begin(self, keep: int) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="retention-"))
        self.folder, self.keep, self.step, self.attempt = self.root / "checkpoints", keep, 0, 0
        self.whole: set[int] = set()  # committed and not damaged since, whether removed by now or not
        self.writing: int | None = None
        self.restart()

    def teardown(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)

    @rule()
    def restart(self) -> None:
        """Kill the job in any state; the next attempt chooses a checkpoint."""
        peers = Peers(0, 1, on_lost=lambda peer: None, on_message=lambda what, by: None)
        events = Events(JsonLines(open_place(self.root / "events")), 0, 0, self.attempt, time.monotonic())
        self.attempt += 1
        self.store = open_store(open_place(self.folder))
        result = Checkpoints(open_place(self.folder), self.keep, {}, peers, events).choose()
        self.attempt_id, self.writing = str(self.attempt - 1), None
        best = max(self.whole, default=None)
        assert (result[0] if result else None) == best
        self.step = best or 0
        self.whole = {step for step in self.whole if step <= self.step}

    @precondition(lambda self: self.writing is None)
    @rule(content=st.binary(min_size=1, max_size=40))
    def begin_save(self, content: bytes) -> None:
        """All hosts write; nothing is committed."""
        self.step += 1
        staging = Path(self.store.staging_path(self.step, self.attempt_id))
        (staging / "d").mkdir()
        (staging / "d" / "array").write_bytes(content)
        (staging / "index").write_bytes(b"index")
        self.writing = self.step

    @precondition(lambda self: self.writing is not None)
    @rule()
    def commit(self) -> None:
        """Commit the save in progress, and remove older ones."""
        assert self.writing is not None
        self.store.commit(self.writing, self.attempt_id, {})
        self.whole.add(self.writing)
        self.store.remove_old(self.keep, self.step)
        self.writing = None
        self.forget()

    @precondition(lambda self: self.writing is not None)
    @rule()
    def abort(self) -> None:
        """Abort the save, because a host could not write."""
        assert self.writing is not None
        self.store.abort(self.writing, self.attempt_id)
        self.writing = None

    @precondition(lambda self: self.whole)
    @rule(how=st.sampled_from(["flip", "truncate", "remove", "manifest"]), data=st.data())
    def damage(self, how: str, data: Any) -> None:
        """Damage a checkpoint, usually the newest."""
        step = data.draw(st.sampled_from([max(self.whole), *sorted(self.whole)]))
        file = self.folder / str(step) / ("manifest.json" if how == "manifest" else "d/array")
        content = file.read_bytes()
        if how == "flip":
            file.write_bytes(bytes([content[0] ^ 1]) + content[1:])
        elif how == "remove":
            file.unlink()
        else:
            file.write_bytes(content[:-1])
        self.whole.discard(step)

    @precondition(lambda self: self.whole)
    @rule()
    def leave_a_file_in_the_way(self) -> None:
        """Create a file at the path to which the next removed checkpoint would be renamed."""
        (self.folder / f".removing-{min(self.whole)}").write_bytes(b"in the way")

    @rule()
    def collect(self) -> None:
        """Remove old checkpoints again, with or without a save in progress."""
        self.store.remove_old(self.keep, self.step)
        self.forget()

    def forget(self) -> None:
        stored_steps = set(self.store.steps())
        gone = self.whole - stored_steps
        newer = sorted(self.whole & stored_steps)
        assert not gone or (newer and max(gone) < min(newer)), f"{gone} removed, {newer} left"
        self.whole &= stored_steps

    @invariant()
    def what_is_whole_is_found_whole(self) -> None:
        if hasattr(self, "whole"):
            assert {step for step in self.store.steps() if not self.store.damage(step)} == self.whole
            if self.writing is not None:
                assert (Path(self.store.staging_path(self.writing, self.attempt_id)) / "index").exists()


Life.TestCase.settings = settings(
    max_examples=25, stateful_step_count=15, deadline=None, suppress_health_check=list(HealthCheck)
)
TestLife = Life.TestCase


@pytest.mark.parametrize(
    ("error", "full"),
    [
        (SaveError("not saved in /home/u/workspace/checkpoints: Permission denied"), False),
        (SaveError("not saved in /out: not enough space: 5 MiB free, 80 MiB needed"), True),
        (StorageError("/workspace/out: Disk quota exceeded"), True),
        (StorageError("/out: No space left on device"), True),
    ],
)
def test_a_full_disk_gets_a_hint_to_free_space(error: Exception, full: bool) -> None:
    assert str(job._one_line(error)).endswith("Free some disk space") == full


@pytest.mark.parametrize("rest", [0, 1])
def test_an_earlier_attempt_does_not_commit_what_a_newer_one_has_removed(rest: int, tmp_path: Path) -> None:
    """Its hosts run until they learn of the newer attempt, and some may write their part only then."""
    earlier, newer = (open_store(open_place(tmp_path)) for _ in range(2))
    staging = Path(earlier.staging_path(5, earlier.begin_attempt(0)))
    (staging / "host-0").write_bytes(b"half of the state")
    newer.begin_attempt(1)
    assert not staging.exists()
    if rest:
        (Path(earlier.staging_path(5, "0")) / "host-1").write_bytes(b"the other half")
    with pytest.raises(PermissionError, match="a newer attempt has taken over"):
        earlier.commit(5, "0", {})
    earlier.abort(5, "0")
    assert [path.name for path in tmp_path.iterdir()] == [".owner"]


def test_remains_that_cannot_be_removed_cannot_be_committed_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier, newer = (open_store(open_place(tmp_path)) for _ in range(2))
    (Path(earlier.staging_path(5, earlier.begin_attempt(0))) / "host-0").write_bytes(b"state")
    monkeypatch.setattr(shutil, "rmtree", lambda path, **options: None)
    newer.begin_attempt(1)
    assert {path.name for path in tmp_path.iterdir()} == {".owner", ".removing-saving-5-0"}
    assert newer.steps() == []


def test_a_file_in_place_of_remains_is_removed(tmp_path: Path) -> None:
    store = open_store(open_place(tmp_path))
    for name in (".saving-5-0", ".removing-4", ".damaged-3"):
        (tmp_path / name).touch()
    store.begin_attempt(0)
    store.remove_old(1, 0)
    assert [path.name for path in tmp_path.iterdir()] == [".owner"]


def test_a_checkpoint_that_the_disk_does_not_show_still_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The read of it reports the error."""

    def refuse(path: Path) -> bool:
        raise OSError(errno.EIO, "Input/output error", str(path))

    store = open_store(open_place(tmp_path))
    store.staging_path(5, store.begin_attempt(0))
    store.commit(5, "0", {})
    monkeypatch.setattr(Path, "is_file", refuse)
    assert store.steps() == [5]


def test_commits_leave_no_file_open(tmp_path: Path) -> None:
    store = open_store(open_place(tmp_path))
    store.begin_attempt(0)
    before = len([*Path("/proc/self/fd").iterdir()])
    for step in range(3):
        store.staging_path(step, "0")
        store.commit(step, "0", {})
    assert len([*Path("/proc/self/fd").iterdir()]) == before


def test_an_attempt_that_begins_on_a_full_disk_saves_once_there_is_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    store = open_store(open_place(tmp_path))
    store.begin_attempt(0)
    with monkeypatch.context() as full:
        full.setattr(Path, "write_bytes", refuse)
        attempt_id = store.begin_attempt(1)
    (Path(store.staging_path(5, attempt_id)) / "host-0").write_bytes(b"state")
    store.commit(5, attempt_id, {})
    assert store.steps() == [5]


def test_a_file_system_that_cannot_sync_folders_has_checkpoints(tmp_path: Path) -> None:
    """As those of SMB and of virtual machines' shared folders."""
    failure = errno.EINVAL

    def refuse(descriptor: int) -> None:
        raise OSError(failure, os.strerror(failure))

    store = FolderStore(tmp_path, sync=refuse)
    (Path(store.staging_path(5, store.begin_attempt(0))) / "host-0").write_bytes(b"state")
    store.commit(5, "0", {})
    assert store.steps() == [5] and store.damage(5) == ""
    failure = errno.EIO
    store.staging_path(6, "0")
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        store.commit(6, "0", {})
