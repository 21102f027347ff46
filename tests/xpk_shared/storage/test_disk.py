"""Places on a disk: permissions, symbolic links, and files that are not regular."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from xpk_shared.storage import open_place
from xpk_shared.storage.errors import Refused


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_written_files_are_readable_by_everyone(umask: int, tmp_path: Path) -> None:
    before = os.umask(umask)
    try:
        open_place(tmp_path / "file").write(b"content")
        open_place(tmp_path / "slot").slot().put(b"content", 0)
    finally:
        os.umask(before)
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o644}


def test_a_failed_write_keeps_the_file_and_leaves_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = open_place(tmp_path / "file")
    place.write(b"whole")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        place.write(b"half")
    assert place.read() == b"whole" and [path.name for path in tmp_path.iterdir()] == ["file"]


def test_pipes_and_devices_are_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    for name in ("pipe", "zero"):
        place = open_place(tmp_path / name)
        for read in (place.read, lambda place=place: place.part(0, 4)):
            with pytest.raises(Refused, match="it is not a regular file"):
                read()
    assert list(open_place(tmp_path).walk(frozenset())) == []


def test_links_are_followed_only_within_the_root(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "file").write_bytes(b"secret")
    (tmp_path / "root" / "link").symlink_to(tmp_path / "secret")
    (tmp_path / "root" / "here").write_bytes(b"here")
    (tmp_path / "root" / "inside").symlink_to("here")
    assert (open_place(tmp_path / "root") / "link" / "file").read() == b"secret"
    guarded = open_place(tmp_path / "root", root=tmp_path / "root")
    assert (guarded / "inside").read() == b"here"
    for read in ((guarded / "link" / "file").read, (guarded / "link").files):
        with pytest.raises(Refused, match="a symbolic link leads out of"):
            read()


def test_a_link_is_not_removed_as_a_folder(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "link").symlink_to("other")
    with pytest.raises(Refused, match="it is a symbolic link"):
        open_place(tmp_path / "link", root=tmp_path).remove_tree("manifest.json")
    assert (tmp_path / "other").is_dir()
