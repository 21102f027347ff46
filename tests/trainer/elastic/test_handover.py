"""The state that a slice receives while it joins."""

import itertools

import pytest

from trainer.elastic.handover import KIND, HandoverLost, Receiver
from trainer.hosts.bootstrap import Host
from trainer.hosts.membership import Membership
from trainer.hosts.peers import Peers
from xpk_shared.slices.roster import ACTIVE, READY, Entry, View

VIEW = View(2, {0: Entry("a", ACTIVE, ()), 1: Entry("b", READY, ())})


@pytest.mark.parametrize(
    ("registry", "is_heard", "says"),
    [
        ("lost", False, "slice 0"),  # nobody would tell
        ("lost", True, "the connection to the slice that leads"),
        ("connected", False, "the connection to the slice that leads"),
    ],
)
def test_a_slice_that_joins_finds_out_that_the_sender_is_lost(registry: str, is_heard: bool, says: str) -> None:
    peers = Peers(0, 1, on_lost=lambda peer: None, on_message=lambda what, by: None)
    membership = Membership(Host(num_slices=2, slice_id=1, min_slices=1), peers, on_dropped=lambda reason: None)
    membership.is_heard = lambda peer: is_heard
    peers.announce("slices", VIEW.as_json() | ({"registry": "lost"} if registry == "lost" else {}))
    times = itertools.count(0.0, 2.0)
    receiver = Receiver(membership, lambda: next(times))
    receiver.receive({"kind": KIND, "nth": 0, "of": 2, "position": {}}, memoryview(b""))
    with pytest.raises(HandoverLost, match=says):
        receiver.wait({}, lambda: True)
    assert next(times) == (4.0 if says == "slice 0" else 14.0)
