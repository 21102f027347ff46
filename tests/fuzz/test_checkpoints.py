"""Checkpoints with any manifest or content: one that has changed is damaged, and no state but the saved one is used."""

# mypy: disallow-untyped-calls=False

from __future__ import annotations

import copy
import dataclasses
import json
import os
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.fuzz.counts import inputs
from tests.fuzz.mutations import DEEP, as_json, changed, damaged, mutants
from trainer.checkpoint import compatibility, shards
from trainer.checkpoint.stores import manifest
from trainer.checkpoint.stores.folder import FolderStore
from trainer.config import Model, Optim
from trainer.errors import StorageError

NOTES: dict[str, Any] = {
    "model": dataclasses.asdict(Model()), "optimizer": Optim().state_notes(), "data": "0123456789abcdef",
    "tokenizer": "bytes", "seed": 0, "order": "records, window 0, shards 1", "global_batch": 8, "trained": 80,
    "held_out": 8, "tokens": 1024, "run": "r", "session": "s",
}  # fmt: skip
STATE = {"w": jnp.arange(6.0).reshape(2, 3), "step": jnp.int32(7)}
FORM: Any = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), STATE)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of checkpoints with an intact one of step 7, in the files of the local tier."""
    folder = tmp_path_factory.mktemp("checkpoints")
    shards.write(folder / "7", shards.copy_pieces(STATE), NOTES)
    return folder


def content_of(folder: Path) -> Any:
    return json.loads((folder / "7" / "manifest.json").read_bytes())


EXAMPLE: Any = {
    "notes": {**NOTES, "inside": "1", "arrays": {
        "step": {"shape": [], "dtype": "int32", "pieces": [[]]},
        "w": {"shape": [2, 3], "dtype": "float32", "pieces": [[[0, 2], [0, 3]]]},
    }},
    "files": {"step": [4, 0], "w": [24, "blocks:65536:0a0b0c0d"], "d/0": [9, "md5:cmlnaHQ="], "e": [0, "crc32c:AAAA"]},
}  # fmt: skip


def signed(content: Any) -> bytes:
    """Return a manifest with a valid checksum, as a hostile writer would."""
    if isinstance(content, dict) and isinstance(content.get("notes"), dict):
        return manifest.manifest(content.get("files", {}), content["notes"])
    return as_json(content)


def of(*path_and_value: Any) -> bytes:
    return signed(changed(EXAMPLE, [(path_and_value[:-1], path_and_value[-1])]))


def read(folder: Path, content: bytes) -> str:
    """Read a checkpoint as an attempt does; return its defect."""
    (folder / "7" / "manifest.json").write_bytes(content)
    store = FolderStore(folder)
    assert store.steps() == [7]
    manifest.has_sizes(folder / "7")
    if not (damage := store.damage(7)):
        use(store.notes(7))
        assert Path(store.content(7, store.notes(7))).is_relative_to(folder / "7")
    return damage


def use(notes: dict[str, Any]) -> None:
    """Use notes as an attempt does."""
    compatibility.mismatch("7", NOTES, notes)
    compatibility.other_examples(NOTES, notes)
    assert type(notes.get("tokens", 0) * notes.get("global_batch", 1) * notes.get("model", {}).get("seq_len", 1)) is int
    shards.covers(notes, FORM)


@inputs(0.08)
@given(content=damaged(mutants(EXAMPLE).map(signed) | mutants(EXAMPLE).map(as_json)))
@example(content=b"[" * 100_000)
@example(content=as_json({"notes": {}, "files": {"a": [float("inf"), 1]}}))
@example(content=of("notes", "inside", "../.."))
@example(content=of("notes", "inside", 5))
@example(content=of("notes", "model", []))
@example(content=of("notes", "model", "seq_len", "x"))
@example(content=of("notes", "tokens", "x"))
@example(content=of("notes", "data", 5))
@example(content=of("files", "w", 1, "blocks:x"))
@example(content=of("files", {"a" * 300: [0, 0]}))
@example(content=of("files", {"fifo": [0, "md5:AAAA"]}))
@example(content=of("files", {"../../../../../../../../../../dev/zero": [0, "md5:AAAA"]}))
@example(content=of("notes", "arrays", "w", "pieces", [[[0, float("inf")]]]))
def test_any_manifest_is_read_or_damaged(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    folder = tmp_path_factory.getbasetemp() / "any-manifest"
    if not folder.is_dir():
        (folder / "7").mkdir(parents=True)
        for name, text in {"step": b"1234", "w": b"w" * 24, "e": b""}.items():
            (folder / "7" / name).write_bytes(text)
        os.mkfifo(folder / "7" / "fifo")
    read(folder, content)


@inputs(0.04)
@given(data=st.data())
def test_a_changed_checkpoint_is_damaged(saved: Path, data: st.DataObject) -> None:
    """A change that leaves the same notes and files, such as another space, is none."""
    folder = saved.parent / "changed"
    shutil.copytree(saved, folder)
    try:
        victim = data.draw(st.sampled_from(sorted((folder / "7").iterdir())))
        before, notes = victim.read_bytes(), content_of(folder)["notes"]
        victim.write_bytes(data.draw(damaged(st.just(before)) | damaged(damaged(st.just(before)))))
        store = FolderStore(folder)
        if not store.damage(7):
            assert store.notes(7) == notes
            assert shards.covers(notes, FORM) and same_state(folder)
    finally:
        shutil.rmtree(folder)


def same_state(folder: Path) -> bool:
    parts = shards.read(folder / "7", FORM)
    leaves = jax.tree.leaves(STATE)
    return all(np.array_equal(next(iter(part.values())), leaf) for part, leaf in zip(parts, leaves, strict=True))


@inputs(0.04)
@given(data=st.data())
def test_any_pieces_are_read_or_not_used(saved: Path, data: st.DataObject) -> None:
    """Of a manifest with a valid checksum."""
    content = content_of(saved)
    content["notes"]["arrays"] = data.draw(mutants(content["notes"]["arrays"]))
    check_pieces(saved, content)


@pytest.mark.parametrize(
    "pieces",
    [None, DEEP, [[[0, 2], [0, 3]]] * 2, [[[0, 2], [0, 3]], [[0, -1], [0, 3]]], [[[0, 2], [0, 3]], [[0, 9], [0, 9]]]],
)
def test_invalid_pieces_are_not_used(saved: Path, pieces: Any) -> None:
    check_pieces(saved, changed(content_of(saved), [(("notes", "arrays", "w", "pieces"), pieces)]))


def check_pieces(saved: Path, content: Any) -> None:
    file = saved / "7" / "manifest.json"
    before = file.read_bytes()
    try:
        file.write_bytes(signed(copy.deepcopy(content)))
        if shards.covers(content["notes"], FORM):
            try:
                assert same_state(saved)
            except StorageError as error:
                assert "pieces" in str(error)
    finally:
        file.write_bytes(before)


@pytest.mark.parametrize("name", ["\u00b2", "007", "\u0661", "-1", "9" * 200, "1e3", " 7"])
def test_a_folder_that_is_named_like_no_step_is_no_checkpoint(tmp_path: Path, name: str) -> None:
    shards.write(tmp_path / name, {}, NOTES)
    store = FolderStore(tmp_path)
    store.begin_attempt(0)
    assert store.steps() == [] and (tmp_path / name).is_dir()
