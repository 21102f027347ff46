"""A step in two programs, for elastic slices: the gradient of one share of the batch, and the update from their sum.

Between the two, the hosts add the gradients of all shares (trainer/elastic). For that, every chip has its parts of all
gradients in one vector; D chips, N numbers each.
"""

# mypy: disallow-untyped-calls=False

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from trainer.parallel.mesh import ALL, sharding

Tree = Any  # of arrays, or of their shapes or shardings


@dataclasses.dataclass(frozen=True)
class Flattening:
    """Concatenation of each chip's parts of a tree of float32 arrays [D, N], and its inverse."""

    mesh: Mesh
    shapes: Tree  # jax.ShapeDtypeStruct of each array
    shardings: Tree  # NamedSharding of each array
    dtype: Any  # of the vectors

    @property
    def sharding(self) -> NamedSharding:
        """Sharding of the vectors."""
        return sharding(self.mesh, ALL)

    @property
    def form(self) -> jax.ShapeDtypeStruct:
        """Shape, type and sharding of the vectors."""
        length = sum(map(math.prod, self._part_shapes()))
        return jax.ShapeDtypeStruct((self.mesh.size, length), self.dtype, sharding=self.sharding)

    def flatten(self, tree: Tree) -> Array:
        """Return the vectors of a tree [D, N]."""

        def parts(*leaves: Array) -> Array:
            return jnp.concatenate([leaf.astype(self.dtype).reshape(-1) for leaf in leaves])[None]

        leaves = jax.tree.leaves(jax.lax.with_sharding_constraint(tree, self.shardings))
        flat: Array = self._map(parts, self._specs(), P(ALL))(*leaves)
        return flat

    def unflatten(self, flat_DN: Array) -> Tree:
        """Return the tree of float32 arrays whose vectors these are."""
        shapes = self._part_shapes()

        def parts(flat: Array) -> tuple[Array, ...]:
            sizes = [math.prod(shape) for shape in shapes]
            ends = [sum(sizes[: nth + 1]) for nth in range(len(sizes))]
            pieces = jnp.split(flat[0].astype(jnp.float32), ends[:-1])
            return tuple(piece.reshape(shape) for piece, shape in zip(pieces, shapes, strict=True))

        leaves = self._map(parts, (P(ALL),), self._specs())(flat_DN)
        return jax.tree.unflatten(jax.tree.structure(self.shapes), leaves)

    def _map(self, function: Callable[..., Any], in_specs: Any, out_specs: Any) -> Callable[..., Any]:
        mapped: Callable[..., Any] = jax.shard_map(
            function, mesh=self.mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False
        )
        return mapped

    def _specs(self) -> tuple[P, ...]:
        return tuple(placed.spec for placed in jax.tree.leaves(self.shardings))

    def _part_shapes(self) -> list[tuple[int, ...]]:
        pairs = zip(jax.tree.leaves(self.shardings), jax.tree.leaves(self.shapes), strict=True)
        return [placed.shard_shape(leaf.shape) for placed, leaf in pairs]


@dataclasses.dataclass(frozen=True)
class SharePrograms:
    """Jitted halves of a step, and the form of the vectors between them."""

    share: Any  # state, blocks, number of the virtual replica -> vectors [D, N], {"loss", "weight"}
    update: Any  # state, sum of the vectors [D, N], sum of the losses, sum of the weights -> state, metrics
    vectors: jax.ShapeDtypeStruct
