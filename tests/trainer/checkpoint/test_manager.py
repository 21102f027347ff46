"""Checkpoints are atomic, the newest complete one is restored, and a full disk loses no older one."""

import errno
import functools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from tests.trainer.checkpoint.stores import Errors, Store
from tests.trainer.emulated import Trainer
from tests.trainer.hosts.connections import connected, together
from trainer.checkpoint.manager import Checkpoints, array_shapes
from trainer.checkpoint.stores.folder import FolderStore
from trainer.errors import FatalError, StorageError
from trainer.step.compile_cache import CompileCache
from trainer.step.compiler import Compiler
from trainer.storage import open_place


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    yield Store(tmp_path)


def biggest_file(folder: Path) -> Path:
    return max((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)


def test_every_replica_restores_the_saved_state(store: Store, trainer: Trainer, state: Any) -> None:
    assert store.save(3, state) == ""
    assert store.checkpoints.choose() == (3, {"note": 1})
    compiler = Compiler(CompileCache(store.folder, None), store.peers)
    restored, read = store.checkpoints.restore(3, {}, trainer.mesh, trainer.programs.state, compiler)()
    assert read
    for old, new in zip(jax.tree.leaves(state), jax.tree.leaves(restored), strict=True):
        assert new.sharding.is_equivalent_to(old.sharding, old.ndim)
        for a, b in zip(old.addressable_shards, new.addressable_shards, strict=True):
            assert np.asarray(a.data).tobytes() == np.asarray(b.data).tobytes()


def test_notes_of_a_save_are_kept_with_it(store: Store, state: Any) -> None:
    store.checkpoints.save(3, state, tokens=7)
    assert store.checkpoints.wait() == ""
    assert store.checkpoints.choose() == (3, {"note": 1, "tokens": 7})


def test_the_newest_are_kept(tmp_path: Path, state: Any) -> None:
    store = Store(tmp_path, keep=2)
    for step in (1, 2, 10):
        store.save(step, state)
    assert store.steps() == [2, 10] and store.checkpoints.last == 10


def test_a_save_is_recorded_before_other_hosts_can_end_the_job(
    store: Store, state: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    announced: list[list[int]] = []
    real = store.peers.announce

    def announce(key: str, value: Any) -> None:
        announced.append([event["step"] for event in store.events("save")])
        real(key, value)

    monkeypatch.setattr(store.peers, "announce", announce)
    store.save(1, state)
    assert announced == [[1]]
    assert 0 <= store.events("save")[0]["blocked"] <= store.events("save")[0]["seconds"] < 60


@pytest.mark.parametrize("harm", ["truncate", "flip", "manifest", "tokens", "notes", "missing"])
def test_a_damaged_checkpoint_is_named_and_the_previous_one_is_used(
    harm: str, store: Store, state: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    store.save(1, state)
    store.save(2, state)
    victim = biggest_file(store.folder / "2")
    content = bytearray(victim.read_bytes())
    if harm == "truncate":
        victim.write_bytes(content[:-1])
    elif harm == "flip":
        content[len(content) // 2] ^= 1
        victim.write_bytes(content)
    elif harm == "manifest":
        (store.folder / "2" / "manifest.json").write_text('{"files": {"a"')
    elif harm == "tokens":
        manifest = store.folder / "2" / "manifest.json"
        manifest.write_text(manifest.read_text().replace('"note": 1', '"note": 3'))
    elif harm == "notes":
        manifest = store.folder / "2" / "manifest.json"
        manifest.write_text(json.dumps({"files": json.loads(manifest.read_text())["files"]}))
    else:
        victim.unlink()
    choice = store.checkpoints.choose()
    assert choice is not None
    assert choice[0] == 1
    assert [event["step"] for event in store.events("restore_skipped")] == [2]
    assert f"{store.folder / '2'} is damaged" in capsys.readouterr().out
    if harm == "flip":  # the existing arrays depend on how the save distributed them
        (reason,) = [event["reason"] for event in store.events("restore_skipped")]
        assert re.fullmatch(
            rf"{victim.relative_to(store.folder / '2')} has changed .* \(arrays? (opt|params)\..*\)", reason
        )
    assert store.save(2, state) == ""
    assert store.steps() == [1, 2]


@pytest.fixture
def unreadable(store: Store, state: Any) -> Errors:
    """Checkpoints of steps 1 and 2; reads of a step raise the error given here."""
    store.save(1, state)
    store.save(2, state)
    return store.errors


def test_an_unreadable_checkpoint_is_skipped_and_kept(store: Store, state: Any, unreadable: Errors) -> None:
    unreadable[2] = errno.EIO
    choice = store.checkpoints.choose()
    assert choice is not None and choice[0] == 1 and store.steps() == [1, 2]
    (skipped,) = store.events("restore_skipped")
    assert skipped["step"] == 2 and "Input/output error" in skipped["reason"]
    assert store.save(2, state) == "" and store.steps() == [1, 2], "the new one replaces it"
    unreadable.clear()
    store.checkpoints.max_to_keep = 2
    assert store.save(3, state) == "" and store.steps() == [2, 3], "the new one counts"
    assert store.checkpoints.choose() == (3, {"note": 1})


@pytest.mark.parametrize(("keep", "saved", "left"), [(1, 5, [5, 9]), (2, 10, [2, 9, 10])])
def test_an_unreadable_checkpoint_does_not_displace_readable_ones(
    keep: int, saved: int, left: list[int], store: Store, state: Any, unreadable: Errors
) -> None:
    store.save(9, state)
    unreadable[9] = errno.EIO
    choice = store.checkpoints.choose()
    assert choice is not None and choice[0] == 2
    store.checkpoints.max_to_keep = keep
    assert store.save(saved, state) == ""
    assert store.steps() == left


def test_a_run_with_unreadable_checkpoints_does_not_start_from_scratch(store: Store, unreadable: Errors) -> None:
    unreadable.update({1: errno.EIO, 2: errno.EIO})
    with pytest.raises(StorageError, match=r"none of the checkpoints in .* can be read"):
        store.checkpoints.choose()
    assert store.checkpoints.choose(newer_than=0) is None, "the local tier has the state of step 0"
    unreadable.update({1: 0, 2: errno.ESTALE})
    with pytest.raises(StorageError, match="2 cannot be read: Stale file handle"):
        store.checkpoints.choose()
    assert store.steps() == [1, 2]


def test_an_interrupted_save_is_ignored_and_removed(store: Store, state: Any) -> None:
    store.save(1, state)
    (store.folder / "1").rename(store.folder / ".saving-2-0")
    assert store.checkpoints.choose() is None
    assert [path.name for path in store.folder.iterdir()] == [".owner"]


@pytest.mark.parametrize("choice", ["100/items/array", "100", "00000100/_METADATA", "1/array"])
def test_checkpoints_of_another_program_end_the_run_and_are_not_removed(choice: str, store: Store, state: Any) -> None:
    """This includes a checkpoint of ours without its manifest, whose origin is unknown."""
    store.save(1, state)
    store.save(2, state)
    if choice == "1/array":
        (store.folder / "1" / "manifest.json").unlink()
    path = store.folder / choice
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"weights")
    foreign = store.folder / Path(choice).parts[0]
    (store.folder / ".saving-3-0").mkdir()
    with pytest.raises(FatalError, match=f"{foreign} is not a checkpoint of this trainer") as refused:
        store.checkpoints.choose()
    (problem,) = refused.value.problems
    assert "another run.output_dir" in problem.hint
    assert path.read_bytes() == b"weights" and (store.folder / ".saving-3-0").is_dir()
    assert store.save(3, state) == "" and store.save(4, state) == "" and store.save(200, state) == ""
    assert path.read_bytes() == b"weights", "nor does it count as one too many later"


def test_remains_of_a_copying_rename_are_removed(store: Store, state: Any) -> None:
    store.save(1, state)
    for folder in (".saving-2-0", "2", ".removing-3", "3"):  # like on a mounted bucket
        (store.folder / folder).mkdir()
        (store.folder / folder / "array").write_bytes(b"half")
    choice = store.checkpoints.choose()
    assert choice is not None and choice[0] == 1
    assert {path.name for path in store.folder.iterdir()} == {".owner", "1"}


def test_all_hosts_know_the_newest_checkpoint_of_both_tiers(store: Store, tmp_path: Path, state: Any) -> None:
    """The joint save at the end must not depend on which host has looked."""
    store.save(1, state)
    store.save(2, state)
    hosts, _ = connected(2)
    for newer_than, newest in ((2, 2), (7, 2), (1, 2), (0, 2)):
        both = [Checkpoints(open_place(store.folder), 3, {}, peers, store.checkpoints._events) for peers in hosts]
        together([functools.partial(item.choose, newer_than) for item in both])
        assert [item.last for item in both] == [newest] * 2


def test_a_slice_that_has_restored_nothing_takes_over_the_saves(store: Store, state: Any) -> None:
    store.save(1, state)
    store.save(2, state)
    began: list[FolderStore] = []

    class Observed(FolderStore):
        def begin_attempt(self, attempt: int) -> str:
            began.append(self)
            return super().begin_attempt(attempt)

    hosts, _ = connected(2)
    folder, stores = open_place(store.folder), [Observed(store.folder) for _ in hosts]
    both = [
        Checkpoints(folder, 3, {}, peers, store.checkpoints._events, store=own)
        for peers, own in zip(hosts, stores, strict=True)
    ]
    together([item.take_over for item in both])
    assert [item.last for item in both] == [2, 2] and began == [stores[0]]
    together([item.take_over for item in both])
    assert began == [stores[0]], "once"
    assert store.save(3, state) == "a newer attempt has taken over"


def test_the_bytes_of_a_save_are_known_before(store: Store) -> None:
    free, need = store.checkpoints.free_and_needed_bytes({"w": np.zeros((3, 5), np.float32), "step": np.int64(1)})
    assert need == 3 * 5 * 4 + 8 + (8 << 20) and free is not None and free > 0


def test_arrays_have_the_names_of_their_places() -> None:
    state = {"params": {"stem": np.zeros((2, 3))}, "step": np.int32(0)}
    assert array_shapes(state) == {"params/stem": (2, 3), "step": ()}


def test_a_failed_commit_leaves_nothing(store: Store, state: Any) -> None:
    store.save(1, state)
    store.errors["commit"] = errno.ENOSPC
    assert store.save(2, state) == "No space left on device"
    assert {path.name for path in store.folder.iterdir()} == {".owner", "1"}
    assert store.checkpoints.last == 1


def test_a_folder_that_cannot_be_listed_does_not_fail_a_save(
    store: Store, state: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Otherwise the hosts would wait forever for the result of the commit."""
    store.errors["steps"] = errno.ESTALE
    store.checkpoints.save(1, state)
    assert store.checkpoints.join(60)
    assert store.checkpoints.wait() == "" and store.save(2, state) == ""
    assert [event["step"] for event in store.events("save")] == [1, 2] and store.steps() == [1, 2]
    warning = f"warning: older checkpoints in {store.folder} are not removed: Stale file handle"
    assert capsys.readouterr().out.count(warning) == 1


def test_a_failed_save_keeps_the_previous_checkpoint(store: Store, state: Any) -> None:
    store.save(1, state)
    (store.folder / ".saving-2-0").write_text("in the way")  # the folder cannot be created
    assert store.save(2, state) == "File exists"
    assert [event["reason"] for event in store.events("save_failed")] == ["File exists"]
    choice = store.checkpoints.choose()
    assert choice is not None
    assert choice[0] == 1
    assert store.save(3, state) == ""


def test_a_checkpoint_is_not_committed_once_another_run_has_taken_over(tmp_path: Path, state: Any) -> None:
    reasons = iter(["", "workload 'lm' has taken over the output folder"])
    store = Store(tmp_path, check_lease=lambda: next(reasons))
    assert store.save(1, state) == ""
    assert store.save(2, state) == "workload 'lm' has taken over the output folder"
    assert {path.name for path in store.folder.iterdir()} == {".owner", "1"}, "nothing of it is left"
    assert store.events("save_failed")[-1]["step"] == 2
