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
    means = [math.fsum(finite[left:right]) / (right - left) for left, right in pairwise(edges)]
    low, high = min(means), max(means)
    if low == high:
        return _BLOCKS[len(_BLOCKS) // 2] * columns
    top = len(_BLOCKS) - 1
    # Halves first: the span of two huge values of opposite sign is more than a float holds.
    return "".join(_BLOCKS[round((mean / 2 - low / 2) / (high / 2 - low / 2) * top)] for mean in means)
