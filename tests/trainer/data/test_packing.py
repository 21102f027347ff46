"""Packed examples: complete documents, each with the losses that it has alone."""

import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.emulated import Trainer, same_gradients
from trainer import config
from trainer.config import Model
from trainer.data import checks, packing, prepare, reader
from trainer.errors import FatalError
from trainer.models import bert
from trainer.models import decoder as model
from trainer.models.document_masks import documents, next_token_weights, unpack
from trainer.storage import open_place

LENGTHS = (
    5,
    11,
    3,
    9,
    2,
    40,
    6,
    16,
    17,
    18,
    1,
    1,
    8,
    13,
    4,
    12,
    10,
    7,
    3,
    3,
    15,
    9,
)  # tokens of documents and their ends
Array = npt.NDArray[Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made, random = tmp_path_factory.mktemp("texts"), np.random.default_rng(0)
    for nth, length in enumerate(LENGTHS):
        if length > 1:
            (made / f"{nth:02}.txt").write_bytes(bytes(random.integers(32, 127, length - 1).tolist()))
    return made


def records(folder: Path, made: Model) -> Array:
    """Return all packed records of a folder of text."""
    data = prepare.prepare(str(folder), open_place(folder / ".out"))
    counts = reader.counts(data, made)
    return np.asarray(reader.Reader(data, made, counts)(np.arange(sum(counts))))


def alone(record_S: Array) -> Array:
    """Return a packed record's documents, each in its own record [D, S]."""
    tokens, numbers = np.split(record_S, 2)
    made = np.zeros((numbers.max(), len(record_S)), record_S.dtype)
    for row_S, number in zip(made, range(1, numbers.max() + 1), strict=True):
        mine = tokens[numbers == number]
        row_S[: len(mine)], row_S[len(tokens) : len(tokens) + len(mine)] = mine, 1
    return made


documents_of = st.lists(st.integers(1, 60), min_size=1, max_size=40)


@given(documents_of, st.integers(2, 20), st.booleans())
def test_every_token_is_in_one_record_and_predicted_once(
    lengths: list[int], free_and_needed_bytes: int, decoder: bool
) -> None:
    ends = np.cumsum(lengths)
    ranges = packing.plan(
        ends.tolist(), free_and_needed_bytes, free_and_needed_bytes - 1 if decoder else free_and_needed_bytes
    )
    assert ((ranges[:, 1] - ranges[:, 0]) <= free_and_needed_bytes).all()
    tokens, asked = np.zeros(ends[-1], int), np.zeros(ends[-1], int)
    for start, end in ranges.tolist():
        numbers = packing.segments(ends, start, end)
        assert numbers[0] == 1 and set(np.diff(numbers)) <= {0, 1}
        tokens[start:end] += 1
        asked[start + 1 : end] += np.diff(numbers) == 0
    firsts = np.concatenate([[0], ends[:-1]])
    if decoder:
        asked[firsts] += 1  # a document's first token is not predicted
        assert (asked == 1).all()
    else:
        assert (tokens == 1).all()


def test_a_record_is_as_many_documents_as_fit() -> None:
    ranges = packing.plan(np.cumsum([5, 11, 3, 9, 40, 6]).tolist(), 17, 16)
    assert ranges.tolist() == [[0, 16], [16, 28], [28, 45], [44, 61], [60, 74]]
    assert packing.segments(np.cumsum([5, 11, 3, 9, 40, 6]), 60, 74).tolist() == [1] * 8 + [2] * 6


def test_positions_restart_in_each_document() -> None:
    """Rotary embeddings would not show it, because they depend only on distances."""
    packed = documents(jnp.array([[1, 1, 1, 2, 3, 3, 0, 0], [1] * 8]))
    assert packed is not None
    assert packed.position_BT.tolist() == [[0, 1, 2, 0, 0, 1, 0, 1], [*range(8)]]
    assert next_token_weights(packed.number_BT).tolist() == [[1, 1, 0, 0, 1, 0, 0], [1] * 7]


def token_losses(trainer: Trainer, params: Any, records_BS: Array) -> tuple[Array, Array]:
    """Return the loss of every next token [B, T], and its weight."""
    tokens, numbers = unpack(jnp.asarray(records_BS), packed=True)
    assert numbers is not None

    @jax.jit
    def look(tokens: jax.Array, numbers: jax.Array) -> jax.Array:
        how, packed = trainer.how, documents(numbers[:, :-1])
        y_BTE, project = model.hidden(trainer.config.model, how, params, tokens[:, :-1], None, packed)
        logs = jax.nn.log_softmax(project(y_BTE))
        return -jnp.take_along_axis(logs, tokens[:, 1:, None], axis=2)[..., 0]

    return np.asarray(look(tokens, numbers)), np.asarray(next_token_weights(numbers))


@functools.cache
def packed_trainer(*settings: str, mesh: tuple[int, int, int] = (1, 1, 1)) -> Trainer:
    return Trainer(*mesh, "model.packed=true", *settings)


@pytest.mark.slow
def test_packing_does_not_change_the_loss_of_a_token(folder: Path) -> None:
    trainer = packed_trainer()
    packed_BS = records(folder, trainer.config.model)
    alone_DS = np.concatenate([alone(record) for record in packed_BS])
    joined_BS = packed_BS.copy()  # the same as one document, with attention over all tokens
    joined_BS[:, packed_BS.shape[1] // 2 :] = packed_BS[:, packed_BS.shape[1] // 2 :] > 0
    assert len(packed_BS) < len(alone_DS)
    every = np.concatenate([packed_BS, alone_DS, joined_BS])
    losses, weights = token_losses(trainer, trainer.init(np.uint32(0))["params"], every)
    packed, apart, joined = (
        slice(0, len(packed_BS)),
        slice(len(packed_BS), -len(packed_BS)),
        slice(-len(packed_BS), None),
    )
    asked = weights[packed] > 0
    expected = losses[apart][weights[apart] > 0]
    np.testing.assert_allclose(losses[packed][asked], expected, rtol=2e-5)
    assert len(expected) == sum(length - 1 for length in LENGTHS)
    assert np.abs(losses[joined][asked] - expected).max() > 0.01


def fed(trainer: Trainer, packed_BS: Array) -> Trainer:
    """Let a trainer read these records."""
    trainer.read = lambda ids_N: packed_BS[ids_N % len(packed_BS)]
    return trainer


@pytest.mark.slow
def test_the_loss_is_the_mean_over_predicted_tokens(folder: Path) -> None:
    trainer = packed_trainer()
    packed_BS = records(folder, trainer.config.model)[:8]
    sums = fed(trainer, packed_BS).programs.evaluate(trainer.init(np.uint32(0))["params"], trainer.blocks(np.arange(8)))
    losses_BT, weight_BT = token_losses(trainer, trainer.init(np.uint32(0))["params"], packed_BS)
    assert float(sums.weight) == weight_BT.sum() < weight_BT.size
    assert float(sums.loss) == pytest.approx(float((losses_BT * weight_BT).sum()), rel=1e-5)


@pytest.mark.slow
def test_packed_examples_train_the_same_on_any_mesh_and_in_chunks(folder: Path) -> None:
    one = packed_trainer()
    packed_BS = records(folder, one.config.model)
    chunks = ("model.attention_chunk=8", "model.loss_chunk=4", "model.remat=full")
    spread = packed_trainer("mesh.stages=2", "mesh.microbatches=2", *chunks, mesh=(1, 2, 2))
    np.testing.assert_allclose(fed(spread, packed_BS).losses(3), fed(one, packed_BS).losses(3), atol=1e-5)
    same_gradients(spread, one)


@pytest.mark.slow
def test_a_packed_bert_sees_each_document_alone(folder: Path) -> None:
    made = config.load("bert-tiny", ["model.seq_len=16", "model.packed=true", "model.embed=32", "model.layers=1"]).model
    packed_BS = records(folder, made)
    how = packed_trainer().how
    params = bert.init(made, jax.random.key(0))

    every = np.concatenate([packed_BS, *(alone(record) for record in packed_BS)])
    tokens, numbers = np.split(every, 2, axis=1)
    look = jax.jit(lambda tokens, numbers: bert.encode(made, how, params, tokens, None, documents(numbers)))
    seen_BTE, count = np.asarray(look(tokens, numbers)), len(packed_BS)
    packed, apart = (seen_BTE[rows][numbers[rows] > 0] for rows in (slice(0, count), slice(count, None)))
    np.testing.assert_allclose(packed, apart, atol=2e-5)
    masked = jax.jit(functools.partial(bert.mask_tokens, made))
    input_BT, place_BG, asked_BG = jax.device_get(masked(tokens, jnp.int32(3), numbers > 0))
    assert (np.take_along_axis(numbers, place_BG, axis=1)[asked_BG] > 0).all()  # no padding is predicted
    counts = np.maximum(1, np.round(0.15 * (numbers > 0).sum(axis=1)))
    assert (asked_BG.sum(axis=1) == counts).all()
    assert ((input_BT != tokens).sum(axis=1) <= counts).all()


def test_data_without_document_ends_cannot_be_packed(folder: Path, tmp_path: Path) -> None:
    data = prepare.prepare(str(folder), open_place(tmp_path))
    notes = Path(data.path)
    notes.write_text(notes.read_text().replace(data.files[0].index, ""))
    asked = config.load("tiny", [f"data.path={data.path}", "model.packed=true"])
    assert "requires the ends of documents" in str(checks.check_source(asked, 8)[0])


def test_too_few_packed_examples_are_reported(folder: Path) -> None:
    data = prepare.prepare(str(folder), open_place(folder / ".out"))
    few = config.load("tiny", [f"data.path={folder}", "model.packed=true", "model.seq_len=16"])
    with pytest.raises(FatalError, match="has 3 examples to train on, but one batch needs 8"):
        checks.check_corpus(few, data, 3, 8)
