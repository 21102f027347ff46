"""Places behave alike on a disk and in a bucket."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from xpk_shared.storage import Place
from xpk_shared.storage.errors import Refused

Open = Callable[[str], Place]
SEAL = "manifest.json"


def names(place: Place) -> list[str]:
    return [entry.name for entry in place.walk(frozenset())]


def test_missing_files_and_folders(opened: Open) -> None:
    place = opened("run")
    assert not place.is_file() and not place.is_folder() and place.is_empty()
    assert place.files() == [] and names(place) == []
    for read in (place.read, place.entry, lambda: place.part(0, 1), lambda: place.part(-1, 1)):
        with pytest.raises(FileNotFoundError) as error:
            read()
        assert error.value.filename == str(place) and "\n" not in str(error.value)
    place.remove_tree(SEAL)


def test_a_file_is_read_completely_and_in_parts(opened: Open) -> None:
    folder, file = opened("run"), opened("run") / "a" / "b"
    file.write(b"before")
    file.write(b"0123456789")
    assert file.is_file() and not folder.is_file() and folder.is_folder() and not folder.is_empty()
    assert file.read() == b"0123456789" and file.entry().size == 10
    assert file.part(0, 4) == b"0123" and file.part(8, 4) == b"89" and file.part(20, 4) == b""
    assert file.part(-3, 3) == b"789" and file.part(-30, 30) == b"0123456789"
    file.write(b"")
    assert file.read() == file.part(0, 4) == file.part(-4, 4) == b""


def test_files_are_found_by_a_part_of_their_names(opened: Open) -> None:
    place = opened("run")
    for name in ("events.x", "a/b/events.y", "a/b/other", "events/none"):
        (place / name).write(b"1234")
    assert sorted((entry.name, entry.size) for entry in place.find("events.", 100)) == [
        ("a/b/events.y", 4),
        ("events.x", 4),
    ]
    assert opened("missing").find("events.", 100) == []


def test_a_change_increases_the_number_of_the_entry(opened: Open) -> None:
    file = opened("file")
    file.write(b"one")
    before = file.entry()
    file.write(b"two")
    assert file.entry().changed > before.changed and file.entry().name == "file"


def test_a_read_beyond_the_limit_is_rejected(opened: Open) -> None:
    file = opened("file")
    file.write(b"x" * (3 << 20))
    assert len(file.read(3 << 20)) == 3 << 20
    with pytest.raises(Refused, match="too large: 3 MiB, the limit is 2 MiB"):
        file.read(2 << 20)


def test_files_are_listed_in_one_order(opened: Open) -> None:
    folder = opened("run")
    for name in ("z", "b/2", "b/10", "a/x/1", ".hidden", ".git/c", "skip/d", "a.txt"):
        (folder / name).write(name.encode())
    assert sorted(entry.name for entry in folder.files()) == [".hidden", "a.txt", "z"]
    result = [entry.name for entry in folder.walk(frozenset({"skip"}))]
    assert result == ["a.txt", "z", "a/x/1", "b/10", "b/2"]


def test_many_files_are_read_in_order(opened: Open) -> None:
    folder = opened("run")
    for number in range(40):
        (folder / f"{number:02}").write(str(number).encode())
    entries = list(folder.walk(frozenset()))
    entries[7] = dataclasses.replace(entries[7], name="removed meanwhile")
    contents = list(folder.read_each(entries))
    assert contents == [None if number == 7 else str(number).encode() for number in range(40)]
    with pytest.raises(FileNotFoundError):
        list(folder.read_each(entries, ()))


def test_lines_are_appended(opened: Open) -> None:
    file = opened("metrics.jsonl")
    for content in ((b"one\n", b"two\n"), (b"three\n",)):
        lines = file.lines()
        for line in content:
            lines.write(line)
        lines.flush(30)
    assert file.read() == b"one\ntwo\nthree\n"


def test_a_version_is_written_only_over_the_version_that_was_read(opened: Open) -> None:
    first, second = opened("lease.json").slot(), opened("lease.json").slot()
    assert first.look() == (0, b"")
    version = first.put(b"first", 0)
    with pytest.raises(FileExistsError):
        second.put(b"second", 0)
    assert second.look() == (version, b"first")
    newer = second.put(b"second", version)
    with pytest.raises(FileExistsError):
        first.put(b"third", version)
    assert first.look() == (newer, b"second") and newer > version


def test_a_version_that_was_replaced_and_removed_long_ago_is_not_written_over(opened: Open) -> None:
    # Of the versions on a disk only the newest is left: the one after the old version could be created again.
    late, others = opened("lease.json").slot(), opened("lease.json").slot()
    read = late.put(b"one", 0)
    newest = others.put(b"three", others.put(b"two", read))
    with pytest.raises(FileExistsError):
        late.put(b"late", read)
    assert others.look() == (newest, b"three")
    assert others.put(b"four", newest) > newest, "the refused write left nothing behind"


def test_a_folder_is_renamed_and_removed_without_its_neighbors(opened: Open) -> None:
    content = {f"checkpoints/5/part-{number}": str(number).encode() for number in range(20)}
    content |= {f"checkpoints/5/{SEAL}": b"{}", "metrics.jsonl": b"line\n"}
    for name, text in content.items():
        (opened("run") / name).write(text)
    (opened("run.2") / "metrics.jsonl").write(b"another run")
    opened("run").rename("run.1", SEAL)
    assert opened("run").is_empty()
    assert {name: (opened("run.1") / name).read() for name in names(opened("run.1"))} == content
    opened("run.1").remove_tree(SEAL)
    assert opened("run.1").is_empty() and names(opened("run.2")) == ["metrics.jsonl"]


def test_local_files_are_uploaded_and_downloaded(opened: Open, tmp_path: Path) -> None:
    file = tmp_path / "made"
    file.write_bytes(b"content")
    assert opened("stored").adopt(file) == opened("stored").entry()
    opened("stored").download(tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == opened("stored").read() == b"content"
