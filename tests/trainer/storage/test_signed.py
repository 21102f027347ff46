"""Compiled programs are loaded only if a host of this workload has written them."""

import hashlib
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainer.step.compile_cache import CompileCache
from trainer.step.program_cache import Executables
from trainer.storage import open_place
from trainer.storage.signed import SignedFiles

OURS, THEIRS = b"a" * 32, b"b" * 32


def files(folder: Path, secret: bytes = OURS) -> SignedFiles:
    return SignedFiles(open_place(folder), secret)


class Harm:
    """A pickle that runs code when it is read."""

    def __init__(self, where: Path) -> None:
        self.where = where

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.where),)


def test_only_files_signed_under_their_own_name_are_read(tmp_path: Path) -> None:
    ours = files(tmp_path)
    assert ours.read("train") is None
    ours.write("train", b"content")
    assert ours.read("train") == b"content"
    written = (tmp_path / "train").read_bytes()
    (tmp_path / "evaluate").write_bytes(written)
    (tmp_path / "shorter").write_bytes(written[:20])
    (tmp_path / "changed").write_bytes(written[:-1] + b"!")
    (tmp_path / "old").write_bytes(hashlib.sha256(b"content").digest() + b"content")
    for name in ("evaluate", "shorter", "changed", "old"):
        with pytest.raises(ValueError, match="damaged, or from another workload"):
            ours.read(name)
    with pytest.raises(ValueError):
        files(tmp_path, THEIRS).read("train")


@pytest.mark.parametrize("how", ["unsigned", "digest", "theirs"])
def test_an_unsigned_program_is_not_unpickled(how: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    programs, harm = tmp_path / "programs", tmp_path / "harm"
    saved = Executables(files(programs), {})
    arguments = (np.zeros(2),)
    name, content = saved._file("train", arguments), pickle.dumps(Harm(harm))
    if how == "theirs":
        files(programs, THEIRS).write(name, content)
    else:
        open_place(programs / name).write((hashlib.sha256(content).digest() if how == "digest" else b"") + content)
    assert saved.load("train", arguments) is None
    assert not harm.exists()
    message = "the cached program 'train' cannot be loaded (damaged, or from another workload); compiling it"
    assert message in capsys.readouterr().out
    files(programs).write(name, content)
    saved.load("train", arguments)
    assert harm.exists(), "otherwise this test shows nothing"


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_hosts_share_only_their_additions_to_jaxs_cache(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shared, own = tmp_path / "shared", tmp_path / "one"
    own.mkdir()
    (own / "jit_train-00-cache").write_bytes(b"of an earlier run on this machine")
    one, two = CompileCache(own, files(shared)), CompileCache(tmp_path / "two", files(shared))
    one.fetch()
    (own / "jit_train-12ab-cache").write_bytes(b"program")
    (own / "jit_train-12ab-atime").write_bytes(b"no program")
    one.share()
    assert [file.name for file in shared.iterdir()] == ["jit_train-12ab-cache"]
    (shared / "jit_train-34cd-cache").write_bytes(b"of somebody who may write here")
    files(shared, THEIRS).write("jit_train-56ef-cache", b"of another workload")
    files(shared).write("..-name", b"of a name that is not JAX's")
    two.fetch()
    assert contents(two.folder) == {"jit_train-12ab-cache": b"program"}
    assert f"2 compiled programs in {shared} are ignored: damaged, or from" in capsys.readouterr().out
    two.fetch()
    assert not capsys.readouterr().out, "it is not reported twice"


def test_unusable_programs_are_compiled_and_replaced(tmp_path: Path) -> None:
    """Like after the workload was recreated with another secret."""
    shared = tmp_path / "shared"
    files(shared, THEIRS).write("jit_train-12ab-cache", b"program")
    one, two = (CompileCache(tmp_path / name, files(shared)) for name in ("one", "two"))
    for host in (one, two):
        host.folder.mkdir()
        host.fetch()
        assert contents(host.folder) == {}
    (one.folder / "jit_train-12ab-cache").write_bytes(b"program")
    one.share()
    two.fetch()
    assert contents(two.folder) == {"jit_train-12ab-cache": b"program"}


def test_without_a_secret_nothing_is_shared(tmp_path: Path) -> None:
    alone = CompileCache(tmp_path / "own", None)
    alone.folder.mkdir()
    (alone.folder / "jit_train-12ab-cache").write_bytes(b"program")
    alone.share()
    alone.fetch()
    assert [path.name for path in tmp_path.iterdir()] == ["own"]


def test_an_unreadable_program_is_fetched_later(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    files(shared).write("jit_train-12ab-cache", b"program")
    (tmp_path / "own").write_bytes(b"no folder")
    cache = CompileCache(tmp_path / "own", files(shared))
    cache.fetch()
    (tmp_path / "own").unlink()
    cache.fetch()
    assert contents(tmp_path / "own") == {"jit_train-12ab-cache": b"program"}


def test_a_cached_program_is_loaded_by_all_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def name() -> str:
        return Executables(files(tmp_path), {})._file("train", (np.zeros(2),))

    before = name()
    for variable in ("JAX_PROCESS_ID", "JAX_COORDINATOR_ADDRESS", "JAX_COMPILATION_CACHE_DIR"):
        monkeypatch.setenv(variable, "7")
    assert name() == before
    monkeypatch.setenv("JAX_ENABLE_X64", "1")
    assert name() != before
