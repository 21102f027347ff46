"""Failure rates: a gamma prior and its update."""

from __future__ import annotations

import pytest

from xpk_shared.goodput.failures import FailureRate


def test_many_observations_outweigh_the_prior() -> None:
    rate = FailureRate.prior(50_000.0).updated(200, 200 * 1000.0)
    low, high = rate.mtbf_interval()
    assert rate.mtbf_chip_hours == pytest.approx(1000.0, rel=0.25)
    assert low < rate.mtbf_chip_hours < high < 1.5 * rate.mtbf_chip_hours


def test_a_run_without_failures_raises_the_mtbf() -> None:
    prior = FailureRate.prior(1000.0)
    assert prior.updated(0, 500.0).mtbf_chip_hours == 1500.0
    assert prior.updated(1, 0.0).mtbf_chip_hours == 500.0


def test_the_interval_has_its_probability() -> None:
    """Quantiles of the exponential distribution, and of the chi-squared distribution with 20 degrees of freedom."""
    low, high = FailureRate(failures=1, chip_hours=1.0).mtbf_interval()
    assert [1 / high, 1 / low] == pytest.approx([0.05129, 2.99573], rel=1e-3)
    low, high = FailureRate(failures=10, chip_hours=2.0).mtbf_interval()
    assert [4 / high, 4 / low] == pytest.approx([10.851, 31.410], rel=1e-3)


def test_a_job_fails_in_proportion_to_its_chips() -> None:
    assert FailureRate.prior(3600.0).per_second(7200) == pytest.approx(2 / 3600)
