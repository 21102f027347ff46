"""Percentiles of measurements by nearest rank, so that each is a measured value."""

import math
from collections.abc import Iterable


def percentile(values: Iterable[float], percent: float) -> float:
    """Return the percentile; 0 without values."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)] if ordered else 0.0


def percentiles(values: Iterable[float]) -> dict[str, float]:
    """Return p50, p90, p99 and max, rounded to four digits; empty without values."""
    ordered = sorted(values)
    return {name: round(percentile(ordered, percent), 4) for name, percent in _PERCENTS.items()} if ordered else {}


_PERCENTS = {"p50": 50, "p90": 90, "p99": 99, "max": 100}
