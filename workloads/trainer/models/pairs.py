"""Records of pairs on the chips: a sentence and its translation, padded to the length of their batch.

Dimensions as in decoder.py; a record of S numbers has two halves of T.
"""

# mypy: disallow-untyped-calls=False

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array

from trainer.config import Model
from trainer.data.records import END, PADDING
from trainer.models.family import Context, Sums
from trainer.models.loss import Project, cross_entropies
from trainer.pair_lengths import batch_lengths
from trainer.parallel.partitioning import Execution

SMOOTHING = 0.1  # fraction of a token's weight that the whole vocabulary shares in training


def halves(record_BS: Array) -> tuple[Array, Array]:
    """Return (sentences [B, T], translations [B, T])."""
    source_BT, target_BT = jnp.split(record_BS, 2, axis=1)
    return source_BT, target_BT


def padded_sums(model: Model, execution: Execution, record_BS: Array, sums: Callable[[Array, Array], Sums]) -> Sums:
    """Return sums(sentences, translations), padded to the shortest of `batch_lengths` that all pairs of the batch fit.

    All lengths are in the program, and the longest pair of the batch chooses one: all chips take the same branch.
    """
    source_BT, target_BT = halves(record_BS)
    lengths = batch_lengths(model)
    if len(lengths) == 1:
        return sums(source_BT, target_BT)
    position_T = jnp.arange(1, source_BT.shape[1] + 1)
    longest = execution.largest(position_T * ((source_BT != PADDING) | (target_BT != PADDING)))
    branch = jnp.searchsorted(jnp.array(lengths), longest)
    at_lengths = [functools.partial(lambda t: sums(source_BT[:, :t], target_BT[:, :t]), t) for t in lengths]
    chosen: Sums = jax.lax.switch(branch, at_lengths)
    return chosen


def loss_sums(
    model: Model,
    execution: Execution,
    project: Project,
    y_BTE: Array,
    target_BT: Array,
    weight_B: Array,
    context: Context,
) -> Sums:
    """Return the sums over the tokens of translations, given the decoder's output; smoothed in training."""
    weight_BT = weight_B[:, None] * (target_BT != PADDING)
    smoothing = 0.0 if context.step is None else SMOOTHING
    size = chunk(model.loss_chunk, target_BT.shape[1])
    loss_B = cross_entropies(execution, project, y_BTE, target_BT, size, weight_BT, smoothing)
    return Sums(jnp.sum(loss_B), jnp.sum(weight_BT), None, context.averages)


def chunk(size: int, length: int) -> int:
    """Return the positions to process at a time in a batch of this length; 0 = all, if `size` does not divide it."""
    return 0 if size and length % size else size


def shifted(target_BT: Array) -> Array:
    """Return the decoder's input: END, then the translation without its last number."""
    return jnp.pad(target_BT[:, :-1], ((0, 0), (1, 0)), constant_values=END)


def is_real(number_BT: Array) -> Array:
    """Return whether positions hold a token; a sentence without any counts as one, as softmax needs one."""
    return (number_BT != PADDING) | (jnp.arange(number_BT.shape[1]) == 0)
