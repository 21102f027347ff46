"""Folders and addresses without a bucket."""

import base64
import hashlib
import json
import os
import resource
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.trainer.small import arguments, run_alone
from trainer.checkpoint.stores import manifest, open_store
from trainer.data import local_copies
from trainer.errors import FatalError
from trainer.storage import open_place
from trainer.storage.scratch import scratch
from xpk_shared.storage.bucket import Bucket
from xpk_shared.storage.disk import DiskLines


def test_a_missing_google_client_is_reported_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "google").mkdir()
    (tmp_path / "google" / "__init__.py").write_text("")  # hides the installed package
    workloads = Path(__file__).parents[3] / "workloads"
    ran = run_alone(
        *arguments(["data.path=stdlib"]), XPK_OUTPUT_DIR="gs://bucket/run", PYTHONPATH=f"{tmp_path}:{workloads}"
    )
    assert ran.returncode == 42
    assert ran.stderr.startswith("error: gs://bucket/run requires google-cloud-storage, which is not installed")
    assert ran.stderr.count("\n") == 1 and "xpk-multislice[gcs]" in ran.stderr


@pytest.mark.parametrize("address", ["gs://", "gs:///name", "gs://bucket/../name"])
def test_invalid_addresses_are_rejected(address: str) -> None:
    with pytest.raises(FatalError, match="is not an address in a bucket"):
        open_place(address)


@pytest.mark.parametrize("address", ["gs:/bucket/run", "GS:bucket", "s3://bucket/run"])
def test_a_mistyped_bucket_is_no_folder(address: str) -> None:
    with pytest.raises(FatalError) as refused:
        open_place(address)
    (problem,) = refused.value.problems
    assert problem.message == f"'{address}' is neither a folder nor gs://BUCKET/PREFIX"
    assert problem.hint == "Use a folder, or gs://BUCKET/NAME"


def test_a_check_refuses_a_mistyped_output_bucket() -> None:
    size = ("--num-slices", "1", "--hosts-per-slice", "1", "--chips-per-host", "2")
    ran = run_alone("check", *size, *arguments(["data.path=stdlib", "run.output_dir=gs:/bucket/run"]))
    (problem,) = json.loads(ran.stdout)["problems"]
    assert ran.returncode == 42 and "'gs:/bucket/run' is neither a folder nor" in problem["message"]


def test_a_checkpoint_copied_from_a_bucket_is_verified_and_read(tmp_path: Path) -> None:
    array = tmp_path / "5" / "17" / "array"
    array.parent.mkdir(parents=True)
    array.write_bytes(b"content")
    md5 = "md5:" + base64.b64encode(hashlib.md5(b"content", usedforsecurity=False).digest()).decode()
    notes = {"tokens": 7, manifest.INSIDE: "17"}
    (tmp_path / "5" / "manifest.json").write_bytes(manifest.manifest({"17/array": (7, md5)}, notes))
    store = open_store(open_place(tmp_path))
    assert store.steps() == [5] and store.damage(5) == ""
    assert store.content(5, store.notes(5)) == str(array.parent)
    array.write_bytes(b"CONTENT")
    assert store.damage(5) == "17/array has changed since it was written"


def test_an_earlier_attempt_never_replaces_a_checkpoint(tmp_path: Path) -> None:
    earlier, later = open_store(open_place(tmp_path)), open_store(open_place(tmp_path))
    old, new = earlier.begin_attempt(0), later.begin_attempt(1)
    for store, attempt_id in ((earlier, old), (later, new)):
        Path(store.staging_path(5, attempt_id), "array").write_text(attempt_id)
    later.commit(5, new, {"attempt": 1})
    with pytest.raises(OSError, match="a newer attempt has taken over"):
        earlier.commit(5, old, {"attempt": 0})
    assert json.loads((tmp_path / "5" / "manifest.json").read_bytes())["notes"] == {"attempt": 1}


def test_copies_of_the_current_generation_are_not_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another job may be filling it block by block while this one copies the complete file."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    place = Bucket(None, "data", "train.bin")
    for generation in ("6", "6.parts", "7.parts"):
        local_copies._copy(place, generation).touch()
    whole = tmp_path / "new"
    whole.touch()
    local_copies._store(place, whole, 7)
    assert {path.name.rpartition("-")[2] for path in scratch().iterdir()} == {"7", "7.parts"}


@pytest.mark.parametrize("neighbor", ["a file", "a link"])
def test_another_users_scratch_folder_is_not_used(
    neighbor: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    taken = tmp_path / f"xpk-trainer-{os.getuid()}"
    taken.touch() if neighbor == "a file" else taken.symlink_to(tmp_path)
    folder = scratch()
    assert folder.is_dir() and folder not in (taken, tmp_path) and folder.stat().st_mode & 0o077 == 0
    assert scratch() == folder, "hosts on a machine share it"


@pytest.mark.parametrize(
    "left", [b"", b'{"step": 1}\n', b'{"step": 1}\n{"st', b'{"st', b"x" * 100_000, b"a\n" + b"x" * 100_000]
)
def test_a_partial_line_of_a_killed_process_is_removed(left: bytes, tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(left)
    open_place(path).lines().write(b'{"step": 2}\n')
    assert path.read_bytes() == left[: left.rfind(b"\n") + 1] + b'{"step": 2}\n'


@contextmanager
def full_disk(size: int) -> Iterator[None]:
    """Let no file grow beyond `size` bytes, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_lines_that_do_not_fit_are_written_once_there_is_space(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    lines = open_place(path).lines()
    lines.write(b"first\n")
    with full_disk(10):
        for line in (b"second\n", b"third\n"):
            with pytest.raises(OSError, match="No space left"):
                lines.write(line)
        with pytest.raises(OSError, match="No space left"):
            lines.flush(1.0)
        assert path.read_bytes() == b"first\n", "no partial line remains"
    lines.write(b"fourth\n")
    assert path.read_bytes() == b"first\nsecond\nthird\nfourth\n"
    with full_disk(len(path.read_bytes())), pytest.raises(OSError, match="File too large"):
        lines.write(b"fifth\n")
    lines.flush(1.0)
    assert path.read_bytes().endswith(b"fourth\nfifth\n"), "also the last line of a process"


def test_the_oldest_lines_are_dropped_if_a_disk_stays_full(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    lines = DiskLines(path, most_waiting=20)
    with full_disk(0):
        for number in range(9):
            with pytest.raises(OSError, match="File too large"):
                lines.write(b"line %d\n" % number)
    lines.flush(1.0)
    assert path.read_bytes() == b"line 7\nline 8\n"


@contextmanager
def no_file_opens() -> Iterator[None]:
    """Let this process open no further file or folder."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_folder_that_cannot_be_listed_is_not_taken_for_empty(tmp_path: Path) -> None:
    place = open_place(tmp_path)
    (tmp_path / "part").mkdir()
    (tmp_path / "part" / "a.txt").write_text("text")
    entries = place.walk(frozenset())
    with no_file_opens(), pytest.raises(OSError, match="Too many open files"):
        list(entries)
    assert [entry.name for entry in place.walk(frozenset())] == ["part/a.txt"]
    assert list((place / "none").walk(frozenset())) == []


def test_the_folder_that_a_file_system_has_for_itself_is_no_source(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir(mode=0o700)
    (tmp_path / "lost+found" / "#12").write_text("text")
    assert list(open_place(tmp_path).walk(frozenset())) == []
