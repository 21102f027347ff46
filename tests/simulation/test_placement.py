"""Races of placers of a workload of several clusters; `python -m tests.simulation.placement` has 10,000."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.simulation.placement.race import Race, Violated


@pytest.mark.parametrize("number", range(40))
def test_at_most_one_copy_runs_and_the_workload_ends(number: int) -> None:
    assert Race(f"test/{number}").live().requests > 0


def test_a_race_is_determined_by_its_seed() -> None:
    one, again, other = (Race(seed).live() for seed in ("test/2", "test/2", "test/3"))
    assert one.requests == again.requests != other.requests


def test_without_checks_of_versions_two_copies_are_released() -> None:
    assert any("released on a and b" in problem for problem in problems())


def problems() -> Iterator[str]:
    """Yield the problems of races whose API servers ignore the versions of changes."""
    for number in range(100):
        try:
            Race(f"test/{number}", checks_versions=False).live()
        except Violated as violated:
            yield str(violated)
