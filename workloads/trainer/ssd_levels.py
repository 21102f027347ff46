"""Layers of SSD that predict (Liu et al., 2016), in the sizes of MLPerf's SSD300. Imports no JAX, for estimates."""

import math
from typing import NamedTuple

from trainer.config import Model

SCALES = (21, 45, 99, 153, 207, 261, 315)  # pixels of the default boxes of a level, and of the next one
SMALLEST_IMAGE = math.ceil(math.sqrt(SCALES[0] * SCALES[1]))  # pixels: the larger square of the first level fits
RATIOS: tuple[tuple[int, ...], ...] = ((2,), (2, 3), (2, 3), (2, 3), (2,), (2,))
STRIDE = 8  # pixels of the trunk's output
MIDDLE, OUTPUT = (4, 4, 2, 2, 2), (8, 8, 4, 4, 4)  # channels of the further layers, in `width`
HALVED = 3  # number of the further layers that halve the grid; the others take two rows and columns from it


class Level(NamedTuple):
    """A layer that predicts."""

    grid: int  # rows and columns
    channels: int
    shapes: int  # default boxes of a cell


def levels(model: Model) -> tuple[Level, ...]:
    """Return the layers that predict: the trunk's output, and further ones while their boxes are below the image."""
    grid = model.image
    for _ in range(int(math.log2(STRIDE))):
        grid = -(-grid // 2)
    channels, result = model.width * 2 ** (len(model.block_counts) - 1), list[Level]()
    for n, ratios in enumerate(RATIOS):
        result.append(Level(grid, channels, 2 + 2 * len(ratios)))
        if n == len(OUTPUT) or SCALES[n + 1] >= model.image:
            break
        grid, channels = (-(-grid // 2) if n < HALVED else grid - 2), OUTPUT[n] * model.width
    return tuple(result)
