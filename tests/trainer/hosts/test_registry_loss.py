"""Decisions of slices on the others while the registry is lost."""

import time
from typing import Any

from tests.waiting import until
from trainer.hosts.registry_loss import Peer, RegistryLoss
from xpk_shared.slices.roster import ACTIVE, Entry, View

SECONDS = 1.0  # in which a lost slice is dropped


class Client:
    """A client of the registry that has lost it."""

    def __init__(self) -> None:
        self.is_connected = False
        self.continued: list[str] = []

    def continue_with(self, incarnations: Any) -> None:
        """Keep what the next registry is told."""
        self.continued = list(incarnations)


class Slices:
    """Active slices as slice 1 sees them; those in `silent` are not heard."""

    def __init__(self, num_slices: int, quorum: int) -> None:
        self.own, self.silent, self._quorum = (1, "a1"), set[int](), quorum
        self.view = View(5, {number: Entry(f"a{number}", ACTIVE, ()) for number in range(num_slices)})
        self.client = Client()
        self.frozen = list[bool]()
        client: Any = self.client
        self.loss = RegistryLoss(self, client, self._announce, lambda: self.frozen.append(True))
        self.loss.start()
        self.loss.begin()

    def _announce(self, view: View) -> None:
        self.view = view

    def is_heard(self, peer: Peer) -> bool:
        """Return whether a slice was heard."""
        return peer[0] not in self.silent

    @property
    def active(self) -> list[Peer]:
        """The slices of the newest view."""
        return [(number, each.incarnation) for number, each in self.view.slices.items()]

    def is_quorum(self, count: int) -> bool:
        """Return whether so many slices may continue."""
        return count >= self._quorum


def test_slices_that_are_not_heard_are_dropped_and_the_next_registry_is_told() -> None:
    slices = Slices(5, quorum=3)
    slices.silent = {0, 3}
    until(lambda: {*slices.view.slices} == {1, 2, 4})
    assert slices.client.continued == ["a1", "a2", "a4"] and slices.loss.dropped == ["a0", "a3"]


def test_too_few_slices_drop_none() -> None:
    slices = Slices(4, quorum=3)
    slices.silent = {0, 3}
    time.sleep(SECONDS)
    assert {*slices.view.slices} == {0, 1, 2, 3} and slices.client.continued == []


def test_none_is_dropped_while_the_registry_is_connected() -> None:
    slices = Slices(4, quorum=3)
    slices.client.is_connected = True
    slices.silent = {0}
    time.sleep(SECONDS)
    assert {*slices.view.slices} == {0, 1, 2, 3}


def test_what_another_slice_has_dropped_is_dropped_too_although_it_is_heard() -> None:
    """It was frozen for as long as one of them waits, and a little shorter than the other one does."""
    slices = Slices(4, quorum=3)
    slices.loss.hear((2, "a2"), ["a0"])
    until(lambda: {*slices.view.slices} == {1, 2, 3})


def test_a_slice_that_was_dropped_itself_does_not_decide() -> None:
    slices = Slices(5, quorum=3)
    slices.loss.hear((2, "a2"), ["a1"])
    slices.silent = {0}
    time.sleep(SECONDS)
    assert {*slices.view.slices} == {0, 1, 2, 3, 4}


def test_a_slice_that_is_not_active_yet_does_not_decide() -> None:
    slices = Slices(5, quorum=3)
    slices.own = (1, "new")
    slices.silent = {0}
    time.sleep(SECONDS)
    assert {*slices.view.slices} == {0, 1, 2, 3, 4}


def test_what_a_dropped_slice_has_dropped_does_not_count() -> None:
    slices = Slices(5, quorum=3)
    slices.silent = {0}
    until(lambda: 0 not in slices.view.slices)
    slices.loss.hear((0, "a0"), ["a2", "a3"])
    time.sleep(SECONDS)
    assert {*slices.view.slices} == {1, 2, 3, 4}
