"""Folders and addresses: what needs no bucket."""

import base64
import hashlib
import json
import os
import resource
import tempfile
from pathlib import Path

import pytest

from tests.trainer.small import arguments, run_alone
from trainer.checkpoint.shelves import manifest, open_shelf
from trainer.data import local_copies
from trainer.errors import FatalError
from trainer.storage import open_place
from trainer.storage.scratch import scratch
from xpk_shared.storage.bucket import Bucket


def test_without_the_client_of_google_a_bucket_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "google").mkdir()
    (tmp_path / "google" / "__init__.py").write_text("")  # hides what is installed
    workloads = Path(__file__).parents[3] / "workloads"
    ran = run_alone(
        *arguments(["data.path=stdlib"]), XPK_OUTPUT_DIR="gs://bucket/run", PYTHONPATH=f"{tmp_path}:{workloads}"
    )
    assert ran.returncode == 42
    assert ran.stderr.startswith("error: gs://bucket/run needs google-cloud-storage, which is not installed")
    assert ran.stderr.count("\n") == 1 and "xpk-multislice[gcs]" in ran.stderr


@pytest.mark.parametrize("address", ["gs://", "gs:///name", "gs://bucket/../name"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(FatalError, match="is not an address in a bucket"):
        open_place(address)


def test_a_checkpoint_that_was_copied_from_a_bucket_is_checked_and_read(tmp_path: Path) -> None:
    array = tmp_path / "5" / "17" / "array"
    array.parent.mkdir(parents=True)
    array.write_bytes(b"content")
    md5 = "md5:" + base64.b64encode(hashlib.md5(b"content").digest()).decode()
    notes = {"tokens": 7, manifest.INSIDE: "17"}
    (tmp_path / "5" / "manifest.json").write_bytes(manifest.manifest({"17/array": (7, md5)}, notes))
    shelf = open_shelf(open_place(tmp_path))
    assert shelf.steps() == [5] and shelf.damage(5) == ""
    assert shelf.content(5, shelf.notes(5)) == str(array.parent)
    array.write_bytes(b"CONTENT")
    assert shelf.damage(5) == "17/array has changed since it was written"


def test_an_earlier_attempt_never_replaces_a_checkpoint(tmp_path: Path) -> None:
    earlier, later = open_shelf(open_place(tmp_path)), open_shelf(open_place(tmp_path))
    old, new = earlier.claim(0), later.claim(1)
    for shelf, claim in ((earlier, old), (later, new)):
        Path(shelf.draft(5, claim), "array").write_text(claim)
    later.commit(5, new, {"attempt": 1})
    with pytest.raises(OSError, match="not empty"):
        earlier.commit(5, old, {"attempt": 0})
    assert json.loads((tmp_path / "5" / "manifest.json").read_bytes())["notes"] == {"attempt": 1}


def test_a_copy_of_the_present_generation_is_nobodys_to_remove(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another job may be filling it block by block while this one copies the whole."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    place = Bucket(None, "data", "train.bin")
    for generation in ("6", "6.parts", "7.parts"):
        local_copies._copy(place, generation).touch()
    whole = tmp_path / "new"
    whole.touch()
    local_copies._keep(place, whole, 7)
    assert {path.name.rpartition("-")[2] for path in scratch().iterdir()} == {"7", "7.parts"}


@pytest.mark.parametrize("neighbor", ["a file", "a link"])
def test_a_neighbor_who_takes_the_name_in_the_temporary_folder_stops_nobody(
    neighbor: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    taken = tmp_path / f"xpk-trainer-{os.getuid()}"
    taken.touch() if neighbor == "a file" else taken.symlink_to(tmp_path)
    folder = scratch()
    assert folder.is_dir() and folder not in (taken, tmp_path) and folder.stat().st_mode & 0o077 == 0
    assert scratch() == folder, "hosts of a machine share it"


@pytest.mark.parametrize(
    "left", [b"", b'{"step": 1}\n', b'{"step": 1}\n{"st', b'{"st', b"x" * 100_000, b"a\n" + b"x" * 100_000]
)
def test_half_a_line_that_a_kill_left_goes_when_the_next_process_writes(left: bytes, tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(left)
    open_place(path).lines().write(b'{"step": 2}\n')
    assert path.read_bytes() == left[: left.rfind(b"\n") + 1] + b'{"step": 2}\n'


def test_a_line_that_does_not_fit_leaves_nothing_for_the_next_one_to_be_appended_to(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    lines = open_place(path).lines()
    lines.write(b"first\n")
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))  # as a full disk does
    try:
        with pytest.raises(OSError, match="No space left"):
            lines.write(b"second\n")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    lines.write(b"third\n")
    assert path.read_bytes() == b"first\nthird\n"
