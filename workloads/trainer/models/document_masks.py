"""Masks for packed examples, whose documents attend only to themselves.

Dimensions as in decoder.py; data/records.py has the layout.

A document in a packed example has the same losses as alone: its positions start at 0, its tokens attend only to its
own, and none of them predicts the first token of the next document.
"""

# mypy: disallow-untyped-calls=False

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array


class Documents(NamedTuple):
    """Documents and positions of the tokens of each example."""

    number_BT: Array  # of a token's document, from 1; 0 for padding
    position_BT: Array  # of a token within its document, from 0


def unpack(record_BS: Array, *, packed: bool) -> tuple[Array, Array | None]:
    """Return (tokens, document numbers [B, S / 2]); (the whole record, None) if it is not packed."""
    if not packed:
        return record_BS, None
    tokens, numbers = jnp.split(record_BS, 2, axis=1)
    return tokens, numbers


def documents(number_BT: Array | None) -> Documents | None:
    """Return the Documents with these document numbers."""
    if number_BT is None:
        return None
    time_T = jnp.arange(number_BT.shape[1])
    begins_BT = jnp.pad(number_BT[:, 1:] != number_BT[:, :-1], ((0, 0), (1, 0)), constant_values=True)
    begin_BT = jax.lax.cummax(jnp.where(begins_BT, time_T, 0), axis=1)
    return Documents(number_BT, time_T - begin_BT)


def next_token_weights(number_BS: Array) -> Array:
    """Return 1.0 [B, S - 1] if the next token is of the same document, else 0.0, as in padding."""
    same_BT = (number_BS[:, 1:] == number_BS[:, :-1]) & (number_BS[:, 1:] > 0)
    return same_BT.astype(jnp.float32)
