"""Corpus, order of records and batches."""

import json
import os
import socket
from pathlib import Path

import jax
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer import config, corpus, data, layout
from trainer.config import Model
from trainer.errors import FatalError
from trainer.mesh import make_mesh
from trainer.places import open_place
from trainer.records import Record, record
from trainer.sampler import record_ids

jobs = st.tuples(st.integers(0, 2**32), st.integers(1, 40), st.integers(1, 300))


@settings(max_examples=40)
@given(jobs)
def test_each_record_comes_once_an_epoch(job: tuple[int, int, int]) -> None:
    seed, batch, records = job
    steps = -(-3 * records // batch)
    ids = np.concatenate([record_ids(seed, step, batch, records) for step in range(steps)])
    for epoch in range(3):
        assert sorted(ids[epoch * records : (epoch + 1) * records]) == list(range(records))


@given(jobs, st.integers(0, 10**6))
def test_a_step_has_the_same_records_after_a_restart(job: tuple[int, int, int], step: int) -> None:
    seed, batch, records = job
    through = data.train_ids(seed, batch, records, step)
    next(through)
    np.testing.assert_array_equal(next(through), record_ids(seed, step + 1, batch, records))


def test_epochs_and_seeds_have_different_orders() -> None:
    orders = {tuple(record_ids(seed, step, 50, 50)) for seed in range(3) for step in range(3)}
    assert len(orders) == 9


def text(folder: Path, name: str, content: bytes) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def test_binary_files_are_skipped_and_counted(tmp_path: Path) -> None:
    text(tmp_path / "src", "b.txt", b"world")
    text(tmp_path / "src", "a/a.txt", "grüß".encode())
    text(tmp_path / "src", "nul.txt", b"a\0b")
    text(tmp_path / "src", "image.png", b"\x89PNG\xff")
    made = corpus.prepare(str(tmp_path / "src"), open_place(tmp_path / "out"))
    assert (made.documents, made.skipped) == (2, 2)
    assert Path(made.path).read_bytes() == "world\0grüß\0".encode()
    notes = json.loads(Path(made.path).with_suffix(".json").read_text())
    assert notes["sources"] == ["b.txt", "a/a.txt"]


def test_a_token_file_is_made_once_and_again_when_the_source_changes(tmp_path: Path) -> None:
    text(tmp_path / "src", "a.txt", b"hello")
    first = corpus.prepare(str(tmp_path / "src"), open_place(tmp_path / "out"))
    stamp = Path(first.path).stat().st_mtime_ns
    assert corpus.prepare(str(tmp_path / "src"), open_place(tmp_path / "out")) == first
    assert Path(first.path).stat().st_mtime_ns == stamp
    text(tmp_path / "src", "b.txt", b"more")
    assert corpus.prepare(str(tmp_path / "src"), open_place(tmp_path / "out"), pinned=True) == first
    assert corpus.prepare(str(tmp_path / "src"), open_place(tmp_path / "out")).tokens == 11


def test_no_text_and_too_little_text_are_fatal(tmp_path: Path) -> None:
    text(tmp_path / "src", "a.bin", b"\0\0")
    with pytest.raises(FatalError, match="no text files"):
        corpus.prepare(str(tmp_path / "src"), open_place(tmp_path / "out"))
    text(tmp_path / "src", "a.txt", b"short")
    asked = config.load("tiny", [f"data.path={tmp_path / 'src'}", "data.suffixes=.txt"])
    made = corpus.prepare(asked.data.path, open_place(tmp_path / "out"))
    with pytest.raises(FatalError, match="one batch needs"):
        corpus.check_corpus(asked, made, 32)
    assert "one batch needs" in str(corpus.check_source(asked, 32)[0])


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    text(tmp_path / "src", "a.txt", b"hello")
    os.mkfifo(tmp_path / "src" / "pipe")
    (tmp_path / "src" / "null").symlink_to("/dev/zero")
    (tmp_path / "src" / "b.txt").symlink_to("a.txt")
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(tmp_path / "src" / "s"))
    made = corpus.prepare(str(tmp_path / "src"), open_place(tmp_path / "out"))
    assert (made.documents, made.skipped) == (2, 0)
    assert corpus.check_source(config.load("tiny", [f"data.path={tmp_path / 'src'}"]), 1)


def test_check_counts_text_only(tmp_path: Path) -> None:
    text(tmp_path / "src", "a.bin", b"\0" * 100_000)
    text(tmp_path / "src", "b.bin", b"\xff" * 100_000)
    asked = config.load("tiny", [f"data.path={tmp_path / 'src'}"])
    assert "no text files (2 binary" in str(corpus.check_source(asked, 32)[0])
    text(tmp_path / "src", "c.txt", "xü".encode() * 10_000)  # 4096 bytes end inside a letter
    assert corpus.check_source(asked, 32) == []


@pytest.mark.parametrize("content", ["{", "[]", "", '{"asked": 1}'])
def test_damaged_notes_beside_a_token_file_are_passed_over(content: str, tmp_path: Path) -> None:
    text(tmp_path / "src", "a.txt", b"hello")
    made = corpus.prepare(str(tmp_path / "src"), open_place(tmp_path / "out"))
    Path(made.path).with_suffix(".json").write_text(content)
    assert corpus.prepare(str(tmp_path / "src"), open_place(tmp_path / "out"), pinned=True) == made


def test_a_cut_token_file_is_named(tmp_path: Path) -> None:
    text(tmp_path / "src", "a.txt", b"hello")
    path = Path(corpus.prepare(str(tmp_path / "src"), open_place(tmp_path / "out")).path)
    path.write_bytes(b"hel")
    with pytest.raises(FatalError, match="3 bytes but should have 6"):
        corpus.open_corpus(open_place(path))


def gathered(slots: data.Slots, blocks: data.Blocks, batch: int) -> npt.NDArray[np.int32]:
    tokens: npt.NDArray[np.int32] = np.asarray(blocks.records)[list(slots.readers)]
    return tokens.reshape(-1, tokens.shape[-1])[:batch]


@pytest.mark.parametrize("readers", [(0, 1, 2, 3, 4, 5, 6, 7), (0, 1, 4, 5), (2,), (0, 1, 2)])
def test_batches_are_the_same_whoever_reads(readers: tuple[int, ...]) -> None:
    sizes = layout.layout(config.load("tiny", ["mesh.dp=2", "mesh.tp=2"]), layout.Chips(1, 1, 8))
    mesh = make_mesh(sizes, jax.devices(), 1)
    slots = data.Slots(chips=8, readers=readers, rows=-(-8 // len(readers)))
    ids = np.array([5, 3, 9, 0, 1, 2, 7, -1])

    def read(ids_N: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
        return np.broadcast_to(ids_N[:, None], (len(ids_N), 5)).astype(np.int32)

    blocks = data.to_blocks(mesh, slots, ids, read, Record(5, 4, "int32", 4, "token"))
    np.testing.assert_array_equal(gathered(slots, blocks, 8)[:, 0], [5, 3, 9, 0, 1, 2, 7, 0])
    assert float(np.asarray(blocks.weight).sum()) == 7


def test_prefetch_raises_what_went_wrong_while_reading() -> None:
    def fail(ids: npt.NDArray[np.int64]) -> data.Blocks:
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        next(data.prefetch(fail, iter([np.zeros(1, np.int64)]), 2))


@pytest.mark.parametrize(
    ("model", "numbers", "records"),
    [
        (Model(seq_len=7), 50, [range(0, 8), range(42, 50)]),  # the last target of one is the first token of the next
        (Model(family="bert", seq_len=7), 50, [range(0, 7), range(42, 49)]),
        (Model(family="resnet", image=2), 42, [range(0, 14), range(28, 42)]),
    ],
    ids=["decoder", "bert", "resnet"],
)
def test_records_are_cut_as_their_model_wants_them(
    model: Model, numbers: int, records: list[range], tmp_path: Path
) -> None:
    (tmp_path / "tokens.bin").write_bytes(bytes(range(numbers)))
    made = corpus.Corpus("tokens.bin", numbers, "uint8", 256, "", 1, 0)
    ids = np.array([0, made.records(model) - 1])
    read = data.open_records(made, tmp_path / "tokens.bin", record(model))(ids)
    assert (read.dtype, read.tolist()) == (np.dtype(record(model).dtype), [list(one) for one in records])
