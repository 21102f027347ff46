"""Straggler test: false alarms and detection in simulated runs."""

import pytest

from tests.trainer.observe.simulated_runs import NOISES, Run
from trainer.observe.rank_test import RankTest

RUNS = 100


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize(("hosts", "comparisons"), [(2, 200), (8, 60)])
@pytest.mark.parametrize(
    ("load", "length"),
    [pytest.param(0.0, 1, marks=pytest.mark.slow), pytest.param(1.0, 1, marks=pytest.mark.slow), (0.05, 4)],
)
def test_at_most_one_of_100_undisturbed_runs_has_a_false_alarm(
    noise: str, hosts: int, comparisons: int, load: float, length: int
) -> None:
    runs = (Run(NOISES[noise], hosts, seed, load=load, length=length) for seed in range(RUNS))
    assert sum(bool(run.false_alarms(comparisons)) for run in runs) <= 1


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize(
    ("hosts", "slow", "most"), [(16, 0.1, 40), (16, 0.2, 20), (4, 0.1, 65), (4, 0.2, 30), (2, 0.2, 130)]
)
def test_a_slower_host_is_named_soon_despite_noise_and_load(noise: str, hosts: int, slow: float, most: int) -> None:
    runs = [Run(NOISES[noise], hosts, seed, slow=slow, load=0.1) for seed in range(20)]
    numbers = [run.comparisons_until_named(most) for run in runs]
    assert sum(number is not None for number in numbers) >= 19, numbers


def test_a_host_that_becomes_slow_late_is_named_and_no_longer_once_it_has_recovered() -> None:
    run = Run(NOISES["gauss"], 8, seed=1)
    assert not run.false_alarms(200)
    run.slow = 0.2
    number = run.comparisons_until_named(60)
    assert number is not None and number >= 10
    run.slow = 0.0
    assert next(n for n in range(1, 40) if 0 not in run.compare()) <= 20


@pytest.mark.parametrize(("hosts", "least"), [(2, 15), (4, 11), (16, 11), (256, 13)])
def test_no_host_is_named_before_many_comparisons(hosts: int, least: int) -> None:
    test = RankTest(hosts, 3)
    seconds = [100.0, *(1 + n / 1000 for n in range(hosts - 1))]
    named = [0 in test.add(seconds) for _ in range(least)]
    assert named == [False] * (least - 1) + [True]


def test_hosts_with_equal_measurements_are_never_named() -> None:
    test = RankTest(2, 3)
    assert not any(test.add([0.5, 0.5]) for _ in range(200))
    assert not any(RankTest(1, 3).add([0.5]) for _ in range(200))
