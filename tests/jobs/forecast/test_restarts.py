"""Goodput of jobs that restart as a whole: the closed form against Daly's, Young's and a simulation."""

from __future__ import annotations

import functools
import math

import pytest

from tests.jobs.forecast.jobs import restarts
from xpk.jobs.forecast.forecast import TOLERANCE
from xpk.jobs.forecast.simulation import Pattern, restart_run, simulate
from xpk_shared.goodput.restarts import Failures, Restarts, Tier, best_intervals

MTBFS = (1800.0, 7200.0, 86400.0, 1e7)


def one_tier(mtbf: float, recovery: float, save: float) -> Restarts:
    kind = Failures(per_second=1 / mtbf, recovery_seconds=recovery, local_survives=False)
    return Restarts(failures=(kind,), persistent=Tier(save=save, commit=0.0))


@pytest.mark.parametrize("mtbf", MTBFS)
def test_one_tier_is_dalys_complete_model(mtbf: float) -> None:
    """Daly 2006, equation 20: M e^(R/M) (e^((w + d)/M) - 1) / w, the wall time for each second of work."""
    recovery, save, work = 120.0, 10.0, 500.0
    wall = mtbf * math.exp(recovery / mtbf) * math.expm1((work + save) / mtbf) / work
    assert one_tier(mtbf, recovery, save).goodput(work, 1) == pytest.approx(1 / wall, rel=1e-9)


@pytest.mark.parametrize("mtbf", MTBFS[1:])
def test_the_best_interval_of_one_tier_is_dalys(mtbf: float) -> None:
    """Daly 2006, equation 37; Young's sqrt(2 d M) is its first term."""
    save = 10.0
    ratio = save / (2 * mtbf)
    daly = math.sqrt(2 * save * mtbf) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - save
    best = best_intervals(one_tier(mtbf, 60.0, save), 1.0)
    assert best.every == pytest.approx(daly, rel=0.05) and best.local_every == 0


def test_the_overhead_of_two_tiers_is_the_first_order_sum_for_rare_failures() -> None:
    """Benoit et al. 2017: the sum over tiers of sqrt(2 rate save), and the recoveries."""
    job = restarts(1e7, 0.001, commit=0.0)
    soft, hard = 0.9e-7, 0.1e-7
    overhead = math.sqrt(2 * soft * 1.0) + math.sqrt(2 * hard * 5.0)
    assert 1 - best_intervals(job, 1.0).goodput == pytest.approx(overhead, rel=0.05)


@pytest.mark.parametrize("has_local", [True, False])
@pytest.mark.parametrize("recovery", [5.0, 100.0, 400.0])
@pytest.mark.parametrize("mtbf", MTBFS)
def test_the_simulation_agrees_with_the_closed_form(mtbf: float, recovery: float, has_local: bool) -> None:
    job = restarts(mtbf, recovery, has_local=has_local)
    best = best_intervals(job, 5.0)
    steps = best.local_every or best.every
    pattern = Pattern(segment=steps * 5.0, segments=best.every // steps)
    result = simulate(functools.partial(restart_run, job, pattern), failures=6000, seed=1)
    assert result.low - TOLERANCE <= best.goodput <= result.high + TOLERANCE


def test_no_other_intervals_are_better() -> None:
    job = restarts(7200.0, 60.0)
    best = best_intervals(job, 5.0)
    others = [job.goodput(steps * 5.0, segments) for steps in range(2, 60) for segments in range(1, 40)
              if steps * segments * 5 >= job.persistent.commit]  # fmt: skip
    assert best.goodput == pytest.approx(max(others), abs=2e-5)


def test_saves_never_begin_before_the_commit_of_the_preceding_one() -> None:
    best = best_intervals(restarts(1800.0, 60.0, save=0.01, commit=900.0), 5.0)
    assert best.every * 5.0 >= 900.0 and best.local_every * 5.0 >= 10.0


def test_failures_that_are_too_frequent_leave_nothing() -> None:
    assert restarts(1.0, 600.0).goodput(60.0, 3) == 0.0
    assert restarts(60.0, 1.0).goodput(60.0, 10_000) == 0.0
    assert 0 <= restarts(60.0, 6000.0).goodput(60.0, 1) < 1e-9


def test_a_job_waits_for_repairs_without_spares() -> None:
    job, pattern = restarts(7200.0, 60.0), Pattern(segment=300.0, segments=5)
    few, many = (
        simulate(functools.partial(restart_run, job, pattern, repair=3600.0, spares=spares), failures=4000)
        for spares in (0, 5)
    )
    available = math.exp(-0.8 / 7200 * 3600)  # no machine is under repair
    assert few.goodput == pytest.approx(many.goodput * available, abs=0.02)
