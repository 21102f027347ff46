"""Commits of checkpoints when another attempt takes over, or the process is killed, at any moment of them."""

import os
from pathlib import Path

import pytest

from tests.trainer import cloud_storage
from trainer.checkpoint.shelves import manifest, open_shelf
from trainer.storage import open_place
from xpk_shared.storage.bucket import Bucket


def written(client: cloud_storage.Client, step: int, attempt: int = 0) -> tuple[Bucket, str]:
    """Return a shelf's place and what names the saves of its new owner, which has written a checkpoint's arrays."""
    place = cloud_storage.place("run/checkpoints", client)
    claim = open_shelf(place).claim(attempt)
    (place / str(step) / claim / "d" / "array").write(b"content")
    return place, claim


def test_an_attempt_that_is_not_the_owner_any_more_commits_nothing() -> None:
    client = cloud_storage.Client()
    place, old = written(client, 5)
    _, new = written(client, 6, attempt=1)
    with pytest.raises(PermissionError, match="a newer attempt has taken over"):
        open_shelf(place).commit(5, old, {})
    assert open_shelf(place).steps() == []
    open_shelf(place).commit(6, new, {})
    assert open_shelf(place).steps() == [6] and open_shelf(place).damage(6) == ""


@pytest.mark.parametrize("kind", ["folder", "bucket"])
def test_an_earlier_attempt_removes_no_checkpoint_that_is_newer_than_its_own(kind: str, tmp_path: Path) -> None:
    # It may be slow to remove the older ones, while the next attempt is far ahead.
    client = cloud_storage.Client()
    place = open_place(tmp_path) if kind == "folder" else cloud_storage.place("run/checkpoints", client)
    shelf = open_shelf(place)
    claim = shelf.claim(0)
    for step in (3, 5, 7, 9):
        draft = open_place(shelf.draft(step, claim)) if kind == "folder" else place / str(step) / claim
        (draft / "array").write(b"content")
        shelf.commit(step, claim, {})
    shelf.keep(1, 5)
    assert shelf.steps() == [5, 7, 9]


@pytest.mark.parametrize("request_", range(12))
def test_an_owner_that_comes_in_the_middle_of_a_commit_leaves_no_half_of_a_checkpoint(request_: int) -> None:
    """Before each request of the commit in turn: it is whole, or it is not there, nor is anything of it left."""
    client = cloud_storage.Client()
    place, old = written(client, 5)
    requests = 0

    def take_over(verb: str, name: str) -> None:
        nonlocal requests
        requests += 1
        if requests == request_ + 1:
            client.before = lambda verb, name: None
            open_shelf(place).claim(1)

    client.before = take_over
    committed = True
    try:
        open_shelf(place).commit(5, old, {})
    except OSError:
        committed = False
        open_shelf(place).discard(5, old)
    client.before = lambda verb, name: None
    open_shelf(place).claim(2)
    assert open_shelf(place).steps() == ([5] if committed else [])
    if committed:
        assert open_shelf(place).damage(5) == ""
    else:
        assert place.folders() == []


def test_a_commit_that_a_kill_cut_off_is_cleaned_up() -> None:
    client = cloud_storage.Client()
    place, claim = written(client, 5)

    def kill(verb: str, name: str) -> None:
        if verb == "write" and name.endswith(manifest.MANIFEST):
            raise KeyboardInterrupt

    client.before = kill
    with pytest.raises(KeyboardInterrupt):
        open_shelf(place).commit(5, claim, {})
    client.before = lambda verb, name: None
    open_shelf(place).claim(1)
    assert place.folders() == []


def test_on_a_disk_a_checkpoint_has_its_manifest_before_its_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill between the two leaves a save that was cut off, not a number without a manifest."""
    shelf = open_shelf(open_place(tmp_path))
    claim = shelf.claim(0)
    Path(shelf.draft(5, claim), "array").write_bytes(b"content")
    seen: list[list[str]] = []
    replace = os.replace

    def watched(source: Path, target: Path) -> None:
        replace(source, target)
        seen.append(sorted(path.name for path in tmp_path.glob("5/*")))

    monkeypatch.setattr(os, "replace", watched)
    shelf.commit(5, claim, {})
    assert seen[-1] == ["array", "manifest.json"]
    assert all(names in ([], ["array", "manifest.json"]) for names in seen), "a number without a manifest"
