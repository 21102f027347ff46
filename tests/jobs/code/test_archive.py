"""The archive of a user's code: equal for equal content, without files that must not be shipped."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xpk.jobs.code import archive as script
from xpk.jobs.code.archive import pack
from xpk.model.errors import UsageError
from xpk.render.unpack import unpack

NAMES = st.text(st.characters(exclude_characters="\0/", exclude_categories=["Cs"]), min_size=1, max_size=20).filter(
    lambda name: name not in (".", "..") and not name.startswith(".") and not name.endswith((".pyc", "__"))
)
FILES = st.tuples(st.binary(max_size=200), st.booleans())
PATHS = st.dictionaries(st.lists(NAMES, min_size=1, max_size=3).map(tuple), FILES, min_size=1, max_size=8)


def grow(files: dict[tuple[str, ...], tuple[bytes, bool]]) -> dict[str, object]:
    """Return a tree of files by path; a path through another file is omitted."""
    tree: dict[str, object] = {}
    for path, file in files.items():
        at: object = tree
        for name in path[:-1]:
            at = at.setdefault(name, {}) if isinstance(at, dict) else at
        if isinstance(at, dict):
            at.setdefault(path[-1], file)
    return tree


def lay_out(folder: Path, tree: dict[str, object], *, backwards: bool) -> None:
    """Write a tree; `backwards` changes the times and the order of writing."""
    folder.mkdir(exist_ok=True)
    for name, item in sorted(tree.items(), reverse=backwards):
        path = folder / name
        if isinstance(item, dict):
            lay_out(path, item, backwards=backwards)
        else:
            assert isinstance(item, tuple)
            path.write_bytes(item[0])
            path.chmod((0o755 if backwards else 0o700) if item[1] else (0o664 if backwards else 0o600))
            os.utime(path, (5e8, 5e8) if backwards else (1e9, 1e9))


def read_back(folder: Path) -> dict[str, object]:
    """Return a folder as a tree."""
    return {
        path.name: read_back(path) if path.is_dir() else (path.read_bytes(), bool(path.stat().st_mode & 0o100))
        for path in folder.iterdir()
    }


@settings(max_examples=60)
@given(PATHS.map(grow))
def test_equal_content_gives_equal_archives_that_unpack_to_it(tree: dict[str, object]) -> None:
    root = Path(tempfile.mkdtemp())
    try:
        lay_out(root / "one", tree, backwards=False)
        lay_out(root / "two", tree, backwards=True)
        archive = pack(root / "one")
        assert archive == pack(root / "two")
        unpack(archive.content, archive.name, str(root / "three"))
        assert read_back(root / "three") == tree
    finally:
        shutil.rmtree(root)


def project(folder: Path) -> Path:
    """A folder with two files."""
    (folder / "src").mkdir(parents=True)
    (folder / "train.py").write_text("import src.model\n")
    (folder / "src" / "model.py").write_text("")
    return folder


def shipped(folder: Path, tmp_path: Path) -> list[str]:
    """Return the paths in the archive."""
    archive, there = pack(folder), tmp_path / "there"
    unpack(archive.content, archive.name, str(there))
    return sorted(path.relative_to(there).as_posix() for path in there.rglob("*") if not path.is_dir())


def test_any_change_changes_the_name(tmp_path: Path) -> None:
    folder = project(tmp_path / "p")
    seen = {pack(folder).name}
    (folder / "train.py").write_text("import src.model \n")
    seen.add(pack(folder).name)
    (folder / "train.py").chmod(0o755)
    seen.add(pack(folder).name)
    (folder / "train.py").rename(folder / "main.py")
    seen.add(pack(folder).name)
    (folder / "empty").mkdir()
    seen.add(pack(folder).name)
    assert len(seen) == 5


def test_caches_and_version_control_are_not_shipped(tmp_path: Path) -> None:
    folder = project(tmp_path / "p")
    for name in (".git/HEAD", ".venv/bin/python", "src/__pycache__/x.pyc", "old.pyc", ".ruff_cache/x"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")
    os.mkfifo(folder / "pipe")
    assert shipped(folder, tmp_path) == ["src/model.py", "train.py"]


def test_the_ignore_file_excludes_files(tmp_path: Path) -> None:
    folder = project(tmp_path / "p")
    for name in ("data/a", "src/data/b", "notes.txt", "src/notes.txt", "src/out/c", "out", "build/x"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")
    (folder / ".xpkignore").write_text("# ours\n\ndata\n/notes.txt\nout/\nbui*\n")
    assert shipped(folder, tmp_path) == [".xpkignore", "out", "src/model.py", "src/notes.txt", "train.py"]


@pytest.mark.parametrize("line", ["!keep", "a/**/b"])
def test_unsupported_patterns_are_rejected(tmp_path: Path, line: str) -> None:
    folder = project(tmp_path / "p")
    (folder / ".xpkignore").write_text(line)
    with pytest.raises(UsageError, match="is not supported"):
        pack(folder)


def test_links_inside_the_folder_are_kept_as_links(tmp_path: Path) -> None:
    folder = project(tmp_path / "p")
    (folder / "src" / "main.py").symlink_to("../train.py")
    (folder / "lib").symlink_to("src")
    there = tmp_path / "there"
    archive = pack(folder)
    unpack(archive.content, archive.name, str(there))
    assert os.readlink(there / "src" / "main.py") == "../train.py" and (there / "lib" / "model.py").is_file()


def test_dangling_links_are_kept_as_links(tmp_path: Path) -> None:
    folder = project(tmp_path / "p")
    (folder / "link").symlink_to("x" * 300)  # listing it is an error, as for a folder without permissions
    there = tmp_path / "there"
    archive = pack(folder)
    unpack(archive.content, archive.name, str(there))
    assert os.readlink(there / "link") == "x" * 300


@pytest.mark.parametrize("target", ["/etc/passwd", "../outside", "src/../../outside"])
def test_links_out_of_the_folder_are_rejected(tmp_path: Path, target: str) -> None:
    folder = project(tmp_path / "p")
    (folder / "link").symlink_to(target)
    with pytest.raises(UsageError) as caught:
        pack(folder)
    assert caught.value.problems == (f"link is a link that leaves the folder, to {target}",)


def test_too_large_folders_are_rejected_with_the_largest_files(tmp_path: Path) -> None:
    folder = project(tmp_path / "p")
    for name, mib in (("data", 60), ("weights", 40)):
        (folder / name).mkdir()
        with (folder / name / "file").open("wb") as file:
            file.truncate(mib << 20)
    with pytest.raises(UsageError, match=r"holds 100\.0 MiB, .*64\.0 MiB; .*data 60\.0 MiB, weights 40\.0 MiB"):
        pack(folder)


def test_too_many_files_are_rejected(tmp_path: Path) -> None:
    folder = project(tmp_path / "p")
    for index in range(script.MAX_FILES):
        os.mknod(folder / str(index))
    with pytest.raises(UsageError, match="more than 20,000 files"):
        pack(folder)


@pytest.mark.parametrize("make", [lambda path: None, lambda path: path.mkdir(), lambda path: path.write_text("x")])
def test_invalid_folders_are_rejected(tmp_path: Path, make: object) -> None:
    make(tmp_path / "p")  # type: ignore[operator]
    with pytest.raises(UsageError, match="--script-dir"):
        pack(tmp_path / "p")
