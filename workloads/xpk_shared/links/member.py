"""The end of every other host: connects to the hub and listens to it."""

from __future__ import annotations

import contextlib
import math
import socket
import time
from collections.abc import Callable
from typing import Any

from xpk_shared.links.connection import MAX_HUB_MESSAGE_BYTES, Link, dial, line
from xpk_shared.links.endpoint import Beats, Endpoint, Handlers
from xpk_shared.links.errors import PeerAbsent
from xpk_shared.links.handshake import PROTOCOL_ERRORS, Identity, introduce

_AGAIN_SECONDS = 0.2


class Member(Endpoint):
    """Host `number` of a job, not the first."""

    def __init__(self, identity: Identity, number: int, handlers: Handlers, *, beats: Beats | None = None) -> None:
        super().__init__(identity, number, {0}, handlers, beats)
        self._said: list[bytes] = []  # what this host has told all others, before or after it connected

    def join(self, address: str, port: int, deadline: float = math.inf, again: Callable[[], str] | None = None) -> str:
        """Connect to the hub, retrying until `deadline` (monotonic); return the hub's address.

        `again` resolves the address again if nobody answers. Raises PeerAbsent after the deadline.
        """
        while True:
            sock = dial(address, port, deadline, again)
            with contextlib.suppress(OSError):  # it may be closed already
                link, hub = Link(sock), str(sock.getpeername()[0])
                messages = introduce(link, self._identity, self.number, deadline, self._greet)
                if messages is not None:
                    link.longest = MAX_HUB_MESSAGE_BYTES
                    self.absent.clear()
                    self._start(self._listen, link, messages)
                    return hub
            self._close(sock)
            if time.monotonic() > deadline:
                raise PeerAbsent(f"process 0 at {address}:{port} is of another job or attempt, or does not answer")
            time.sleep(_AGAIN_SECONDS)
            address = again() if again else address

    def tell(self, what: str) -> None:
        """Tell all other hosts, as soon as this one is connected."""
        self.say({"tell": what, "by": self.number})

    def leave(self, seconds: float = 0.0) -> None:
        """Announce that this host's end is not a death."""
        self._is_closing = True
        self.say({"bye": self.number})

    def _greet(self, link: Link, hello: bytes) -> None:
        with self._changed:
            self.links[0] = link  # from now on the hub would take the end of this connection for that of this host
            link.send(b"".join([hello, *self._said]))

    def say(self, message: dict[str, Any]) -> None:
        """Send the hub a message, as soon as this host is connected."""
        with self._changed:
            self._said.append(line(message))
            self.send(self._said[-1])

    def _listen(self, link: Link, messages: list[dict[str, Any]] | None) -> None:
        """Read the hub's messages until the connection ends or one is invalid."""
        with contextlib.suppress(*PROTOCOL_ERRORS):
            while messages is not None:
                for message in messages:
                    self._obey(message)
                messages = link.receive()
        self._close(link.sock)
        if not self._is_closing:
            self._handlers.lost(0)

    def _obey(self, message: dict[str, Any]) -> None:
        if "lost" in message:
            self._handlers.lost(message["lost"])
        elif "tell" in message:
            self._handlers.told(message["tell"], message["by"])
        elif "bye" in message:
            self._is_closing = True
        else:
            self._handlers.message(message, 0)

    def _close(self, sock: socket.socket) -> None:
        self.links.pop(0, None)
        sock.close()
