"""Decisions on restarts in place: pauses, time limits, and which restarts count."""

from __future__ import annotations

from xpk_shared.supervisor.host import ElasticSlices
from xpk_shared.supervisor.host import Host as Place
from xpk_shared.supervisor.names import PEER_LOST
from xpk_shared.supervisor.restarts import Coordinator, End, pause_after


def deciding(hosts: int = 3) -> Coordinator:
    """Return the decisions on restarts of a job that began at 0.0."""
    return Coordinator(Place(0, hosts, 1, "", 0, "j", 0, "", max_restarts=3), 0.0)


def test_pauses_begin_after_two_short_attempts_and_double_up_to_a_minute() -> None:
    assert [pause_after(count) for count in (0, 1, 2, 3, 4, 6, 7, 50)] == [0, 0, 2, 4, 8, 32, 60, 60]


def test_a_command_that_is_not_stopped_within_20_seconds_ends_the_group() -> None:
    coordinator = deciding()
    coordinator.take(End(1, 7, was_stopped=False), 0, 9.0)
    assert coordinator.decide(9.0, ()) == {"stop": 0, "number": 1, "code": 7}
    coordinator.take(End(0, 143, was_stopped=True), 0, 9.1)
    assert coordinator.decide(29.0, ()) is None
    assert coordinator.decide(29.1, ()) == {"final": 2, "silent": True}
    assert coordinator.decide(99.0, ()) is None, "nothing follows the last order"


def test_a_failure_waits_10_seconds_for_hosts_that_have_not_connected() -> None:
    coordinator = deciding()
    coordinator.take(End(1, 7, was_stopped=False), 0, 3.0)
    assert coordinator.decide(12.9, {2}) is None
    assert coordinator.decide(13.0, {2}) == {"final": 1}
    coordinator = deciding()
    coordinator.take(End(1, 7, was_stopped=False), 0, 3.0)
    assert coordinator.decide(3.1, {2}) is None
    assert coordinator.decide(3.2, ()) == {"stop": 0, "number": 1, "code": 7}


def test_an_attempt_of_five_seconds_is_not_short() -> None:
    for seconds, pauses in ((4.9, [0, 2, 4]), (5.0, [0, 0, 0])):
        coordinator, now, orders = deciding(hosts=1), 0.0, []
        for restarts in range(3):
            now += seconds
            coordinator.take(End(0, 7, was_stopped=False), restarts, now)
            coordinator.decide(now, ())
            order = coordinator.decide(now, ()) or {}
            orders.append(order.get("pause", 0))
            if pause := orders[-1]:
                assert order["short_attempts"] == restarts + 1
                assert coordinator.decide(now + pause - 0.1, ()) is None
                order = coordinator.decide(now + pause, ()) or {}
                now += pause
            assert order == {"start": restarts + 1}
        assert orders == pauses


def test_restarts_caused_by_other_slices_do_not_count() -> None:
    place = Place(0, 1, 1, "", 0, "j", 0, "", max_restarts=1, elastic=ElasticSlices(2, 1, 0, ""))
    coordinator = Coordinator(place, 0.0)
    codes = (PEER_LOST, PEER_LOST, 1, PEER_LOST, 1)
    for restarts, code in enumerate(codes):
        now = 100.0 * (restarts + 1)
        coordinator.take(End(0, code, was_stopped=False), restarts, now)
        coordinator.decide(now, ())
        order = coordinator.decide(now, ())
    assert order == {"final": 0, "exhausted": True} and coordinator.restarts == 4


def test_a_host_that_ended_by_itself_is_not_taken_for_a_frozen_one() -> None:
    coordinator = deciding(hosts=2)
    coordinator.take(End(0, PEER_LOST, was_stopped=False, lost=1), 0, 9.0)
    coordinator.decide(9.0, ())
    coordinator.take(End(1, PEER_LOST, was_stopped=False, lost=0), 0, 9.1)
    assert coordinator.decide(9.1, ()) == {"start": 1}
    assert coordinator.cause == End(0, PEER_LOST, was_stopped=False, lost=1)
