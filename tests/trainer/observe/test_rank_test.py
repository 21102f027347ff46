"""Straggler test: false alarms and detection in simulated runs."""

import math
import random
from collections.abc import Callable

import pytest

from trainer.observe.rank_test import RankTest
from trainer.observe.stragglers import Comparisons

RUNS = 100
Noise = Callable[[random.Random], float]
NOISES: dict[str, Noise] = {
    "gauss": lambda r: 0.05 * r.gauss(0, 1),
    "student's t": lambda r: 0.05 * r.gauss(0, 1) / math.sqrt(r.gammavariate(1, 1)),
    "cauchy": lambda r: 0.05 * abs(math.tan(math.pi * (r.random() - 0.5))),
    "log-normal": lambda r: math.expm1(r.gauss(0, 0.05)),
}


class Run:
    """A simulated run: its hosts' measurements, of which host 0 is slower by `slow`.

    `load`: share of comparisons in which a load of +50 % in all measurements begins on a random host; it lasts for
    `length` comparisons.
    """

    def __init__(
        self, noise: Noise, hosts: int, seed: int, *, slow: float = 0.0, load: float = 0.0, length: int = 1
    ) -> None:
        self._noise, self._random, self._slow = noise, random.Random(seed), slow
        self._load, self._length = load, length
        self._loaded, self._left = 0, 0
        self._hosts = hosts
        self._comparisons = Comparisons()

    def compare(self) -> set[int]:
        """Make a comparison and return the hosts that are named."""
        r = self._random
        if not self._left and r.random() < self._load:
            self._loaded, self._left = r.randrange(self._hosts), self._length
        loaded = self._loaded if self._left else None
        self._left = max(0, self._left - 1)
        reports = []
        for host in range(self._hosts):
            factor = (1.5 if host == loaded else 1.0) * (1 + self._slow if host == 0 else 1.0)
            values = [max(0.0, factor * (1 + self._noise(r))) for _ in range(3)]
            reports.append(dict(zip(("data", "host", "chip"), values, strict=True)))
        return {slow.process for slow in self._comparisons.add(reports, 1.0)}

    def false_alarms(self, comparisons: int) -> set[int]:
        """Return the hosts that are named in so many comparisons."""
        return set().union(*(self.compare() for _ in range(comparisons)))

    def comparisons_until_named(self, most: int) -> int | None:
        """Return the number of comparisons until host 0 is named; None if it is not."""
        return next((number for number in range(1, most + 1) if 0 in self.compare()), None)


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
    run._slow = 0.2
    number = run.comparisons_until_named(60)
    assert number is not None and number >= 10
    run._slow = 0.0
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
