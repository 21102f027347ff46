"""Weights of SSD (models/ssd.py), for estimates without JAX."""

from collections.abc import Iterator

from trainer.config import Model
from trainer.estimate.kernels import Kernel
from trainer.estimate.resnet import rest, stem, unit
from trainer.models.ssd_levels import MIDDLE, levels


def kernels(model: Model) -> Iterator[Kernel]:
    """Yield the weights of the network."""
    yield from _trunk(model)
    predicting = levels(model)
    for n, level in enumerate(predicting):
        if n:
            before, middle = predicting[n - 1], MIDDLE[n - 1] * model.width
            yield Kernel((1, 1, before.channels, middle), before.grid**2)
            yield Kernel((3, 3, middle, level.channels), level.grid**2)
        for values in (4, model.classes + 1):
            yield Kernel((3, 3, level.channels, level.shapes * values), level.grid**2)


def _trunk(model: Model) -> Iterator[Kernel]:
    """Yield the weights of the stem and of all stages, whose blocks have two convolutions."""
    size, channels = -(-model.image // 2), model.width
    yield stem(model, size * size)
    size = -(-size // 2)
    for n, count in enumerate(model.block_counts):
        # Only the second stage halves the image.
        width, size = model.width * 2**n, -(-size // 2) if n == 1 else size
        yield unit(3, channels, width, size * size)
        yield unit(3, width, width, size * size)
        if channels != width:
            yield unit(1, channels, width, size * size)
        yield from rest(count, *[unit(3, width, width, size * size)] * 2)
        channels = width
