"""Progress of elastic slices, in closed form: a lost slice restarts alone while the others continue.

The batch has one share for each slice. If slices are missing, some of the others compute several shares one after
another, so a step takes as many times as long as the largest number of shares. No finished step is lost.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """One kind of loss of a slice."""

    per_second: float  # of all slices together
    seconds: float  # until the slice takes part again
    loses_machine: bool = False  # a spare replaces the slice until the machine is repaired


@dataclass(frozen=True, slots=True, kw_only=True)
class ElasticJob:
    """Elastic slices and their losses."""

    num_slices: int
    min_slices: int
    outages: tuple[Outage, ...]
    repair: float  # seconds of a repair of a machine
    spares: int  # slices that replace those with a machine under repair
    stall: float  # seconds without progress when a slice leaves, and again when it joins
    save: float  # seconds that steps wait for a save
    overhead: float  # share of a step

    def speed(self, missing: int) -> float:
        """Return the progress with so many missing slices, relative to all of them."""
        active = self.num_slices - missing
        return 1 / math.ceil(self.num_slices / active) if active >= max(1, self.min_slices) else 0.0

    def busy_share(self, every_seconds: float) -> float:
        """Return the share of time in steps at full speed while all slices are active, with saves this far apart."""
        return (1 - self.overhead) * every_seconds / (every_seconds + self.save)

    def goodput(self, every_seconds: float) -> float:
        """Return the progress relative to a run without failures, saves and overhead.

        Each slice alternates between taking part and an outage, independently, so the number of outages is binomial;
        lost machines under repair are Poisson distributed, as in a queue with any number of servers (Palm's theorem).
        """
        lost_seconds = sum(outage.per_second * outage.seconds for outage in self.outages) / self.num_slices
        away = binomial(self.num_slices, lost_seconds / (1 + lost_seconds))
        lost_machines = sum(outage.per_second for outage in self.outages if outage.loses_machine) * self.repair
        repairs = poisson(lost_machines, self.spares + self.num_slices)
        short = [sum(repairs[: self.spares + 1]), *repairs[self.spares + 1 :]]
        speed = sum(
            p * q * self.speed(min(self.num_slices, missing + lacking))
            for missing, p in _likely(away)
            for lacking, q in _likely(short)
        )
        stalls = 2 * self.stall * sum(outage.per_second for outage in self.outages) / (1 + lost_seconds)
        return self.busy_share(every_seconds) * max(0.0, speed - min(1.0, stalls) * speed)


def _likely(probabilities: Sequence[float]) -> list[tuple[int, float]]:
    """Return the numbers whose probability matters, with it."""
    return [(number, probability) for number, probability in enumerate(probabilities) if probability > 1e-9]


def poisson(mean: float, largest: int) -> list[float]:
    """Return the probabilities of 0, 1, ..., `largest`."""
    if mean <= 0:
        return [1.0, *[0.0] * largest]
    return [math.exp(k * math.log(mean) - mean - math.lgamma(k + 1)) for k in range(largest + 1)]


def binomial(trials: int, probability: float) -> Sequence[float]:
    """Return the probabilities of 0, 1, ..., `trials` successes."""
    if probability <= 0:
        return [1.0, *[0.0] * trials]
    logarithms = math.log(probability), math.log1p(-probability)
    return [
        math.exp(
            math.lgamma(trials + 1) - math.lgamma(k + 1) - math.lgamma(trials - k + 1)
            + k * logarithms[0] + (trials - k) * logarithms[1]
        )
        for k in range(trials + 1)
    ]  # fmt: skip
