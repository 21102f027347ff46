"""The other hosts of a command: which are lost, whether any was asked to end, and the first host's orders."""

from __future__ import annotations

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
_QUESTION, _ANSWER = "ask", "alive"  # of a host that waits for an order, and of the first host


class Peers:
    """This host's link to the others. `wake` is called on another thread when there is anything new."""

    def __init__(
        self, host: Host, secret: bytes, wake: Callable[[], None], *, handshake_seconds: float = HANDSHAKE_SECONDS
    ) -> None:
        self.lost: list[int] = []  # in order: hosts that end because of a loss look like another one
        self.asked = threading.Event()  # set once any host was asked to end
        self.orders: deque[dict[str, Any]] = deque()  # of the first host
        self.reports: deque[tuple[End, int]] = deque()  # on the first host: each with the restarts in place before it
        self.heard_at = 0.0  # monotonic time of the first host's newest message
        self._host, self._wake = host, wake
        identity = Identity(("command", host.job), host.attempt, secret)
        handlers = Handlers(self._lose, self._note, self._hear)
        self._end = (
            Member(identity, host.number, handlers)
            if host.number
            else Hub(identity, host.hosts, handlers, handshake_seconds=handshake_seconds)
        )
        if not secret:
            self._end.absent.clear()
        self.is_linked = bool(secret)  # False if this host can never connect

    def connect(self) -> None:
        """Listen or connect, in the background, unless this host is alone or cannot."""
        if self.have_met:
            return
        if isinstance(self._end, Member):
            target, address = self._end.join, (self._host.address, self._host.port)
            threading.Thread(target=target, args=address, name="join", daemon=True).start()
            return
        try:
            self._end.open(self._host.own_address, self._host.port)
        except AddressError as error:
            say(f"{error}: a lost host will be noticed late")
            self._end.absent.clear()
            self.is_linked = False

    @property
    def have_met(self) -> bool:
        """True if this host's end will be noticed, or never can be."""
        return not self._end.absent

    @property
    def absent(self) -> frozenset[int]:
        """Hosts that this one waits for and that have never connected."""
        return frozenset(self._end.absent)

    def report(self, end: End, restarts: int) -> None:
        """Report the end of this host's command to the first host, as soon as this one is connected."""
        if isinstance(self._end, Member):
            self._end.say({"end": end.code, "told": end.told, "lost": end.lost, "restarts": restarts})
        else:
            self.reports.append((end, restarts))

    def ask(self) -> None:
        """Ask the first host for a sign of life."""
        self._end.send(line({_QUESTION: self._host.number}))

    def order(self, order: dict[str, Any]) -> None:
        """On the first host: give all hosts an order, this one included."""
        if isinstance(self._end, Hub):
            self._end.publish(order)
        self.orders.append(order)

    def leave(self, *, asked: bool = False) -> None:
        """Announce that this host's end is not a loss, and whether it was asked to end."""
        if asked and not self.asked.is_set():
            self._note(_ASKED, self._host.number)
            self._end.tell(_ASKED)
        self._end.leave()

    def _lose(self, number: int) -> None:
        self.lost.append(number)
        self._wake()

    def _note(self, what: str, number: int) -> None:
        if what == _ASKED:
            self.asked.set()
            self._wake()

    def _hear(self, message: dict[str, Any], number: int) -> None:
        """Queue a message of another host: a report to the first one, or an order of it."""
        if isinstance(self._end, Member):
            self.heard_at = time.monotonic()
            if _ANSWER in message:
                return
            self.orders.append(message)
        elif _QUESTION in message:
            self._end.answer(number, {_ANSWER: True})
            return
        elif "end" in message:
            lost = message.get("lost")
            end = End(number, int(message["end"]), bool(message["told"]), None if lost is None else int(lost))
            self.reports.append((end, int(message["restarts"])))
        self._wake()
