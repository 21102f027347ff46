"""Goodput of a job that restarts as a whole, in closed form, with checkpoints in two tiers.

A *pattern* is `segments` pieces of work; a local checkpoint follows each, and a persistent one the last. Failures are a
Poisson process. One tier is the model of Daly (A higher order estimate of the optimum checkpoint interval for restart
dumps, FGCS 22, 2006), which Young's interval approximates; two tiers are the patterns of Benoit et al. (Towards
optimal multi-level checkpointing, IEEE Transactions on Computers 66, 2017). Expected times here are exact, also for
failures during a recovery. Only commits in the background are approximated: a failure before a commit repeats work of
the duration of the commit.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

_HOPELESS = 200.0  # failures expected during one recovery or pattern, from which no progress is made


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """One kind of failures. The persistent tier is needed if the local one does not survive them."""

    per_second: float
    recovery_seconds: float
    local_survives: bool
    loses_machine: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """Costs of a save: seconds that steps wait, and seconds until its commit, while steps continue."""

    save: float
    commit: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Restarts:
    """Failures, the least severe first, and tiers of a job. A recovery that fails again is the more severe one."""

    failures: tuple[Failures, ...]
    persistent: Tier
    local: Tier | None = None

    @property
    def rate(self) -> float:
        """Failures per second of all kinds."""
        return sum(kind.per_second for kind in self.failures)

    def recoveries(self) -> tuple[float, float]:
        """Return (mean seconds of a recovery, share of recoveries that read the persistent tier).

        Recoveries end after their duration without a failure: (e^(rate x duration) - 1) / rate seconds if all kinds
        are alike.
        """
        rate = self.rate
        seconds: list[float] = []
        persistent: list[float] = []
        rates = [kind.per_second for kind in self.failures]
        for index in reversed(range(len(rates))):
            kind = self.failures[index]
            if rate * kind.recovery_seconds > _HOPELESS:
                return math.inf, 1.0
            again = -math.expm1(-rate * kind.recovery_seconds)
            severer = list(zip(rates[index + 1 :], seconds, persistent, strict=True))
            left = math.exp(-rate * kind.recovery_seconds) + again * sum(rates[index + 1 :]) / rate
            mean = (again / rate + again * sum(other * s for other, s, _ in severer) / rate) / left
            share = 1.0 if not kind.local_survives else again * sum(other * p for other, _, p in severer) / rate / left
            seconds.insert(0, mean)
            persistent.insert(0, share)
        return (
            sum(r * s for r, s in zip(rates, seconds, strict=True)) / rate,
            sum(r * p for r, p in zip(rates, persistent, strict=True)) / rate,
        )

    def goodput(self, segment: float, segments: int) -> float:
        """Return the share of wall time in steps that count, for segments of this many seconds of steps.

        The expected time V of a pattern, without recoveries, solves V(i) = A + B V(i+1) + (1 - B) V(1) over its
        segments: B is the probability that a segment is finished before a failure that needs the persistent tier, and
        A the time spent until one of the two.
        """
        rate, (recovery, share) = self.rate, self.recoveries()
        local = self.local or Tier(save=0.0, commit=0.0)
        each, last = segment + local.save, segment + local.save + self.persistent.save
        if math.isinf(recovery) or rate * (segments * each + self.persistent.save) > _HOPELESS:
            return 0.0
        tries, ends = _segment(rate, each, share), _segment(rate, last, share)
        before = (segments - 1) * tries.log_finished
        if before + ends.log_finished < -_HOPELESS:
            return 0.0
        lost = -math.expm1(tries.log_finished)
        begun = -math.expm1(before) / lost if lost > 1e-15 else segments - 1
        pattern = (tries.seconds * begun / math.exp(before) + ends.seconds) / math.exp(ends.log_finished)
        repeated = (1 - share) * math.expm1(-rate * local.commit) + share * math.expm1(-rate * self.persistent.commit)
        return segments * segment / pattern * (1 + repeated) / (1 + rate * recovery)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Segment:
    """Tries of a segment until it is finished or the persistent tier is needed: see `Restarts.goodput`."""

    seconds: float  # A: expected time of the tries, without recoveries
    log_finished: float  # logarithm of B, the probability that it is finished


def _segment(rate: float, seconds: float, share: float) -> _Segment:
    failing = -math.expm1(-rate * seconds)
    ended = math.exp(-rate * seconds) + failing * share  # in one try
    return _Segment(seconds=failing / rate / ended, log_finished=-rate * seconds - math.log(ended))


@dataclass(frozen=True, slots=True, kw_only=True)
class Intervals:
    """Intervals of checkpoints in steps; `local_every` is 0 without a local tier."""

    every: int
    local_every: int
    goodput: float


def best_intervals(job: Restarts, step_seconds: float, *, every: int = 0, local_every: int = 0) -> Intervals:
    """Return the intervals with the highest goodput: whole steps, and no save before the preceding commit.

    `every`, `local_every`: steps of an interval that is given, with two tiers; 0: choose it.

    The search begins at the first-order optimum of each tier, sqrt(2 save / rate of the failures that need it) (Young
    1974; Benoit et al. 2017), and evaluates the exact goodput around it.
    """
    share = job.recoveries()[1]
    local = job.local
    least = max(1, math.ceil((local.commit if local else job.persistent.commit) / step_seconds))
    save = local.save if local else job.persistent.save
    steps = max(least, _first_order(save, job.rate * ((1 - share) if local else 1.0)) / step_seconds)
    per_pattern = 1.0
    if local:
        persistent = max(_first_order(job.persistent.save, job.rate * share), job.persistent.commit)
        per_pattern = max(1.0, math.ceil(persistent / step_seconds / steps))
    best = Intervals(every=least, local_every=0, goodput=-1.0)
    for ratio in (1.6, 1.1, 1.02):
        numbers = (local_every,) if local_every else _around(steps, ratio, least)
        patterns = _around(per_pattern, ratio, 1) if local else (1,)
        for number, segments in itertools.product(numbers, patterns):
            segments = max(1, round(every / number)) if every else segments
            if not every and number * segments * step_seconds < job.persistent.commit * (1 - 1e-9):
                continue
            goodput = job.goodput(number * step_seconds, segments)
            if goodput > best.goodput:
                best = Intervals(every=number * segments, local_every=number if local else 0, goodput=goodput)
                steps, per_pattern = number, segments
    return best


def _first_order(save: float, rate: float) -> float:
    return math.sqrt(2 * save / rate) if rate > 0 and save > 0 else 0.0


def _around(value: float, ratio: float, least: int) -> tuple[int, ...]:
    """Return the distinct whole numbers around a value, up to eight steps of `ratio` to each side."""
    return tuple(sorted(set(_powers(max(value, least), ratio, least))))


def _powers(value: float, ratio: float, least: int) -> Iterator[int]:
    for power in range(-8, 9):
        yield max(least, round(min(value * ratio**power, 1e12)))
