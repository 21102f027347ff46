"""How a model is carried out on a mesh: where arrays lie, in which parts a batch goes through, what is in int8."""

# mypy: disallow-untyped-calls=False

import dataclasses
import math
from typing import Any

import jax
from jax import Array
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import Mesh

from trainer.config import Quant
from trainer.parallel.mesh import BATCH, sharding
from trainer.parallel.quantization import product

PRODUCT = "product"  # what a backward pass may keep of a layer is called that


@dataclasses.dataclass(frozen=True)
class Execution:
    """What a model has to know of the machine; the model says what is computed, this says how."""

    mesh: Mesh
    batch: tuple[str, ...] = BATCH  # axes that the examples it sees are spread over
    microbatches: int = 1  # of the pipeline; 1 where there is only one stage
    quant: Quant = dataclasses.field(default_factory=Quant)

    @property
    def stages(self) -> int:
        """Stages of the pipeline."""
        return int(self.mesh.shape["stage"])

    def place(self, x: Array, *axes: Any) -> Array:
        """Let an array's dimensions lie along mesh axes."""
        placed: Array = jax.lax.with_sharding_constraint(x, sharding(self.mesh, *axes))
        return placed

    def product(self, x: Array, w: Array, summed: int, key: Array | None) -> Array:
        """Multiply activations by a layer's weights as `trainer.parallel.quantization.product` does."""
        shares = math.prod(self.mesh.shape[axis] for axis in self.batch)
        named: Array = checkpoint_name(product(self.quant, x, w, summed, shares, key), PRODUCT)
        return named
