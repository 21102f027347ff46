"""Decisions of a slice on the others while the registry is lost, in process 0 of the slice.

Nobody says then that another slice is lost. A slice drops those that it does not hear, if those that are left are so
many that no others can train (`Membership.is_quorum`). Beats tell the other slices which ones it has dropped; slices
that have lost the registry too drop the same ones, so that all agree. The next registry is told which slices have
continued, and refuses the others.
"""

import dataclasses
import threading
import time
from collections.abc import Callable, Iterable
from typing import Protocol

from xpk_shared.slices.client import RegistryClient
from xpk_shared.slices.roster import View

REGISTRY_SLICE = 0
FROZEN = "the registry in the supervisor of this host does not respond"
_POLL_SECONDS, _POLLS = 0.1, 3  # before a slice that is not heard counts as lost
_FROZEN_SECONDS = 10.0  # for the supervisor of this host to respond; the others do not wait for this

Peer = tuple[int, str]  # slice and incarnation


class Slices(Protocol):
    """The slices as Membership knows them."""

    own: Peer
    view: View

    @property
    def is_heard(self) -> Callable[[Peer], bool]:
        """Return whether the host of equal number in another slice was heard."""

    @property
    def active(self) -> list[Peer]:
        """The active slices."""

    def is_quorum(self, count: int) -> bool:
        """Return whether so many slices may continue without the registry."""


class RegistryLoss:
    """Watches the other slices while `client` has lost the registry."""

    def __init__(
        self,
        slices: Slices,
        client: RegistryClient,
        announce: Callable[[View], None],
        on_frozen: Callable[[], None] | None,
    ) -> None:
        """`announce` takes a view without the lost slices.

        It must do nothing once the registry is connected again. `on_frozen` is called if the registry does not respond,
        although it runs in the supervisor of this host, and the others can continue without this slice. It is None on
        other hosts.
        """
        self._slices, self._client, self._announce, self._on_frozen = slices, client, announce, on_frozen
        self._dropped: set[str] = set()  # incarnations, by this slice
        self._told: dict[Peer, frozenset[str]] = {}  # what other slices have dropped
        self._polls: dict[Peer, int] = {}  # in a row in which a slice was not heard
        self._is_lost = threading.Event()

    def start(self) -> None:
        """Begin to watch when the registry is lost, in the background."""
        threading.Thread(target=self._run, name="registry-lost", daemon=True).start()

    def begin(self) -> None:
        """Take note that the registry is lost."""
        self._is_lost.set()

    @property
    def dropped(self) -> list[str]:
        """Incarnations that this slice has dropped."""
        return sorted(self._dropped)

    def hear(self, peer: Peer, dropped: Iterable[str]) -> None:
        """Take note of what another slice has dropped."""
        self._told[peer] = frozenset(dropped)

    def _run(self) -> None:
        while True:
            self._is_lost.wait()
            self._is_lost.clear()
            lost_at = time.monotonic()
            while not self._client.is_connected:
                time.sleep(_POLL_SECONDS)
                self._poll(time.monotonic() - lost_at)
            self._forget()

    def _poll(self, seconds: float) -> None:
        """Drop slices that are lost; the registry has been lost for so many seconds."""
        self._drop_lost()
        self._end_if_frozen(seconds)

    def _forget(self) -> None:
        """Forget what belongs to a loss that has ended."""
        self._dropped, self._told, self._polls = set(), {}, {}

    def _drop_lost(self) -> None:
        slices = self._slices
        active, told = slices.active, [self._told.get(peer, frozenset()) for peer in slices.active]
        told_of = frozenset[str]().union(*told)
        self._polls = {peer: 0 if slices.is_heard(peer) else self._polls.get(peer, 0) + 1 for peer in active}
        lost = [peer for peer in active if peer != slices.own and (self._polls[peer] >= _POLLS or peer[1] in told_of)]
        if (
            not lost
            or slices.own not in active
            or slices.own[1] in told_of
            or not slices.is_quorum(len(active) - len(lost))
        ):
            return
        self._dropped |= {incarnation for _, incarnation in lost}
        rest = {
            number: entry for number, entry in slices.view.slices.items() if (number, entry.incarnation) not in lost
        }
        self._client.continue_with(entry.incarnation for entry in rest.values())
        self._announce(dataclasses.replace(slices.view, slices=rest))

    def _end_if_frozen(self, seconds: float) -> None:
        if self._on_frozen and seconds > _FROZEN_SECONDS and self._slices.is_quorum(len(self._slices.active) - 1):
            end, self._on_frozen = self._on_frozen, None
            end()
