"""Beam search with a length penalty, for a batch of sentences.

Dimensions are the suffix of a name:
    B batch   K beam: partial translations of a sentence   T time   V vocab   C = 2 K candidates
The score of a translation is its log probability over ((5 + tokens) / 6) ** penalty (Wu et al., GNMT, 2016).
"""

# mypy: disallow-untyped-calls=False

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from trainer.data.records import END, PADDING

Step = Callable[[Any, Array, Array], tuple[Array, Any]]  # state [B, K, ...], number [B, K], time -> logits, state
_EXTRA_TOKENS = 50  # of a translation, over the longest sentence of the batch
_NEVER = -1e9  # score of what does not exist


class _Beam(NamedTuple):
    time: Array
    number_BKT: Array  # of the partial translations
    log_probability_BK: Array
    state: Any  # of the model, [B, K, ...]
    ended_BKT: Array  # best ended translations
    score_BK: Array  # of those


def search(step: Step, state: Any, source_BT: Array, weight_B: Array, beam: int, penalty: float) -> Array:
    """Return the best translation of each sentence [B, T], with END and padding; padding alone for weight 0.

    `state` is the decoder's initial state [B, ...]. The search ends when no partial translation can still become better
    than an ended one, or after 50 tokens more than the longest sentence has, T at most.
    """
    B, T = source_BT.shape
    state = jax.tree.map(lambda x: jnp.repeat(x[:, None], beam, axis=1), state)
    is_counted_B = weight_B > 0
    most = jnp.max(jnp.sum(source_BT != PADDING, axis=1) * is_counted_B) + _EXTRA_TOKENS
    first_K = jnp.where(jnp.arange(beam) == 0, 0.0, _NEVER)  # all begin equal: one of them is enough

    def is_open(now: _Beam) -> Array:
        # Log probabilities only fall, so the longest translation has the best score that is still possible.
        best_B = jnp.max(now.log_probability_BK, axis=1) / _length_factor(jnp.minimum(T, most), penalty)
        can_improve_B = best_B > jnp.min(now.score_BK, axis=1)
        return (now.time < jnp.minimum(T, most)) & jnp.any(can_improve_B & is_counted_B)

    def extend(now: _Beam) -> _Beam:
        last_BK = jax.lax.dynamic_index_in_dim(now.number_BKT, jnp.maximum(now.time - 1, 0), axis=2, keepdims=False)
        logits_BKV, state = step(now.state, jnp.where(now.time == 0, END, last_BK), now.time)
        log_BKV = jax.nn.log_softmax(logits_BKV).at[..., PADDING].set(_NEVER)
        total_BKV = now.log_probability_BK[..., None] + log_BKV
        # Of 2 K candidates at most K end, so at least K partial translations remain.
        total_BC, index_BC = jax.lax.top_k(total_BKV.reshape(B, -1), 2 * beam)
        parent_BC, number_BC = jnp.divmod(index_BC, log_BKV.shape[-1])
        path_BCT = jnp.take_along_axis(now.number_BKT, parent_BC[..., None], axis=1)
        path_BCT = jnp.where(jnp.arange(T) == now.time, number_BC[..., None], path_BCT)
        is_end_BC = number_BC == END
        alive_BK, kept_BK = jax.lax.top_k(jnp.where(is_end_BC, _NEVER, total_BC), beam)
        score_BC = jnp.where(is_end_BC, total_BC / _length_factor(now.time + 1, penalty), _NEVER)
        score_BK, best_BK = jax.lax.top_k(jnp.concatenate([now.score_BK, score_BC], axis=1), beam)
        ended_BNT = jnp.concatenate([now.ended_BKT, path_BCT], axis=1)
        return _Beam(
            now.time + 1,
            jnp.take_along_axis(path_BCT, kept_BK[..., None], axis=1),
            alive_BK,
            _choose(state, jnp.take_along_axis(parent_BC, kept_BK, axis=1)),
            jnp.take_along_axis(ended_BNT, best_BK[..., None], axis=1),
            score_BK,
        )

    nothing_BKT = jnp.full((B, beam, T), PADDING, source_BT.dtype)
    never_BK = jnp.full((B, beam), _NEVER)
    begin = _Beam(jnp.zeros((), jnp.int32), nothing_BKT, jnp.tile(first_K, (B, 1)), state, nothing_BKT, never_BK)
    end = jax.lax.while_loop(is_open, extend, begin)
    has_ended_B1 = end.score_BK[:, :1] > _NEVER / 2
    best_BT = jnp.where(has_ended_B1, end.ended_BKT[:, 0], end.number_BKT[:, 0])
    return jnp.where(is_counted_B[:, None], best_BT, PADDING)


def _length_factor(tokens: Array, penalty: float) -> Array:
    return ((5.0 + tokens) / 6.0) ** penalty


def _choose(state: Any, parent_BK: Array) -> Any:
    """Return the state of each partial translation's parent."""

    def choose(x: Array) -> Array:
        index = parent_BK.reshape(*parent_BK.shape, *[1] * (x.ndim - 2))
        return jnp.take_along_axis(x, index, axis=1)

    return jax.tree.map(choose, state)
