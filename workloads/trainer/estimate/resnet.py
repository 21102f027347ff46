"""Weights of ResNet (models/resnet.py), for estimates without JAX."""

import math
from collections.abc import Iterator

from trainer.config import Model
from trainer.estimate.kernels import Kernel

EXPANSION = 4  # output channels of a block per inner channel


def kernels(model: Model) -> Iterator[Kernel]:
    """Yield the weights of the network."""
    yield from trunk(model)
    expansion = 1 if model.block == "basic" else EXPANSION
    channels = expansion * model.width * 2 ** (len(model.block_counts) - 1)
    yield Kernel((channels, model.classes), 1, is_float32=True)


def trunk(model: Model) -> Iterator[Kernel]:
    """Yield the weights of the stem and of all stages."""
    channels, pixels = model.width, math.prod(model.image_sides)
    yield stem(model, pixels / 4)._replace(is_frozen=model.frozen_stages > 0)
    for stage, count in enumerate(model.block_counts, start=1):
        width, cells = model.width * 2 ** (stage - 1), pixels / 4 ** (stage + 1)
        kernels_of = basic_stage if model.block == "basic" else bottleneck_stage
        for kernel in kernels_of(channels, width, cells, count):
            yield kernel._replace(is_frozen=stage <= model.frozen_stages)
        channels = width * (1 if model.block == "basic" else EXPANSION)


def bottleneck_stage(before: int, width: int, cells: float, count: int) -> Iterator[Kernel]:
    """Yield the weights of a stage of blocks of three convolutions, with these cells of its output.

    The 3x3 convolution of the first block halves the image, except in the first stage, which alone follows the stem.
    """
    after = EXPANSION * width
    yield unit(1, before, width, cells if before == width else 4 * cells)
    yield unit(3, width, width, cells)
    yield unit(1, width, after, cells)
    if before != after:
        yield unit(1, before, after, cells)
    again = unit(1, after, width, cells), unit(3, width, width, cells), unit(1, width, after, cells)
    yield from rest(count, *again)


def basic_stage(before: int, width: int, cells: float, count: int) -> Iterator[Kernel]:
    """Yield the weights of a stage of blocks of two convolutions, with these cells of its output."""
    yield unit(3, before, width, cells)
    yield unit(3, width, width, cells)
    if before != width:
        yield unit(1, before, width, cells)
    yield from rest(count, *[unit(3, width, width, cells)] * 2)


def stem(model: Model, cells: float) -> Kernel:
    """Return the weights of the first convolution, with these cells of its output."""
    return unit(7, 3, model.width, cells)


def unit(size: int, before: int, after: int, cells: float) -> Kernel:
    """Return the weights of a convolution that batch norm follows, with these cells of its output."""
    return Kernel((size, size, before, after), cells, has_norm=True)


def rest(count: int, *block: Kernel) -> Iterator[Kernel]:
    """Yield the stacked weights of a stage's further blocks, each like `block`, if there are any."""
    if count > 1:
        for kernel in block:
            yield kernel._replace(shape=(count - 1, *kernel.shape), layers=count - 1)
