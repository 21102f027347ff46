"""Area under the ROC curve (AUC) of an evaluation, exact and distributed over the chips of the batch.

It is the fraction of the pairs of a positive and a negative whose positive has the higher score; a tie counts as half
(Hanley and McNeil, 1982). Every chip counts the negatives below its own positives, of one chip after the other: their
sorted scores pass along a ring. Counts are integers, so the result does not depend on the mesh.

Dimensions are the suffix of a name:
    B batch   N predictions of a chip   G groups of predictions, whose sums fit an int32
"""

# mypy: disallow-untyped-calls=False

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from trainer.models.family import Predictions
from trainer.parallel.mesh import BATCH

_GROUP = 2**15  # predictions; 2^15 numbers below 2^16 have a sum below 2^31


class PairCounts(NamedTuple):
    """Integers from which the area follows."""

    low_G: Any  # sums of the lower 16 bits of each positive's count
    high_G: Any  # of the higher bits; a count is that of negatives below it, twice, and of equal ones
    positives: Any
    negatives: Any

    @property
    def area(self) -> float:
        """The area under the curve; NaN without a positive or a negative."""
        twice = int(np.sum(self.low_G, dtype=np.int64)) + (int(np.sum(self.high_G, dtype=np.int64)) << 16)
        pairs = int(self.positives) * int(self.negatives)
        return twice / (2 * pairs) if pairs else math.nan


def count_pairs(mesh: Mesh, batches: Sequence[Predictions]) -> PairCounts:
    """Return the counts over all predictions of an evaluation, at most clicks.MAX_RANKED; padding is ignored."""
    count = jax.shard_map(
        lambda *parts: _count(mesh, Predictions(*parts)),
        mesh=mesh,
        in_specs=P(None, BATCH),
        out_specs=PairCounts(P(BATCH), P(BATCH), P(), P()),
        check_vma=False,
    )
    stacked = Predictions(*map(jnp.stack, zip(*batches, strict=True)))
    counts: PairCounts = count(*stacked)
    return counts


def _count(mesh: Mesh, own: Predictions) -> PairCounts:
    """Return the sums over this chip's positives, and the numbers of positives and negatives of all chips."""
    label_N = own.label_B.reshape(-1)
    score_N = own.score_B.reshape(-1)
    score_N = jnp.where(score_N == 0, 0.0, score_N)  # sorting distinguishes -0 from 0
    negative_N = jnp.sort(jnp.where(label_N == 0, score_N, jnp.inf))
    chips = math.prod(mesh.shape[axis] for axis in BATCH)
    ring = [(n, (n + 1) % chips) for n in range(chips)]

    def add(_: Any, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        count_N, others_N = carry
        for side in ("left", "right"):
            count_N += jnp.searchsorted(others_N, score_N, side=side, method="sort").astype(jnp.int32)
        return count_N, jax.lax.ppermute(others_N, BATCH, ring)

    count_N, _ = jax.lax.fori_loop(0, chips, add, (jnp.zeros(score_N.shape, jnp.int32), negative_N))
    count_N = jnp.where(label_N == 1, count_N, 0)
    count_GN = jnp.pad(count_N, (0, -len(count_N) % _GROUP)).reshape(-1, _GROUP)
    return PairCounts(
        low_G=jnp.sum(count_GN & 0xFFFF, axis=1),
        high_G=jnp.sum(count_GN >> 16, axis=1),
        positives=jax.lax.psum(jnp.sum(label_N == 1), BATCH),
        negatives=jax.lax.psum(jnp.sum(label_N == 0), BATCH),
    )
