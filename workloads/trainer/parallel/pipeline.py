"""Pipeline parallelism over microbatches: GPipe (Huang et al., 2019).

The stages are a dimension of the arrays, sharded over the mesh axis "stage" (Xu et al., GSPMD, 2021, section 3.3): in
every tick all stages compute, each on its own microbatch, and their outputs move on to the next stage. S stages and M
microbatches take M + S - 1 ticks, of which a stage idles in S - 1. The backward pass is the same schedule in reverse.
Only activations of one microbatch cross from stage to stage, which suits slow links.
"""

# mypy: disallow-untyped-calls=False

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from trainer.parallel.partitioning import Execution

Stage = Callable[[Array, Any, Any], Array]  # activations [b, T, E], a stage's layers, arrays of the examples


def pipelined(how: Execution, stage: Stage, x_BTE: Array, layers: Any, known: Any = None) -> Array:
    """Apply `stage` to `x_BTE` with each stage's share of `layers` (arrays [L, ...]) in turn; return the result.

    `known` is arrays [B, T] of the examples, or None; every stage gets them unchanged. B must be divisible by the
    microbatches, each of them by the chips on the batch's axes, and L by the stages.
    """
    if how.stages == 1:
        return stage(x_BTE, layers, known)
    S, M, (B, T, E) = how.stages, how.microbatches, x_BTE.shape

    def cut(x_BT: Array) -> Array:
        """Split into microbatches: microbatch m is every M-th row from m on, so that no row leaves its chip."""
        return x_BT.reshape(B // M, M, *x_BT.shape[1:]).swapaxes(0, 1)

    x_MbTE = how.place(cut(x_BTE), None, how.batch, "tp", None)
    fed_NbTE = jnp.concatenate([x_MbTE, jnp.zeros((S - 1, *x_MbTE.shape[1:]), x_BTE.dtype)])
    # Every stage has the first stage's input, so that it is not sent (its gradient is, but once).
    fed_NSbTE = jnp.broadcast_to(fed_NbTE[:, None], (len(fed_NbTE), S, *x_MbTE.shape[1:]))
    fed_NSbTE = how.place(fed_NSbTE, None, "stage", how.batch, "tp", None)
    layers = jax.tree.map(lambda w: w.reshape(S, w.shape[0] // S, *w.shape[1:]), layers)
    every_stage = jax.vmap(stage, spmd_axis_name="stage")
    stage_S = jnp.arange(S)[:, None, None, None]
    # In tick n stage s has microbatch n - s, or one that is discarded.
    turn_NS = jnp.clip(jnp.arange(M + S - 1)[:, None] - jnp.arange(S), 0, M - 1)
    known_NSbT = jax.tree.map(lambda x: how.place(cut(x)[turn_NS], None, "stage", how.batch, None), known)

    def tick(made_SbTE: Array, fed: tuple[Array, Any]) -> tuple[Array, Array]:
        fed_SbTE, known_SbT = fed
        # To the next stage; nothing goes from the last to the first.
        moved_SbTE = jax.lax.pad(made_SbTE, jnp.zeros((), made_SbTE.dtype), ((1, -1, 0), *[(0, 0, 0)] * 3))
        moved_SbTE = jnp.where(stage_S == 0, fed_SbTE, moved_SbTE)
        made_SbTE = every_stage(how.place(moved_SbTE, "stage", how.batch, "tp", None), layers, known_SbT)
        return made_SbTE, made_SbTE

    _, made_NSbTE = jax.lax.scan(tick, jnp.zeros_like(fed_NSbTE[0]), (fed_NSbTE, known_NSbT))
    # Only the last stage's outputs are complete. A sum with zeros is exact, and sends no more than those.
    y_MbTE = jnp.sum(jnp.where(stage_S == S - 1, made_NSbTE[S - 1 :], 0), axis=1, dtype=x_BTE.dtype)
    y_MbTE = how.place(y_MbTE, None, how.batch, ("stage", "tp"), None)
    return how.place(y_MbTE.swapaxes(0, 1).reshape(B, T, E), how.batch, ("stage", "tp"), None)
