"""Decisions about a workload of several clusters. Races are in tests/simulation/placement."""

from __future__ import annotations

from typing import Any

import pytest

from xpk.jobs.placement.decision import (
    Action,
    CopyState,
    CopyView,
    Decide,
    Done,
    Hold,
    Release,
    Remove,
    Stay,
    decide,
)
from xpk.jobs.placement.lease import Lease, decode

HELD, WAITING, RUNNING = CopyState.HELD, CopyState.WAITING, CopyState.RUNNING
NOW, PATIENCE = 1000.0, 30.0


def act(lease: Lease | None, **copies: CopyView) -> Action:
    return decide(lease, copies, run="r", clusters=tuple(copies), now=NOW, move_after=PATIENCE)


def lease(cluster: str, epoch: int = 1, **fields: Any) -> Lease:
    return Lease(run="r", epoch=epoch, cluster=cluster, **fields)


def test_the_preferred_cluster_is_chosen_first() -> None:
    assert act(None, a=CopyView(HELD), b=CopyView(HELD)) == Decide(lease("a"))


def test_an_earlier_workload_of_the_name_only_leaves_its_epoch() -> None:
    earlier = Lease(run="before", epoch=7, cluster="b", end="it succeeded on b")
    assert act(earlier, a=CopyView(HELD), b=CopyView(HELD)) == Decide(lease("a", 8))


def test_a_lost_lease_does_not_stop_the_copy_that_runs() -> None:
    assert act(None, a=CopyView(HELD, 4), b=CopyView(RUNNING, 4)) == Decide(lease("b", 5))


def test_a_copy_is_released_once_all_others_obey_the_epoch() -> None:
    assert act(lease("a"), a=CopyView(HELD), b=CopyView(HELD), c=CopyView(HELD, 1)) == Hold(("b",), 1)
    assert act(lease("a"), a=CopyView(HELD), b=CopyView(HELD, 1), c=CopyView(HELD, 1)) == Release("a", 1)


def test_an_unreachable_cluster_may_run_the_workload() -> None:
    unreachable = CopyView(CopyState.UNREACHABLE, reason="no answer")
    action = act(lease("a"), a=CopyView(HELD), b=unreachable)
    assert action == Stay("a waits until b can be reached: its copy there might run (no answer)")
    assert act(lease("a"), a=unreachable, b=CopyView(HELD, 1)) == Stay("cluster a is unreachable: no answer")


@pytest.mark.parametrize(("waited", "moves", "expected"), [(29, 0, "a"), (30, 0, "b"), (59, 2, "a"), (60, 2, "b")])
def test_a_copy_that_waits_moves_and_each_turn_around_takes_longer(waited: float, moves: int, expected: str) -> None:
    waiting = lease("a", since=NOW - waited, moves=moves)
    action = act(waiting, a=CopyView(WAITING, 1, "no quota"), b=CopyView(HELD, 1))
    if expected == "a":
        assert action == Stay("on a: no quota")
    else:
        assert action == Decide(lease("b", 2, moves=moves + 1))


def test_waiting_begins_when_it_is_first_seen_and_ends_when_it_runs() -> None:
    assert act(lease("a"), a=CopyView(WAITING, 1), b=CopyView(HELD, 1)) == Decide(lease("a", since=NOW))
    assert act(lease("a", since=5.0, moves=3), a=CopyView(RUNNING, 1), b=CopyView(HELD, 1)) == Decide(lease("a"))


def test_a_clock_that_is_far_ahead_does_not_keep_a_workload_waiting() -> None:
    ahead = lease("a", since=NOW + 3600)
    assert act(ahead, a=CopyView(WAITING, 1), b=CopyView(HELD, 1)) == Decide(lease("a", since=NOW))


def test_a_workload_that_ended_is_not_repeated_elsewhere() -> None:
    ended = CopyView(CopyState.ENDED, 1, "it failed on a")
    assert act(lease("b", 2), a=ended, b=CopyView(HELD, 1)) == Decide(lease("a", 2, end="it failed on a"))
    over = lease("a", 2, end="it failed on a")
    assert act(over, a=ended, b=CopyView(HELD, 1)) == Remove(("b",))
    assert act(over, a=ended, b=CopyView(CopyState.MISSING)) == Done("it failed on a")


def test_a_deleted_copy_ends_the_workload() -> None:
    missing = CopyView(CopyState.MISSING)
    assert act(lease("a"), a=missing, b=CopyView(HELD, 1)) == Decide(lease("a", end="its copy on a was deleted"))
    assert act(None, a=missing, b=missing) == Done("it was deleted")


def test_a_suspended_workload_stays() -> None:
    suspended = CopyView(CopyState.SUSPENDED, 1, "suspended by its user")
    assert act(lease("a"), a=suspended, b=CopyView(HELD, 1)) == Stay("suspended by its user")


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"run": "r"}', b'{"epoch": "x"}', b"\xff", b"[" * 100_000])
def test_a_damaged_lease_is_none(content: bytes) -> None:
    assert decode(content) is None
