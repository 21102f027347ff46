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


def apply_pipeline(execution: Execution, stage: Stage, x_BTE: Array, layers: Any, example_arrays: Any = None) -> Array:
    """Apply `stage` to `x_BTE` with each stage's share of `layers` (arrays [L, ...]) in turn; return the result.

    `example_arrays` is arrays [B, ...] of the examples, or None; every stage gets them unchanged. B must be divisible
    by the microbatches, each of them by the chips on the batch's axes, and L by the stages.
    """
    if execution.stages == 1:
        return stage(x_BTE, layers, example_arrays)
    S, M, (B, T, E) = execution.stages, execution.microbatches, x_BTE.shape

    def split_microbatches(x_BT: Array) -> Array:
        """Split into microbatches: microbatch m is every M-th row from m on, so that no row leaves its chip."""
        return x_BT.reshape(B // M, M, *x_BT.shape[1:]).swapaxes(0, 1)

    x_MbTE = execution.shard(split_microbatches(x_BTE), None, execution.batch, "tp", None)
    input_NbTE = jnp.concatenate([x_MbTE, jnp.zeros((S - 1, *x_MbTE.shape[1:]), x_BTE.dtype)])
    # Every stage has the first stage's input, so that it is not sent; only its gradient is, once.
    input_NSbTE = jnp.broadcast_to(input_NbTE[:, None], (len(input_NbTE), S, *x_MbTE.shape[1:]))
    input_NSbTE = execution.shard(input_NSbTE, None, "stage", execution.batch, "tp", None)
    layers = jax.tree.map(lambda w: w.reshape(S, w.shape[0] // S, *w.shape[1:]), layers)
    every_stage = jax.vmap(stage, spmd_axis_name="stage")
    stage_S = jnp.arange(S)[:, None, None, None]
    # In tick n stage s has microbatch n - s, or one that is discarded.
    microbatch_NS = jnp.clip(jnp.arange(M + S - 1)[:, None] - jnp.arange(S), 0, M - 1)
    arrays_NSbT = jax.tree.map(
        lambda x: execution.shard(split_microbatches(x)[microbatch_NS], None, "stage", execution.batch),
        example_arrays,
    )

    def tick(output_SbTE: Array, inputs: tuple[Array, Any]) -> tuple[Array, Array]:
        input_SbTE, arrays_SbT = inputs
        # Shift the outputs to the next stage; the last stage's output is not sent to the first.
        shifted_SbTE = jax.lax.pad(output_SbTE, jnp.zeros((), output_SbTE.dtype), ((1, -1, 0), *[(0, 0, 0)] * 3))
        shifted_SbTE = jnp.where(stage_S == 0, input_SbTE, shifted_SbTE)
        output_SbTE = every_stage(
            execution.shard(shifted_SbTE, "stage", execution.batch, "tp", None), layers, arrays_SbT
        )
        return output_SbTE, output_SbTE

    _, output_NSbTE = jax.lax.scan(tick, jnp.zeros_like(input_NSbTE[0]), (input_NSbTE, arrays_NSbT))
    # Only the last stage's outputs are complete. A sum with zeros is exact, and sends no more than those.
    y_MbTE = jnp.sum(jnp.where(stage_S == S - 1, output_NSbTE[S - 1 :], 0), axis=1, dtype=x_BTE.dtype)
    y_MbTE = execution.shard(y_MbTE, None, execution.batch, ("stage", "tp"), None)
    return execution.shard(y_MbTE.swapaxes(0, 1).reshape(B, T, E), execution.batch, ("stage", "tp"), None)
