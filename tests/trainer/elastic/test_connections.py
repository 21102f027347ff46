"""Connections between slices: beats."""

import threading
from collections.abc import Sequence
from typing import Any

from tests.waiting import until
from trainer.elastic.connections import Connections
from trainer.hosts.membership import Peer
from xpk_shared.links.handshake import Identity

HERE = "127.0.0.1"


class Slices:
    """Incarnations that a slice has dropped, and those that it has heard of."""

    def __init__(self, *dropped: str) -> None:
        self.dropped, self.heard = list(dropped), dict[Peer, Sequence[str]]()

    def hear(self, peer: Peer, dropped: Sequence[str]) -> None:
        """Keep what another slice has dropped."""
        self.heard[peer] = dropped

    def notify(self) -> None:
        """Do nothing: nobody waits."""


def test_a_slice_that_sends_nothing_else_is_heard_and_says_what_it_has_dropped() -> None:
    known: list[Any] = [Slices("c"), Slices()]
    peers = [(0, "a"), (1, "b")]
    both = [
        Connections(Identity(("job",), 0, b"s"), peer, lambda peer, header, payload: None, slices)
        for peer, slices in zip(peers, known, strict=True)
    ]
    assert both[1].silence(peers[0]) == float("inf")
    ports = [both[0].listen(HERE, beats=True), both[1].listen(HERE, beats=False)]
    for connections, other in zip(both, (1, 0), strict=True):
        connections.expect({peers[other]: (HERE, ports[other])})
    until(lambda: known[1].heard.get(peers[0]) == ["c"])
    threading.Event().wait(1.5)
    until(lambda: both[1].silence(peers[0]) < 1.0)
    assert both[0].silence(peers[1]) > 1.0, "the other one sends no beats"
    for connections in both:
        connections.expect({})


def test_a_slice_is_heard_once_it_has_said_what_it_has_dropped() -> None:
    """Until then it may have dropped the slice that has connected to it."""
    identity, own, other = Identity(("job",), 0, b"s"), (1, "b"), (0, "a")
    known: list[Any] = [Slices(), Slices()]
    silent, dialing = (
        Connections(identity, peer, lambda peer, header, payload: None, slices)
        for peer, slices in zip((other, own), known, strict=True)
    )
    dialing.expect({other: (HERE, silent.listen(HERE, beats=False))})
    until(lambda: dialing.generation(other) and silent.generation(own))
    assert dialing.silence(other) == float("inf")
    silent.send(own, {"kind": "piece"}, memoryview(b""))
    until(lambda: dialing.silence(other) < 1.0)
    dialing.expect({})
