"""A curve in one line of text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

_BLOCKS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], width: int = 40) -> str:
    """Draw values as at most `width` blocks, each the mean of its share; what is not finite is left out."""
    finite = [value for value in values if math.isfinite(value)]
    columns = min(width, len(finite))
    if columns < 1:
        return ""
    edges = [index * len(finite) // columns for index in range(columns + 1)]
    # Half of each mean: the sum and the span of huge values are more than a float holds.
    halves = [math.fsum(value / 2 / (right - left) for value in finite[left:right]) for left, right in pairwise(edges)]
    low, high = min(halves), max(halves)
    if low == high:
        return _BLOCKS[len(_BLOCKS) // 2] * columns
    top = len(_BLOCKS) - 1
    return "".join(_BLOCKS[round((half - low) / (high - low) * top)] for half in halves)
