"""A table of embeddings that models look tokens up in, and that most project their output with, on a mesh.

Dimensions are the suffix of a name, as in decoder.py; S is the number of shares of the batch.
"""

# mypy: disallow-untyped-calls=False

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import PartitionSpec as P

from trainer.parallel.partitioning import Execution

TABLE = P("tp", "fsdp")


class Vocabulary:
    """The table of one pass through a model.

    It is gathered over "fsdp" like any weight; a lookup in a table sharded along E would move activations instead.
    On TPUs every share of the batch has its own copy, whose gradients are added once (parallel/shared_weight.py).
    """

    def __init__(self, execution: Execution, embed_VE: Array) -> None:
        """Gather a table in the dtype of the products."""
        self._execution, self._weight, self._embed_VE = execution, execution.weight(TABLE), embed_VE
        # Without a torus XLA adds the table's gradients, those of all examples.
        self._embed = self._weight.copies(embed_VE) if self._weight.sides else self.whole_VE  # [S, V, E], or [V, E]

    @property
    def whole_VE(self) -> Array:
        """The table on every chip but for "tp", for lookups without gradients."""
        return self._execution.shard(self._embed_VE, "tp", None)

    def look_up(self, tokens_BT: Array) -> Array:
        """Return the embeddings [B, T, E] of tokens. On TPUs T must be divisible by "tp"."""
        if not self._weight.sides:
            x_BTE: Array = self._embed[tokens_BT]
            return x_BTE
        x_SbTE = _look_up(self._execution, self._embed, self._weight.split(tokens_BT))
        return x_SbTE.reshape(*tokens_BT.shape, x_SbTE.shape[-1])

    def project(self, y_BTE: Array) -> Array:
        """Return the float32 products [B, T, V] with all embeddings: logits."""
        split = self._weight.split if self._weight.sides else lambda x: x
        form = "SbTE,SVE->SbTV" if self._weight.sides else "BTE,VE->BTV"
        logits = jnp.einsum(form, split(y_BTE), self._embed, preferred_element_type=jnp.float32)
        return logits.reshape(*y_BTE.shape[:2], logits.shape[-1])


def _look_up(execution: Execution, embed_SVE: Array, tokens_SbT: Array) -> Array:
    """Return the embeddings [S, b, T, E] of tokens from every share's copy of the table.

    Every chip looks up the tokens of its part of the vocabulary, and the sum over "tp" leaves it a part of
    T: XLA would gather the whole table instead, and add its gradient on all chips.
    """
    if execution.mesh.shape["tp"] == 1:
        x_SbTE: Array = jax.vmap(lambda embed_VE, token_bT: embed_VE[token_bT])(embed_SVE, tokens_SbT)
        return x_SbTE

    def look_up_part(embed_1vE: Array, token_1bT: Array) -> Array:
        size = embed_1vE.shape[1]
        own_1bT = token_1bT - jax.lax.axis_index("tp") * size
        x_1bTE = embed_1vE[0][jnp.clip(own_1bT, 0, size - 1)]
        x_1bTE = jnp.where(((own_1bT >= 0) & (own_1bT < size))[..., None], x_1bTE, 0)
        part: Array = jax.lax.psum_scatter(x_1bTE, "tp", scatter_dimension=2, tiled=True)
        return part

    x_SbTE = jax.shard_map(
        look_up_part,
        mesh=execution.mesh,
        in_specs=(P(execution.batch, "tp", None), P(execution.batch)),
        out_specs=P(execution.batch, None, "tp"),
        check_vma=False,
    )(embed_SVE, tokens_SbT)
    return x_SbTE
