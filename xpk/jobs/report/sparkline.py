"""Sparklines: curves in one line of text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

_BLOCKS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], width: int = 40) -> str:
    """Return values as at most `width` block characters, each the mean of its share; non-finite values are omitted."""
    finite = [value for value in values if math.isfinite(value)]
    columns = min(width, len(finite))
    if columns < 1:
        return ""
    edges = [index * len(finite) // columns for index in range(columns + 1)]
    # Half of each mean: the sum and the span of huge values would overflow a float.
    halves = [math.fsum(value / 2 / (right - left) for value in finite[left:right]) for left, right in pairwise(edges)]
    low, high = min(halves), max(halves)
    if low == high:
        return _BLOCKS[len(_BLOCKS) // 2] * columns
    top = len(_BLOCKS) - 1
    return "".join(_BLOCKS[round((half - low) / (high - low) * top)] for half in halves)
