"""Ports and exit codes of the trainers under Ray."""

from __future__ import annotations

import pytest

from tests.ports import free_ports
from trainer.errors import ExitCode, FatalError, MovedError, Problem
from xpk_ray.actor import early_exit_code, two_free_ports
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


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (FatalError(Problem("the output folder is in use", "Use another one")), ExitCode.FATAL),
        (MovedError(Problem("the run continues on cluster 'b'", "See its log")), ExitCode.MOVED),
        (MemoryError(), ExitCode.CRASH),
    ],
)
def test_exit_codes_before_the_records_are_open_are_those_without_ray(error: Exception, code: ExitCode) -> None:
    assert early_exit_code(error) == code
