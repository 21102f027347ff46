"""The hub's end of the links: registers the other hosts, and reports to all of them when one is lost."""

from __future__ import annotations

import contextlib
import selectors
import socket
from typing import Any

from xpk_shared.links.connection import MAX_MESSAGE_BYTES, Link, line, listen
from xpk_shared.links.endpoint import Beats, Endpoint, Handlers
from xpk_shared.links.handshake import HANDSHAKE_SECONDS, PROTOCOL_ERRORS, Gate, Identity

_IPV4_MAPPED = "::ffff:"  # how a socket for both versions of IP names an address of version 4


class Hub(Endpoint):
    """Process 0 of a job with `hosts` hosts."""

    def __init__(
        self,
        identity: Identity,
        hosts: int,
        handlers: Handlers,
        *,
        beats: Beats | None = None,
        handshake_seconds: float = HANDSHAKE_SECONDS,
        repeats: bool = True,
    ) -> None:
        """Take the parameters. `repeats`: a host that connects again receives all messages to all hosts again."""
        super().__init__(identity, 0, set(range(1, hosts)), handlers, beats)
        self._repeats = repeats
        self._hosts, self._handshake_seconds = hosts, handshake_seconds
        self._published: list[bytes] = []  # messages to all hosts, which hosts that join later receive too

    def open(self, address: str, port: int) -> None:
        """Listen at an address, "" for all of this host's. Raises AddressError."""
        self._start(self._serve, listen(address, port))

    def broadcast(self, text: str) -> None:
        """Send a text to all hosts."""
        self.publish({"tell": text, "by": 0})

    def leave(self, seconds: float = 0.0) -> None:
        """Announce that this host's end is not a failure, after waiting up to `seconds` for the others to do so."""
        with self._changed:
            self._changed.wait_for(lambda: all(link.has_left for link in self.links.values()), seconds)
        self._is_closing = True
        self.publish({"bye": 0})

    def publish(self, message: dict[str, Any], excluded: int = -1) -> None:
        """Send a message to all hosts but one, including those that join later."""
        with self._changed:
            self._published.append(line(message))
            self.send(self._published[-1], excluded)

    def reply(self, number: int, message: dict[str, Any]) -> None:
        """Send a message to one host, if it is connected."""
        if link := self.links.get(number):
            link.send(line(message))

    def shut_down(self, excluded: int = -1) -> None:
        """End the connections of all hosts but one, which may connect again."""
        for number, link in list(self.links.items()):
            if number != excluded:
                link.shut_down()

    def _serve(self, listener: socket.socket) -> None:
        """Accept hosts and read their messages."""
        with selectors.DefaultSelector() as selector:
            gate = Gate(listener, selector, self._identity, self._hosts, self._handshake_seconds)
            while True:
                for key, _ in selector.select(gate.close_late()):
                    if key.data is None:
                        gate.accept()
                    elif not self._receive(gate, key.data):
                        gate.close(key.data)
                        self._disconnect(key.data)

    def _receive(self, gate: Gate, link: Link) -> bool:
        """Handle data from a connection; return False when it has ended."""
        messages = link.receive()
        with contextlib.suppress(*PROTOCOL_ERRORS):
            return messages is not None and all(self._handle(gate, link, message) for message in messages)
        return False

    def _handle(self, gate: Gate, link: Link, message: dict[str, Any]) -> bool:
        """Handle one message; return False for an invalid message before the handshake."""
        if link.peer < 0:
            welcome = b"" if message["hello"] in self.links else gate.admit(link, message)
            return bool(welcome) and self._join(link, message["hello"], welcome)
        if "tell" in message:
            self.publish({"tell": message["tell"], "by": link.peer}, excluded=link.peer)
            self._handlers.broadcast(message["tell"], link.peer)
        elif "bye" in message:
            with self._changed:
                link.has_left = True
                self._changed.notify_all()
        else:
            self._handlers.message(message, link.peer)
        return True

    def _join(self, link: Link, number: int, welcome: bytes) -> bool:
        """Register a host that completed the handshake."""
        with self._changed:
            link.peer, link.max_bytes = number, MAX_MESSAGE_BYTES
            is_new = self._repeats or number in self.absent
            link.send(b"".join([welcome, *(self._published if is_new else ())]))
            self.links[number] = link
            address = str(link.sock.getsockname()[0])
            self.hub_address = address[len(_IPV4_MAPPED) :] if address.startswith(_IPV4_MAPPED) else address
            is_last = self.absent == {number}
            self.absent.discard(number)
        if is_last:
            self.publish({"ready": True})
            self._handlers.message({"ready": True}, 0)
        return True

    def _disconnect(self, link: Link) -> None:
        """Handle the end of a connection: the host is lost, unless it has announced its end."""
        if link.peer < 0:
            return
        with self._changed:
            del self.links[link.peer]
            self._changed.notify_all()
        if link.has_left:
            self._handlers.left(link.peer)
        elif not self._is_closing:
            self.publish({"lost": link.peer})
            self._handlers.lost(link.peer)
