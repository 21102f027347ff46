"""Failure rate of chips: a prior per chip-hour, updated by what a run has seen."""

from __future__ import annotations

import math
from dataclasses import dataclass

PRIOR_MTBF = 50_000.0  # chip-hours for each failure
PRIOR_SOURCE = (
    "419 unexpected interruptions of 16,384 GPUs in 54 days (Grattafiori et al., The Llama 3 Herd of Models, 2024, "
    "section 3.3.4); no figure for TPUs is public"
)
PROCESS_SHARE = 0.22  # of failures: interruptions of Llama 3 (section 3.3.4) that are not attributed to hardware
LOCAL_SHARE = 0.9  # assumed share of lost machines after which the local tier is complete
_ITERATIONS = 200
_LOWEST, _HIGHEST, _POINTS = -15.0, 25.0, 401  # log rates relative to the prior's


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureRate:
    """Gamma distribution of a chip's failures per hour; its mean is `failures` / `chip_hours`.

    It is the conjugate prior of a Poisson process (Gelman et al., Bayesian Data Analysis, section 2.6).
    """

    failures: float
    chip_hours: float

    @classmethod
    def prior(cls, mtbf_chip_hours: float, weight: float = 1.0) -> FailureRate:
        """Return the prior of one failure every `mtbf_chip_hours`, worth as much as `weight` observed failures."""
        return cls(failures=weight, chip_hours=weight * mtbf_chip_hours)

    def updated(self, failures: int, chip_hours: float) -> FailureRate:
        """Return the posterior after so many failures in so many chip-hours."""
        return FailureRate(failures=self.failures + failures, chip_hours=self.chip_hours + chip_hours)

    @property
    def mtbf_chip_hours(self) -> float:
        """Chip-hours for each failure at the mean rate."""
        return self.chip_hours / self.failures

    def per_second(self, chips: int) -> float:
        """Return the mean number of failures of a job per second."""
        return chips / self.mtbf_chip_hours / 3600

    def mtbf_interval(self, probability: float = 0.9) -> tuple[float, float]:
        """Return the central interval of the chip-hours for each failure that has this probability."""
        tail = (1 - probability) / 2
        return self.chip_hours / self._quantile(1 - tail), self.chip_hours / self._quantile(tail)

    def _quantile(self, probability: float) -> float:
        """Return the quantile of the gamma distribution of this shape and of rate 1, by bisection."""
        low, high = 0.0, self.failures + 20 * math.sqrt(self.failures) + 20
        for _ in range(_ITERATIONS):
            middle = (low + high) / 2
            low, high = (middle, high) if _gamma_below(self.failures, middle) < probability else (low, middle)
        return (low + high) / 2


def adaptive_mtbf(prior_mtbf: float, failures: int, chip_hours: float) -> float:
    """Return the chip-hours for each failure, after so many failures in so many chip-hours.

    Unlike that of `FailureRate`, the prior may be wrong by orders of magnitude: log rates have a Laplace distribution
    around it, of scale 1, whose tails are so heavy that a few failures outweigh it. The result is of the mean rate of
    the posterior, for which an interval of checkpoints has the least expected cost (to first order, the cost is linear
    in the rate).
    """
    if not failures and not chip_hours:
        return prior_mtbf
    step = (_HIGHEST - _LOWEST) / (_POINTS - 1)
    logs = [_LOWEST + step * point for point in range(_POINTS)]
    weights = [failures * x - chip_hours / prior_mtbf * math.exp(x) - abs(x) for x in logs]
    largest = max(weights)
    masses = [math.exp(weight - largest) for weight in weights]
    rate = sum(math.exp(x) * mass for x, mass in zip(logs, masses, strict=True)) / sum(masses)
    return prior_mtbf / rate


def _gamma_below(shape: float, x: float) -> float:
    """Return the regularized lower incomplete gamma function, by its series (DLMF 8.7.1)."""
    if x <= 0:
        return 0.0
    term = total = 1.0 / shape
    number = shape
    while term > total * 1e-14:
        number += 1
        term *= x / number
        total += term
    return min(1.0, total * math.exp(shape * math.log(x) - x - math.lgamma(shape)))
