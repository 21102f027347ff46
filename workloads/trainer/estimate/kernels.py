"""Weights of a network of convolutions, for estimates: their sizes, their parts on chips, and what they compute."""

import math
from typing import NamedTuple

LANES = 128  # of a tile, to which XLA's TPU compiler pads the minor dimension of an array


class Kernel(NamedTuple):
    """Weights of a convolution or of a dense layer, with those of equal layers in the first dimension."""

    shape: tuple[int, ...]
    positions: float  # of an image at which they are applied: the cells of the output, or regions
    layers: int = 1
    has_norm: bool = False  # batch norm follows, whose gains and biases replace a bias
    is_float32: bool = False  # the product, instead of the compute dtype
    is_frozen: bool = False  # not trained, nor is any layer before it: no gradients are computed
    values: int = 0  # of the output at a position; 0 = the last dimension

    @property
    def numbers(self) -> int:
        """Number of weights."""
        return math.prod(self.shape)

    @property
    def flops(self) -> float:
        """FLOPs of a training step per image: the forward pass and twice as many for gradients, if it is trained."""
        return (1 if self.is_frozen else 3) * 2 * self.numbers * self.positions

    @property
    def biases(self) -> int:
        """Number of gains and biases."""
        return self.layers * self.shape[-1] * (2 if self.has_norm else 1)

    @property
    def padded_outputs(self) -> float:
        """Numbers of an image's outputs of all layers, in tiles."""
        return self.layers * self.positions * max(LANES, self.values or self.shape[-1])

    def parts(self, *axes: int) -> tuple[int, ...]:
        """Return the parts of each dimension after sharding over axes of these sizes (step/update_sharding.py)."""
        parts = [1] * len(self.shape)
        for size in axes:
            fits = [dim for dim, length in enumerate(self.shape) if length % (parts[dim] * size) == 0]
            if fits:
                parts[max(fits, key=lambda dim: (parts[dim] > 1, self.shape[dim]))] *= size
        return tuple(parts)
