"""Arithmetic of boxes against plain NumPy: overlaps, offsets, anchors and non-maximum suppression."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.models import boxes

Floats = npt.NDArray[np.float64]
_property = settings(max_examples=40, deadline=None)
_seeds = st.integers(0, 2**32 - 1)
_suppress = jax.jit(boxes.suppress, static_argnums=(2, 3))


def draw(seed: int, count: int) -> Floats:
    """Return boxes [count, 4] between 0 and 1."""
    random = np.random.default_rng(seed)
    corner, size = random.uniform(0, 0.7, (count, 2)), random.uniform(0.02, 0.3, (count, 2))
    return np.concatenate([corner, corner + size], 1)


def overlap(one: Any, other: Any) -> float:
    """Return the intersection over union of two boxes, side by side."""
    height = max(0.0, min(one[2], other[2]) - max(one[0], other[0]))
    width = max(0.0, min(one[3], other[3]) - max(one[1], other[1]))
    total = sum((box[2] - box[0]) * (box[3] - box[1]) for box in (one, other))
    return float(height * width / (total - height * width))


@_property
@given(_seeds)
def test_overlaps_are_those_of_the_reference(seed: int) -> None:
    one, other = draw(seed, 6), draw(seed + 1, 5)
    actual = boxes.overlaps(jnp.asarray(one, jnp.float32), jnp.asarray(other, jnp.float32))
    expected = [[overlap(a, b) for b in other] for a in one]
    np.testing.assert_allclose(actual, expected, atol=1e-6)
    np.testing.assert_allclose(np.diag(boxes.overlaps(*[jnp.asarray(one, jnp.float32)] * 2)), 1, rtol=1e-5)


def test_empty_boxes_overlap_nothing() -> None:
    empty, real = jnp.zeros((1, 4)), jnp.array([[0.0, 0.0, 1.0, 1.0]])
    assert boxes.overlaps(empty, jnp.concatenate([empty, real])).tolist() == [[0, 0]]
    assert boxes.areas(jnp.array([[0.5, 0.5, 0.2, 0.9]])).tolist() == [0]


@_property
@given(_seeds)
def test_offsets_are_those_of_the_reference_and_decode_to_the_box(seed: int) -> None:
    box, anchor = draw(seed, 7), draw(seed + 1, 7)
    expected = []
    for (a0, b0, a1, b1), (c0, d0, c1, d1) in zip(box, anchor, strict=True):
        y, x = ((a0 + a1) - (c0 + c1)) / 2 / (c1 - c0), ((b0 + b1) - (d0 + d1)) / 2 / (d1 - d0)
        sizes = np.log((a1 - a0) / (c1 - c0)), np.log((b1 - b0) / (d1 - d0))
        expected.append([y / 0.1, x / 0.1, sizes[0] / 0.2, sizes[1] / 0.2])
    box_N4, anchor_N4 = jnp.asarray(box, jnp.float32), jnp.asarray(anchor, jnp.float32)
    offset_N4 = boxes.encode(box_N4, anchor_N4)
    np.testing.assert_allclose(offset_N4, expected, rtol=2e-4, atol=2e-3)
    np.testing.assert_allclose(boxes.decode(offset_N4, anchor_N4), box, atol=1e-5)
    assert np.isfinite(boxes.decode(jnp.full((7, 4), 1e9), anchor_N4)).all()


def test_boxes_are_clipped_to_the_picture() -> None:
    box = jnp.array([[-0.5, 0.2, 0.7, 1.5]])
    np.testing.assert_allclose(boxes.clip(box), [[0, 0.2, 0.7, 1]])
    np.testing.assert_allclose(boxes.clip(box, 0.5, jnp.float32(0.75)), [[0, 0.2, 0.5, 0.75]])


def test_anchors_are_around_the_centers_of_cells_row_by_row() -> None:
    actual = boxes.anchors(2, 3, (10, 8), [(4, 2), (6, 6)])
    expected = [
        [10 * y + 5 - h / 2, 8 * x + 4 - w / 2, 10 * y + 5 + h / 2, 8 * x + 4 + w / 2]
        for y in range(2)
        for x in range(3)
        for h, w in ((4, 2), (6, 6))
    ]
    np.testing.assert_allclose(actual, expected)


def suppressed(box: Floats, score: Floats, threshold: float, count: int) -> list[int]:
    """Return the kept boxes, one after the other."""
    kept = list[int]()
    left = sorted((n for n in range(len(box)) if score[n] > -np.inf), key=lambda n: -score[n])
    while left and len(kept) < count:
        best = left.pop(0)
        kept.append(best)
        left = [n for n in left if overlap(box[best], box[n]) <= threshold]
    return kept


@_property
@given(_seeds, st.integers(1, 12), st.sampled_from([0.2, 0.5]))
def test_suppression_keeps_the_boxes_of_the_reference(seed: int, count: int, threshold: float) -> None:
    random = np.random.default_rng(seed)
    box, score = draw(seed, 3).repeat(3, 0) + random.uniform(-0.02, 0.02, (9, 4)), random.permutation(9) / 10
    score = np.where(random.uniform(size=9) < 0.2, -np.inf, score)
    box, score = box.astype(np.float32).astype(np.float64), score.astype(np.float32).astype(np.float64)
    index_K, is_kept_K = _suppress(jnp.asarray(box, jnp.float32), jnp.asarray(score, jnp.float32), threshold, count)
    assert index_K.shape == (count,)
    assert index_K[is_kept_K].tolist() == suppressed(box, score, threshold, count)
    assert is_kept_K.tolist() == sorted(is_kept_K.tolist(), reverse=True), "results come first"


def test_suppression_of_a_batch_by_class_is_that_of_each() -> None:
    box_N4 = jnp.asarray(draw(0, 8), jnp.float32)
    score_BCN = jnp.asarray(np.random.default_rng(1).uniform(size=(2, 3, 8)), jnp.float32)
    suppress = functools.partial(boxes.suppress, threshold=0.3, count=5)
    by_class = jax.jit(jax.vmap(jax.vmap(lambda score_N: suppress(box_N4, score_N))))
    index_BCK, is_kept_BCK = by_class(score_BCN)
    for b in range(2):
        for c in range(3):
            expected = suppressed(np.asarray(box_N4, np.float64), np.asarray(score_BCN[b, c], np.float64), 0.3, 5)
            assert index_BCK[b, c][is_kept_BCK[b, c]].tolist() == expected
