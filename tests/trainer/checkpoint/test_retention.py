"""Retention in any order of events: the last complete checkpoint is never removed, and reported ones are complete."""

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
from trainer.checkpoint.shelves import manifest, open_shelf
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
def test_only_whole_ones_count_as_kept(steps: list[int], newest: int, damaged: set[int], gone: list[int]) -> None:
    assert manifest.outdated(steps, newest, lambda step: step not in damaged) == gone


class Life(RuleBasedStateMachine):
    """A folder of checkpoints through saves that succeed, fail and are cut off, damage, restarts and stuck deletes."""

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
        """Kill the job, whatever it was doing; the next attempt chooses what to go on from."""
        peers = Peers(0, 1, on_lost=lambda peer: None, on_told=lambda what, by: None)
        events = Events(JsonLines(open_place(self.root / "events")), 0, 0, self.attempt, time.monotonic())
        self.attempt += 1
        self.shelf = open_shelf(open_place(self.folder))
        found = Checkpoints(open_place(self.folder), self.keep, {}, peers, events).choose()
        self.claim, self.writing = str(self.attempt - 1), None
        best = max(self.whole, default=None)
        assert (found[0] if found else None) == best
        self.step = best or 0
        self.whole = {step for step in self.whole if step <= self.step}

    @precondition(lambda self: self.writing is None)
    @rule(content=st.binary(min_size=1, max_size=40))
    def begin_save(self, content: bytes) -> None:
        """All hosts write; nothing is committed."""
        self.step += 1
        draft = Path(self.shelf.draft(self.step, self.claim))
        (draft / "d").mkdir()
        (draft / "d" / "array").write_bytes(content)
        (draft / "index").write_bytes(b"index")
        self.writing = self.step

    @precondition(lambda self: self.writing is not None)
    @rule()
    def commit(self) -> None:
        """The save under way is committed, and older ones are removed."""
        assert self.writing is not None
        self.shelf.commit(self.writing, self.claim, {})
        self.whole.add(self.writing)
        self.shelf.keep(self.keep, self.step)
        self.writing = None
        self.forget()

    @precondition(lambda self: self.writing is not None)
    @rule()
    def fail(self) -> None:
        """A host could not write."""
        assert self.writing is not None
        self.shelf.discard(self.writing, self.claim)
        self.writing = None

    @precondition(lambda self: self.whole)
    @rule(how=st.sampled_from(["flip", "truncate", "remove", "manifest"]), data=st.data())
    def damage(self, how: str, data: Any) -> None:
        """Something happens to a checkpoint: to the newest, most of the time."""
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
        """A file is where the checkpoint that is removed next would be moved to."""
        (self.folder / f".removing-{min(self.whole)}").write_bytes(b"in the way")

    @rule()
    def collect(self) -> None:
        """Removing happens once more, with a save under way or without."""
        self.shelf.keep(self.keep, self.step)
        self.forget()

    def forget(self) -> None:
        there = set(self.shelf.steps())
        gone = self.whole - there
        newer = sorted(self.whole & there)
        assert not gone or (newer and max(gone) < min(newer)), f"{gone} removed, {newer} left"
        self.whole &= there

    @invariant()
    def what_is_whole_is_found_whole(self) -> None:
        if hasattr(self, "whole"):
            assert {step for step in self.shelf.steps() if not self.shelf.damage(step)} == self.whole
            if self.writing is not None:
                assert (Path(self.shelf.draft(self.writing, self.claim)) / "index").exists()


Life.TestCase.settings = settings(
    max_examples=25, stateful_step_count=15, deadline=None, suppress_health_check=list(HealthCheck)
)
TestLife = Life.TestCase


@pytest.mark.parametrize(
    ("error", "full"),
    [
        (SaveError("not saved in /home/u/workspace/checkpoints: Permission denied"), False),
        (SaveError("not saved in /out: no room: 5 MiB free, 80 MiB needed"), True),
        (StorageError("/workspace/out: Disk quota exceeded"), True),
        (StorageError("/out: No space left on device"), True),
    ],
)
def test_who_has_no_room_is_told_to_make_some(error: Exception, full: bool) -> None:
    assert str(job._one_line(error)).endswith("Free some space there") == full
