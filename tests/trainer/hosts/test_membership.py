"""A host's view of the elastic slices."""

from typing import Any

import pytest

from trainer.hosts.bootstrap import Host
from trainer.hosts.membership import TRAIN, Commit, Membership, Seq
from trainer.hosts.peers import Peers
from xpk_shared.slices.roster import ACTIVE, Entry, View

OWN, OTHER = (0, "a"), (1, "b")


def test_a_view_of_a_slice_itself_does_not_end_the_loss_of_the_registry() -> None:
    """Slices of which nobody tells may be lost still, and the watchdog must not end the others that wait for them."""
    peers = Peers(0, 1, on_lost=lambda peer: None, on_message=lambda what, by: None)
    membership = Membership(Host(num_slices=2, min_slices=1), peers, on_dropped=lambda reason: None)
    view = View(2, {0: Entry("a", ACTIVE, ())}).as_json()
    for message, is_current in ((view, True), ({"registry": "lost"}, False), (view | {"registry": "lost"}, False)):
        peers.announce("slices", message)
        assert membership.is_view_current is is_current


@pytest.mark.parametrize(("present", "may_wait"), [(1, True), (2, False), (3, False)])
def test_the_watchdog_does_not_end_slices_that_wait_for_enough_others(present: int, may_wait: bool) -> None:
    """A lost slice may need any time to start again, and the only copy of the state may be theirs."""
    peers = Peers(0, 1, on_lost=lambda peer: None, on_message=lambda what, by: None)
    membership = Membership(Host(num_slices=3, min_slices=2), peers, on_dropped=lambda reason: None)
    membership.own = OWN
    peers.announce("slices", View(2, {number: Entry("a", ACTIVE, ()) for number in range(present)}).as_json())
    assert not membership.may_wait, "before it trains with the others, it waits for its own work"
    membership.adopt([OWN], Commit(Seq(0, TRAIN), {}))
    assert membership.may_wait is may_wait
    assert membership.may_finish(Seq(1, TRAIN)) is not may_wait


def test_a_slice_that_is_silent_counts_as_lost_while_the_registry_is_lost() -> None:
    peers = Peers(0, 1, on_lost=lambda peer: None, on_message=lambda what, by: None)
    membership = Membership(Host(num_slices=2, min_slices=1), peers, on_dropped=lambda reason: None)
    membership.is_heard = lambda peer: False
    view = View(2, {1: Entry("b", ACTIVE, ())}).as_json()
    for message, is_lost in ((view, False), ({"registry": "lost"}, True), (view, False)):
        peers.announce("slices", message)
        assert membership.is_lost(OTHER) is is_lost
    assert membership.is_lost((1, "former"))


@pytest.mark.parametrize(
    ("flags", "ends"),
    [
        ({"stop": []}, True),
        ({"stop": [1]}, True),
        ({"stop": [0]}, False),
        ({"stop": "all"}, False),
        ({"stop": [], "saved": True}, False),
    ],
)
def test_a_dropped_slice_ends_unless_it_leaves_anyway(flags: dict[str, Any], ends: bool) -> None:
    dropped: list[bool] = []
    peers = Peers(0, 1, on_lost=lambda peer: None, on_message=lambda what, by: None)
    membership = Membership(Host(num_slices=2, min_slices=1), peers, on_dropped=lambda reason: dropped.append(True))
    membership.own = OWN
    membership.adopt([OWN, OTHER], Commit(Seq(1, TRAIN), flags))
    peers.announce("slices", View(2, {1: Entry("b", ACTIVE, ())}).as_json())
    assert bool(dropped) is ends
