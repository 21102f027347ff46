"""Packed pairs: every pair in one record, each with the logits that it has alone."""

# mypy: disallow-untyped-calls=False

import functools
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
from trainer.data import pair_records, reader, synthetic_translations
from trainer.data.dataset import Corpus, eval_records
from trainer.data.records import END, FIRST_TOKEN, PADDING, record
from trainer.errors import FatalError
from trainer.models import pairs, registry, transformer
from trainer.models.family import Context
from trainer.parallel import layout
from trainer.storage import open_place

SETTINGS = ("model.family=transformer", "model.packed=true", "model.seq_len=32")
MODEL = Model(family="transformer", packed=True, seq_len=32)
COUNT = 60
Records = npt.NDArray[Any]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    size = COUNT * 20  # bytes
    return synthetic_translations.prepare(open_place(tmp_path_factory.mktemp("pairs")), size)


def sentences(half_T: Records) -> list[list[int]]:
    """Return the sentences of a half of a record."""
    found: list[list[int]] = [[]]
    for number in half_T.tolist():
        if number == PADDING:
            break
        found[-1].append(number)
        if number == END:
            found.append([])
    assert not found.pop() and not half_T[sum(map(len, found)) :].any()
    return found


def pairs_of(record_S: Records) -> list[tuple[list[int], list[int]]]:
    return list(zip(*map(sentences, np.split(record_S, 2)), strict=True))


def alone(record_S: Records) -> Records:
    """Return the pairs of a record, each in a record of its own [N, S]."""
    rows = np.zeros((len(pairs_of(record_S)), len(record_S)), record_S.dtype)
    for row_S, both in zip(rows, pairs_of(record_S), strict=True):
        for half_T, sentence in zip(np.split(row_S, 2), both, strict=True):
            half_T[: len(sentence)] = sentence
    return rows


def records(corpus: Corpus, eval_fraction: float = 0.0) -> Records:
    counts = reader.counts(corpus, MODEL, eval_fraction)
    return np.asarray(reader.Reader(corpus, MODEL, counts)(np.arange(sum(counts))))


lengths = st.lists(st.tuples(st.integers(1, 20), st.integers(1, 20)), min_size=1, max_size=40)


@given(lengths, st.integers(20, 50), st.integers(0, 5))
def test_records_have_as_many_neighbors_as_fit_and_held_out_pairs_are_alone(
    sizes: list[tuple[int, int]], room: int, held_out: int
) -> None:
    held_out = min(held_out, len(sizes))
    example = record(Model(family="transformer", packed=True, seq_len=room))
    ranges = pair_records.plan(np.cumsum(np.ravel(sizes)).tolist(), example, held_out).tolist()
    assert [pair for first, end in ranges for pair in range(first, end)] == list(range(len(sizes)))
    packed = ranges[: len(ranges) - held_out]
    assert all(end - first == 1 for first, end in ranges[len(packed) :])
    for first, end in packed:
        both = np.array(sizes[first:end]).sum(0)
        assert both.max() <= room
        if end < len(sizes) - held_out:
            assert (both + sizes[end]).max() > room


def test_every_pair_is_read_once_and_the_last_of_each_file_are_held_out(corpus: Corpus) -> None:
    counts, files = reader.counts(corpus, MODEL, 0.2), len(corpus.files)
    trained, held = sum(counts[:files]), sum(counts[files:])
    assert files > 1 and trained < COUNT - held and held == COUNT // 5
    every = records(corpus, 0.2)
    assert all(len(pairs_of(row)) == 1 for row in every[trained:])
    read = sorted((tuple(source), tuple(target)) for row in every for source, target in pairs_of(row))
    both = (synthetic_translations.pair(number) for number in range(COUNT))
    assert read == sorted(tuple((*(FIRST_TOKEN + byte for byte in half), END) for half in pair) for pair in both)
    asked = config.load("tiny", [*SETTINGS, "data.eval_fraction=0.2"])
    assert eval_records(asked, corpus, sum(counts)) == held


@functools.cache
def trainer(*settings: str, mesh: tuple[int, int, int] = (1, 1, 1)) -> Trainer:
    return Trainer(*mesh, *SETTINGS, *settings)


@pytest.mark.slow
def test_a_pair_has_the_logits_that_it_has_alone(corpus: Corpus) -> None:
    model, how = trainer().config.model, trainer().how
    packed_BS = records(corpus)[:4]
    packed_BS[3] = 0  # padding of a batch
    every = np.concatenate([packed_BS, *(alone(row) for row in packed_BS)])
    params = jax.tree.map(lambda w: w * 1.5 + 0.02, registry.family(model).init(model, jax.random.key(3)))

    @jax.jit
    def run(params: Any, record_BS: Any) -> Any:
        source_BT, target_BT = pairs.halves(record_BS)
        network = transformer.Network(model, how, params)
        y_BTE = network.decode(network.encode(source_BT), source_BT, pairs.shifted(target_BT))
        of = functools.partial(transformer.sums, model, how, params, Context({}, jnp.int32(0), None), record_BS)
        return network.project(y_BTE), of(jnp.ones(len(every)).at[4:].set(0)), of(jnp.ones(len(every)).at[:4].set(0))

    logits_BTV, packed, apart = jax.device_get(run(params, jnp.asarray(every)))
    targets = [np.split(row, 2)[1] for row in every]
    real = [logits_BTV[n][target != PADDING] for n, target in enumerate(targets)]
    assert all(len(pairs_of(row)) > 1 for row in packed_BS[:3])
    np.testing.assert_allclose(np.concatenate(real[:4]), np.concatenate(real[4:]), atol=1e-5)
    assert packed.weight == apart.weight == sum(map(len, real[:4]))
    np.testing.assert_allclose(packed.loss, apart.loss, rtol=1e-6)


@pytest.mark.slow
def test_packed_pairs_train_the_same_on_any_mesh_and_in_chunks(corpus: Corpus) -> None:
    one, packed_BS = trainer(), records(corpus)
    spread = trainer("model.attention_chunk=8", "model.loss_chunk=16", "model.remat=full", mesh=(2, 2, 2))
    for made in (one, spread):
        made.read = lambda ids_N: packed_BS[ids_N % len(packed_BS)]
    np.testing.assert_allclose(spread.losses(3), one.losses(3), rtol=1e-5)
    same_gradients(spread, one)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (["model.family=gnmt"], "model.packed is not supported by gnmt"),
        (["model.batch_lengths=8,16"], "model.packed = true has no use for model.batch_lengths = '8,16'"),
    ],
)
def test_settings_that_packing_does_not_support_are_refused(settings: list[str], says: str) -> None:
    (problem,) = layout.range_problems(config.load("tiny", [*SETTINGS, *settings]))
    assert problem.message == says


def test_damaged_lengths_of_sentences_are_named() -> None:
    example = record(MODEL)
    made = pair_records.PairRecords("tokens.bin", 8, [3, 6, 6, 9, 18, 20], example, 0)
    assert made.tokens.tolist() == [[0, 20]]
    with pytest.raises(FatalError, match=r"pair 1 of 'tokens.bin' has a sentence of 0 tokens, not 1 to 8"):
        made.write(0, np.arange(20), np.zeros(64, np.int32))
