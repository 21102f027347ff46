"""Commits of checkpoints while another attempt takes over, or the process is killed, at any point."""

import os
from pathlib import Path

import pytest

from tests.trainer import cloud_storage
from trainer.checkpoint.stores import manifest, open_store
from trainer.storage import open_place
from xpk_shared.storage.bucket import Bucket


def written(client: cloud_storage.Client, step: int, attempt: int = 0) -> tuple[Bucket, str]:
    """Return a store's place and the attempt id of its new owner, which has written a checkpoint's arrays."""
    place = cloud_storage.place("run/checkpoints", client)
    attempt_id = open_store(place).begin_attempt(attempt)
    (place / str(step) / attempt_id / "d" / "array").write(b"content")
    return place, attempt_id


def test_an_attempt_that_is_no_longer_the_owner_commits_nothing() -> None:
    client = cloud_storage.Client()
    place, old = written(client, 5)
    _, new = written(client, 6, attempt=1)
    with pytest.raises(PermissionError, match="a newer attempt has taken over"):
        open_store(place).commit(5, old, {})
    assert open_store(place).steps() == []
    open_store(place).commit(6, new, {})
    assert open_store(place).steps() == [6] and open_store(place).damage(6) == ""


@pytest.mark.parametrize("kind", ["folder", "bucket"])
def test_an_earlier_attempt_removes_no_checkpoint_that_is_newer_than_its_own(kind: str, tmp_path: Path) -> None:
    # It may be slow to remove the older ones, while the next attempt is far ahead.
    client = cloud_storage.Client()
    place = open_place(tmp_path) if kind == "folder" else cloud_storage.place("run/checkpoints", client)
    store = open_store(place)
    attempt_id = store.begin_attempt(0)
    for step in (3, 5, 7, 9):
        staging = (
            open_place(store.staging_path(step, attempt_id)) if kind == "folder" else place / str(step) / attempt_id
        )
        (staging / "array").write(b"content")
        store.commit(step, attempt_id, {})
    store.remove_old(1, 5)
    assert store.steps() == [5, 7, 9]


@pytest.mark.parametrize("request_", range(12))
def test_a_new_owner_during_a_commit_leaves_no_partial_checkpoint(request_: int) -> None:
    """Before each request of the commit in turn: the checkpoint is complete, or nothing of it remains."""
    client = cloud_storage.Client()
    place, old = written(client, 5)
    requests = 0

    def take_over(verb: str, name: str) -> None:
        nonlocal requests
        requests += 1
        if requests == request_ + 1:
            client.before = lambda verb, name: None
            open_store(place).begin_attempt(1)

    client.before = take_over
    committed = True
    try:
        open_store(place).commit(5, old, {})
    except OSError:
        committed = False
        open_store(place).abort(5, old)
    client.before = lambda verb, name: None
    open_store(place).begin_attempt(2)
    assert open_store(place).steps() == ([5] if committed else [])
    if committed:
        assert open_store(place).damage(5) == ""
    else:
        assert place.folders() == []


def test_an_interrupted_commit_is_removed() -> None:
    client = cloud_storage.Client()
    place, attempt_id = written(client, 5)

    def kill(verb: str, name: str) -> None:
        if verb == "write" and name.endswith(manifest.MANIFEST):
            raise KeyboardInterrupt

    client.before = kill
    with pytest.raises(KeyboardInterrupt):
        open_store(place).commit(5, attempt_id, {})
    client.before = lambda verb, name: None
    open_store(place).begin_attempt(1)
    assert place.folders() == []


def test_on_a_disk_a_checkpoint_has_its_manifest_before_its_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill between the two leaves an interrupted save, not a number without a manifest."""
    store = open_store(open_place(tmp_path))
    attempt_id = store.begin_attempt(0)
    Path(store.staging_path(5, attempt_id), "array").write_bytes(b"content")
    seen: list[list[str]] = []
    replace = os.replace

    def watched(source: Path, target: Path) -> None:
        replace(source, target)
        seen.append(sorted(path.name for path in tmp_path.glob("5/*")))

    monkeypatch.setattr(os, "replace", watched)
    store.commit(5, attempt_id, {})
    assert seen[-1] == ["array", "manifest.json"]
    assert all(names in ([], ["array", "manifest.json"]) for names in seen), "a number without a manifest"
