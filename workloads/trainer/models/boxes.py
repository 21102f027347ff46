"""Arithmetic of boxes: overlaps, offsets from anchors, and non-maximum suppression, all of fixed shapes.

A box is (upper, left, lower, right) in any unit. Dimensions are the suffix of a name:
    N, M boxes   A shapes of an anchor   K results   4 edges, or offsets of center and size
"""

# mypy: disallow-untyped-calls=False

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import Array

MAX_LOG_RATIO = math.log(1000 / 16)  # of a decoded size and its anchor's; avoids an infinite exponential
VARIANCES = (0.1, 0.1, 0.2, 0.2)  # of the offsets (Liu et al., 2016)


def areas(box_N4: Array) -> Array:
    """Return the areas [N]; 0 for a box with negative sides."""
    return jnp.prod(jnp.maximum(box_N4[..., 2:] - box_N4[..., :2], 0), axis=-1)


def intersections(one_N4: Array, other_M4: Array) -> Array:
    """Return the areas [N, M] that two boxes share."""
    upper_left = jnp.maximum(one_N4[..., :, None, :2], other_M4[..., None, :, :2])
    lower_right = jnp.minimum(one_N4[..., :, None, 2:], other_M4[..., None, :, 2:])
    return jnp.prod(jnp.maximum(lower_right - upper_left, 0), axis=-1)


def overlaps(one_N4: Array, other_M4: Array) -> Array:
    """Return the intersections over unions (IoU) [N, M]; 0 if both boxes are empty."""
    shared_NM = intersections(one_N4, other_M4)
    union_NM = areas(one_N4)[..., :, None] + areas(other_M4)[..., None, :] - shared_NM
    return jnp.where(union_NM > 0, shared_NM / jnp.where(union_NM > 0, union_NM, 1.0), 0.0)


def encode(box_N4: Array, anchor_N4: Array, variances: Sequence[float] = VARIANCES) -> Array:
    """Return the offsets [N, 4] of boxes from anchors: of the center, and log ratios of height and width.

    Offsets of the center are in sizes of the anchor; all are divided by the variances (Ren et al., 2015; Liu et al.).
    Boxes must have an area.
    """
    center_N2, size_N2 = _centers(box_N4)
    anchor_center_N2, anchor_size_N2 = _centers(anchor_N4)
    offset_N4 = jnp.concatenate(
        [(center_N2 - anchor_center_N2) / anchor_size_N2, jnp.log(size_N2 / anchor_size_N2)], axis=-1
    )
    return offset_N4 / np.array(variances, np.float32)


def decode(offset_N4: Array, anchor_N4: Array, variances: Sequence[float] = VARIANCES) -> Array:
    """Return the boxes [N, 4] with these offsets from anchors."""
    offset_N4 = offset_N4 * np.array(variances, np.float32)
    center_N2, size_N2 = _centers(anchor_N4)
    center_N2 = center_N2 + offset_N4[..., :2] * size_N2
    half_N2 = 0.5 * size_N2 * jnp.exp(jnp.minimum(offset_N4[..., 2:], MAX_LOG_RATIO))
    return jnp.concatenate([center_N2 - half_N2, center_N2 + half_N2], axis=-1)


def clip(box_N4: Array, height: Array | float = 1.0, width: Array | float = 1.0) -> Array:
    """Return the parts of boxes inside a picture of this size."""
    high = jnp.stack([jnp.asarray(side, box_N4.dtype) for side in (height, width, height, width)], axis=-1)
    return jnp.clip(box_N4, 0, high)


def anchors(
    rows: int, columns: int, cell: tuple[float, float], sizes_A2: Sequence[tuple[float, float]]
) -> npt.NDArray[np.float32]:
    """Return the anchors [rows x columns x A, 4] around the centers of a grid's cells, row by row.

    `cell` and `sizes_A2` are heights and widths.
    """
    center_RC2 = (np.moveaxis(np.mgrid[:rows, :columns], 0, -1) + 0.5) * np.array(cell)
    half_A2 = np.array(sizes_A2, np.float64).reshape(-1, 2) / 2
    edges = [center_RC2[:, :, None] + sign * half_A2 for sign in (-1, 1)]
    return np.concatenate(edges, -1).reshape(-1, 4).astype(np.float32)


def suppress(box_N4: Array, score_N: Array, threshold: float, count: int) -> tuple[Array, Array]:
    """Return (positions [K] of the boxes that greedy non-maximum suppression keeps, whether each is one [K]).

    K = count, by falling score. A box is kept if it overlaps no kept box of a higher score by more than the threshold.
    Boxes with a score of -inf are not kept. Use `jax.vmap` for several images or classes.
    """
    order_N = jnp.argsort(-score_N, stable=True)
    box_N4, score_N = box_N4[order_N], score_N[order_N]
    N = len(score_N)

    def body(n: Array, kept_N: Array) -> Array:
        overlap_N = overlaps(jax.lax.dynamic_slice_in_dim(box_N4, n, 1), box_N4)[0]
        is_suppressed_N = kept_N[n] & (overlap_N > threshold) & (jnp.arange(N) > n)
        return kept_N & ~is_suppressed_N

    kept_N = jax.lax.fori_loop(0, N, body, score_N > -jnp.inf)
    rank_N = jnp.where(kept_N, N - jnp.arange(N), 0)
    rank_K, position_K = jax.lax.top_k(rank_N, min(count, N))
    pad = (0, count - min(count, N))
    return jnp.pad(order_N[position_K], pad), jnp.pad(rank_K > 0, pad)


def _centers(box_N4: Array) -> tuple[Array, Array]:
    """Return the centers and the sizes."""
    return (box_N4[..., :2] + box_N4[..., 2:]) / 2, box_N4[..., 2:] - box_N4[..., :2]
