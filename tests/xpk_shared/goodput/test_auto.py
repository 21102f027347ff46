"""Checkpoint intervals that a run chooses: the best ones within bounds."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xpk_shared.goodput.auto import AutoIntervals, Bounds, Measured, choose_intervals, is_changed
from xpk_shared.goodput.failures import adaptive_mtbf
from xpk_shared.goodput.restarts import Failures, Restarts, Tier, best_intervals

SECONDS = st.floats(1e-3, 1e3)


def measured(**changes: object) -> Measured:
    tiers = {"persistent": Tier(save=5.0, commit=60.0), "local": None}
    fields = {"step_seconds": 10.0, "failures_per_second": 1 / 7200, "local_share": 0.9} | tiers
    return Measured(**(fields | changes))  # type: ignore[arg-type]


LOCAL = Tier(save=0.5, commit=5.0)


def test_one_tier_gets_the_best_interval_of_the_closed_form() -> None:
    job = Restarts(
        failures=(Failures(per_second=1 / 7200, recovery_seconds=60.0, local_survives=False),),
        persistent=Tier(save=5.0, commit=60.0),
    )
    best = best_intervals(job, 10.0)
    assert choose_intervals(measured(), Bounds()) == AutoIntervals(every=best.every, local_every=None)


def test_a_second_tier_makes_the_first_one_rarer() -> None:
    alone = choose_intervals(measured(), Bounds()).every
    both = choose_intervals(measured(local=LOCAL), Bounds(local_every=None))
    assert alone and both.every and both.local_every
    assert both.local_every < alone < both.every


@pytest.mark.parametrize("given_steps", [1, 7, 100])
def test_a_given_interval_is_not_chosen_and_the_other_one_follows_it(given_steps: int) -> None:
    of_local = choose_intervals(measured(local=LOCAL), Bounds(local_every=given_steps))
    assert of_local.local_every is None and (of_local.every or 0) % given_steps == 0
    of_persistent = choose_intervals(measured(local=LOCAL), Bounds(every=given_steps, local_every=None))
    assert of_persistent.every is None and of_persistent.local_every


def test_nothing_is_chosen_before_the_cost_is_known() -> None:
    nothing = AutoIntervals(every=None, local_every=None)
    assert choose_intervals(measured(persistent=None, local=LOCAL), Bounds(local_every=None)) == nothing
    assert choose_intervals(measured(), Bounds(local_every=None)) == choose_intervals(measured(), Bounds())


def test_elastic_slices_that_were_never_all_lost_save_every_hour() -> None:
    never_lost = measured(is_elastic=True, persistent=None, failures_per_second=0.0)
    assert choose_intervals(never_lost, Bounds()).every == 360


def test_after_losses_of_all_elastic_slices_the_interval_is_the_best_one_but_an_hour_at_most() -> None:
    lost = choose_intervals(measured(is_elastic=True), Bounds())
    assert lost == choose_intervals(measured(), Bounds())
    rarely = measured(is_elastic=True, failures_per_second=1e-9)
    assert choose_intervals(rarely, Bounds(max_seconds=86400.0)).every == 360
    unknown = measured(is_elastic=True, persistent=None)
    assert choose_intervals(unknown, Bounds()).every is None, "the cost of a save has to be measured first"


@given(SECONDS, SECONDS, SECONDS, st.floats(1, 1e9), st.floats(60, 1e5), st.floats(0.01, 0.9))
def test_intervals_are_within_the_bounds(
    step: float, save: float, commit: float, mtbf: float, max_seconds: float, max_share: float
) -> None:
    costs = measured(step_seconds=step, persistent=Tier(save=save, commit=commit), failures_per_second=1 / mtbf)
    every = choose_intervals(costs, Bounds(max_seconds=max_seconds, max_share=max_share)).every
    assert every is not None and every >= 1
    assert save / (save + every * step) <= max_share * (1 + 1e-9)
    assert every * step >= commit * (1 - 1e-9)
    least = max(save * (1 - max_share) / max_share, commit) + step
    assert every * step <= max(max_seconds, least, step) * (1 + 1e-9)


def test_an_interval_is_kept_if_it_hardly_changes() -> None:
    assert not is_changed(100, 109) and not is_changed(100, 91)
    assert is_changed(100, 111) and is_changed(0, 1)


@given(st.integers(0, 1000), st.floats(1e-3, 1e7), st.floats(1.0, 1e8))
def test_more_failures_shorten_and_a_longer_time_lengthens_the_mtbf(failures: int, hours: float, prior: float) -> None:
    mtbf = adaptive_mtbf(prior, failures, hours)
    assert 0 < adaptive_mtbf(prior, failures + 1, hours) <= mtbf * (1 + 1e-9)
    assert adaptive_mtbf(prior, failures, 2 * hours) >= mtbf * (1 - 1e-9)


@pytest.mark.parametrize("factor", [1e-6, 1e-3, 1.0, 1e3])
def test_a_few_failures_outweigh_a_prior_that_is_wrong_by_orders_of_magnitude(factor: float) -> None:
    prior = 50_000.0
    mtbf = adaptive_mtbf(prior, 10, 10 * factor * prior)
    assert math.log(mtbf / (factor * prior)) == pytest.approx(0, abs=0.15)


def test_the_prior_counts_until_the_run_has_begun() -> None:
    assert adaptive_mtbf(50_000.0, 0, 0.0) == 50_000.0
