"""Packing of whole documents into examples of one length.

Documents keep their order, and a record takes as many as fit (next fit), so a record is a range of the file and needs
no copy. The rest of a record is padding. A document that is longer than a record is split; its last piece is followed
by other documents.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Longs = npt.NDArray[np.int64]


def plan(ends: Sequence[int], room: int, stride: int) -> Longs:
    """Return the ranges [N, 2] of a file's tokens that form records, of at most `room` tokens each.

    `ends` are the ends of its documents. Pieces of one document begin `stride` tokens apart: with a stride of `room` -
    1, a piece's last token is the first of the next, as a decoder needs it to predict each.
    """
    ends_D, ranges = np.asarray(ends, np.int64), []
    start, last = 0, int(ends_D[-1]) if len(ends_D) else 0
    while start < last:
        count = int(np.searchsorted(ends_D, start + room, side="right"))  # documents that end by there
        end = int(ends_D[count - 1]) if count else 0
        is_split = end <= start
        ranges.append((start, start + room if is_split else end))
        start = start + stride if is_split else end
    return np.array(ranges, np.int64).reshape(-1, 2)


def segments(ends: Longs, start: int, end: int) -> npt.NDArray[np.int32]:
    """Return the document of each token in a range, counted from 1."""
    first, last = np.searchsorted(ends, (start, end), side="right")
    inside = np.searchsorted(ends[first:last], np.arange(start, end), side="right")
    return (inside + 1).astype(np.int32)
