"""Gradient reduction over the mesh axis "dp": by XLA, or by explicit collectives.

Automatic: the loss is that of the whole batch, and XLA reduces wherever its partitioner finds a sum, layer by layer and
once for every part of an accumulated batch, in the dtype of the products. Explicit: every replica differentiates its
own share of the batch, and the resulting gradients are reduced once, in the configured dtype. In both modes XLA reduces
within a replica, over "fsdp", "tp" and "stage".
"""

# mypy: disallow-untyped-calls=False

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import PartitionSpec as P

from trainer.models.family import Context, Sums
from trainer.parallel.partitioning import Execution

SumsOf = Callable[
    [Execution, Any, Context, Array, Array], Sums
]  # execution, params, context, records [B, S], weight [B]


@dataclasses.dataclass(frozen=True)
class Automatic:
    """Gradient reduction left to XLA."""

    execution: Execution
    sums_of: SumsOf

    def split(self, params: Any) -> Any:
        """Return the parameters to differentiate with respect to."""
        return params

    def sums(self, params: Any, context: Context, record_BS: Array, weight_B: Array) -> Sums:
        """Return the sums over all rows."""
        return self.sums_of(self.execution, params, context, record_BS, weight_B)

    def add(self, grads: Any) -> Any:
        """Return the gradient of the whole batch."""
        return grads


@dataclasses.dataclass(frozen=True)
class Explicit:
    """Hierarchical reduction in which every byte crosses DCN once: Cho et al., BlueConnect, 2019, with two levels.

    Replicas of one slice reduce-scatter among themselves, each adds its piece to its counterparts in the other slices,
    and they all-gather the pieces. With "fsdp" the backward pass has already left every chip its own piece.
    """

    execution: Execution
    sums_of: SumsOf
    specs: Any  # of the parameters
    slices: int  # that "dp" spans; neighbors on "dp" are in one slice
    dtype: str  # of the gradients as sent

    def split(self, params: Any) -> Any:
        """Return a copy of the parameters for every replica [R, ...]; each has them already, so nothing is sent."""
        replicas = self._replicas

        def replicate(spec: P, w: Array) -> Array:
            return self.execution.shard(jnp.broadcast_to(w[None], (replicas, *w.shape)), "dp", *spec)

        return jax.tree.map(replicate, self.specs, params)

    def sums(self, params_R: Any, context: Context, record_BS: Array, weight_B: Array) -> Sums:
        """Return the sums over all rows; each replica takes its own parameters, and averages are their mean."""
        execution = dataclasses.replace(
            self.execution, batch=tuple(axis for axis in self.execution.batch if axis != "dp"), replicas="replica"
        )

        def replica_sums(
            params: Any, record_bS: Array, weight_b: Array, key: Array | None, key_b: Array | None
        ) -> Sums:
            own = context._replace(key=key, example_key_B=key_b)
            return self.sums_of(execution, params, own, record_bS, weight_b)

        rows = (self._replicas, -1)
        shares = record_BS.reshape(*rows, record_BS.shape[1]), weight_B.reshape(rows)
        key_R = None if context.key is None else jax.random.split(context.key, self._replicas)
        keys = key_R, jax.tree.map(lambda key_B: key_B.reshape(rows), context.example_key_B)
        sums_R = jax.vmap(replica_sums, axis_name="replica", spmd_axis_name="dp")(params_R, *shares, *keys)
        averages = jax.tree.map(lambda x_R: jnp.mean(x_R, axis=0), sums_R.averages)
        total: Sums = jax.tree.map(jnp.sum, sums_R._replace(averages={}))
        return total._replace(averages=averages)

    def add(self, grads_R: Any) -> Any:
        """Return the sum of the replicas' gradients [R, ...] as float32, on every replica."""
        stacked = jax.tree.map(lambda spec: P("dp", *spec), self.specs)
        reduce = jax.shard_map(
            lambda grads: jax.tree.map(self._add, grads),
            mesh=self.execution.mesh,
            in_specs=(stacked,),
            out_specs=self.specs,
            check_vma=False,
        )
        return reduce(grads_R)

    def _add(self, piece_R: Array) -> Array:
        """Add one chip's piece [1, ...] to those of the other replicas."""
        size, piece = self._replicas // self.slices, piece_R[0].astype(self.dtype)
        if size == 1:
            gradient: Array = jax.lax.psum(piece, "dp").astype(jnp.float32)
            return gradient
        within_slice = [[s * size + n for n in range(size)] for s in range(self.slices)]
        across_slices = [[s * size + n for s in range(self.slices)] for n in range(size)]
        flat = jnp.pad(piece.reshape(-1), (0, -piece.size % size))
        flat = jax.lax.psum_scatter(flat, "dp", axis_index_groups=within_slice, tiled=True)
        flat = jax.lax.psum(flat, "dp", axis_index_groups=across_slices) if self.slices > 1 else flat
        flat = jax.lax.all_gather(flat, "dp", axis_index_groups=within_slice, tiled=True)
        gradient = flat[: piece.size].reshape(piece.shape).astype(jnp.float32)
        return gradient

    @property
    def _replicas(self) -> int:
        return int(self.execution.mesh.shape["dp"])
