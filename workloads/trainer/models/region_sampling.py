"""Samples of a fixed number of anchors or regions, which depend on the example and the step alone.

Dimensions are the suffix of a name:
    B batch   S numbers of a record   N anchors or regions   C chosen ones   P positives
"""

# mypy: disallow-untyped-calls=False

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from trainer.parallel.partitioning import Execution

_SEED = 2


class Sample(NamedTuple):
    """Chosen anchors or regions of each example: first the positives, then the negatives, then what is left."""

    index_BC: Array
    is_positive_BC: Array
    is_used_BC: Array  # False where there are too few positives and negatives


def example_keys(record_BS: Array, step: Array | None) -> Array:
    """Return a random key for each example, a function of its record and the step; without a step always the same."""
    factor_S = jnp.arange(1, 2 * record_BS.shape[1], 2, dtype=jnp.uint32) * jnp.uint32(2654435761)
    digest_B = jnp.sum(record_BS.astype(jnp.uint32) * factor_S, axis=1, dtype=jnp.uint32)
    base = jax.random.fold_in(jax.random.key(_SEED), 0 if step is None else step + 1)
    return jax.vmap(lambda digest: jax.random.fold_in(base, digest))(digest_B)


def sample(
    key_B: Array,
    positive_BN: Array,
    negative_BN: Array,
    count: int,
    most_positives: int,
    execution: Execution | None = None,
) -> Sample:
    """Choose `count` of these at random, at most `most_positives` positives and as many negatives as are left.

    With an `execution`, the chips of "tp" divide the search if they can.
    """
    count, most_positives = min(count, positive_BN.shape[1]), min(most_positives, count, positive_BN.shape[1])
    draw_BN = jax.vmap(lambda key: jax.random.uniform(key, positive_BN.shape[1:]))(key_B)

    def largest(is_eligible_BN: Array, count: int) -> Any:
        eligible_BN = jnp.where(is_eligible_BN, draw_BN, -1.0)
        if execution is not None and eligible_BN.shape[1] % execution.mesh.shape["tp"] == 0:
            # If an axis shards no dimension, XLA does not partition top_k: every chip gets the whole batch.
            eligible_BN = execution.shard(eligible_BN, execution.batch, "tp")
        return jax.lax.top_k(eligible_BN, count)

    drawn_BP, positive_BP = largest(positive_BN, most_positives)
    drawn_BC, negative_BC = largest(negative_BN, count)
    # 2 for positives, 1 for negatives, 0 for the rest: equal numbers keep their order.
    rank_B = jnp.concatenate([2 * (drawn_BP >= 0), 1 * (drawn_BC >= 0)], axis=1)
    chosen_BC, place_BC = jax.lax.top_k(rank_B, count)
    index_BC = jnp.take_along_axis(jnp.concatenate([positive_BP, negative_BC], axis=1), place_BC, axis=1)
    return Sample(index_BC, chosen_BC == 2, chosen_BC > 0)
