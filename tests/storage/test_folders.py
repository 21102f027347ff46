"""Folders behave alike on a disk and in a bucket."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from e2e.bucket import BucketServer
from tests.waiting import until
from xpk.model.errors import UsageError, XpkError
from xpk.storage import Folder, open_folder

Open = Callable[[str], Folder]


@pytest.fixture(params=["disk", "bucket"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """Open a folder of this test's own by a name below its root."""
    if request.param == "disk":
        return lambda name: open_folder(str(tmp_path / name))
    request.getfixturevalue("server")
    return lambda name: open_folder(f"gs://runs/{tmp_path.name}/{name}")


def await_requests(server: BucketServer, which: Callable[[str], bool], count: int) -> list[str]:
    """Return the requests of a kind; the server logs them shortly after its responses."""
    until(lambda: len(list(filter(which, server.requests()))) >= count, report=server.requests)
    return list(filter(which, server.requests()))


def test_a_missing_folder_is_not_an_error(opened: Open) -> None:
    folder = opened("run")
    assert folder.is_empty() and not folder.has("x")
    assert folder.read("x") is None and folder.read_end("x", 10) is None
    assert folder.read_all("events") == {}
    folder.remove()


def test_a_file_is_read_as_written(opened: Open) -> None:
    folder = opened("run")
    for path, content in {"a": b"0123456789", "empty": b"", "events/1": b"one", "events/2": b"two"}.items():
        folder.write(path, content)
    folder.write("events/deeper/3", b"three")
    assert not folder.is_empty()
    assert folder.has("a") and folder.has("events/1") and not folder.has("event") and not folder.has("events")
    assert folder.read("a") == b"0123456789" and folder.read("empty") == b""
    assert folder.read_all("events") == {"1": b"one", "2": b"two"}
    folder.write("a", b"again")
    assert folder.read("a") == b"again"


@pytest.mark.parametrize(("size", "end"), [(3, b"789"), (10, b"0123456789"), (99, b"0123456789")])
def test_the_end_of_a_file(opened: Open, size: int, end: bytes) -> None:
    folder = opened("run")
    folder.write("a", b"0123456789")
    folder.write("empty", b"")
    assert folder.read_end("a", size) == end and folder.read_end("empty", size) == b""


def test_renaming_moves_everything(opened: Open) -> None:
    folder, neighbor = opened("run"), opened("run.2")
    content = {f"checkpoints/5/part-{index}": str(index).encode() for index in range(20)}
    content |= {"checkpoints/5/manifest.json": b"{}", "metrics.jsonl": b"line\n"}
    for path, text in content.items():
        folder.write(path, text)
    neighbor.write("metrics.jsonl", b"another run")
    folder.rename("run.1")
    assert folder.is_empty() and neighbor.read("metrics.jsonl") == b"another run"
    assert {path: opened("run.1").read(path) for path in content} == content


def test_removing_affects_only_the_folder(opened: Open) -> None:
    folder, neighbor = opened("run"), opened("run-2")
    folder.write("deep/er/x", b"x")
    neighbor.write("x", b"x")
    folder.remove()
    assert folder.is_empty() and neighbor.read("x") == b"x"


def test_only_the_end_of_a_long_file_is_fetched(server: BucketServer) -> None:
    folder = open_folder("gs://runs/long")
    folder.write("metrics.jsonl", b"x" * (3 << 20))
    assert len(folder.read_end("metrics.jsonl", 16384) or b"") == 16384
    asked = await_requests(server, lambda line: "GET /download" in line and "long%2Fmetrics.jsonl" in line, 1)
    assert " 206 " in asked[0]


def test_a_checkpoint_is_complete_after_any_interrupted_move(server: BucketServer) -> None:
    folder = open_folder("gs://runs/moved")
    for path in ("5/manifest.json", "5/a", "5/z", "10/manifest.json", "10/a"):
        folder.write(f"checkpoints/{path}", b"x")
    folder.rename("aside")
    copied = await_requests(server, lambda line: "/rewriteTo/" in line and "runs/o/moved%2F" in line, 5)
    deleted = await_requests(server, lambda line: "DELETE" in line and "runs/o/moved%2F" in line, 5)
    assert ["manifest" in line for line in copied] == [False] * 3 + [True] * 2
    assert ["manifest" in line for line in deleted] == [True] * 2 + [False] * 3


@pytest.mark.parametrize(
    "url",
    ["", "s3://runs/x", "gs://", "gs:///x", "gs://AB", "gs://ab", "gs://runs//x", "gs://runs/../x", "gs://runs/a\nb"],
)
def test_invalid_urls_are_rejected(url: str) -> None:
    with pytest.raises(UsageError):
        open_folder(url)


def test_a_file_in_place_of_a_folder_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    folder = open_folder(str(tmp_path / "file"))
    assert folder.is_empty() and folder.read("x") is None
    with pytest.raises(XpkError, match="cannot write"):
        folder.write("x", b"")
