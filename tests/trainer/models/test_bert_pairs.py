"""BERT on pairs of segments: against a reference in NumPy, on any mesh, and learning both tasks."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import pytest

from tests.trainer.emulated import Trainer
from tests.trainer.models import reference_bert
from trainer.config import Model
from trainer.models import bert
from trainer.models.document_masks import documents
from trainer.models.family import Context, Sums
from trainer.parallel.partitioning import Execution

T, VOCAB, MASK = 24, 64, 4
SETTINGS = (
    *("model.family=bert", "model.next_sentence=true", f"model.mask_token={MASK}", f"model.seq_len={T}"),
    *(f"model.vocab={VOCAB}", "model.compute_dtype=float32", "optim.name=lamb", "optim.lr=0.02"),
)
MODEL = Model(
    family="bert", embed=16, heads=2, head_dim=8, mlp=32, layers=2, vocab=VOCAB, seq_len=T, mask_token=MASK,
    next_sentence=True, compute_dtype="float32", remat="none",
)  # fmt: skip


def pairs(count: int) -> npt.NDArray[np.int32]:
    """Return records of pairs: a second segment that follows has words of the same half of the vocabulary."""
    random, records = np.random.default_rng(0), np.zeros((count, T + 3), np.int32)
    for row in records:
        first, second = random.integers(3, 13), random.integers(15, T + 1)
        follows, half = random.integers(2), random.integers(2)
        low = 8 + 28 * half
        row[:first] = random.integers(low, low + 28, first)
        other = low if follows else 44 - low
        row[first:second] = random.integers(other, other + 28, second - first)
        row[0], row[first - 1], row[second - 1] = 2, 3, 3
        row[T:] = first, second, follows
    return records


RECORDS = pairs(64)


def one_chip() -> Execution:
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]).reshape(1, 1, 1, 1), ("dp", "stage", "fsdp", "tp"))
    return Execution(mesh)


@functools.cache
def params() -> Any:
    random = np.random.default_rng(1)
    shapes = bert.shapes(MODEL)
    return jax.tree.map(
        lambda s: np.asarray(random.normal(0, 0.3, s), np.float32), shapes, is_leaf=lambda x: isinstance(x, tuple)
    )


class Computed(NamedTuple):
    """Results of the trainer for some records, in an evaluation."""

    pairs: bert.Pairs
    tokens_BT: Any
    position_BG: Any
    counted_BG: Any
    encoded_BTE: Any
    next_B2: Any
    sums: Sums


@functools.cache
def compiled() -> Any:
    execution = one_chip()

    def compute(params: Any, record_BS: Any, weight_B: Any) -> Computed:
        batch_pairs = bert.read_pairs(record_BS)
        tokens_BT, position_BG, counted_BG = bert.mask_tokens(
            MODEL, batch_pairs.tokens_BT, None, batch_pairs.maskable_BT
        )
        packed = documents(batch_pairs.real_BT.astype(np.int32))
        x_BTE = bert.encode(MODEL, execution, params, tokens_BT, None, packed, batch_pairs.segment_BT)
        sums = bert.sums(MODEL, execution, params, Context({}, None, None), record_BS, weight_B)
        return Computed(batch_pairs, tokens_BT, position_BG, counted_BG, x_BTE, bert.next_logits(params, x_BTE), sums)

    return jax.jit(compute)


def computed(record_BS: Any, weight_B: Any, tree: Any = None) -> Computed:
    result: Computed = jax.device_get(compiled()(tree or params(), record_BS, np.array(weight_B, np.float32)))
    return result


def test_outputs_and_loss_equal_those_of_the_reference() -> None:
    shortest = np.argsort(RECORDS[:, T + 1])[:3]
    record_BS, weight_B = RECORDS[shortest], [1.0, 0.0, 1.0]
    result = computed(record_BS, weight_B)
    loss = weight = correct = 0.0
    for b, (_, length, is_next) in enumerate(record_BS[:, T:].tolist()):
        x = reference_bert.encode(params(), result.tokens_BT[b], np.asarray(result.pairs.segment_BT[b]), length)
        np.testing.assert_allclose(result.encoded_BTE[b, :length], x, rtol=0, atol=1e-4)
        logits, both = reference_bert.token_logits(params(), x), reference_bert.next_logits(params(), x)
        np.testing.assert_allclose(result.next_B2[b], both, rtol=0, atol=1e-4)
        counted = result.position_BG[b][result.counted_BG[b]].tolist()
        if weight_B[b]:
            targets = [int(record_BS[b, p]) for p in counted]
            loss += sum(reference_bert.cross_entropy(logits[p], t) for p, t in zip(counted, targets, strict=True))
            loss += len(counted) * reference_bert.cross_entropy(both, is_next)
            correct += sum(int(logits[p].argmax()) == t for p, t in zip(counted, targets, strict=True))
            weight += len(counted)
    assert float(result.sums.loss) == pytest.approx(loss, rel=1e-4)
    assert result.sums.correct is not None
    assert (float(result.sums.weight), float(result.sums.correct)) == (weight, correct)


def test_only_words_are_masked() -> None:
    results = [computed(RECORDS[n : n + 3], [1, 1, 1]) for n in range(0, 30, 3)]
    tokens_BT, counted_BG, position_BG = (
        np.concatenate(parts)
        for parts in zip(*((m.tokens_BT, m.counted_BG, m.position_BG) for m in results), strict=True)
    )
    maskable_BT = RECORDS[:30, :T] >= 8  # words, not [CLS], [SEP] and padding
    is_changed = tokens_BT != RECORDS[:30, :T]
    assert is_changed.any() and not is_changed[~maskable_BT].any()
    assert (tokens_BT[is_changed] == MASK).mean() > 0.7
    assert np.take_along_axis(maskable_BT, position_BG, 1)[counted_BG].all()
    np.testing.assert_array_equal(counted_BG.sum(1), np.maximum(1, np.round(0.15 * maskable_BT.sum(1))))


def test_padding_does_not_count_but_segments_and_the_second_task_do() -> None:
    (short,) = np.flatnonzero(RECORDS[:, T + 1] < T)[:1]
    record_BS = RECORDS[[short] * 3]
    before = float(computed(record_BS, [1, 0, 0]).sums.loss)
    others = np.concatenate([record_BS[:1], RECORDS[:2]])
    assert float(computed(others, [1, 0, 0]).sums.loss) == pytest.approx(before, rel=1e-6)
    inputs = params()["inputs"]
    swapped = params() | {"inputs": inputs | {"segment": inputs["segment"][::-1].copy()}}
    assert float(computed(record_BS, [1, 0, 0], swapped).sums.loss) != pytest.approx(before, rel=1e-4)
    without_padding = params() | {"inputs": inputs | {"embed": inputs["embed"] * (np.arange(VOCAB) != 0)[:, None]}}
    x = computed(record_BS, [1, 0, 0], without_padding).encoded_BTE[0, : record_BS[0, T + 1]]
    np.testing.assert_allclose(x, computed(record_BS, [1, 0, 0]).encoded_BTE[0, : len(x)], atol=1e-5)
    flipped = record_BS.copy()
    flipped[:, T + 2] = 1 - flipped[:, T + 2]
    assert float(computed(flipped, [1, 0, 0]).sums.loss) != pytest.approx(before, rel=1e-4)


class OnPairs(Trainer):
    """A trainer on the pairs above."""

    def __init__(self, dp: int, fsdp: int, tp: int, *settings: str) -> None:
        super().__init__(dp, fsdp, tp, *SETTINGS, *settings)
        self.read = lambda ids_N: RECORDS[ids_N % len(RECORDS)]


@pytest.mark.slow
@pytest.mark.extended
def test_pairs_train_the_same_on_any_mesh() -> None:
    expected = OnPairs(1, 1, 1).losses(3)
    for dp, fsdp, tp in ((2, 1, 1), (2, 2, 1), (1, 2, 2)):
        np.testing.assert_allclose(OnPairs(dp, fsdp, tp).losses(3), expected, rtol=1e-5)
    staged = OnPairs(1, 2, 1, "mesh.stages=2", "mesh.microbatches=2").losses(3)
    np.testing.assert_allclose(staged, expected, rtol=1e-5)


@pytest.mark.slow
def test_both_tasks_are_learned() -> None:
    settings = "optim.name=adamw", "optim.lr=0.005", "optim.weight_decay=0", "optim.warmup=10", "run.steps=300"
    trainer = OnPairs(1, 1, 1, *settings, "data.global_batch=64")
    state, blocks, losses = trainer.init(np.uint32(0)), trainer.blocks(np.arange(64)), []
    for _ in range(150):
        state, out = trainer.train()(state, blocks, trainer.flags)
        losses.append(float(out["loss"]))
    pair = bert.read_pairs(jnp.asarray(RECORDS))
    x_BTE = jax.jit(functools.partial(bert.encode, trainer.config.model, Execution(trainer.mesh)))(
        state["params"], pair.tokens_BT, None, documents(pair.real_BT.astype(np.int32)), pair.segment_BT
    )
    right = np.argmax(bert.next_logits(state["params"], x_BTE), axis=1) == RECORDS[:, T + 2]
    assert right.mean() >= 0.95, losses[::10]
    assert losses[-1] < 0.65 * losses[0]
