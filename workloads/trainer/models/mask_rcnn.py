"""Mask R-CNN (He et al., 2017): a ResNet with a feature pyramid, region proposals, and heads for boxes and masks.

All shapes are fixed: anchors, proposals, sampled regions and detections are as many for every image, and what is
missing has a weight of 0 or the score -inf. The trunk is sharded as models/resnet.py says; boxes are computed on the
chips of an image's share, and the regions of a head are sharded over "tp" if they are divisible.

Dimensions are the suffix of a name:
    B batch   S bytes of a record   H height   W width   A anchors   G objects of an image   N proposals   R regions
    K classes with the background, which is 0   D detections   M side of a mask
"""

# mypy: disallow-untyped-calls=False

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import PartitionSpec as P

from trainer.config import Model
from trainer.models import boxes, object_records, pyramid, region_heads, region_proposals, resnet
from trainer.models.family import Context, Detections, Params, Sums
from trainer.models.object_records import Objects
from trainer.models.region_heads import Heads
from trainer.models.region_sampling import example_keys
from trainer.models.resnet import Network
from trainer.parallel.partitioning import Execution

_MIN_SCORE = 0.05  # of a detection
_MAX_OVERLAP = 0.5  # of two detections of a class
_DEVIATIONS = {  # of initial weights, where they do not follow from the inputs
    ("proposals", "hidden"): 0.01,
    ("proposals", "score"): 0.01,
    ("proposals", "offsets"): 0.01,
    ("box", "score"): 0.01,
    ("box", "offsets"): 0.001,
}


def shapes(model: Model) -> Params:
    """Return the shape of every parameter."""
    trunk = {name: tree for name, tree in resnet.shapes(model).items() if name != "head"}
    heads = region_heads.shapes(model)
    return {"trunk": trunk, "pyramid": pyramid.shapes(model), "proposals": region_proposals.shapes(model)} | heads


def specs(model: Model) -> Params:
    """Return the sharding of every parameter: all are replicated; see `optim.update_axes`."""
    replicated: Params = jax.tree.map(lambda _: P(), shapes(model), is_leaf=_is_shape)
    return replicated


def init(model: Model, key: Array) -> Params:
    """Return fresh parameters: the trunk's as a ResNet's, the others by He et al., 2015, or as the papers say."""
    trunk_key, key = jax.random.split(key)
    trunk = {name: tree for name, tree in resnet.init(model, trunk_key).items() if name != "head"}
    rest = {name: tree for name, tree in shapes(model).items() if name != "trunk"}
    leaves, tree = jax.tree_util.tree_flatten_with_path(rest, is_leaf=_is_shape)

    def leaf(key: Array, path: tuple[Any, ...], shape: tuple[int, ...]) -> Array:
        if resnet.is_gain(path):
            return jnp.zeros(shape)
        names = tuple(entry.key for entry in path)
        gain = 1 if names[0] == "pyramid" else 2  # no activation follows
        deviation = _DEVIATIONS.get(names[:2], math.sqrt(gain / math.prod(shape[:-1])))
        return deviation * jax.random.normal(key, shape)

    keys = jax.random.split(key, len(leaves))
    values = [leaf(key, path, shape) for key, (path, shape) in zip(keys, leaves, strict=True)]
    params: Params = {"trunk": trunk} | jax.tree.unflatten(tree, values)
    return params


class Detector:
    """One pass through the network."""

    def __init__(self, model: Model, execution: Execution, params: Params, averages: Params, *, training: bool) -> None:
        self._model, self._params, self._averages = model, params, averages
        if model.frozen_norm:
            trunk = jax.tree_util.tree_map_with_path(functools.partial(_freeze, model), params["trunk"])
            self._params = params | {"trunk": trunk}
        self._network = Network(model, execution, training=training and not model.frozen_norm)

    def features(self, x_BHWC: Array) -> tuple[list[Array], Params]:
        """Return the features [B, H, W, F] of all levels, and the new averages."""
        outputs, averages = self._network.stages(self._params["trunk"], self._averages, x_BHWC)
        return pyramid.features(self._network, self._params["pyramid"], outputs), averages

    def scores_and_offsets(self, level_BHWF: list[Array]) -> tuple[Array, Array]:
        """Return the logits [B, A] and the offsets [B, A, 4] of the anchors."""
        return region_proposals.scores_and_offsets(self._network, self._params["proposals"], level_BHWF)

    def proposal_losses(
        self, key_B: Array, score_BA: Array, offset_BA4: Array, objects: Objects
    ) -> tuple[Array, Array]:
        """Return the losses [B] of the scores and of the offsets of sampled anchors."""
        network, box_BN4, is_real_BN = self._network, objects.box_BN4, objects.is_real_BN
        return region_proposals.losses(network, key_B, score_BA, offset_BA4, box_BN4, is_real_BN)

    def heads(self, level_BHWF: list[Array]) -> Heads:
        """Return the heads, which do not see the last level."""
        return Heads(self._network, self._params, level_BHWF[:-1])

    def detect(self, x_BHWC: Array, picture_B2: Array) -> Detections:
        """Return the detections of an evaluation, best first."""
        model, (level_BHWF, _) = self._model, self.features(x_BHWC)
        proposals = region_proposals.propose(model, *self.scores_and_offsets(level_BHWF), picture_B2)
        heads = self.heads(level_BHWF)
        logit_BNK, offset_BNK4 = heads.classify(proposals.box_BN4)
        score_BNK = jax.nn.softmax(logit_BNK, axis=-1)[..., 1:]
        is_candidate_BNK = (score_BNK > _MIN_SCORE) & (proposals.score_BN > -jnp.inf)[..., None]
        box_BNK4 = boxes.decode(offset_BNK4[:, :, 1:], proposals.box_BN4[:, :, None])
        B, N, K = score_BNK.shape
        score_BN = jnp.where(is_candidate_BNK, score_BNK, -jnp.inf).reshape(B, -1)
        score_BN, index_BN = jax.lax.top_k(score_BN, min(model.candidates, N * K))
        box_BN4 = jnp.take_along_axis(box_BNK4.reshape(B, -1, 4), index_BN[..., None], axis=1)
        box_BN4 = boxes.clip(box_BN4, picture_B2[:, :1], picture_B2[:, 1:])
        detections = best_of_each_class(box_BN4, score_BN, index_BN % K + 1, model.detections)
        return detections._replace(mask_BKMM=jax.nn.sigmoid(heads.masks(detections.box_BK4, detections.category_BK)))


def best_of_each_class(box_BN4: Array, score_BN: Array, category_BN: Array, count: int) -> Detections:
    """Return the best detections without those that overlap with a better one of their class."""
    # Boxes of different classes are moved so far apart that they do not overlap.
    apart_BN4 = box_BN4 + 2.0 * category_BN[..., None]
    suppress = jax.vmap(lambda box, score: boxes.suppress(box, score, _MAX_OVERLAP, count))
    position_BK, is_kept_BK = suppress(apart_BN4, score_BN)
    return Detections(
        jnp.take_along_axis(box_BN4, position_BK[..., None], axis=1),
        jnp.where(is_kept_BK, jnp.take_along_axis(score_BN, position_BK, axis=1), 0.0),
        jnp.where(is_kept_BK, jnp.take_along_axis(category_BN, position_BK, axis=1), 0),
    )


def losses(detector: Detector, model: Model, context: Context, record_BS: Array) -> tuple[dict[str, Array], Params]:
    """Return the losses [B] of images by name, and the new averages; the sampled boxes depend on image and step."""
    x_BHWC, objects = object_records.batch(model, record_BS)
    key_BT = jax.vmap(jax.random.split)(example_keys(record_BS, context.step))
    level_BHWF, averages = detector.features(x_BHWC)
    score_BA, offset_BA4 = detector.scores_and_offsets(level_BHWF)
    score_loss_B, offset_loss_B = detector.proposal_losses(key_BT[:, 0], score_BA, offset_BA4, objects)
    proposals = region_proposals.propose(model, score_BA, offset_BA4, objects.picture_B2)
    regions = region_heads.sample_regions(
        model, key_BT[:, 1], proposals, objects.box_BN4, objects.category_BN, objects.is_real_BN
    )
    heads = detector.heads(level_BHWF)
    class_loss_B, box_loss_B = region_heads.box_losses(regions, *heads.classify(regions.box_BR4), objects.box_BN4)
    shown = jax.tree.map(lambda x_BR: x_BR[:, : region_heads.positives(model)], regions)
    own_BP4 = jnp.take_along_axis(objects.box_BN4, shown.object_BR[..., None], axis=1)
    bitmap_BPVV = jnp.take_along_axis(objects.mask_BNMM, shown.object_BR[..., None, None], axis=1)
    target_BPMM = region_heads.mask_targets(shown.box_BR4, own_BP4, bitmap_BPVV)
    mask_loss_B = region_heads.mask_loss(shown, heads.masks(shown.box_BR4, shown.class_BR), target_BPMM)
    names = ("proposal score", "proposal box", "class", "box", "mask")
    return dict(zip(names, (score_loss_B, offset_loss_B, class_loss_B, box_loss_B, mask_loss_B), strict=True)), averages


def sums(
    model: Model, execution: Execution, params: Params, context: Context, record_BS: Array, weight_B: Array
) -> Sums:
    """Return the sums over images. Examples of weight 0 must not be in a training batch, as for a ResNet."""
    detector = Detector(model, execution, params, context.averages, training=context.step is not None)
    loss_B, averages = losses(detector, model, context, record_BS)
    return Sums(jnp.sum(sum(loss_B.values()) * weight_B), jnp.sum(weight_B), None, averages)


def detect(model: Model, execution: Execution, params: Params, averages: Params, record_BS: Array) -> Detections:
    """Return the detections in a batch of images."""
    x_BHWC, objects = object_records.batch(model, record_BS)
    return Detector(model, execution, params, averages, training=False).detect(x_BHWC, objects.picture_B2)


def flops_per_item(model: Model) -> float:
    """Return the model FLOPs of a training step per image, as for a ResNet."""
    trunk = resnet.flops_per_item(dataclasses.replace(model, classes=0))  # without the dense layer of its classes
    return trunk + 6 * (pyramid.products(model) + region_proposals.products(model) + region_heads.products(model))


def is_frozen(model: Model, path: tuple[Any, ...]) -> bool:
    """Return whether the parameter at a path is of a part of the trunk that is not trained."""
    return bool(path[0].key == "trunk" and resnet.is_frozen(model, path[1:]))


def _freeze(model: Model, path: tuple[Any, ...], x: Array) -> Array:
    return jax.lax.stop_gradient(x) if resnet.is_gain(path) or resnet.is_frozen(model, path) else x


def _is_shape(x: Any) -> bool:
    return isinstance(x, tuple)
