"""Execution of a model on a mesh: shardings, microbatches and int8 products."""

# mypy: disallow-untyped-calls=False

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from trainer.config import Quant
from trainer.parallel.mesh import BATCH, sharding, torus_sides
from trainer.parallel.quantization import product
from trainer.parallel.shared_weight import SharedWeight

ATTENTION_PRODUCT, MLP_PRODUCT = "attention product", "MLP product"  # activations that a backward pass may keep


@dataclasses.dataclass(frozen=True)
class Execution:
    """Execution context of a model: the placement and precision of the computation that the model defines."""

    mesh: Mesh
    batch: tuple[str, ...] = BATCH  # axes that its examples are sharded over
    microbatches: int = 1  # of the pipeline; 1 if there is only one stage
    quant: Quant = dataclasses.field(default_factory=Quant)
    replicas: str | None = None  # name of the mapped axis of replicas that each have a share of the batch
    torus: tuple[int, ...] | None = None  # sides of the part that "fsdp" spans; None = as the mesh's devices are placed
    kernel: Callable[..., Array] | None = None  # of model.fused_attention; None = that of the mesh's devices

    @property
    def stages(self) -> int:
        """Number of pipeline stages."""
        return int(self.mesh.shape["stage"])

    def shard(self, x: Array, *axes: Any) -> Array:
        """Constrain the sharding of an array to these mesh axes, one for each dimension."""
        placed: Array = jax.lax.with_sharding_constraint(x, sharding(self.mesh, *axes))
        return placed

    def largest(self, x_B: Array) -> Array:
        """Return the largest value of all examples, the same on all chips."""
        largest: Array = jnp.max(x_B)
        return jax.lax.pmax(largest, self.replicas) if self.replicas else largest

    def product(self, name: str, x: Array, w: Array, spec: P, summed: int, key: Array | None) -> Array:
        """Multiply activations by a layer's weights as `trainer.parallel.quantization.product` does.

        The name, ATTENTION_PRODUCT or MLP_PRODUCT, is that by which rematerialization may save the result.
        """
        named: Array = checkpoint_name(product(self.quant, x, w, summed, self.weight(spec), key), name)
        return named

    def weight(self, spec: P) -> SharedWeight:
        """Return how the chips share a weight of this sharding."""
        sides = torus_sides(self.mesh, "fsdp") if self.torus is None else self.torus
        return SharedWeight(self.mesh, self.batch, spec, sides)
