"""Short lives of simulated elastic slices; `python -m tests.simulation.membership` has more."""

from __future__ import annotations

import pytest

from tests.simulation.membership.world import live


@pytest.mark.parametrize("number", range(24))
def test_every_property_holds_for_the_membership_of_slices(number: int) -> None:
    assert live(f"test/{number}").properties.steps > 0


def test_the_life_of_slices_is_determined_by_its_seed() -> None:
    one, again, other = (live(seed).trace for seed in ("test/2", "test/2", "test/3"))
    assert one == again != other
