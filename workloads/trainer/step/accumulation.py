"""Gradient accumulation: a batch is computed in sequential parts, so that the activations of only one are in memory."""

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
    """Return (mean loss, its gradient in float32, new averages); the means are over all weights of the batch."""
    total, weight, grads, averages = sum_gradients(reduction, params, context, rows, parts)
    weight = jnp.maximum(weight, 1.0)
    return total / weight, jax.tree.map(lambda g: g / weight, grads), averages


def sum_gradients(
    reduction: Automatic | Explicit, params: Any, context: Context, rows: Rows, parts: int
) -> tuple[Array, Array, Any, Params]:
    """Return (sum of the losses, sum of the weights, gradient of the former in float32, new averages).

    The sums of the parts are added, so parts with more padding count for less.
    """
    split_params = reduction.split(params)

    def sums_and_gradients(context: Context, part: Rows) -> tuple[Sums, Any]:
        def loss(params: Any) -> tuple[Array, Sums]:
            sums = reduction.sums(params, context, *part)
            return sums.loss, sums

        (_, sums), grads = jax.value_and_grad(loss, has_aux=True)(split_params)
        return sums, grads

    def add(totals: Any, part_and_keys: tuple[Rows, Array | None, Array | None]) -> tuple[Any, None]:
        total, weight, averages, grads = totals
        part, key, key_B = part_and_keys
        part_context = context._replace(averages=averages, key=key, example_key_B=key_B)
        sums, part_grads = sums_and_gradients(part_context, part)
        return (total + sums.loss, weight + sums.weight, sums.averages, jax.tree.map(jnp.add, grads, part_grads)), None

    if parts == 1:
        sums, grads = sums_and_gradients(context, rows)
        total, weight, averages = sums.loss, sums.weight, sums.averages
    else:
        zeros = jnp.zeros(()), jnp.zeros(()), context.averages, jax.tree.map(jnp.zeros_like, split_params)
        row_parts: Rows = (split(rows[0], parts, reduction.execution), split(rows[1], parts, reduction.execution))
        keys = None if context.key is None else jax.random.split(context.key, parts)
        key_PB = jax.tree.map(lambda key_B: split(key_B, parts, reduction.execution), context.example_key_B)
        (total, weight, averages, grads), _ = jax.lax.scan(add, zeros, (row_parts, keys, key_PB))
    return total, weight, reduction.add(grads), averages


def split(row_B: Array, parts: int, execution: Execution) -> Array:
    """Split a batch [B, ...] into [parts, B / parts, ...]: each chip splits its own rows, and none are moved."""
    groups = execution.mesh.shape["dp"] * execution.mesh.shape["fsdp"]
    row_GPN = row_B.reshape(groups, parts, -1, *row_B.shape[1:])
    row_PB = row_GPN.swapaxes(0, 1).reshape(parts, -1, *row_B.shape[1:])
    return execution.shard(row_PB, None, execution.batch)
