"""Weights that the chips of a batch share: gathered over "fsdp" for products, their gradients reduce-scattered.

Every chip computes the gradient of its own examples. XLA's partitioner adds these parts by an all-reduce, of which each
chip keeps its own piece, and relies on the backend to make a reduce-scatter of it. The TPU compiler does not if the
chips are all those of a square or cubic slice, or if the pieces divide a dimension more finely than its tiles
(docs/results.md). So the sums are written out: along the major dimension, and one dimension of the torus at a time.
"""

# mypy: disallow-untyped-calls=False

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental.layout import Layout, with_layout_constraint
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from trainer.parallel.mesh import sharding

_SHARDED = "fsdp"  # the axis that weights are gathered over; their other axes are those of products


@dataclasses.dataclass(frozen=True)
class SharedWeight:
    """The sharding of a weight, and of the batch that it is multiplied with: S shares, one for each chip of `batch`."""

    mesh: Mesh
    batch: tuple[str, ...]  # mesh axes of the examples
    spec: P
    sides: tuple[int, ...] = ()  # of the part of a torus that "fsdp" spans; without a torus, XLA adds gradients its way

    @property
    def shares(self) -> int:
        """Number of shares of the batch."""
        return math.prod(self.mesh.shape[axis] for axis in self.batch)

    def split(self, x_B: Array) -> Array:
        """Return examples [B, ...] as shares [S, B / S, ...]."""
        return x_B.reshape(self.shares, x_B.shape[0] // self.shares, *x_B.shape[1:])

    def gather(self, w: Array) -> Array:
        """Return the weight, whole on every chip but for the axes of its product."""
        gathered: Array = jax.lax.with_sharding_constraint(w, sharding(self.mesh, *self._gathered))
        return gathered

    def copies(self, w: Array) -> Array:
        """Return a copy of the weight for every share [S, *w]; their gradients are added once, when all are known."""
        return _copies(self, w)

    def add(self, parts_S: Array) -> Array:
        """Return the sum of every share's part of the gradient [S, *w] as an array [*w] that is sharded as the weight.

        The sum is that of the parts' dtype.
        """
        if self.shares == 1:
            return jnp.squeeze(parts_S, 0)
        if not self.sides:
            whole: Array = jax.lax.reduce(parts_S, jnp.zeros((), parts_S.dtype), jax.lax.add, (0,))
            return whole
        add = jax.shard_map(
            lambda part_1: self._add(part_1[0]),
            mesh=self.mesh,
            in_specs=(self.copy_spec,),
            out_specs=self.spec,
            check_vma=False,
        )
        total: Array = add(parts_S)
        return total

    def _add(self, part: Array) -> Array:
        """Return a chip's piece of the sum, given its part."""
        axes = [axis for axis in self.batch if self.mesh.shape[axis] > 1]
        if _SHARDED in self.spec and _SHARDED in axes:
            part = self._scatter(part, self.spec.index(_SHARDED))
            axes.remove(_SHARDED)
        total: Array = jax.lax.psum(part, tuple(axes)) if axes else part
        return total

    @property
    def copy_spec(self) -> P:
        """Sharding of every share's copy [S, *w]."""
        return P(self.batch, *self._gathered)

    @property
    def _gathered(self) -> tuple[str | None, ...]:
        return tuple(None if axis == _SHARDED else axis for axis in self.spec)

    def _scatter(self, part: Array, dimension: int) -> Array:
        """Return a chip's piece of the sum over "fsdp": n x m chips of a torus add along its n, then along its m."""
        rows = jnp.moveaxis(part, dimension, 0)
        piece = rows.reshape(len(rows), -1)
        # Left to itself XLA may make the scattered dimension the minor one, which it can divide only by 128.
        piece = with_layout_constraint(piece, Layout(major_to_minor=(0, 1)))
        stride = size = self.mesh.shape[_SHARDED]
        for side in self.sides:
            stride //= side
            firsts = (chip for chip in range(size) if chip // stride % side == 0)
            groups = [[first + n * stride for n in range(side)] for first in firsts]
            piece = jax.lax.psum_scatter(piece, _SHARDED, axis_index_groups=groups, tiled=True)
        return jnp.moveaxis(piece.reshape(-1, *rows.shape[1:]), 0, dimension)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _copies(weight: SharedWeight, w: Array) -> Array:
    copies_S = jnp.broadcast_to(weight.gather(w)[None], (weight.shares, *w.shape))
    placed: Array = jax.lax.with_sharding_constraint(copies_S, sharding(weight.mesh, *weight.copy_spec))
    return placed


def _copies_forward(weight: SharedWeight, w: Array) -> tuple[Array, None]:
    return _copies(weight, w), None


def _copies_backward(weight: SharedWeight, _: None, parts_S: Array) -> tuple[Array]:
    return (weight.add(parts_S),)


_copies.defvjp(_copies_forward, _copies_backward)
