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
    """A pickle that does something when it is read."""

    def __init__(self, where: Path) -> None:
        self.where = where

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.where),)


def test_only_what_was_signed_under_its_own_name_is_read(tmp_path: Path) -> None:
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
def test_a_program_that_somebody_else_put_there_is_not_unpickled(
    how: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    programs, harm = tmp_path / "programs", tmp_path / "harm"
    kept = Executables(files(programs), {})
    arguments = (np.zeros(2),)
    name, content = kept._file("train", arguments), pickle.dumps(Harm(harm))
    if how == "theirs":
        files(programs, THEIRS).write(name, content)
    else:
        open_place(programs / name).write((hashlib.sha256(content).digest() if how == "digest" else b"") + content)
    assert kept.load("train", arguments) is None
    assert not harm.exists()
    told = "the cached program 'train' cannot be loaded (it is damaged, or from another workload); compiling it"
    assert told in capsys.readouterr().out
    files(programs).write(name, content)
    kept.load("train", arguments)
    assert harm.exists(), "or this test shows nothing"


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_hosts_share_what_they_add_to_jaxs_cache_and_take_nothing_else_into_theirs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there, own = tmp_path / "shared", tmp_path / "one"
    own.mkdir()
    (own / "jit_train-00-cache").write_bytes(b"of an earlier run on this machine")
    one, two = CompileCache(own, files(there)), CompileCache(tmp_path / "two", files(there))
    one.fetch()
    (own / "jit_train-12ab-cache").write_bytes(b"program")
    (own / "jit_train-12ab-atime").write_bytes(b"no program")
    one.share()
    assert [file.name for file in there.iterdir()] == ["jit_train-12ab-cache"]
    (there / "jit_train-34cd-cache").write_bytes(b"of somebody who may write here")
    files(there, THEIRS).write("jit_train-56ef-cache", b"of another workload")
    files(there).write("..-name", b"of a name that is not JAX's")
    two.fetch()
    assert contents(two.folder) == {"jit_train-12ab-cache": b"program"}
    assert f"2 compiled programs in {there} are ignored: damaged, or from" in capsys.readouterr().out
    two.fetch()
    assert not capsys.readouterr().out, "nobody is told of it twice"


def test_what_cannot_be_used_is_replaced_by_what_is_compiled_anew(tmp_path: Path) -> None:
    """As after the workload was created again, with another secret."""
    there = tmp_path / "shared"
    files(there, THEIRS).write("jit_train-12ab-cache", b"program")
    one, two = (CompileCache(tmp_path / name, files(there)) for name in ("one", "two"))
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


def test_a_program_of_which_reading_failed_is_fetched_the_next_time(tmp_path: Path) -> None:
    there = tmp_path / "shared"
    files(there).write("jit_train-12ab-cache", b"program")
    (tmp_path / "own").write_bytes(b"no folder")
    cache = CompileCache(tmp_path / "own", files(there))
    cache.fetch()
    (tmp_path / "own").unlink()
    cache.fetch()
    assert contents(tmp_path / "own") == {"jit_train-12ab-cache": b"program"}


def test_a_kept_program_is_found_by_all_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def name() -> str:
        return Executables(files(tmp_path), {})._file("train", (np.zeros(2),))

    before = name()
    for variable in ("JAX_PROCESS_ID", "JAX_COORDINATOR_ADDRESS", "JAX_COMPILATION_CACHE_DIR"):
        monkeypatch.setenv(variable, "7")
    assert name() == before
    monkeypatch.setenv("JAX_ENABLE_X64", "1")
    assert name() != before
