"""Prepared data sets with any manifest, index or content: each is read as it was written, or rejected in one line."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import shutil
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.fuzz.counts import inputs
from tests.fuzz.mutations import as_json, changed, damaged, mutants
from trainer import config
from trainer.config import Config, Model
from trainer.data import checks, dataset, prepare, reader
from trainer.errors import FatalError, StorageError
from trainer.storage import open_place

TEXTS = [b"hello world, this is text", b"another document", b"the last one of them all"]
MODELS = [Model(seq_len=4, vocab=256), Model(seq_len=8, vocab=256, packed=True)]
ERRORS = (FatalError, StorageError)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the manifest of a data set of two files."""
    folder = tmp_path_factory.mktemp("data")
    (folder / "text").mkdir()
    for number, text in enumerate(TEXTS):
        (folder / "text" / f"{number}.txt").write_bytes(text)
    return Path(prepare.prepare(str(folder / "text"), open_place(folder / "prepared"), file_tokens=30).path)


@functools.cache
def settings_for(file: Path) -> list[Config]:
    sizes = [f"data.path={file}", "data.global_batch=2", "data.eval_fraction=0", "model.vocab=256"]
    return [
        config.load("tiny", [*sizes, f"model.seq_len={model.seq_len}", f"model.packed={model.packed}".lower()])
        for model in MODELS
    ]


def records(file: Path, model: Model) -> bytes:
    """Return all records of a data set."""
    corpus = dataset.open_corpus(open_place(file))
    counts = reader.counts(corpus, model)
    total = sum(counts)
    assert total < 1000
    return bytes(reader.Reader(corpus, model, counts)(np.arange(total)).tobytes())


def attempt(file: Path) -> None:
    """Use a data set as a run does."""
    for settings in settings_for(file):
        checks.check_source(settings, 2)
    with suppress(*ERRORS):
        dataset.refuse_prepared(open_place(file.parent))
    with suppress(FatalError):  # a file of another size is named, not prepared again
        prepare.find_corpus(open_place(file.parent), {}, None)
    for model in MODELS:
        with suppress(*ERRORS):
            records(file, model)


def with_copy(prepared: Path, use: Callable[[Path], None]) -> None:
    """Use a copy of the data set."""
    folder = prepared.parent.parent / "copy"
    shutil.copytree(prepared.parent, folder)
    try:
        use(folder / prepared.name)
    finally:
        shutil.rmtree(folder)


MANIFEST: Any = {
    "tokens": 44, "dtype": "uint8", "vocab": 256, "digest": "0123456789abcdef", "documents": 2, "skipped": 0,
    "tokenizer": "bytes", "asked": {}, "fingerprint": "x",
    "files": [{"name": "tokens-a.bin", "tokens": 44, "digest": "a", "documents": 2, "index": "b"}],
}  # fmt: skip


def of(*path_and_value: Any) -> bytes:
    return as_json(changed(MANIFEST, [(path_and_value[:-1], path_and_value[-1])]))


@inputs(0.04)
@given(content=damaged(mutants(MANIFEST).map(as_json)))
@example(content=b"[" * 100_000)
@example(content=of("vocab", "x"))
@example(content=of("files", 0, "index", 5))
@example(content=of("files", 0, "digest", None))
@example(content=of("files", 0, "name", "../../x\0"))
@example(content=as_json({**MANIFEST, "tokens": 4.0, "files": [{**MANIFEST["files"][0], "tokens": 4.0}]}))
@example(content=as_json({**MANIFEST, "tokens": 0, "files": [
    {**MANIFEST["files"][0], "tokens": 44}, {**MANIFEST["files"][0], "tokens": -44}]}))  # fmt: skip
@example(content=as_json({**MANIFEST, "tokens": 0, "files": [{**MANIFEST["files"][0], "tokens": 0}]}))
def test_any_manifest_of_data(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    folder = tmp_path_factory.getbasetemp() / "any-data"
    folder.mkdir(exist_ok=True)
    (folder / "tokens-a.bin").write_bytes(b"x" * 44)
    (folder / "tokens-a.json").write_bytes(content)
    attempt(folder / "tokens-a.json")


@inputs(0.03)
@given(data=st.data())
def test_a_manifest_that_has_changed_yields_the_same_records_or_none(prepared: Path, data: st.DataObject) -> None:
    content = json.loads(prepared.read_bytes())
    known = {"tokens", "dtype", "digest", "documents", "files"}  # the others do not tell where the records are
    content |= data.draw(mutants({key: content[key] for key in known}))

    def use(file: Path) -> None:
        file.write_bytes(as_json(content))
        attempt(file)

    with_copy(prepared, use)


@inputs(0.03)
@given(data=st.data())
def test_a_damaged_file_of_data_yields_the_same_records_or_none(prepared: Path, data: st.DataObject) -> None:
    def use(file: Path) -> None:
        victim = data.draw(st.sampled_from(sorted(item for item in file.parent.iterdir() if item != file)))
        before = victim.read_bytes()
        victim.write_bytes(data.draw(damaged(damaged(st.just(before)))))
        for model in MODELS:
            with suppress(*ERRORS):
                assert records(file, model) == records(prepared, model)

    with_copy(prepared, use)


ENDS = st.lists(
    st.sampled_from([0, 1, 2, 26, 43, 44, 45, 2**31, 2**62, 2**63, 2**64 - 1]) | st.integers(0, 50), max_size=6
)


@inputs(0.05)
@given(ends=ENDS, sums=st.lists(st.integers(0, 2**32 - 1), max_size=2), rest=st.binary(max_size=9))
@example(ends=[2**62], sums=[0], rest=b"")
@example(ends=[2**64 - 1], sums=[0], rest=b"")
@example(ends=[44, 2, 44], sums=[0], rest=b"")
@example(ends=[44], sums=[], rest=b"")
@example(ends=[44], sums=[0], rest=b"x")
def test_any_index(tmp_path_factory: pytest.TempPathFactory, ends: list[int], sums: list[int], rest: bytes) -> None:
    """With the digest that its manifest names."""
    folder = tmp_path_factory.getbasetemp() / "any-index"
    folder.mkdir(exist_ok=True)
    index = struct.pack(f"<{len(sums)}I{len(ends)}Q", *sums, *ends) + rest
    file = {**MANIFEST["files"][0], "index": hashlib.sha256(index).hexdigest()[:16]}
    (folder / "tokens-a.bin").write_bytes(b"x" * 44)
    (folder / "tokens-a.bin.idx").write_bytes(index)
    (folder / "tokens-a.json").write_bytes(as_json({**MANIFEST, "files": [file]}))
    attempt(folder / "tokens-a.json")


def test_the_data_set_of_these_tests_is_read(prepared: Path) -> None:
    assert len(dataset.open_corpus(open_place(prepared)).files) == 2
    for settings, model in zip(settings_for(prepared), MODELS, strict=True):
        assert checks.check_source(settings, 2) == [] and records(prepared, model)
        assert dataclasses.replace(settings.model, packed=model.packed, seq_len=model.seq_len) == settings.model
