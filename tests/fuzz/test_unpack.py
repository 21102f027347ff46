"""Archives of code on a host: each is unpacked as it was packed, or rejected before anything is unpacked."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import shutil
import tarfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.fuzz.counts import inputs
from tests.fuzz.mutations import damaged
from xpk.model.terminal import printable
from xpk.render.unpack import main, unpack

NAMES = ["a", "b", "a/b", "a/b/c", "d", "d/e", "./a", "a/", "a//b", "a/../b", "..", "../a", "../../a", "/a",
         "/tmp/xpk-fuzz", ".", "", "a\nb", "\x1b[31m", "é", "x" * 300, "x/" * 1500 + "x"]  # fmt: skip
TARGETS = [*NAMES, "b/..", "..", "../..", "a/../../x", "/etc/passwd", "/dev/zero", "secret", "../secret"]
TYPES = [tarfile.REGTYPE] * 4 + [tarfile.DIRTYPE] * 2 + [tarfile.SYMTYPE] * 4
TYPES += [tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE, tarfile.CONTTYPE, b"Z"]
Entry = tuple[str, bytes, str, bytes, int]  # name, type, target, content, mode
ENTRIES = st.tuples(st.sampled_from(NAMES), st.sampled_from(TYPES), st.sampled_from(TARGETS), st.binary(max_size=9),
                    st.sampled_from([0o644, 0o755, 0o4777, 0]))  # fmt: skip


def packed(entries: Sequence[Entry]) -> bytes:
    """Return a tar of entries."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, kind, target, content, mode in entries:
            info = tarfile.TarInfo(name)
            info.type, info.mode = kind, mode
            if kind in (tarfile.SYMTYPE, tarfile.LNKTYPE):
                info.linkname = target
            elif kind == tarfile.REGTYPE:
                info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    content = raw.getvalue().rstrip(b"\0")
    return content + bytes(-len(content) % 512 + 1024)


def named(tar: bytes) -> str:
    return f"xpk-code-{hashlib.sha256(tar).hexdigest()[:20]}"


def contents(folder: Path) -> dict[str, Any]:
    """Return the content of every file below a folder, and the target of every link."""
    return {
        str(path.relative_to(folder)): path.readlink() if path.is_symlink() else path.read_bytes()
        for path in folder.rglob("*")
        if path.is_symlink() or path.is_file()
    }


def check(root: Path, content: bytes, name: str) -> None:
    """Unpack an archive beside a file that it must not change or show."""
    shutil.rmtree(root, ignore_errors=True)
    (root / "code").mkdir(parents=True)
    (root / "secret").write_text("secret")
    (root / "archive").write_bytes(content)
    try:
        main(str(root / "archive"), name, str(root / "code"))
    except SystemExit as end:
        assert (
            str(end.code).startswith("the code at ") and printable(str(end.code)) == end.code and "\n" not in end.code
        )
        assert not list((root / "code").iterdir()), "nothing is unpacked"
    assert sorted(path.name for path in root.iterdir()) == ["archive", "code", "secret"]
    assert (root / "secret").read_text() == "secret"
    for path in (root / "code").rglob("*"):
        assert path.is_symlink() or path.is_file() or path.is_dir(), "no device"
        assert Path(os.path.realpath(path)).is_relative_to(os.path.realpath(root / "code"))
        assert path.is_symlink() or path.stat().st_mode & 0o7000 == 0


def of(*entries: tuple[str, bytes, str]) -> list[Entry]:
    return [(name, kind, target, b"x", 0o644) for name, kind, target in entries]


FILE, LINK = tarfile.REGTYPE, tarfile.SYMTYPE


@inputs(0.08)
@given(entries=st.lists(ENTRIES, max_size=5))
@example(entries=of(("a", FILE, ""), ("../a", FILE, "")))
@example(entries=of(("a", FILE, ""), ("b", LINK, "../secret")))
@example(entries=of(("a", FILE, ""), ("d", tarfile.FIFOTYPE, "")))
@example(entries=of(("a", FILE, ""), ("d", tarfile.LNKTYPE, "a")))
@example(entries=of(("d", LINK, "."), ("d/e", FILE, "")))
@example(entries=of(("a", FILE, ""), ("a/b", FILE, "")))
@example(entries=of(("a", FILE, ""), ("x" * 300, FILE, "")))
@example(entries=of(("a", LINK, "b"), ("a", FILE, "")))
@example(entries=of(("b", FILE, ""), ("a", LINK, "")))
def test_any_archive(tmp_path_factory: pytest.TempPathFactory, entries: list[Entry]) -> None:
    with suppress(ValueError, UnicodeError):  # the tar cannot be made
        tar = packed(entries)
        check(tmp_path_factory.getbasetemp() / "archive", gzip.compress(tar, 1), named(tar))


TARS = [
    packed(of(("a", FILE, ""), ("d", tarfile.DIRTYPE, ""), ("d/e", FILE, ""), ("b", LINK, "a"))),
    packed(of(("x" * 200, FILE, ""), ("\u00e9", LINK, "x" * 200))),
]


@inputs(0.04)
@given(tar=damaged(damaged(st.sampled_from(TARS))))
def test_any_headers(tmp_path_factory: pytest.TempPathFactory, tar: bytes) -> None:
    check(tmp_path_factory.getbasetemp() / "headers", gzip.compress(tar, 1), named(tar))


@inputs(0.04)
@given(content=damaged(st.just(gzip.compress(packed(of(("a", FILE, ""), ("b", LINK, "a"))), 1))))
def test_any_content_under_another_name(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    tar = packed(of(("a", FILE, ""), ("b", LINK, "a")))
    root = tmp_path_factory.getbasetemp() / "content"
    check(root, content, named(tar))
    if (root / "code" / "a").exists():
        assert contents(root / "code") == {"a": b"x", "b": Path("a")}


def test_a_bomb_is_rejected_before_it_fills_the_memory(tmp_path: Path) -> None:
    zeros = gzip.compress(bytes(1 << 26), 1) * 40  # 2.5 GiB
    with pytest.raises(ValueError, match="damaged, or another one"):
        unpack(zeros, "xpk-code-0123", str(tmp_path))


def test_a_file_with_holes_is_rejected_by_its_size(tmp_path: Path) -> None:
    info = tarfile.TarInfo("a")
    info.size, info.pax_headers = 512, {"GNU.sparse.size": str(1 << 50), "GNU.sparse.map": "0,512"}
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(info, io.BytesIO(bytes(512)))
    with pytest.raises(ValueError, match="larger than 256 MiB"):
        unpack(gzip.compress(raw.getvalue(), 1), named(raw.getvalue()), str(tmp_path))
    assert not list(tmp_path.iterdir())
