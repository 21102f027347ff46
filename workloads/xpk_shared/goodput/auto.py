"""Checkpoint intervals that a run chooses from its own measurements (`checkpoint.every=auto`), within bounds.

The trainer, `xpk plan goodput` and the benchmark share this code.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from xpk_shared.goodput.restarts import Failures, Restarts, Tier, best_intervals

ELASTIC_SECONDS = 3600.0  # at most between checkpoints of elastic slices, which only the loss of all slices needs
MAX_SECONDS = 3600.0  # between two checkpoints
MAX_SHARE = 0.2  # of the time, in which steps wait for saves
_CHANGE = 0.1  # relative change of an interval, below which it is kept


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Measurements that the best intervals depend on. A tier of which no save is known has no interval yet."""

    step_seconds: float
    persistent: Tier | None
    local: Tier | None  # None also without a local tier
    failures_per_second: float  # of elastic slices: losses of all slices; 0 if there was none
    local_share: float = 0.0  # share of failures that the local tier survives
    recovery_seconds: float = 60.0
    is_elastic: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Limits of the intervals. `every`, `local_every`: steps that are given; None: choose them; 0: no local tier."""

    every: int | None = None
    local_every: int | None = 0
    max_seconds: float = MAX_SECONDS
    max_share: float = MAX_SHARE

    def clamp(self, steps: int, step_seconds: float, tier: Tier) -> int:
        """Return the steps within the bounds; that of the share has precedence, and that of the commit."""
        most = max(1, math.floor(self.max_seconds / step_seconds))
        of_share = tier.save * (1 - self.max_share) / self.max_share
        return max(min(steps, most), math.ceil(max(of_share, tier.commit) / step_seconds), 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoIntervals:
    """Chosen intervals in steps; None: not chosen, because they are given or cannot be known yet."""

    every: int | None
    local_every: int | None


def choose_intervals(measured: Measured, bounds: Bounds) -> AutoIntervals:
    """Return the best intervals within the bounds, of the tiers whose interval is not given and whose cost is known.

    Those of `best_intervals`, without a local tier until its cost is known. Elastic slices save every hour, as in
    `xpk plan goodput`, and more often once all of them were lost.
    """
    seconds, persistent, local = measured.step_seconds, measured.persistent, measured.local
    if measured.is_elastic:
        bounds = replace(bounds, max_seconds=min(bounds.max_seconds, ELASTIC_SECONDS))
    if measured.is_elastic and not measured.failures_per_second:
        hour, tier = max(1, round(ELASTIC_SECONDS / seconds)), persistent or Tier(save=0.0, commit=0.0)
        every = bounds.clamp(hour, seconds, tier) if bounds.every is None else None
        return AutoIntervals(every=every, local_every=None)
    if persistent is None:
        return AutoIntervals(every=None, local_every=None)
    best = best_intervals(
        restarts_of(measured), seconds, every=bounds.every or 0, local_every=(bounds.local_every or 0) if local else 0
    )
    return AutoIntervals(
        every=bounds.clamp(best.every, seconds, persistent) if bounds.every is None else None,
        local_every=bounds.clamp(best.local_every, seconds, local) if local and bounds.local_every is None else None,
    )


def restarts_of(measured: Measured) -> Restarts:
    """Return the failures and tiers of a run. Raises ValueError if the cost of a checkpoint is unknown."""
    if measured.persistent is None:
        raise ValueError("the cost of a checkpoint is unknown")
    rate, share = measured.failures_per_second, measured.local_share if measured.local else 0.0
    kinds = (
        Failures(per_second=share * rate, recovery_seconds=measured.recovery_seconds, local_survives=True),
        Failures(per_second=(1 - share) * rate, recovery_seconds=measured.recovery_seconds, local_survives=False),
    )
    return Restarts(
        failures=tuple(kind for kind in kinds if kind.per_second > 0),
        persistent=measured.persistent,
        local=measured.local,
    )


def is_changed(former: int, steps: int) -> bool:
    """Return whether an interval differs enough from the former one to replace it."""
    return abs(steps - former) > _CHANGE * former
