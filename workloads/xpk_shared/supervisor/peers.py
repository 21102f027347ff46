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
_FIELDS = {"stop": ("number", "code"), "pause": ("short_attempts",), "start": (), "final": ()}  # numbers in each order


class Peers:
    """This host's link to the others. `wake` is called on another thread after each change."""

    def __init__(
        self, host: Host, secret: bytes, wake: Callable[[], None], *, handshake_seconds: float = HANDSHAKE_SECONDS
    ) -> None:
        self.lost: list[int] = []  # in order; hosts that exit because of a loss are appended too
        self.asked = threading.Event()  # set once any host was asked to end
        self.orders: deque[dict[str, Any]] = deque()  # of the first host
        self.reports: deque[tuple[End, int]] = deque()  # on the first host: ends, each with its number of restarts
        self.received_at = 0.0  # monotonic time of the first host's newest message
        self._host, self._wake = host, wake
        identity = Identity(("command", *host.group), host.attempt, secret)
        handlers = Handlers(self._record_loss, self._record_request, self._receive)
        self._link = (
            Member(identity, host.number, handlers)
            if host.number
            else Hub(identity, host.hosts, handlers, handshake_seconds=handshake_seconds)
        )
        if not secret:
            self._link.absent.clear()
        self.is_linked = bool(secret)  # False if this host can never connect

    def connect(self) -> None:
        """Listen or connect in the background, if there are other hosts to connect to."""
        if self.have_met:
            return
        if isinstance(self._link, Member):
            target, address = self._link.join, (self._host.address, self._host.port)
            threading.Thread(target=target, args=address, name="join", daemon=True).start()
            return
        try:
            self._link.open(self._host.own_address, self._host.port)
        except AddressError as error:
            say(f"{error}; lost hosts will be detected late")
            self._link.absent.clear()
            self.is_linked = False

    @property
    def have_met(self) -> bool:
        """True if the hosts are connected, or can never connect."""
        return not self._link.absent

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
            self.reports.append((end, restarts))

    def ask(self) -> None:
        """Ask the first host for a reply."""
        self._link.send(line({_QUESTION: self._host.number}))

    def order(self, order: dict[str, Any]) -> None:
        """Send an order to all hosts, including this one; on the first host only."""
        if isinstance(self._link, Hub):
            self._link.publish(order)
        self.orders.append(order)

    def leave(self, *, asked: bool = False) -> None:
        """Announce that this host's end is not a loss, and whether it was asked to end."""
        if asked and not self.asked.is_set():
            self._record_request(_ASKED, self._host.number)
            self._link.broadcast(_ASKED)
        self._link.leave()

    def _record_loss(self, number: int) -> None:
        self.lost.append(number)
        self._wake()

    def _record_request(self, text: str, number: int) -> None:
        if text == _ASKED:
            self.asked.set()
            self._wake()

    def _receive(self, message: dict[str, Any], number: int) -> None:
        """Queue a message of another host: a report to the first host, or an order from it."""
        if isinstance(self._link, Member):
            self.received_at = time.monotonic()
            if _ANSWER in message:
                return
            self.orders.append(_order(message))
        elif _QUESTION in message:
            self._link.reply(number, {_ANSWER: True})
            return
        elif "end" in message:
            lost = message.get("lost")
            end = End(number, int(message["end"]), bool(message["told"]), None if lost is None else int(lost))
            self.reports.append((end, int(message["restarts"])))
        self._wake()


def _order(message: dict[str, Any]) -> dict[str, Any]:
    """Return the order in a message of the first host. Raises KeyError, TypeError or ValueError if it is invalid."""
    needed = [key for order, keys in _FIELDS.items() if order in message for key in (order, *keys)]
    if not all(math.isfinite(message[key]) for key in needed) or not isinstance(message.get("record", {}), dict):
        raise ValueError("invalid order")
    return message
