"""Records of pairs on the chips: a sentence and its translation, padded to the length of their batch.

Dimensions as in decoder.py; a record of S numbers has two halves of T.
"""

# mypy: disallow-untyped-calls=False

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from trainer.config import Model
from trainer.data.records import END, PADDING
from trainer.models.document_masks import Documents, documents
from trainer.models.family import Context, Params, Sums
from trainer.models.loss import Project, cross_entropies
from trainer.pair_lengths import batch_lengths
from trainer.parallel.partitioning import Execution

SumsOfPairs = Callable[[Params, Any, Array, Array], Sums]  # parameters, ..., sentences [B, T], translations [B, T]
Branches = Sequence[Callable[..., Sums]]
Place = Callable[[Params], Params]  # gradients, unsharded -> sharded as the parameters
SMOOTHING = 0.1  # fraction of a token's weight that the whole vocabulary shares in training


def halves(record_BS: Array) -> tuple[Array, Array]:
    """Return (sentences [B, T], translations [B, T])."""
    source_BT, target_BT = jnp.split(record_BS, 2, axis=1)
    return source_BT, target_BT


def padded_sums(
    model: Model, execution: Execution, sums: SumsOfPairs, params: Params, specs: Params, shared: Any, record_BS: Array
) -> Sums:
    """Return sums(params, shared, sentences, translations), padded to the shortest of `batch_lengths` that fits.

    All lengths are in the program, and the longest pair of the batch chooses one: all chips take the same branch. The
    gradient is that of `loss` with respect to `params`, which are sharded by `specs`.
    """
    source_BT, target_BT = halves(record_BS)
    lengths = batch_lengths(model)
    if len(lengths) == 1:
        return sums(params, shared, source_BT, target_BT)
    position_T = jnp.arange(1, source_BT.shape[1] + 1)
    longest = execution.largest(position_T * ((source_BT != PADDING) | (target_BT != PADDING)))
    branch = jnp.searchsorted(jnp.array(lengths), longest)

    def padded(length: int, params: Params, shared: Any, source_BT: Array, target_BT: Array) -> Sums:
        return sums(params, shared, source_BT[:, :length], target_BT[:, :length])

    def place(grads: Params) -> Params:
        placed: Params = jax.tree.map(lambda spec, grad: execution.shard(grad, *spec), specs, grads)
        return placed

    branches = tuple(functools.partial(padded, length) for length in lengths)
    chosen: Sums = _choose(branches, place, branch, params, shared, source_BT, target_BT)
    return chosen


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _choose(branches: Branches, place: Place, branch: Array, params: Params, *others: Any) -> Sums:
    """Return the sums of one of the branches.

    Each branch computes its gradient with its loss. Differentiating the switch itself would keep the activations of all
    branches: a program has room for the results of each, whichever runs.
    """
    chosen: Sums = jax.lax.switch(branch, branches, params, *others)
    return chosen


def _choose_forward(
    branches: Branches, place: Place, branch: Array, params: Params, *others: Any
) -> tuple[Sums, tuple[Params, int]]:
    def with_gradient(sums: Callable[..., Sums], params: Params, *others: Any) -> tuple[Sums, Params]:
        def loss(params: Params) -> tuple[Array, Sums]:
            result = sums(params, *others)
            return result.loss, result

        grads, result = jax.grad(loss, has_aux=True)(params)
        return result, place(grads)

    result, grads = jax.lax.switch(
        branch, [functools.partial(with_gradient, sums) for sums in branches], params, *others
    )
    return result, (grads, len(others))


def _choose_backward(
    branches: Branches, place: Place, kept: tuple[Params, int], cotangent: Sums
) -> tuple[Params | None, ...]:
    grads, others = kept
    return None, jax.tree.map(lambda grad: grad * cotangent.loss, grads), *[None] * others


_choose.defvjp(_choose_forward, _choose_backward)


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


def packed_sources(source_BT: Array) -> Documents:
    """Return the pair of each position of packed sentences, each of which ends with END; 0 is padding."""
    is_end_BT = (source_BT == END).astype(jnp.int32)
    number_BT = 1 + jnp.cumsum(is_end_BT, axis=1) - is_end_BT
    return _documents(jnp.where(is_real(source_BT), number_BT, 0))


def packed_inputs(input_BT: Array, source: Documents) -> Documents:
    """Return the same of the decoder's input, in which each translation begins with END.

    Padding counts as part of the last translation, so that it attends to a sentence.
    """
    number_BT = jnp.cumsum((input_BT == END).astype(jnp.int32), axis=1)
    return _documents(jnp.minimum(number_BT, jnp.max(source.number_BT, axis=1, keepdims=True)))


def _documents(number_BT: Array) -> Documents:
    packed = documents(number_BT)
    assert packed is not None
    return packed


def is_real(number_BT: Array) -> Array:
    """Return whether positions hold a token; a sentence without any counts as one, as softmax needs one."""
    return (number_BT != PADDING) | (jnp.arange(number_BT.shape[1]) == 0)
