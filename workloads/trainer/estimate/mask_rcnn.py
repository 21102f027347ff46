"""Weights of Mask R-CNN (models/mask_rcnn.py), and its largest intermediate results, for estimates without JAX."""

from collections.abc import Iterator

from trainer.config import Model
from trainer.estimate.kernels import LANES, Kernel
from trainer.estimate.resnet import EXPANSION, trunk

_RATIOS = 3  # anchors of a cell
_BOX_BINS, _MASK_BINS = 7, 14
_NEAREST = 4  # cells of a bin along each axis that are read for its points
_POSITIVES = 0.25  # most of the sampled regions that have masks


def kernels(model: Model) -> Iterator[Kernel]:
    """Yield the weights of the network."""
    yield from trunk(model)
    channels, cells = model.pyramid, [rows * columns for rows, columns in _grids(model)]
    for n, count in enumerate(cells[:-1]):
        yield Kernel((1, 1, EXPANSION * model.width * 2**n, channels), count)
        yield Kernel((3, 3, channels, channels), count)
    yield Kernel((3, 3, channels, channels), sum(cells))
    for values in (1, 4):
        yield Kernel((1, 1, channels, values * _RATIOS), sum(cells))
    yield from _heads(model)


def pooled_numbers(model: Model) -> float:
    """Return the numbers of an image that pooling its regions has in memory: products with columns, or the cells read.

    Those of all levels, for boxes and for masks, are in memory together.
    """
    heads = tuple(zip(_regions(model), (_BOX_BINS, _MASK_BINS), strict=True))
    if model.pooling == "gather":
        return model.pyramid * sum(count * (_NEAREST * bins) ** 2 for count, bins in heads)
    return model.pyramid * sum(count * bins for count, bins in heads) * sum(rows for rows, _ in _grids(model)[:-1])


def anchor_bytes(model: Model) -> float:
    """Return the bytes of an image's anchors: offsets in tiles, in both dtypes, and overlaps with all objects."""
    anchors = _RATIOS * sum(rows * columns for rows, columns in _grids(model))
    return anchors * ((4 + 2) * LANES + 4 * model.max_boxes)


def _grids(model: Model) -> tuple[tuple[int, int], ...]:
    """Return the rows and columns of each level of the pyramid: the trunk's stages, and one more."""
    height, width = model.image_sides
    strides = [4 * 2**n for n in range(len(model.block_counts) + 1)]
    return tuple((-(-height // stride), -(-width // stride)) for stride in strides)


def _regions(model: Model) -> tuple[int, int]:
    """Return the regions of an image that have boxes, and those of them that have masks."""
    return model.region_samples, max(1, int(_POSITIVES * model.region_samples))


def _heads(model: Model) -> Iterator[Kernel]:
    """Yield the weights of the heads, which are applied to regions."""
    channels, classes = model.pyramid, model.classes + 1
    boxes, masks = _regions(model)
    for before, after in ((_BOX_BINS**2 * channels, model.mlp), (model.mlp, model.mlp)):
        yield Kernel((before, after), boxes)
    for values in (1, 4):
        yield Kernel((model.mlp, values * classes), boxes)
    pixels = masks * _MASK_BINS**2
    for _ in range(model.mask_layers):
        yield Kernel((3, 3, channels, channels), pixels)
    yield Kernel((2, 2, channels, channels), pixels, values=4 * channels)
    # Only the channel of a region's class is computed, but all are counted.
    yield Kernel((1, 1, channels, model.classes), 4 * pixels, values=1)
