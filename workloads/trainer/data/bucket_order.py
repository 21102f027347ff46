"""Record order of batches of pairs: every batch takes pairs of similar length, from one bucket.

Like sampler.py, a pure function of (seed, step): all hosts, slices and restarts take the same bucket in the same step,
whatever their number. Each bucket has epochs of its own, in which each of its records appears exactly once.
"""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trainer.data.sampler import Order, permute


class Bucket(NamedTuple):
    """Records of similar length, neighbors in the numbering."""

    length: int  # that its batches are padded to
    first: int  # record
    records: int


@dataclasses.dataclass(frozen=True)
class BucketOrder:
    """The order of records in buckets.

    In a cycle, every bucket has as many turns as it has batches, rounded; the turns of each cycle are permuted.
    """

    seed: int
    batch: int  # records of a step
    records: int  # to train on, numbered from 0
    shards: int  # each bucket is divided into as many parts, and a batch takes the same number of records from each
    shuffle: str  # "records" or "none"
    files: tuple[int, ...]  # number of records in each part of the data set
    buckets: tuple[Bucket, ...]

    def ranges_of(self, shard: int) -> list[range]:
        """Return the records of a shard, bucket by bucket."""
        parts = [(bucket.first, self._order(nth).range_of(shard)) for nth, bucket in enumerate(self.buckets)]
        return [range(first + part.start, first + part.stop) for first, part in parts]

    def ids(self, step: int) -> npt.NDArray[np.int64]:
        """Return the records [batch] of `step` (from 0)."""
        nth, batch = self._turn(step)
        return self.buckets[nth].first + self._order(nth).ids(batch)

    def length(self, step: int) -> int:
        """Return the length that the batch of `step` (from 0) is padded to."""
        return self.buckets[self._turn(step)[0]].length

    def _turn(self, step: int) -> tuple[int, int]:
        """Return the bucket of a step, and the number of its batches before."""
        counts = [max(1, round(bucket.records / self.batch)) for bucket in self.buckets]
        cycle, turn = divmod(step, sum(counts))
        if self.shuffle == "records":
            turn = permute(turn, self.seed, cycle, sum(counts))
        ends = np.cumsum(counts)
        nth = int(np.searchsorted(ends, turn, side="right"))
        return nth, cycle * counts[nth] + turn - int(ends[nth] - counts[nth])

    def _order(self, nth: int) -> Order:
        """Return the order of a bucket's own records."""
        return Order(self.seed + (nth + 1 << 32), self.batch, self.buckets[nth].records, self.shards, self.shuffle)


def buckets(longest: Sequence[int], counts: Sequence[int], lengths: Sequence[int], batch: int) -> tuple[Bucket, ...]:
    """Return the buckets of files of pairs, of which each has `longest` tokens at most and `counts` records.

    Neighboring files whose batches have the same one of the increasing `lengths` form a bucket. One with less than a
    batch is merged into the next.
    """
    merged: list[Bucket] = []
    first = 0
    for most, count in zip(longest, counts, strict=True):
        if count:
            length = next(length for length in lengths if most <= length)
            last = merged[-1] if merged else None
            if last and (last.length == length or last.records < batch):
                merged[-1] = Bucket(max(last.length, length), last.first, last.records + count)
            else:
                merged.append(Bucket(length, first, count))
        first += count
    if len(merged) > 1 and merged[-1].records < batch:
        last = merged.pop()
        merged[-1] = Bucket(max(merged[-1].length, last.length), merged[-1].first, merged[-1].records + last.records)
    return tuple(merged)
