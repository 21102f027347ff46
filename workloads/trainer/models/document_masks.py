"""Masks for examples of several documents, each of which attends only to itself.

Dimensions as in decoder.py; data/records.py has the layout.

A document in a packed example has the losses that it has alone: its positions begin at 0, its tokens attend to its own
only, and none of them is asked for the first token of the next.
"""

# mypy: disallow-untyped-calls=False

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array


class Documents(NamedTuple):
    """Where the documents of each example are."""

    number_BT: Array  # of the document that a token is of, from 1; 0: there is no token
    position_BT: Array  # of a token in its document, from 0


def unpacked(packed: bool, record_BS: Array) -> tuple[Array, Array | None]:
    """Return (tokens, numbers of their documents [B, S / 2]); the whole record and None if it is not packed."""
    if not packed:
        return record_BS, None
    tokens, numbers = jnp.split(record_BS, 2, axis=1)
    return tokens, numbers


def documents(number_BT: Array | None) -> Documents | None:
    """Return where documents are, of which these are the numbers."""
    if number_BT is None:
        return None
    time_T = jnp.arange(number_BT.shape[1])
    begins_BT = jnp.pad(number_BT[:, 1:] != number_BT[:, :-1], ((0, 0), (1, 0)), constant_values=True)
    begin_BT = jax.lax.cummax(jnp.where(begins_BT, time_T, 0), axis=1)
    return Documents(number_BT, time_T - begin_BT)


def next_token_weights(number_BS: Array) -> Array:
    """Return 1.0 [B, S - 1] where the next token is of the same document as a token, 0.0 elsewhere and in padding."""
    same_BT = (number_BS[:, 1:] == number_BS[:, :-1]) & (number_BS[:, 1:] > 0)
    return same_BT.astype(jnp.float32)
