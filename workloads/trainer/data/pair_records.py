"""Records of pairs of sentences: of one pair each or, packed, of as many neighbors of a file as fit.

A record has the sentences in its first half, and their translations in the same order in its second half. Each ends
with END, so that the numbers themselves say where a pair begins (models/pairs.py).
"""

import itertools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from trainer.data.records import END, FIRST_TOKEN, Record
from trainer.errors import FatalError, Problem

Longs = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.generic]


def plan(ends: Sequence[int], example: Record, held_out: int = 0) -> Longs:
    """Return the ranges [N, 2] of a file's pairs that form records; `ends` are those of its sentences, in tokens.

    The last `held_out` pairs are records of their own, because they are translated one by one.
    """
    pairs = len(ends) // 2
    if not example.packed:
        return _one_each(0, pairs)
    trained = pairs - held_out
    packed = _pack(ends[: 2 * trained], example.length // 2)
    return np.concatenate([packed, _one_each(trained, pairs)])


def _one_each(first: int, end: int) -> Longs:
    number_N = np.arange(first, end, dtype=np.int64)
    return np.stack([number_N, number_N + 1], axis=1)


def _pack(ends: Sequence[int], room: int) -> Longs:
    """Return ranges of neighboring pairs whose sentences have at most `room` tokens, and their translations too."""
    sizes_D = np.diff(np.asarray(ends, np.int64), prepend=0)
    sums = np.cumsum(sizes_D[::2]), np.cumsum(sizes_D[1::2])  # tokens up to the end of each pair, by language
    ranges, first, pairs = [], 0, len(sums[0])
    while first < pairs:
        before = [int(sum_P[first - 1]) if first else 0 for sum_P in sums]
        end = min(int(np.searchsorted(sum_P, was + room, "right")) for sum_P, was in zip(sums, before, strict=True))
        ranges.append((first, max(end, first + 1)))
        first = ranges[-1][1]
    return np.array(ranges, np.int64).reshape(-1, 2)


class PairRecords:
    """The records of a file of pairs."""

    def __init__(self, name: str, longest: int, ends: Sequence[int], example: Record, held_out: int) -> None:
        """Plan the records of the file `name`, whose sentences should have `longest` tokens at most."""
        self._name, self._longest = name, longest
        self._pairs_N2 = plan(ends, example, held_out)
        self._bounds_D = np.array([0, *ends], np.int64)

    @property
    def tokens(self) -> Longs:
        """The ranges [N, 2] of the file's tokens that form records."""
        return self._bounds_D[2 * self._pairs_N2]

    def write(self, number: int, tokens: Numbers, row_S: Numbers) -> None:
        """Write record `number`, of these tokens, into zeros. Raises FatalError for a sentence of an invalid length."""
        first, end = self._pairs_N2[number].tolist()
        bounds = (self._bounds_D[2 * first : 2 * end + 1] - self._bounds_D[2 * first]).tolist()
        rest = np.split(row_S, 2)  # of each half
        for nth, (start, stop) in enumerate(itertools.pairwise(bounds)):
            size = stop - start
            if not 0 < size <= self._longest:
                allowed = f"not 1 to {self._longest:,}"
                message = f"pair {first + nth // 2:,} of {self._name!r} has a sentence of {size:,} tokens, {allowed}"
                raise FatalError(Problem(message, "Prepare the data again"))
            half = rest[nth % 2]
            half[:size] = tokens[start:stop].astype(row_S.dtype) + FIRST_TOKEN
            half[size - 1] = END
            rest[nth % 2] = half[size:]
