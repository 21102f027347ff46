"""Progress of elastic slices: the closed form against a simulation."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from tests.jobs.forecast.jobs import elastic
from xpk.jobs.forecast.elastic import Outage
from xpk.jobs.forecast.forecast import TOLERANCE
from xpk.jobs.forecast.simulation import elastic_run, simulate


@pytest.mark.parametrize(
    "changes",
    [{}, {"spares": 0}, {"num_slices": 2, "min_slices": 1}, {"min_slices": 16}, {"num_slices": 199, "min_slices": 150}],
)
def test_the_simulation_agrees_with_the_closed_form(changes: dict[str, Any]) -> None:
    job = elastic(**changes)
    result = simulate(functools.partial(elastic_run, job, 600.0), failures=4000, seed=2)
    assert result.low - TOLERANCE <= job.goodput(600.0) <= result.high + TOLERANCE


def test_a_missing_slice_doubles_the_step() -> None:
    job = elastic(num_slices=4, min_slices=1)
    assert [job.speed(missing) for missing in range(5)] == [1.0, 0.5, 0.5, 0.25, 0.0]


def test_too_few_slices_wait() -> None:
    assert elastic(num_slices=4, min_slices=3).speed(2) == 0.0


def test_more_spares_and_shorter_outages_do_not_reduce_progress() -> None:
    progress = [elastic(spares=spares).goodput(600.0) for spares in range(5)]
    assert progress == sorted(progress)
    slow = elastic(outages=(Outage(per_second=1 / 3600, seconds=900.0),))
    assert slow.goodput(600.0) < elastic(outages=(Outage(per_second=1 / 3600, seconds=9.0),)).goodput(600.0)
