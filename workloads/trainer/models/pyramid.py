"""Feature pyramid (Lin et al., 2017) on the stages of a ResNet: levels of equal channels, each of half the size.

Dimensions are the suffix of a name:
    B batch   H height   W width   C channels   F channels of every level
The height is sharded over "tp" as in models/resnet.py. Parameters are float32.
"""

# mypy: disallow-untyped-calls=False

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import Array

from trainer.config import Model
from trainer.models.family import Params
from trainer.models.resnet import Network


def strides(model: Model) -> tuple[int, ...]:
    """Return the pixels of a cell of each level: those of the trunk's stages, and one more."""
    return tuple(4 * 2**n for n in range(len(model.block_counts) + 1))


def grids(model: Model) -> tuple[tuple[int, int], ...]:
    """Return the rows and columns of each level."""
    height, width = model.image_sides
    return tuple((-(-height // stride), -(-width // stride)) for stride in strides(model))


def unit(size: int, before: int, after: int) -> Params:
    """Return the shapes of a convolution with a bias."""
    return {"kernel": (size, size, before, after), "bias": (after,)}


def shapes(model: Model) -> Params:
    """Return the shape of every parameter; `channels` are those of the trunk's stages."""
    channels = {f"stage{n + 1}": 4 * model.width * 2**n for n in range(len(model.block_counts))}
    return {
        "lateral": {name: unit(1, before, model.pyramid) for name, before in channels.items()},
        "output": {name: unit(3, model.pyramid, model.pyramid) for name in channels},
    }


def convolve(x_BHWC: Array, w: Params) -> Array:
    """Apply a convolution with stride 1 and its bias, in the dtype of its input."""
    y_BHWC = jax.lax.conv_general_dilated(
        x_BHWC, w["kernel"].astype(x_BHWC.dtype), (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    biased_BHWC: Array = y_BHWC + w["bias"].astype(x_BHWC.dtype)
    return biased_BHWC


def features(network: Network, params: Params, stage_BHWC: Sequence[Array]) -> list[Array]:
    """Return the features [B, H, W, F] of every level from the outputs of the trunk's stages.

    A level is the sum of its stage and of the next smaller level, twice as large. The last one is every second cell of
    the one before it.
    """
    level_BHWF: list[Array] = []
    above_BHWF: Array | None = None
    for n in reversed(range(len(stage_BHWC))):
        x_BHWF = network.shard(convolve(stage_BHWC[n], params["lateral"][f"stage{n + 1}"]))
        if above_BHWF is not None:
            x_BHWF = network.shard(x_BHWF + jnp.repeat(jnp.repeat(above_BHWF, 2, axis=1), 2, axis=2))
        above_BHWF = x_BHWF
        level_BHWF.insert(0, network.shard(convolve(x_BHWF, params["output"][f"stage{n + 1}"])))
    return [*level_BHWF, network.shard(level_BHWF[-1][:, ::2, ::2])]


def products(model: Model) -> float:
    """Return the multiplications of an image's forward pass."""
    weights, total = shapes(model), 0.0
    for n, (rows, columns) in enumerate(grids(model)[:-1]):
        total += rows * columns * sum(math.prod(weights[kind][f"stage{n + 1}"]["kernel"]) for kind in weights)
    return total
