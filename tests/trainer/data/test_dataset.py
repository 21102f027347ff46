"""The data set, order of records, and batches."""

import hashlib
import json
import os
import socket
import threading
from pathlib import Path

import jax
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer import config
from trainer.config import Model
from trainer.data import batches as data
from trainer.data import checks, dataset, prepare, reader
from trainer.data.records import Record, record
from trainer.data.sampler import Order
from trainer.errors import FatalError
from trainer.parallel import layout
from trainer.parallel.mesh import make_mesh
from trainer.storage import open_place

jobs = st.tuples(st.integers(0, 2**32), st.integers(1, 40), st.integers(1, 300))


@settings(max_examples=40)
@given(jobs)
def test_each_record_appears_once_per_epoch(job: tuple[int, int, int]) -> None:
    seed, batch, records = job
    steps = -(-3 * records // batch)
    order = Order(seed, batch, records)
    ids = np.concatenate([order.ids(step) for step in range(steps)])
    for epoch in range(3):
        np.testing.assert_array_equal(np.sort(ids[epoch * records : (epoch + 1) * records]), np.arange(records))


@given(jobs, st.integers(0, 10**6))
def test_a_step_has_the_same_records_after_a_restart(job: tuple[int, int, int], step: int) -> None:
    seed, batch, records = job
    order = Order(seed, batch, records)
    through = data.train_ids(order, step)
    next(through)
    np.testing.assert_array_equal(next(through), order.ids(step + 1))


def test_epochs_and_seeds_have_different_orders() -> None:
    orders = {tuple(Order(seed, 50, 50).ids(step)) for seed in range(3) for step in range(3)}
    assert len(orders) == 9


def content(made: dataset.Corpus) -> bytes:
    return b"".join(made.place(file.name).read() for file in made.files)


def text(folder: Path, name: str, said: bytes) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(said)


def test_binary_files_are_skipped_and_counted(tmp_path: Path) -> None:
    text(tmp_path / "src", "b.txt", b"world")
    text(tmp_path / "src", "a/a.txt", "grüß".encode())
    text(tmp_path / "src", "nul.txt", b"a\0b")
    text(tmp_path / "src", "image.png", b"\x89PNG\xff")
    made = prepare.prepare(str(tmp_path / "src"), open_place(tmp_path / "out"))
    assert (made.documents, made.skipped) == (2, 2)
    assert content(made) == "world\0grüß\0".encode()
    notes = json.loads(Path(made.path).read_text())
    assert notes["sources"] == ["b.txt", "a/a.txt"]


def test_a_token_file_is_prepared_once_and_again_after_a_change(tmp_path: Path) -> None:
    text(tmp_path / "src", "a.txt", b"hello")
    first = prepare.prepare(str(tmp_path / "src"), open_place(tmp_path / "out"))
    stamp = Path(first.path).stat().st_mtime_ns
    assert prepare.prepare(str(tmp_path / "src"), open_place(tmp_path / "out")) == first
    assert Path(first.path).stat().st_mtime_ns == stamp
    text(tmp_path / "src", "b.txt", b"more")
    assert prepare.prepare(str(tmp_path / "src"), open_place(tmp_path / "out"), is_pinned=True) == first
    assert prepare.prepare(str(tmp_path / "src"), open_place(tmp_path / "out")).tokens == 11


@pytest.mark.parametrize(("fraction", "records"), [(0.0, 8), (0.01, 8), (0.2, 9), (0.5, 15)])
def test_as_much_text_as_one_batch_needs_is_enough(fraction: float, records: int, tmp_path: Path) -> None:
    source, settings = tmp_path / "src", ["model.seq_len=16", f"data.eval_fraction={fraction}"]
    asked = config.load("tiny", [f"data.path={source}", *settings])
    assert records - int(records * fraction) == 8 > records - 1 - int((records - 1) * fraction)
    for missing in (0, 1):
        text(source, "a.txt", b"x" * (16 * records - missing))  # the end token is the target of the last one
        made = prepare.prepare(str(source), open_place(tmp_path / "out"))
        counts = sum(reader.counts(made, asked.model))
        assert counts == records - missing
        if not missing:
            assert checks.check_source(asked, 8) == []
            checks.check_corpus(asked, made, counts, 8)
            continue
        (problem,) = checks.check_source(asked, 8)
        assert problem.message.endswith(f"has {16 * records:,} tokens, but one batch needs {16 * records + 1:,}")
        with pytest.raises(FatalError, match="one batch needs"):
            checks.check_corpus(asked, made, counts, 8)


def test_no_text_and_too_little_text_are_fatal(tmp_path: Path) -> None:
    text(tmp_path / "src", "a.bin", b"\0\0")
    with pytest.raises(FatalError, match="no text files"):
        prepare.prepare(str(tmp_path / "src"), open_place(tmp_path / "out"))
    text(tmp_path / "src", "a.txt", b"short")
    asked = config.load("tiny", [f"data.path={tmp_path / 'src'}", "data.suffixes=.txt"])
    made = prepare.prepare(asked.data.path, open_place(tmp_path / "out"))
    with pytest.raises(FatalError, match="one batch needs"):
        checks.check_corpus(asked, made, 0, 32)
    assert "one batch needs" in str(checks.check_source(asked, 32)[0])


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    text(tmp_path / "src", "a.txt", b"hello")
    os.mkfifo(tmp_path / "src" / "pipe")
    (tmp_path / "src" / "null").symlink_to("/dev/zero")
    (tmp_path / "src" / "b.txt").symlink_to("a.txt")
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(tmp_path / "src" / "s"))
    made = prepare.prepare(str(tmp_path / "src"), open_place(tmp_path / "out"))
    assert (made.documents, made.skipped) == (2, 0)
    assert checks.check_source(config.load("tiny", [f"data.path={tmp_path / 'src'}"]), 1)


def test_check_counts_text_only(tmp_path: Path) -> None:
    text(tmp_path / "src", "a.bin", b"\0" * 100_000)
    text(tmp_path / "src", "b.bin", b"\xff" * 100_000)
    asked = config.load("tiny", [f"data.path={tmp_path / 'src'}"])
    assert "no text files (2 binary" in str(checks.check_source(asked, 32)[0])
    text(tmp_path / "src", "c.txt", "xü".encode() * 10_000)  # 4096 bytes end inside a character
    assert checks.check_source(asked, 32) == []


@pytest.mark.parametrize("notes", ["{", "[]", "", '{"asked": 1}'])
def test_damaged_manifests_are_ignored(notes: str, tmp_path: Path) -> None:
    text(tmp_path / "src", "a.txt", b"hello")
    made = prepare.prepare(str(tmp_path / "src"), open_place(tmp_path / "out"))
    Path(made.path).write_text(notes)
    assert prepare.prepare(str(tmp_path / "src"), open_place(tmp_path / "out"), is_pinned=True) == made


def test_a_truncated_token_file_is_named(tmp_path: Path) -> None:
    text(tmp_path / "src", "a.txt", b"hello")
    made = prepare.prepare(str(tmp_path / "src"), open_place(tmp_path / "out"))
    path = tmp_path / "out" / made.files[0].name
    path.write_bytes(b"hel")
    with pytest.raises(FatalError, match=rf"{path.name}' has 3 bytes but should have 6"):
        dataset.open_corpus(open_place(made.path))


def gathered(slots: data.Slots, blocks: data.Blocks, batch: int) -> npt.NDArray[np.int32]:
    tokens: npt.NDArray[np.int32] = np.asarray(blocks.records)[list(slots.readers)]
    return tokens.reshape(-1, tokens.shape[-1])[:batch]


@pytest.mark.parametrize("readers", [(0, 1, 2, 3, 4, 5, 6, 7), (0, 1, 4, 5), (2,), (0, 1, 2)])
def test_batches_do_not_depend_on_the_readers(readers: tuple[int, ...]) -> None:
    sizes = layout.layout(config.load("tiny", ["mesh.dp=2", "mesh.tp=2"]), layout.Chips(1, 1, 8))
    mesh = make_mesh(sizes, jax.devices(), 1)
    slots = data.Slots(chips=8, readers=readers, rows=-(-8 // len(readers)))
    ids = np.array([5, 3, 9, 0, 1, 2, 7, -1])

    def read(ids_N: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
        return np.broadcast_to(ids_N[:, None], (len(ids_N), 5)).astype(np.int32)

    blocks = data.to_blocks(mesh, slots, ids, read, Record(5, 4, "int32", 4, "token"))
    np.testing.assert_array_equal(gathered(slots, blocks, 8)[:, 0], [5, 3, 9, 0, 1, 2, 7, 0])
    assert float(np.asarray(blocks.weight).sum()) == 7


def test_batches_are_prefetched_up_to_the_depth() -> None:
    made, expected = threading.Semaphore(0), 3

    def make(ids: npt.NDArray[np.int64]) -> data.Blocks:
        made.release()
        return data.Blocks(ids, ids)

    batches = data.prefetch(make, data.train_ids(Order(0, 1, 10), 0), expected)
    first = next(batches)
    for _ in range(1 + expected):  # the consumed one, and those that are prefetched
        assert made.acquire(timeout=60)
    np.testing.assert_array_equal(first.records, Order(0, 1, 10).ids(0))
    np.testing.assert_array_equal(next(batches).records, Order(0, 1, 10).ids(1))
    batches.close()  # type: ignore[attr-defined]


def test_prefetch_raises_errors_of_the_reader() -> None:
    def fail(ids: npt.NDArray[np.int64]) -> data.Blocks:
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        next(data.prefetch(fail, iter([np.zeros(1, np.int64)]), 2))


def by_hand(folder: Path, written: bytes) -> dataset.Corpus:
    """Write a data set without the trainer: one file without an index."""
    (folder / "tokens.bin").write_bytes(written)
    notes = {"tokens": len(written), "dtype": "uint8", "vocab": 256, "documents": 1, "skipped": 0}
    notes["digest"] = hashlib.sha256(written).hexdigest()[:16]
    (folder / "tokens.json").write_text(json.dumps(notes))
    return dataset.open_corpus(open_place(folder / "tokens.bin"))


@pytest.mark.parametrize(
    ("model", "numbers", "records"),
    [
        (Model(seq_len=7), 50, [range(0, 8), range(42, 50)]),  # the last target of one is the first token of the next
        (Model(family="bert", seq_len=7), 50, [range(0, 7), range(42, 49)]),
        (Model(family="resnet", image=2, classes=1 << 14), 42, [range(0, 14), range(28, 42)]),
    ],
    ids=["decoder", "bert", "resnet"],
)
def test_records_have_the_format_of_their_model(
    model: Model, numbers: int, records: list[range], tmp_path: Path
) -> None:
    made = by_hand(tmp_path, bytes(range(numbers)))
    counts = reader.counts(made, model)
    read = reader.Reader(made, model, counts)(np.array([0, sum(counts) - 1]))
    assert (read.dtype, read.tolist()) == (np.dtype(record(model).dtype), [list(one) for one in records])


@pytest.mark.parametrize(
    ("model", "last", "says"),
    [
        (
            Model(family="resnet", image=2, classes=300),
            (44, 1),
            "image 1 of .* has label 300, model.classes = 300 allows 0 to 299",
        ),
        (
            Model(family="bert", seq_len=7, vocab=44),
            (3, 44),
            "example 3 of .* has token 44, model.vocab = 44 allows 0 to",
        ),
        (Model(seq_len=9, vocab=44), (44, 3), "example 2 of .* has token 44, model.vocab = 44 allows 0 to 43"),
    ],
    ids=["resnet", "bert", "decoder"],
)
def test_tokens_outside_the_vocabulary_are_rejected(
    model: Model, last: tuple[int, int], says: str, tmp_path: Path
) -> None:
    made = by_hand(tmp_path, bytes([*range(12), 43, 1, *range(12), *last]))
    read = reader.Reader(made, model, counts := reader.counts(made, model))
    read(np.arange(counts[0] - 1))
    with pytest.raises(FatalError, match=says):
        read(np.array([counts[0] - 1]))
