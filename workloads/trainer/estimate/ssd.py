"""Weights of SSD (models/ssd.py), for estimates without JAX."""

from collections.abc import Iterator

from trainer.config import Model
from trainer.estimate.kernels import Kernel
from trainer.estimate.resnet import basic_stage, stem
from trainer.ssd_levels import MIDDLE, levels


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
        yield from basic_stage(channels, width, size * size, count)
        channels = width
