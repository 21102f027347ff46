"""Dropout (Srivastava et al., 2014), whose masks depend on the example and the place in the model alone.

Dimensions as in decoder.py; C queries of a chunk, S keys.

Every example has a key: a function of the seed, the step and its position in the batch. A mask is a function of this
key, the layer, the site and the position in the example. So masks are the same on any mesh, in any part of a batch, in
a sentence of any padded length and after a restart, and a layer that is recomputed has the same ones. A chip draws the
masks of its own activations.
"""

# mypy: disallow-untyped-calls=False

import dataclasses
import enum
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from trainer.parallel.partitioning import Execution

_STREAM = 0xD209  # number of dropout's keys among those of a step
_DRAWS = 2**32  # values of a random number


class Site(enum.IntEnum):
    """Places in a layer, or before the layers, whose activations are dropped."""

    INPUT = 0
    ATTENTION_WEIGHTS = 1
    ATTENTION = 2
    CROSS_WEIGHTS = 3
    CROSS = 4
    HIDDEN = 5
    MLP = 6


def example_keys(seed: int, step: Array, first: Any, count: int) -> Array:
    """Return the keys [count] of the examples at the positions from `first` on in the batch after `step` steps."""
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), step), _STREAM)
    return _fold(key[None], first + jnp.arange(count))[0]


@dataclasses.dataclass(frozen=True)
class Dropout:
    """Dropout in one pass through a model, or through a part of it; without keys it drops nothing."""

    execution: Execution
    rate: float = 0.0
    key_B: Array | None = None  # of the examples, in this part of the model

    def part(self, number: int | Array) -> "Dropout":
        """Return the dropout of a part of this part, such as a layer."""
        if self.key_B is None:
            return self
        return dataclasses.replace(self, key_B=self._keys(len(Site) + number))

    def __call__(self, site: Site, x_BTE: Array, *axes: str | None) -> Array:
        """Return activations, dropped and scaled by 1 / (1 - rate); `axes` are those of the mesh for T and E."""
        if self.key_B is None:
            return x_BTE
        key_BT = _fold(self._keys(site), jnp.arange(x_BTE.shape[1]))
        return self._drop(x_BTE, key_BT, *axes)

    def of_weights(self, site: Site) -> Callable[[Array, Array], Array]:
        """Return the function that drops attention's weights [B, H, C, S], given the positions [C] of its queries."""

        def drop(weight_BHCS: Array, time_C: Array) -> Array:
            if self.key_B is None:
                return weight_BHCS
            H = weight_BHCS.shape[1]
            key_BHC = _fold(self._keys(site), time_C * H + jnp.arange(H)[:, None])
            return self._drop(weight_BHCS, key_BHC, "tp", None, None)

        return drop

    def _keys(self, number: int | Array) -> Array:
        return jax.vmap(lambda key: jax.random.fold_in(key, number))(self.key_B)

    def _drop(self, x: Array, keys: Array, *axes: str | None) -> Array:
        """Return x [B, ..., N], dropped by random numbers from the keys [B, ...] of its rows."""
        draws = self.execution.shard(_bits(keys, x.shape[-1]), self.execution.batch, *axes)
        is_kept = draws >= jnp.uint32(min(round(self.rate * _DRAWS), _DRAWS - 1))
        return jnp.where(is_kept, x * (1 / (1 - self.rate)), 0)


def _fold(key_B: Array, numbers: Array) -> Array:
    """Return the keys [B, ...] that these numbers [...] make of each key."""

    def fold(key: Array) -> Array:
        flat: Array = jax.vmap(functools.partial(jax.random.fold_in, key))(numbers.reshape(-1))
        return flat.reshape(numbers.shape)

    return jax.vmap(fold)(key_B)


def _bits(keys: Array, count: int) -> Array:
    """Return random numbers [..., count] for keys [...]; the first ones are the same for any count."""
    for_all: Any = functools.partial(jax.random.bits, shape=(count,))
    for _ in range(keys.ndim):
        for_all = jax.vmap(for_all)
    draws: Array = for_all(keys)
    return draws
