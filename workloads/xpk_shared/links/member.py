"""The other hosts' end of the links: connects to the hub and receives its messages."""

from __future__ import annotations

import contextlib
import math
import socket
import time
from collections.abc import Callable
from typing import Any

from xpk_shared.links.connection import DIAL_SECONDS, MAX_HUB_MESSAGE_BYTES, Link, dial, line
from xpk_shared.links.endpoint import Beats, Endpoint, Handlers
from xpk_shared.links.errors import PeerAbsent
from xpk_shared.links.handshake import PROTOCOL_ERRORS, Identity, shake_hands

_RETRY_SECONDS = 0.2


class Member(Endpoint):
    """Host `number` of a job, other than process 0."""

    def __init__(
        self,
        identity: Identity,
        number: int,
        handlers: Handlers,
        *,
        beats: Beats | None = None,
        dial_seconds: float = DIAL_SECONDS,
        handshake_seconds: float = math.inf,
    ) -> None:
        super().__init__(identity, number, {0}, handlers, beats)
        self._dial_seconds = dial_seconds  # for an attempt to connect
        self._handshake_seconds = handshake_seconds  # for one that is connected
        self._sent: list[bytes] = []  # messages of this host to the hub, before or after it connected

    def join(
        self, address: str, port: int, deadline: float = math.inf, resolve: Callable[[], str] | None = None
    ) -> str:
        """Connect to the hub, retrying until `deadline` (monotonic); return the hub's address.

        `resolve` returns the current address if there is no answer. Raises PeerAbsent after the deadline.
        """
        while True:
            sock = dial(address, port, deadline, resolve, self._dial_seconds, self._note_error)
            with contextlib.suppress(OSError):  # it may be closed already
                link, hub = Link(sock), str(sock.getpeername()[0])
                limit = min(deadline, time.monotonic() + self._handshake_seconds)
                messages = shake_hands(link, self._identity, self.number, limit, self._greet)
                if messages is not None:
                    link.max_bytes = MAX_HUB_MESSAGE_BYTES
                    self.hub_address = hub
                    self.absent.clear()
                    self._start(self._listen, link, messages)
                    return hub
            self._close(sock)
            if time.monotonic() > deadline:
                raise PeerAbsent(f"process 0 at {address}:{port} belongs to another job or attempt, or does not answer")
            time.sleep(_RETRY_SECONDS)
            address = resolve() if resolve else address

    def _note_error(self, error: OSError) -> None:
        if isinstance(error, socket.gaierror):
            self.unresolved_at = time.monotonic()

    def broadcast(self, text: str) -> None:
        """Send a text to all other hosts, as soon as this one is connected."""
        self.send_to_hub({"tell": text, "by": self.number})

    def leave(self, seconds: float = 0.0) -> None:
        """Announce that this host's end is not a failure."""
        self._is_closing = True
        self.send_to_hub({"bye": self.number})

    def _greet(self, link: Link, hello: bytes) -> None:
        with self._changed:
            self.links[0] = link  # from now on the hub treats the end of this connection as the loss of this host
            link.send(b"".join([hello, *self._sent]))

    def send_to_hub(self, message: dict[str, Any]) -> None:
        """Send a message to the hub, as soon as this host is connected."""
        with self._changed:
            self._sent.append(line(message))
            self.send(self._sent[-1])

    def _listen(self, link: Link, messages: list[dict[str, Any]] | None) -> None:
        """Read the hub's messages until the connection ends or one is invalid."""
        with contextlib.suppress(*PROTOCOL_ERRORS):
            while messages is not None:
                for message in messages:
                    self._handle(message)
                messages = link.receive()
        self._close(link.sock)
        if self._is_closing:
            self._handlers.left(0)
        else:
            self._handlers.lost(0)

    def _handle(self, message: dict[str, Any]) -> None:
        if "lost" in message:
            self._handlers.lost(message["lost"])
        elif "tell" in message:
            self._handlers.broadcast(message["tell"], message["by"])
        elif "bye" in message:
            self._is_closing = True
        else:
            self._handlers.message(message, 0)

    def _close(self, sock: socket.socket) -> None:
        self.links.pop(0, None)
        sock.close()
