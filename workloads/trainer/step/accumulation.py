"""Gradient accumulation: a batch computed in sequential parts, to hold the activations of only one."""

# mypy: disallow-untyped-calls=False

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from trainer.models.family import Context, Params, Sums
from trainer.parallel.partitioning import Execution
from trainer.step.gradient_reduction import Automatic, Explicit

Rows = tuple[Array, Array]  # records [B, S] and their weights [B]


def mean_gradients(
    reduction: Automatic | Explicit, params: Any, context: Context, rows: Rows, parts: int
) -> tuple[Array, Any, Params]:
    """Return (mean loss, its gradient in float32, new averages); the means are over all weights of the batch.

    The sums of the parts are added and divided once, so parts with more padding count for less.
    """
    differentiated = reduction.split(params)

    def of(context: Context, part: Rows) -> tuple[Sums, Any]:
        def loss(params: Any) -> tuple[Array, Sums]:
            made = reduction.sums(params, context, *part)
            return made.loss, made

        (_, made), grads = jax.value_and_grad(loss, has_aux=True)(differentiated)
        return made, grads

    def add(so_far: Any, part_and_key: tuple[Rows, Array | None]) -> tuple[Any, None]:
        total, weight, averages, grads = so_far
        part, key = part_and_key
        made, more = of(context._replace(averages=averages, key=key), part)
        return (total + made.loss, weight + made.weight, made.averages, jax.tree.map(jnp.add, grads, more)), None

    if parts == 1:
        made, grads = of(context, rows)
        total, weight, averages = made.loss, made.weight, made.averages
    else:
        zeros = jnp.zeros(()), jnp.zeros(()), context.averages, jax.tree.map(jnp.zeros_like, differentiated)
        cut: Rows = (split(rows[0], parts, reduction.how), split(rows[1], parts, reduction.how))
        keys = None if context.key is None else jax.random.split(context.key, parts)
        (total, weight, averages, grads), _ = jax.lax.scan(add, zeros, (cut, keys))
    weight = jnp.maximum(weight, 1.0)
    return total / weight, jax.tree.map(lambda g: g / weight, reduction.add(grads)), averages


def split(row_B: Array, parts: int, how: Execution) -> Array:
    """Split a batch [B, ...] into [parts, B / parts, ...]: each chip splits its own rows, and none are moved."""
    groups = how.mesh.shape["dp"] * how.mesh.shape["fsdp"]
    row_GPN = row_B.reshape(groups, parts, -1, *row_B.shape[1:])
    row_PB = row_GPN.swapaxes(0, 1).reshape(parts, -1, *row_B.shape[1:])
    return how.place(row_PB, None, how.batch)
