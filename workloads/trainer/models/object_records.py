"""Images and objects of a batch, from records of bytes (data/objects.py).

Dimensions: B batch   S bytes of a record   H, W = image_sides   C = 3   N = max_boxes   M = mask
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from trainer.config import Model
from trainer.data.objects import object_format
from trainer.models.resnet import DEVIATION, MEAN


class Objects(NamedTuple):
    """Objects of the images in a batch."""

    box_BN4: Array  # float32: (upper, left, lower, right), fractions of the image; zeros in padding
    category_BN: Array  # int32, from 1; 0 in padding
    is_crowd_BN: Array
    mask_BNMM: Array  # uint8, of the region of each box; M may be 0
    picture_B2: Array  # float32: height and width of the picture, fractions of the image

    @property
    def is_real_BN(self) -> Array:
        """True for a single object to train on, False for a crowd and for padding."""
        return (self.category_BN > 0) & ~self.is_crowd_BN


def batch(model: Model, record_BS: Array) -> tuple[Array, Objects]:
    """Return (pixels [B, H, W, C] of about unit variance in float32, objects)."""
    form, N = object_format(model), model.max_boxes
    pixels_BHWC = record_BS[:, : form.header].reshape(-1, *model.image_sides, 3).astype(jnp.float32)
    pixels_BHWC = (pixels_BHWC - np.array(MEAN, np.float32)) / np.array(DEVIATION, np.float32)

    def words(start: int, count: int, dtype: Any) -> Array:
        byte_BN4 = record_BS[:, start : start + 4 * count].reshape(-1, count, 4)
        return jax.lax.bitcast_convert_type(byte_BN4, dtype)

    return pixels_BHWC, Objects(
        box_BN4=words(form.boxes, 4 * N, jnp.float32).reshape(-1, N, 4),
        category_BN=words(form.categories, N, jnp.int32),
        is_crowd_BN=words(form.crowds, N, jnp.int32) > 0,
        mask_BNMM=record_BS[:, form.masks :].reshape(len(record_BS), N, model.mask, model.mask),
        picture_B2=words(form.header + 4, 2, jnp.float32),
    )
