"""Ports of the trainers under Ray."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ports import free_ports
from xpk_ray.actor import two_free_ports
from xpk_shared.links.connection import listen

HERE = "127.0.0.1"


def test_the_coordinators_ports_are_not_those_of_outgoing_connections() -> None:
    outgoing = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="utf-8").split()
    assert two_free_ports(HERE) + 1 < int(outgoing[0])


@pytest.mark.parametrize("place", [0, 1])
def test_ports_in_use_are_not_chosen(place: int) -> None:
    first, *_ = ports = free_ports(4)
    with listen(HERE, ports[place]):
        assert two_free_ports(HERE, ports[:3:2]) == ports[2]
        with pytest.raises(OSError, match="no two free ports"):
            two_free_ports(HERE, [first])
