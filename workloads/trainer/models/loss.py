"""Cross entropy, in one piece or in chunks of time. Dimensions as in decoder.py; N chunks of c positions."""

# mypy: disallow-untyped-calls=False

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array

from trainer.parallel.partitioning import Execution

Project = Callable[[Array], Array]  # hidden activations [B, t, E] -> float32 logits [B, t, V]


def cross_entropies(
    execution: Execution,
    project: Project,
    y_BTE: Array,
    target_BT: Array,
    chunk: int = 0,
    weight_BT: Array | None = None,
    smoothing: float = 0.0,
) -> Array:
    """Return each example's sum of cross entropies, in nats [B], optionally weighted.

    All entries of the vocabulary share a fraction `smoothing` of a target's weight (Szegedy et al., 2016).

    With a `chunk`, which must divide T and be divisible by the chips that time is sharded over, that many positions of
    every example are processed at a time and their logits are recomputed in the backward pass: only one chunk's logits,
    of which every token has V, are in memory at a time.
    """
    B, T, E = y_BTE.shape
    if chunk in (0, T):
        return _sums(project, y_BTE, target_BT, weight_BT, smoothing)
    shares = execution.stages * int(
        execution.mesh.shape["tp"]
    )  # chips that time is sharded over; each has a piece of each chunk
    pieces = (B, shares, T // chunk, chunk // shares)
    y_NBcE = y_BTE.reshape(*pieces, E).transpose(2, 0, 1, 3, 4).reshape(-1, B, chunk, E)
    y_NBcE = execution.shard(y_NBcE, None, execution.batch, ("stage", "tp"), None)

    def split_chunks(x_BT: Array) -> Array:
        return x_BT.reshape(pieces).transpose(2, 0, 1, 3).reshape(-1, B, chunk)

    def scan_body(total_B: Array, part: tuple[Array, Array, Array | None]) -> tuple[Array, None]:
        return total_B + _sums(project, *part, smoothing), None

    parts = y_NBcE, split_chunks(target_BT), None if weight_BT is None else split_chunks(weight_BT)
    zeros_B = execution.shard(jnp.zeros(B), execution.batch)
    total_B: Array = jax.lax.scan(jax.checkpoint(scan_body, prevent_cse=False), zeros_B, parts)[0]
    return total_B


def _sums(project: Project, y_BtE: Array, target_Bt: Array, weight_Bt: Array | None, smoothing: float) -> Array:
    logits_BtV = project(y_BtE)
    target_BtV = jax.nn.one_hot(target_Bt, logits_BtV.shape[-1], dtype=logits_BtV.dtype)
    if smoothing:
        target_BtV = (1 - smoothing) * target_BtV + smoothing / logits_BtV.shape[-1]
    loss_Bt = jax.nn.logsumexp(logits_BtV, axis=-1) - jnp.sum(logits_BtV * target_BtV, axis=-1)
    return jnp.sum(loss_Bt if weight_Bt is None else loss_Bt * weight_Bt, axis=1)
