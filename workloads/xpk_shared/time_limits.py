"""Time limits from measured durations."""

from collections.abc import Collection

from xpk_shared.percentiles import percentile


def time_limit(seconds: Collection[float], *, start: float, floor: float, factor: float, enough: int = 1) -> float:
    """Return the limit of a wait, in seconds: `factor` times the 99th percentile of `seconds`, and at least `floor`.

    `start` applies until there are `enough` durations.
    """
    return max(floor, factor * percentile(seconds, 99)) if len(seconds) >= enough else start
