"""Ports of the trainers under Ray."""

from __future__ import annotations

import pytest

from tests.ports import free_ports
from xpk_ray.actor import two_free_ports
from xpk_shared.links.connection import listen

HERE = "127.0.0.1"
OUTGOING = 32768  # the first port of outgoing connections; a machine may be set up with others


def test_the_coordinators_ports_are_not_those_of_outgoing_connections() -> None:
    assert two_free_ports(HERE) + 1 < OUTGOING


@pytest.mark.parametrize("place", [0, 1])
def test_ports_in_use_are_not_chosen(place: int) -> None:
    first, *_ = ports = free_ports(4)
    with listen(HERE, ports[place]):
        assert two_free_ports(HERE, ports[:3:2]) == ports[2]
        with pytest.raises(OSError, match="no two free ports"):
            two_free_ports(HERE, [first])
