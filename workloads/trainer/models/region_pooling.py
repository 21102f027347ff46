"""Pooling of regions from a pyramid of features: RoIAlign (He et al., Mask R-CNN, 2017), with fixed shapes.

A bin of a region is the mean of 2 x 2 points that are interpolated from the four nearest cells. Points on a grid have
the same rows for all columns, so the interpolation is a product of one matrix of rows and one of columns. Either those
matrices are multiplied with the whole level ("one_hot": rows of zeros but for the nearest cells, products that are
partitioned like any other), or only the nearest cells are read ("gather").

Dimensions are the suffix of a name:
    B batch   R regions   P, Q bins of a region, down and across   N cells of an axis   M cells of all levels
    H height   W width   C channels   T nearest cells of a bin's points along an axis, 4
"""

# mypy: disallow-untyped-calls=False

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

_SAMPLES = 2  # points of a bin along each axis
_CELLS = 14  # least side of a region on its level: 224 pixels on that of stride 16


def levels(box_BR4: Array, strides: Sequence[int]) -> Array:
    """Return the level of each region, a position in `strides` (Lin et al., 2017, equation 1)."""
    size_BR2 = jnp.maximum(box_BR4[..., 2:] - box_BR4[..., :2], 0.0)
    cells_BR = jnp.sqrt(size_BR2[..., 0] * size_BR2[..., 1]) / (_CELLS * strides[0])
    level_BR = jnp.floor(jnp.log2(jnp.maximum(cells_BR, 1.0) + 1e-6)).astype(jnp.int32)
    return jnp.minimum(level_BR, len(strides) - 1)


def nearest(low_BR: Array, high_BR: Array, bins: int, cells: Array | int) -> tuple[Array, Array]:
    """Return (cells [B, R, P, T], their weights) of the bins between two coordinates, whose unit is a cell.

    Cell n is at n + 0.5. Points beyond the middle of the first or last cell have its value.
    """
    middle_PS = (np.arange(bins * _SAMPLES, dtype=np.float32) + 0.5).reshape(bins, _SAMPLES) / (bins * _SAMPLES)
    point_BRPS = low_BR[..., None, None] + (high_BR - low_BR)[..., None, None] * middle_PS - 0.5
    last = jnp.asarray(cells, jnp.int32)[..., None, None] - 1
    point_BRPS = jnp.clip(point_BRPS, 0.0, last.astype(jnp.float32))
    cell_BRPS = jnp.floor(point_BRPS).astype(jnp.int32)
    rest_BRPS = point_BRPS - cell_BRPS
    cell_BRPT = jnp.concatenate([cell_BRPS, jnp.minimum(cell_BRPS + 1, last)], axis=-1)
    return cell_BRPT, jnp.concatenate([1 - rest_BRPS, rest_BRPS], axis=-1) / _SAMPLES


def matrix(cell_BRPT: Array, weight_BRPT: Array, cells: int) -> Array:
    """Return these weights as a matrix [B, R, P, N] over all cells of an axis."""
    return jnp.sum(jax.nn.one_hot(cell_BRPT, cells) * weight_BRPT[..., None], axis=-2)


def pool(
    feature_BHWC: Sequence[Array], strides: Sequence[int], box_BR4: Array, bins: int, *, one_hot: bool = False
) -> Array:
    """Return the features [B, R, P, P, C] of regions (upper, left, lower, right, in pixels), each of its own level.

    `one_hot` chooses how they are computed. The results are the same to rounding.
    """
    level_BR = levels(box_BR4, strides)
    if one_hot:
        return _pool_by_products(feature_BHWC, strides, box_BR4, level_BR, bins)
    return _pool_by_gather(feature_BHWC, strides, box_BR4, level_BR, bins)


def _pool_by_products(
    feature_BHWC: Sequence[Array], strides: Sequence[int], box_BR4: Array, level_BR: Array, bins: int
) -> Array:
    """Pool every region from every level, with weights of 0 except for its own.

    Columns first: with rows sharded, each chip has its rows of the first product, and only the result is summed.
    """
    result_BRPQC: Array | None = None
    for n, (x_BHWC, stride) in enumerate(zip(feature_BHWC, strides, strict=True)):
        H, W = x_BHWC.shape[1:3]
        upper_BR, left_BR, lower_BR, right_BR = jnp.moveaxis(box_BR4 / stride, -1, 0)
        row_BRPH = matrix(*nearest(upper_BR, lower_BR, bins, H), H) * (level_BR == n)[..., None, None]
        column_BRQW = matrix(*nearest(left_BR, right_BR, bins, W), W)
        y_BRQHC = jnp.einsum("brqw,bhwc->brqhc", column_BRQW.astype(x_BHWC.dtype), x_BHWC)
        y_BRPQC = jnp.einsum("brph,brqhc->brpqc", row_BRPH.astype(x_BHWC.dtype), y_BRQHC)
        result_BRPQC = y_BRPQC if result_BRPQC is None else result_BRPQC + y_BRPQC
    assert result_BRPQC is not None
    return result_BRPQC


def _pool_by_gather(
    feature_BHWC: Sequence[Array], strides: Sequence[int], box_BR4: Array, level_BR: Array, bins: int
) -> Array:
    """Read the nearest cells of every point from the cells of all levels, one level after the other."""
    sizes = np.array([x.shape[1:3] for x in feature_BHWC], np.int32)
    first = np.concatenate([[0], np.cumsum(sizes.prod(1))[:-1]]).astype(np.int32)
    cell_BMC = jnp.concatenate([x.reshape(x.shape[0], -1, x.shape[-1]) for x in feature_BHWC], axis=1)
    height_BR, width_BR = jnp.asarray(sizes)[:, 0][level_BR], jnp.asarray(sizes)[:, 1][level_BR]
    upper_BR, left_BR, lower_BR, right_BR = jnp.moveaxis(
        box_BR4 / jnp.asarray(strides, jnp.float32)[level_BR][..., None], -1, 0
    )
    row_BRPT, row_weight_BRPT = nearest(upper_BR, lower_BR, bins, height_BR)
    column_BRQT, column_weight_BRQT = nearest(left_BR, right_BR, bins, width_BR)
    start_BRPT = jnp.asarray(first)[level_BR][..., None, None] + row_BRPT * width_BR[..., None, None]
    index_BRPTQT = start_BRPT[..., None, None] + column_BRQT[..., None, None, :, :]
    near_BRPTQTC = jax.vmap(lambda cell_MC, index: cell_MC[index])(cell_BMC, index_BRPTQT)
    return jnp.einsum(
        "brptqsc,brpt,brqs->brpqc",
        near_BRPTQTC,
        row_weight_BRPT.astype(cell_BMC.dtype),
        column_weight_BRQT.astype(cell_BMC.dtype),
    )
