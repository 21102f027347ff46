"""Loss of SSD (Liu et al., 2016): matching of default boxes, offsets, categories, and hard-negative mining.

Dimensions are the suffix of a name:
    B batch   N objects of an image   D default boxes   K categories, 0 is the background   4 edges or offsets
"""

# mypy: disallow-untyped-calls=False

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from trainer.models import boxes
from trainer.models.object_records import Objects

MATCHED = 0.5  # least overlap (IoU) of a default box with an object
NEGATIVES = 3  # negatives for each matched default box


class Matches(NamedTuple):
    """The objects that default boxes have to predict."""

    box_BD4: Array  # of the object, or the default box itself
    category_BD: Array  # int32; 0 for the background

    @property
    def is_positive_BD(self) -> Array:
        """True for a default box that matches an object."""
        return self.category_BD > 0


def match(objects: Objects, default_D4: Array) -> Matches:
    """Return the object of each default box: that with the largest overlap, if it is at least MATCHED.

    Besides, the default box that overlaps an object most has that object; of several, the last one. Crowds and padding
    match nothing.
    """
    count, is_real_BN = objects.box_BN4.shape[1], objects.is_real_BN
    overlap_BND = jnp.where(is_real_BN[..., None], boxes.overlaps(objects.box_BN4, default_D4), -1.0)
    best_BN = jnp.argmax(overlap_BND, axis=-1)
    is_best_BND = is_real_BN[..., None] & (jnp.arange(len(default_D4)) == best_BN[..., None])
    forced_BD = jnp.max(jnp.where(is_best_BND, jnp.arange(count)[:, None], -1), axis=1)
    index_BD = jnp.where(forced_BD >= 0, forced_BD, jnp.argmax(overlap_BND, axis=1))
    is_positive_BD = (forced_BD >= 0) | (jnp.max(overlap_BND, axis=1) >= MATCHED)
    box_BD4 = jnp.take_along_axis(objects.box_BN4, index_BD[..., None], axis=1)
    category_BD = jnp.take_along_axis(objects.category_BN, index_BD, axis=1)
    return Matches(jnp.where(is_positive_BD[..., None], box_BD4, default_D4), jnp.where(is_positive_BD, category_BD, 0))


def hard_negatives(loss_BD: Array, is_positive_BD: Array) -> Array:
    """Return True for the NEGATIVES x positives default boxes without object whose loss is largest."""
    loss_BD = jax.lax.stop_gradient(jnp.where(is_positive_BD, -jnp.inf, loss_BD))
    order_BD = jnp.argsort(-loss_BD, axis=-1, stable=True)
    rank_BD = jnp.argsort(order_BD, axis=-1)
    count_B = NEGATIVES * jnp.sum(is_positive_BD, axis=-1)
    return (rank_BD < count_B[:, None]) & ~is_positive_BD


def losses(matches: Matches, default_D4: Array, offset_BD4: Array, logit_BDK: Array) -> Array:
    """Return the loss [B] of each image: smooth L1 of positives' offsets and cross entropy, per positive.

    An image without positives has a loss of 0.
    """
    is_positive_BD = matches.is_positive_BD
    error_BD4 = jnp.abs(offset_BD4 - boxes.encode(matches.box_BD4, default_D4))
    smooth_BD = jnp.sum(jnp.where(error_BD4 < 1, 0.5 * jnp.square(error_BD4), error_BD4 - 0.5), axis=-1)
    own_BD = jnp.take_along_axis(logit_BDK, matches.category_BD[..., None], axis=-1)[..., 0]
    entropy_BD = jax.nn.logsumexp(logit_BDK, axis=-1) - own_BD
    is_counted_BD = is_positive_BD | hard_negatives(entropy_BD, is_positive_BD)
    total_B = jnp.sum(jnp.where(is_positive_BD, smooth_BD, 0.0) + jnp.where(is_counted_BD, entropy_BD, 0.0), axis=-1)
    return total_B / jnp.maximum(jnp.sum(is_positive_BD, axis=-1), 1)
