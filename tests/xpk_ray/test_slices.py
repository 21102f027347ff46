"""Reservation of all hosts under Ray."""

from __future__ import annotations

import dataclasses

import pytest

from xpk_ray.slices import Slice, await_hosts


@dataclasses.dataclass
class Group:
    """Replaces a placement group."""

    is_free: bool

    def wait(self, seconds: float) -> bool:
        """Return whether its hosts are free."""
        return self.is_free


@pytest.mark.parametrize(("free", "removed"), [([True, False, True], 3), ([True, True], 0)])
def test_hosts_are_released_if_not_all_of_them_are_free(free: list[bool], removed: int) -> None:
    """Otherwise those of the first slices would stay reserved, and no later call could succeed."""
    groups, released = [Group(is_free) for is_free in free], list[Group]()
    reserved = [Slice(index, 1, {}, group) for index, group in enumerate(groups)]
    try:
        await_hosts(reserved, 5, released.append)
    except TimeoutError as error:
        assert str(error) == "slice 1: timed out after 5 s waiting for free hosts"
    assert released == groups[:removed]
