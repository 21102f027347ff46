"""Attention, in one piece or in chunks. Dimensions as in decoder.py; C queries of a chunk, S keys, N chunks."""

# mypy: disallow-untyped-calls=False

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

Shard = Callable[..., Array]  # array, mesh axes of each dimension -> the array, sharded along them
Drop = Callable[[Array, Array], Array]  # weights [B, H, C, S], positions [C] of the queries -> weights


def attention(
    shard: Shard,
    batch: Any,
    q_BTHQ: Array,
    k_BSHQ: Array,
    v_BSHQ: Array,
    chunk: int = 0,
    *,
    causal: bool = True,
    document_BT: Array | None = None,
    key_document_BS: Array | None = None,
    drop: Drop = lambda weight_BHCS, time_C: weight_BHCS,
) -> Array:
    """Return softmax attention, over the past if `causal`, else over all positions; scores and softmax in float32.

    `batch` is the mesh axes of B. With `document_BT`, positions attend only to their own document; the keys are of the
    same ones unless `key_document_BS` has others. The keys may be those of another sequence, of S positions. `drop` is
    applied to the weights.

    With a `chunk`, which must divide T, that many queries are processed at a time and their scores are recomputed in
    the backward pass: memory for scores [B, H, chunk, S] instead of [B, H, T, S] (Rabe and Staats, Self-attention Does
    Not Need O(n²) Memory, 2021).
    """
    T, Q = q_BTHQ.shape[1], q_BTHQ.shape[-1]
    time_S = jnp.arange(k_BSHQ.shape[1])
    key_document_BS = document_BT if key_document_BS is None else key_document_BS

    def attend(q_BCHQ: Array, time_C: Array, document_BC: Array | None) -> Array:
        score_BHCS = jnp.einsum("BCHQ,BSHQ->BHCS", q_BCHQ, k_BSHQ, preferred_element_type=jnp.float32)
        # Constrain the scores too: otherwise XLA shards their time over "tp" in the backward pass, and moves them.
        score_BHCS = shard(score_BHCS, batch, "tp", None, None) / math.sqrt(Q)
        if causal:
            score_BHCS = jnp.where(time_S <= time_C[:, None], score_BHCS, -jnp.inf)
        if document_BC is not None and key_document_BS is not None:
            same_BCS = document_BC[:, :, None] == key_document_BS[:, None, :]
            score_BHCS = jnp.where(same_BCS[:, None], score_BHCS, -jnp.inf)
        weight_BHCS = jax.nn.softmax(score_BHCS, axis=-1).astype(v_BSHQ.dtype)
        weight_BHCS = drop(weight_BHCS, time_C)
        return shard(jnp.einsum("BHCS,BSHQ->BCHQ", weight_BHCS, v_BSHQ), batch, None, "tp", None)

    if chunk in (0, T):
        return attend(q_BTHQ, jnp.arange(T), document_BT)

    def scan_body(_: None, part: tuple[Array, Array, Array | None]) -> tuple[None, Array]:
        return None, attend(*part)

    def split_chunks(x_BT: Array) -> Array:
        return jnp.stack(jnp.split(x_BT, T // chunk, axis=1))

    parts = (
        split_chunks(q_BTHQ),
        jnp.arange(T).reshape(-1, chunk),
        None if document_BT is None else split_chunks(document_BT),
    )
    _, y_NBCHQ = jax.lax.scan(jax.checkpoint(scan_body, prevent_cse=False), None, parts)
    return shard(jnp.concatenate(y_NBCHQ, axis=1), batch, None, "tp", None)
