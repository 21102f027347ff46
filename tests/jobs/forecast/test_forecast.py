"""Forecasts of jobs: which handling of failures is best, spares, costs, and the assumptions' sources."""

from __future__ import annotations

import pytest

from tests.jobs.forecast.jobs import job
from xpk.jobs.forecast.forecast import Price, best_handling, forecast_goodput
from xpk_shared.goodput.failures import FailureRate

PRICE = Price(dollars=2.0, source="test")


def test_all_ways_are_compared_and_the_best_comes_first() -> None:
    forecast = forecast_goodput(job(), PRICE)
    assert {one.handling for one in forecast.handlings} == {"new pods", "in place", "elastic"}
    assert forecast.best == forecast.handlings[0].handling == best_handling(job())[0]
    assert forecast.goodput_low < forecast.handlings[0].goodput < forecast.goodput_high
    assert not forecast.notes


def test_a_run_chooses_the_planned_intervals_within_its_bounds() -> None:
    for one in forecast_goodput(job()).handlings:
        assert one.auto_every == pytest.approx(min(one.every, 360), rel=0.05)
        assert bool(one.auto_local_every) == bool(one.local_every)


def test_a_restart_in_place_is_never_worse_than_new_pods() -> None:
    goodput = {one.handling: one.goodput for one in forecast_goodput(job()).handlings}
    assert goodput["in place"] >= goodput["new pods"]


@pytest.mark.parametrize("hosts", [64, 1])
def test_a_lost_machine_costs_only_its_slice_new_pods(hosts: int) -> None:
    slow = {"restart_slice": (10.0, "test"), "restart_pods": (1000.0, "test"), "process_share": (0.0, "test")}
    made = job(num_slices=8, hosts_per_slice=hosts, values=slow)
    goodput = {one.handling: one.goodput for one in forecast_goodput(made).handlings}
    assert goodput["in place"] > goodput["new pods"] + 0.01


def test_elastic_slices_win_at_scale_and_not_for_two_slices() -> None:
    assert forecast_goodput(job(num_slices=199)).best == "elastic"
    assert forecast_goodput(job(num_slices=2)).best == "in place"


def test_one_slice_is_not_elastic_and_loses_its_local_tier_with_a_machine() -> None:
    forecast = forecast_goodput(job(num_slices=1))
    assert [one.handling for one in forecast.handlings] == ["in place", "new pods"]
    assert next(one.value for one in forecast.assumptions if one.name == "local_share") == 0.0


def test_cheap_local_saves_are_used() -> None:
    values = {"local_save": (0.01, "option"), "local_commit": (1.0, "option"), "local_restore": (1.0, "option")}
    best = next(one for one in forecast_goodput(job(values=values)).handlings if one.handling == "in place")
    assert 0 < best.local_every < best.every and best.every % best.local_every == 0


def test_frequent_failures_and_long_repairs_need_spares() -> None:
    values = {"repair": (6 * 3600.0, "option")}
    rare, frequent = (
        forecast_goodput(job(values=values, rate=FailureRate.prior(mtbf))).handlings[-1].spares for mtbf in (1e7, 2e4)
    )
    assert rare == 0 < frequent


def test_the_cost_is_that_of_all_slices_and_spares() -> None:
    for one in forecast_goodput(job(), PRICE).handlings:
        assert one.dollars_per_day == pytest.approx(24 * 2.0 * 256 * (16 + one.spares))
        used = 24 * 2.0 * 256 * 16 * one.goodput
        assert one.dollars_lost_per_day == pytest.approx((one.dollars_per_day or 0) - used, rel=1e-3)
    assert forecast_goodput(job()).handlings[0].dollars_per_day is None


def test_every_assumption_has_a_source_and_given_ones_say_so() -> None:
    forecast = forecast_goodput(job(values={"repair": (60.0, "option")}))
    assert all(one.source for one in forecast.assumptions)
    assert [one.name for one in forecast.assumptions if one.source == "option"] == ["repair"]


def test_the_same_seed_gives_the_same_forecast() -> None:
    assert forecast_goodput(job(), seed=3) == forecast_goodput(job(), seed=3)


def test_fewer_failures_give_more_progress_for_each_slice() -> None:
    """Goodput alone may fall, when a spare is no longer worth its cost."""
    plans = [best_handling(job(rate=FailureRate.prior(mtbf))) for mtbf in (1e4, 3e4, 1e5, 1e6)]
    progress = [goodput / (16 + spares) for _, goodput, _, spares in plans]
    assert progress == sorted(progress)
