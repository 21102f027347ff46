"""Region proposal network (Ren et al., Faster R-CNN, 2015) on a pyramid: its scores, its losses and its proposals.

Boxes are (upper, left, lower, right) as fractions of the image. All shapes are fixed: every image has as many
proposals, and what is missing has the score -inf. Boxes, scores and losses are float32.

Dimensions are the suffix of a name:
    B batch   A anchors of all levels, level by level and row by row   G objects of an image   K candidates of a level
    N proposals   C sampled anchors   H height   W width   F channels   R aspect ratios
"""

# mypy: disallow-untyped-calls=False

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import Array

from trainer.config import Model
from trainer.models import boxes
from trainer.models.family import Params
from trainer.models.pyramid import convolve, grids, strides, unit
from trainer.models.region_sampling import sample
from trainer.models.resnet import Network

RATIOS = (0.5, 1.0, 2.0)  # height of an anchor by its width
POSITIVE, NEGATIVE = 0.7, 0.3  # overlaps from which, and below which, an anchor is an object, or background
MAX_OVERLAP = 0.7  # of two proposals of a level
_SMOOTH = 1 / 9  # difference below which the loss of boxes is quadratic
_VARIANCES = (1.0, 1.0, 1.0, 1.0)  # of the offsets


class Proposals(NamedTuple):
    """Boxes that may contain objects, best first."""

    box_BN4: Array
    score_BN: Array  # -inf: no proposal


def shapes(model: Model) -> Params:
    """Return the shape of every parameter."""
    return {
        "hidden": unit(3, model.pyramid, model.pyramid),
        "score": unit(1, model.pyramid, len(RATIOS)),
        "offsets": unit(1, model.pyramid, 4 * len(RATIOS)),
    }


def anchors(model: Model) -> npt.NDArray[np.float32]:
    """Return the anchors [A, 4] of all levels: at each cell one of each aspect ratio, with a level's own area."""
    levels, (H, W) = [], model.image_sides
    for stride, (rows, columns) in zip(strides(model), grids(model), strict=True):
        size = model.anchor_cells * stride
        sizes = [(size * math.sqrt(ratio) / H, size / math.sqrt(ratio) / W) for ratio in RATIOS]
        levels.append(boxes.anchors(rows, columns, (stride / H, stride / W), sizes))
    return np.concatenate(levels)


def scores_and_offsets(network: Network, params: Params, level_BHWF: Sequence[Array]) -> tuple[Array, Array]:
    """Return the logits [B, A] of the anchors, and the offsets [B, A, 4] of boxes from them."""
    scores, offsets = [], []
    for x_BHWF in level_BHWF:
        y_BHWF = jax.nn.relu(network.shard(convolve(x_BHWF, params["hidden"])))
        scores.append(convolve(y_BHWF, params["score"]).reshape(len(x_BHWF), -1))
        offsets.append(convolve(y_BHWF, params["offsets"]).reshape(len(x_BHWF), -1, 4))
    score_BA, offset_BA4 = jnp.concatenate(scores, 1), jnp.concatenate(offsets, 1)
    shard = network.execution.shard
    batch = network.execution.batch
    return shard(score_BA.astype(jnp.float32), batch), shard(offset_BA4.astype(jnp.float32), batch)


def match(overlap_BAG: Array, is_object_BG: Array) -> tuple[Array, Array, Array]:
    """Return (is positive [B, A], is negative [B, A], its object [B, A]) for the overlaps of anchors and objects.

    The anchor that overlaps most with an object is positive in any case.
    """
    overlap_BAG = jnp.where(is_object_BG[:, None], overlap_BAG, -1.0)
    overlap_BA, object_BA = jnp.max(overlap_BAG, axis=2), jnp.argmax(overlap_BAG, axis=2)
    best_BG = jnp.max(overlap_BAG, axis=1)
    is_best_BAG = (overlap_BAG == best_BG[:, None]) & (overlap_BAG > 0)
    positive_BA = (overlap_BA >= POSITIVE) | jnp.any(is_best_BAG, axis=2)
    return positive_BA, (overlap_BA < NEGATIVE) & ~positive_BA, object_BA


def losses(
    network: Network, key_B: Array, score_BA: Array, offset_BA4: Array, object_BG4: Array, is_object_BG: Array
) -> tuple[Array, Array]:
    """Return the losses [B] of the scores and of the boxes of sampled anchors, half of them positive at most."""
    model, anchor_A4 = network.model, jnp.asarray(anchors(network.model))
    positive_BA, negative_BA, object_BA = match(boxes.overlaps(anchor_A4, object_BG4), is_object_BG)
    most, execution = model.anchor_samples // 2, network.execution
    chosen = sample(key_B, positive_BA, negative_BA, model.anchor_samples, most, execution)
    score_BC = jnp.take_along_axis(score_BA, chosen.index_BC, axis=1)
    offset_BC4 = jnp.take_along_axis(offset_BA4, chosen.index_BC[..., None], axis=1)
    object_BC = jnp.take_along_axis(object_BA, chosen.index_BC, axis=1)
    entropy_BC = jax.nn.softplus(jnp.where(chosen.is_positive_BC, -score_BC, score_BC)) * chosen.is_used_BC
    distance_BC = offset_distance(
        offset_BC4, anchor_A4[chosen.index_BC], object_BG4, object_BC, chosen.is_positive_BC, _VARIANCES, _SMOOTH
    )
    used_B = jnp.maximum(jnp.sum(chosen.is_used_BC, axis=1), 1)
    return jnp.sum(entropy_BC, axis=1) / used_B, jnp.sum(distance_BC, axis=1) / used_B


def offset_distance(
    offset_BC4: Array,
    box_BC4: Array,
    object_BG4: Array,
    object_BC: Array,
    is_positive_BC: Array,
    variances: Sequence[float],
    threshold: float,
) -> Array:
    """Return the distance [B, C] of offsets from those of each positive's object, 0 for other boxes.

    It is quadratic below a threshold (Girshick, Fast R-CNN, 2015).
    """
    own_BC4 = jnp.take_along_axis(object_BG4, object_BC[..., None], axis=1)
    square = jnp.array([0.0, 0.0, 1.0, 1.0])  # instead of boxes that may have no area, whose logarithms are infinite
    own_BC4, box_BC4 = (jnp.where(is_positive_BC[..., None], box, square) for box in (own_BC4, box_BC4))
    distance_BC4 = jnp.abs(offset_BC4 - boxes.encode(own_BC4, box_BC4, variances))
    quadratic_BC4 = 0.5 * distance_BC4 * distance_BC4 / threshold
    distance_BC4 = jnp.where(distance_BC4 < threshold, quadratic_BC4, distance_BC4 - 0.5 * threshold)
    return jnp.where(is_positive_BC, jnp.sum(distance_BC4, axis=2), 0.0)


def propose(model: Model, score_BA: Array, offset_BA4: Array, picture_B2: Array) -> Proposals:
    """Return the best boxes, without those that overlap with a better one of their level; not differentiated.

    Boxes end at the edges (height, width) of the picture, fractions of the padded image.
    """
    score_BA, offset_BA4 = jax.lax.stop_gradient((score_BA, offset_BA4))
    anchor_A4, first, levels = jnp.asarray(anchors(model)), 0, list[Proposals]()
    for rows, columns in grids(model):
        part = slice(first, first + rows * columns * len(RATIOS))
        first = part.stop
        score_BK, index_BK = jax.lax.top_k(score_BA[:, part], min(model.candidates, part.stop - part.start))
        offset_BK4 = jnp.take_along_axis(offset_BA4[:, part], index_BK[..., None], axis=1)
        box_BK4 = boxes.decode(offset_BK4, anchor_A4[part][index_BK], _VARIANCES)
        box_BK4 = boxes.clip(box_BK4, picture_B2[:, :1], picture_B2[:, 1:])
        levels.append(Proposals(box_BK4, jnp.where(boxes.areas(box_BK4) > 0, score_BK, -jnp.inf)))
    # All levels at once: as many candidates each, so that the loop is as long as that of one.
    most = max(level.score_BN.shape[1] for level in levels)
    box_BLK4, score_BLK = (
        jnp.stack([_padded(part, most, value) for part in parts], axis=1)
        for parts, value in zip(zip(*levels, strict=True), (0.0, -jnp.inf), strict=True)
    )
    suppress = jax.vmap(
        jax.vmap(lambda box, score: boxes.suppress(box, score, MAX_OVERLAP, min(most, model.proposals)))
    )
    position_BLN, is_kept_BLN = suppress(box_BLK4, score_BLK)
    score_BLN = jnp.where(is_kept_BLN, jnp.take_along_axis(score_BLK, position_BLN, axis=2), -jnp.inf)
    box_BLN4 = jnp.take_along_axis(box_BLK4, position_BLN[..., None], axis=2)
    flat_BN = score_BLN.reshape(len(score_BLN), -1)
    score_BN, index_BN = jax.lax.top_k(flat_BN, min(model.proposals, flat_BN.shape[1]))
    return Proposals(jnp.take_along_axis(box_BLN4.reshape(*flat_BN.shape, 4), index_BN[..., None], axis=1), score_BN)


def products(model: Model) -> float:
    """Return the multiplications of an image's forward pass."""
    kernels = sum(math.prod(w["kernel"]) for w in shapes(model).values())
    return float(kernels * sum(rows * columns for rows, columns in grids(model)))


def _padded(x_BK: Array, count: int, value: float) -> Array:
    """Return an array with `count` entries along its second axis, the last ones with this value."""
    pad = [(0, 0), (0, count - x_BK.shape[1])] + [(0, 0)] * (x_BK.ndim - 2)
    return jnp.pad(x_BK, pad, constant_values=value)
