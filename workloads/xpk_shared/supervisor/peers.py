"""The other hosts of a command: lost hosts, requests to end, and the first host's orders."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from xpk_shared.links.connection import line
from xpk_shared.links.endpoint import Handlers
from xpk_shared.links.errors import AddressError
from xpk_shared.links.handshake import HANDSHAKE_SECONDS, Identity
from xpk_shared.links.hub import Hub
from xpk_shared.links.member import Member
from xpk_shared.supervisor.host import Host, say
from xpk_shared.supervisor.restarts import End

_ASKED = "asked"
_QUESTION, _ANSWER = "ask", "alive"  # from a host that waits for an order, and from the first host
_JOIN, _RUNS, _GENERATION = "join", "runs", "generation"  # from a host that has just connected
_JOINED = "joined"  # the first host's reply: orders before it do not concern a host whose command does not run
_FIELDS = {"stop": ("number", "code"), "pause": ("short_attempts",), "start": (), "final": ()}  # numbers in each order


class Peers:
    """This host's link to the others. `wake` is called on another thread after each change."""

    def __init__(
        self, host: Host, secret: bytes, wake: Callable[[], None], *, handshake_seconds: float = HANDSHAKE_SECONDS
    ) -> None:
        self.lost: list[int] = []  # in order; hosts that exit because of a loss are appended too
        self.asked = threading.Event()  # set once any host was asked to end
        self.orders: deque[dict[str, Any]] = deque()  # of the first host
        self.news: deque[Callable[[Any], None]] = deque()  # on the first host: calls of its coordinator
        # Where Kubernetes replaces single slices, `lost` has only hosts of this one.
        self.is_slice_asked = threading.Event()  # set once any host of this slice was asked to end
        self.is_cut = threading.Event()  # set once a first host in another slice is lost, or has left
        self._has_joined = True
        self.received_at = 0.0  # monotonic time of the first host's newest message
        self._host, self._wake = host, wake
        self._identity = Identity(("command", *host.group), host.attempt, secret)
        self._handlers = Handlers(self._record_loss, self._record_request, self._receive, self._record_leave)
        self._link = (
            self._new_member()
            if host.number
            else Hub(
                self._identity,
                host.hosts,
                self._handlers,
                handshake_seconds=handshake_seconds,
                repeats=not host.replaces_slices,  # a new slice is not told of the past
            )
        )
        if not secret:
            self._link.absent.clear()
        self.is_linked = bool(secret)  # False if this host can never connect

    def _new_member(self) -> Member:
        return Member(self._identity, self._host.number, self._handlers)

    def connect(self, restarts: int = 0, *, runs: bool = True) -> None:
        """Listen or connect in the background, if there are other hosts to connect to.

        The first host learns that the command of this one runs, or after how many restarts it has ended.
        """
        if self.have_met:
            return
        if isinstance(self._link, Member):
            if self._host.replaces_slices:
                self._has_joined = runs
                self._link.send_to_hub({_JOIN: restarts, _RUNS: runs, _GENERATION: self._host.slice_attempt})
            target, address = self._link.join, (self._host.address, self._host.port)
            threading.Thread(target=target, args=address, name="join", daemon=True).start()
            return
        try:
            self._link.open(self._host.own_address, self._host.port)
        except AddressError as error:
            say(f"{error}; lost hosts will be detected late")
            self._link.absent.clear()
            self.is_linked = False

    def connect_again(self, restarts: int) -> None:
        """Connect to the next first host, after the command has ended that had been restarted this often."""
        self.is_cut.clear()
        self.asked.clear()
        self.received_at = time.monotonic()  # the next one has been silent for no time
        self._link = self._new_member()
        self.connect(restarts, runs=False)

    def _forget_requests(self, order: dict[str, Any]) -> None:
        """Forget that hosts of other slices were asked to end if they have been replaced since."""
        if self._host.replaces_slices and "start" in order:
            self.asked.clear()

    @property
    def have_met(self) -> bool:
        """True if the hosts are connected, or can never connect."""
        return not self._link.absent

    @property
    def unresolved_at(self) -> float:
        """Monotonic time at which the first host last had no pod, as its name did not resolve."""
        return self._link.unresolved_at

    @property
    def first_address(self) -> str:
        """Address at which the others have reached the first host; "" before."""
        return self._link.hub_address

    @property
    def absent(self) -> frozenset[int]:
        """Expected hosts that have never connected."""
        return frozenset(self._link.absent)

    def report(self, end: End, restarts: int) -> None:
        """Report the end of this host's command to the first host, as soon as this one is connected."""
        if isinstance(self._link, Member):
            self._link.send_to_hub({"end": end.code, "told": end.was_stopped, "lost": end.lost, "restarts": restarts})
        else:
            self._take(end, restarts)

    def ask(self) -> None:
        """Ask the first host for a reply."""
        self._link.send(line({_QUESTION: self._host.number}))

    def order(self, order: dict[str, Any]) -> None:
        """Send an order to all hosts, including this one; on the first host only."""
        if isinstance(self._link, Hub):
            self._link.publish(order)
        self._forget_requests(order)
        self.orders.append(order)

    def leave(self, *, asked: bool = False) -> None:
        """Announce that this host's end is not a loss, and whether it was asked to end.

        Where slices are replaced, a host that was asked to end still follows orders until it leaves.
        """
        if asked and (self._host.replaces_slices or not self.asked.is_set()):
            self._record_request(_ASKED, self._host.number)
            self._link.broadcast(_ASKED)
        if not (asked and self._host.replaces_slices):
            self._link.leave()

    def _record_loss(self, number: int) -> None:
        if not self._host.replaces_slices:
            self.lost.append(number)
        elif isinstance(self._link, Hub):
            self.news.append(lambda coordinator: coordinator.lose(number))
        elif number == 0 and self._host.is_beside(0):
            self.lost.append(number)
        elif number == 0:
            self.is_cut.set()
        self._wake()  # other losses are known from the first host's coordinator, with their generation

    def _record_leave(self, number: int) -> None:
        """Note the end of a host that has announced it: it was asked to end, or the run has finished."""
        if not self._host.replaces_slices:
            return
        if isinstance(self._link, Hub):
            self.news.append(lambda coordinator: coordinator.leave(number))
        elif not self._host.is_beside(0):
            self.is_cut.set()
        self._wake()

    def _record_request(self, text: str, number: int) -> None:
        if text != _ASKED or not self._has_joined:
            return
        self.asked.set()
        if self._host.replaces_slices and self._host.is_beside(number):
            self.is_slice_asked.set()
        if self._host.replaces_slices and isinstance(self._link, Hub):
            self.news.append(lambda coordinator: coordinator.ask(number))
        self._wake()

    def _record_join(self, number: int, restarts: int, generation: int, *, runs: bool) -> None:
        def join(coordinator: Any) -> None:
            coordinator.join(number, restarts, generation, runs=runs)
            if isinstance(self._link, Hub):
                self._link.reply(number, {_JOINED: True})

        self.news.append(join)

    def _take(self, end: End, restarts: int) -> None:
        self.news.append(lambda coordinator: coordinator.take(end, restarts, time.monotonic()))

    def _receive(self, message: dict[str, Any], number: int) -> None:
        """Queue a message of another host: a report to the first host, or an order from it."""
        if isinstance(self._link, Member):
            self.received_at = time.monotonic()
            self._has_joined = self._has_joined or _JOINED in message
            if _ANSWER in message or not self._has_joined:
                return
            self.orders.append(_order(message))
            self._forget_requests(message)
        elif _QUESTION in message:
            self._link.reply(number, {_ANSWER: True})
            return
        elif "end" in message:
            lost = message.get("lost")
            end = End(number, int(message["end"]), bool(message["told"]), None if lost is None else int(lost))
            self._take(end, int(message["restarts"]))
        elif _JOIN in message:
            self._record_join(number, int(message[_JOIN]), int(message[_GENERATION]), runs=bool(message[_RUNS]))
        self._wake()


def _order(message: dict[str, Any]) -> dict[str, Any]:
    """Return the order in a message of the first host. Raises KeyError, TypeError or ValueError if it is invalid."""
    needed = [key for order, keys in _FIELDS.items() if order in message for key in (order, *keys)]
    if not all(math.isfinite(message[key]) for key in needed) or not isinstance(message.get("record", {}), dict):
        raise ValueError("invalid order")
    return message
