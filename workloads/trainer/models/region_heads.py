"""Heads of Mask R-CNN (He et al., 2017): what a region shows, its box, and its mask.

Boxes are (upper, left, lower, right) as fractions of the image. Scores, boxes and losses are float32.

Dimensions are the suffix of a name:
    B batch   R regions   N proposals   G objects of an image   P bins of a region   F channels   M side of a mask
    V side of an object's bitmap   K classes with the background, which is 0   D detections
"""

# mypy: disallow-untyped-calls=False

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from trainer.config import Model
from trainer.models import boxes, region_pooling
from trainer.models.family import Params
from trainer.models.pyramid import convolve, strides, unit
from trainer.models.region_proposals import Proposals, offset_distance
from trainer.models.region_sampling import sample
from trainer.models.resnet import Network

BOX_BINS, MASK_BINS = 7, 14
MASK_SIDE = 2 * MASK_BINS
OVERLAP = 0.5  # with an object, from which a region shows it
POSITIVES = 0.25  # most of the sampled regions that show an object


class Regions(NamedTuple):
    """Sampled regions, first those that show an object."""

    box_BR4: Array
    class_BR: Array  # of the object; 0 for the background
    object_BR: Array  # its position in the image's objects
    is_used_BR: Array  # False where there are too few regions


def shapes(model: Model) -> Params:
    """Return the shape of every parameter."""
    channels, classes = model.pyramid, model.classes + 1

    def dense(before: int, after: int) -> Params:
        return {"dense": (before, after), "bias": (after,)}

    box = {
        "hidden1": dense(BOX_BINS * BOX_BINS * channels, model.mlp),
        "hidden2": dense(model.mlp, model.mlp),
        "score": dense(model.mlp, classes),
        "offsets": dense(model.mlp, 4 * classes),
    }
    mask = {f"hidden{n + 1}": unit(3, channels, channels) for n in range(model.mask_layers)}
    enlarge = {"kernel": (2, 2, channels, channels), "bias": (channels,)}
    return {"box": box, "mask": mask | {"enlarge": enlarge, "score": unit(1, channels, model.classes)}}


def positives(model: Model) -> int:
    """Return the most sampled regions of an image that show an object: these have masks."""
    return max(1, int(POSITIVES * model.region_samples))


def sample_regions(
    model: Model, key_B: Array, proposals: Proposals, object_BG4: Array, category_BG: Array, is_object_BG: Array
) -> Regions:
    """Choose regions of the proposals and of the objects' own boxes; not differentiated."""
    box_BN4 = jnp.concatenate([proposals.box_BN4, object_BG4], axis=1)
    is_box_BN = jnp.concatenate([proposals.score_BN > -jnp.inf, is_object_BG], axis=1)
    overlap_BNG = jnp.where(is_object_BG[:, None], boxes.overlaps(box_BN4, object_BG4), -1.0)
    object_BN, shows_BN = jnp.argmax(overlap_BNG, axis=2), jnp.max(overlap_BNG, axis=2) >= OVERLAP
    chosen = sample(key_B, is_box_BN & shows_BN, is_box_BN & ~shows_BN, model.region_samples, positives(model))
    object_BR = jnp.take_along_axis(object_BN, chosen.index_BC, axis=1)
    class_BR = jnp.where(chosen.is_positive_BC, jnp.take_along_axis(category_BG, object_BR, axis=1), 0)
    box_BR4 = jnp.take_along_axis(box_BN4, chosen.index_BC[..., None], axis=1)
    return Regions(box_BR4, class_BR, object_BR, chosen.is_used_BC)


class Heads:
    """Both heads on the features of an image."""

    def __init__(self, network: Network, params: Params, level_BHWF: Sequence[Array]) -> None:
        self._network, self._params, self._level_BHWF = network, params, level_BHWF
        self._model = network.model

    def classify(self, box_BR4: Array) -> tuple[Array, Array]:
        """Return the logits [B, R, K] of regions, and the offsets [B, R, K, 4] of each class's box."""
        w = self._params["box"]
        x_BRPPF = self._pool(box_BR4, BOX_BINS)
        x_BRD = x_BRPPF.reshape(*x_BRPPF.shape[:2], -1)
        for name in ("hidden1", "hidden2"):
            x_BRD = jax.nn.relu(_dense(x_BRD, w[name]))
        logit_BRK = _dense(x_BRD, w["score"]).astype(jnp.float32)
        offset_BRK4 = _dense(x_BRD, w["offsets"]).astype(jnp.float32)
        return logit_BRK, offset_BRK4.reshape(*logit_BRK.shape, 4)

    def masks(self, box_BR4: Array, class_BR: Array) -> Array:
        """Return the logits [B, R, M, M] of the pixels of a region that are of its object; each class has its own."""
        w = self._params["mask"]
        x_BRPPF = self._pool(box_BR4, MASK_BINS)
        B, R, P, _, F = x_BRPPF.shape
        x_NHWF = x_BRPPF.reshape(B * R, P, P, F)
        for n in range(self._model.mask_layers):
            x_NHWF = jax.nn.relu(convolve(x_NHWF, w[f"hidden{n + 1}"]))
        kernel_IJFC = w["enlarge"]["kernel"].astype(x_NHWF.dtype)
        x_NHIWJC = jnp.einsum("nhwf,ijfc->nhiwjc", x_NHWF, kernel_IJFC) + w["enlarge"]["bias"].astype(x_NHWF.dtype)
        x_BRMMF = jax.nn.relu(x_NHIWJC).reshape(B, R, MASK_SIDE, MASK_SIDE, F)
        # Only the class's own channel is computed.
        own_BR = jnp.maximum(class_BR - 1, 0)
        kernel_BRF = jnp.take(w["score"]["kernel"][0, 0].T, own_BR, axis=0).astype(x_BRMMF.dtype)
        logit_BRMM: Array = jnp.einsum("brmnf,brf->brmn", x_BRMMF, kernel_BRF).astype(jnp.float32)
        logit_BRMM += w["score"]["bias"][own_BR][..., None, None]
        return logit_BRMM

    def _pool(self, box_BR4: Array, bins: int) -> Array:
        one_hot = self._model.pooling == "one_hot"
        sizes = strides(self._model)[: len(self._level_BHWF)]
        pixel_BR4 = box_BR4 * jnp.array(self._model.image_sides * 2)
        x_BRPPF = region_pooling.pool(self._level_BHWF, sizes, pixel_BR4, bins, one_hot=one_hot)
        regions = "tp" if x_BRPPF.shape[1] % self._network.execution.mesh.shape["tp"] == 0 else None
        return self._network.execution.shard(x_BRPPF, self._network.execution.batch, regions)


def box_losses(regions: Regions, logit_BRK: Array, offset_BRK4: Array, object_BG4: Array) -> tuple[Array, Array]:
    """Return the losses [B] of classes and of boxes."""
    used_B = jnp.maximum(jnp.sum(regions.is_used_BR, axis=1), 1)
    own_BRK = jax.nn.one_hot(regions.class_BR, logit_BRK.shape[2])
    entropy_BR = jax.nn.logsumexp(logit_BRK, axis=2) - jnp.sum(logit_BRK * own_BRK, axis=2)
    offset_BR4 = jnp.sum(offset_BRK4 * own_BRK[..., None], axis=2)
    distance_BR = offset_distance(
        offset_BR4, regions.box_BR4, object_BG4, regions.object_BR, regions.class_BR > 0, boxes.VARIANCES, 1.0
    )
    return jnp.sum(entropy_BR * regions.is_used_BR, axis=1) / used_B, jnp.sum(distance_BR, axis=1) / used_B


def mask_targets(box_BR4: Array, own_BR4: Array, bitmap_BRVV: Array) -> Array:
    """Return the part [B, R, M, M] in a region of an object whose bitmap is of its own box: 1 inside, else 0."""
    V = bitmap_BRVV.shape[-1]
    size_BR2 = own_BR4[..., 2:] - own_BR4[..., :2]
    corner_BR22 = (box_BR4 - jnp.tile(own_BR4[..., :2], 2)).reshape(*box_BR4.shape[:2], 2, 2)
    corner_BR22 = corner_BR22 / jnp.maximum(size_BR2, 1e-6)[..., None, :]  # of the region, in the object's box
    middle_M = (jnp.arange(MASK_SIDE) + 0.5) / MASK_SIDE

    def axis(n: int) -> Array:
        low_BR, high_BR = corner_BR22[..., 0, n], corner_BR22[..., 1, n]
        point_BRM = low_BR[..., None] + (high_BR - low_BR)[..., None] * middle_M
        cell_BRM = jnp.floor(point_BRM * V).astype(jnp.int32)
        return jax.nn.one_hot(cell_BRM, V)  # zeros for points outside of the box

    inside_BRMM = jnp.einsum("brmv,brvw,brnw->brmn", axis(0), bitmap_BRVV.astype(jnp.float32), axis(1))
    return (inside_BRMM > 0.5).astype(jnp.float32)


def mask_loss(regions: Regions, logit_BPMM: Array, target_BPMM: Array) -> Array:
    """Return the loss [B] of the masks of the first regions, the mean over pixels of those that show an object."""
    shows_BP = regions.class_BR[:, : logit_BPMM.shape[1]] > 0
    entropy_BP = jnp.mean(jax.nn.softplus(logit_BPMM) - logit_BPMM * target_BPMM, axis=(2, 3))
    return jnp.sum(jnp.where(shows_BP, entropy_BP, 0.0), axis=1) / jnp.maximum(jnp.sum(shows_BP, axis=1), 1)


def products(model: Model) -> float:
    """Return the multiplications of an image's forward pass in training."""
    weights = shapes(model)
    box = sum(math.prod(w["dense"]) for w in weights["box"].values()) * model.region_samples
    pixels = {"enlarge": MASK_BINS**2, "score": MASK_SIDE**2}
    mask = sum(math.prod(w["kernel"]) * pixels.get(name, MASK_BINS**2) for name, w in weights["mask"].items())
    return float(box + mask * positives(model))


def _dense(x_BRD: Array, w: Params) -> Array:
    y_BRD: Array = x_BRD @ w["dense"].astype(x_BRD.dtype) + w["bias"].astype(x_BRD.dtype)
    return y_BRD
