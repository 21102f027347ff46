"""Choices of slices: limits, the Pareto front, and answers that are monotone in budget and deadline."""

from __future__ import annotations

import dataclasses
import functools
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xpk.jobs.create.trainer_preflight import InProcessRunner
from xpk.jobs.forecast.forecast import Price
from xpk.jobs.search.candidates import Space, default_numbers, default_shapes, find_candidates
from xpk.jobs.search.choices import Choice, Goal, Market, commands_of, evaluate, pareto, select
from xpk.model.accelerators import SliceShape, find_shape
from xpk.model.errors import CapacityError, UsageError

START = datetime(2027, 1, 1, tzinfo=UTC)
PRICES = {"v5litepod": 1.2, "v5p": 4.2, "v6e": 2.7}


@functools.cache
def estimates() -> tuple[dict[str, Any], ...]:
    """Return the estimates of 64b on some slices."""
    shapes = [find_shape(name) for name in ("v5litepod-256", "v5p-256", "v6e-256")]
    space = Space(shapes=shapes, num_slices=(1, 4, 16, 64), max_chips=100_000)
    return tuple(find_candidates(InProcessRunner(), space, ["--config", "64b"])[1])


def markets(shape: SliceShape) -> list[Market]:
    return [Market(spot=False, price=Price(dollars=PRICES[shape.family], source="test"), mtbf_chip_hours=50_000.0)]


@functools.cache
def every(tokens: float) -> tuple[Choice, ...]:
    return tuple(evaluate(estimates(), markets, Goal(tokens=tokens, start=START)))


def answer(budget: float | None, days: float | None, rank_by: Any = "bound") -> list[Choice]:
    by = None if days is None else START + timedelta(days=days)
    try:
        return select(every(1e12), Goal(tokens=1e12, start=START, by=by, budget=budget, rank_by=rank_by))
    except CapacityError:
        return []


def fastest(choices: list[Choice]) -> float:
    return min((choice.days for choice in choices), default=float("inf"))


def cheapest(choices: list[Choice]) -> float:
    return min((choice.dollars for choice in choices), default=float("inf"))


BUDGETS = st.floats(1e4, 1e8)
DAYS = st.floats(0.01, 1000)


@given(first=BUDGETS, second=BUDGETS, days=DAYS)
def test_a_larger_budget_never_ends_later(first: float, second: float, days: float) -> None:
    low, high = sorted((first, second))
    assert fastest(answer(high, days)) <= fastest(answer(low, days))
    assert cheapest(answer(high, days)) <= cheapest(answer(low, days))


@given(first=DAYS, second=DAYS, budget=BUDGETS)
def test_a_later_deadline_never_costs_more(first: float, second: float, budget: float) -> None:
    early, late = sorted((first, second))
    assert cheapest(answer(budget, late)) <= cheapest(answer(budget, early))
    assert fastest(answer(budget, late)) <= fastest(answer(budget, early))


@given(budget=BUDGETS, days=DAYS, rank_by=st.sampled_from(["bound", "expected"]))
def test_choices_are_within_the_limits_and_none_beats_another(budget: float, days: float, rank_by: Any) -> None:
    choices = answer(budget, days, rank_by)
    pairs = [(one.days_by(rank_by), one.dollars_by(rank_by)) for one in choices]
    assert all(spent <= budget and lasted <= days for lasted, spent in pairs)
    assert pairs == sorted(pairs) and [spent for _, spent in pairs] == sorted((s for _, s in pairs), reverse=True)


@given(st.lists(st.tuples(st.floats(1, 10), st.floats(1, 10)), min_size=1, max_size=20))
def test_the_front_has_a_choice_as_good_as_any(points: list[tuple[float, float]]) -> None:
    all_choices = [dataclasses.replace(every(1e12)[0], days=days, dollars=dollars) for days, dollars in points]
    front = pareto(all_choices, "bound")
    for days, dollars in points:
        assert any(one.days <= days and one.dollars <= dollars for one in front)


def test_twice_the_tokens_take_twice_the_time_and_money() -> None:
    for once, twice in zip(every(1e12), every(2e12), strict=True):
        assert twice.days == pytest.approx(2 * once.days, rel=0.001)
        assert twice.dollars == pytest.approx(2 * once.dollars, rel=0.001)


def test_a_bound_is_below_the_expected_time() -> None:
    assert all(one.days < one.expected_days and one.dollars < one.expected_dollars for one in every(1e12))


def test_the_time_follows_from_steps_and_goodput() -> None:
    for one in every(1e12):
        assert one.steps * one.global_batch * 2048 == pytest.approx(1e12, rel=0.001)
        assert one.days * 86400 == pytest.approx(one.steps * one.step_seconds / one.goodput, rel=0.001)


def test_limits_that_nothing_meets_name_the_closest() -> None:
    goal = Goal(tokens=1e15, start=START, by=START + timedelta(days=1), budget=1000.0)
    with pytest.raises(
        CapacityError, match=r"no slices train 1e\+15 tokens by 2027-01-02.* the fastest .* the cheapest"
    ):
        select(every(1e12), goal)


def test_slices_that_are_too_small_are_reported() -> None:
    with pytest.raises(CapacityError, match="fits on none"):
        select((), Goal(tokens=1e9, start=START))


def test_the_commands_have_the_settings_of_the_choice() -> None:
    choice = next(one for one in every(1e12) if one.tpu_type == "v6e-256" and one.num_slices == 4)
    cluster, workload = commands_of(choice, "64b", ["optim.lr=0.1"])
    assert "--tpu-type v6e-256 --num-slices 4" in cluster and "--spot" not in cluster
    for words in (f"run.steps={choice.steps}", "optim.lr=0.1", *choice.settings, f"checkpoint.every={choice.every}"):
        assert f"--set {words}" in workload


def test_the_default_types_are_estimated() -> None:
    shapes = default_shapes()
    assert {shape.family for shape in shapes} == {"v5litepod", "v5p", "v6e"}
    space = Space(shapes=shapes, num_slices=default_numbers(), max_chips=65_536)
    count, best = find_candidates(InProcessRunner(), space, ["--config", "16b"])
    assert count > 10_000 and {one["tpu_type"] for one in best} <= {shape.name for shape in shapes}


def test_only_tpus_are_searched() -> None:
    space = Space(shapes=[find_shape("h100-80gb-8")], num_slices=[1], max_chips=100)
    with pytest.raises(UsageError, match="TPUs only"):
        find_candidates(InProcessRunner(), space, [])
