"""TCP connections that carry JSON, one message per line."""

from __future__ import annotations

import contextlib
import json
import resource
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from xpk_shared.links.errors import AddressError, PeerAbsent

MAX_MESSAGE_BYTES = 1 << 20  # bytes in a message; hosts send far less, strangers may send anything
MAX_HUB_MESSAGE_BYTES = 1 << 28  # bytes in a message of the hub, which lists all files of a data set: 160 for each
_CHUNK_BYTES = 1 << 16
_PATIENCE_SECONDS = 1.0, 10.0  # timeouts of a connection attempt: the first, and the longest
_PAUSE_SECONDS = 0.01, 0.5  # between two attempts, each of which asks the name server: the first, and the longest
_KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 25_000}


class Link:
    """One connection carrying JSON lines of at most `longest` bytes; by default, one chunk."""

    def __init__(self, sock: socket.socket, longest: int = _CHUNK_BYTES) -> None:
        self.sock, self.peer, self.has_left, self.longest = sock, -1, False, longest
        self.heard = time.monotonic()
        self._buffer, self._sending = bytearray(), threading.Lock()
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE.items():  # a machine that fails sends no end of stream
            if hasattr(socket, option):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)

    def send(self, content: bytes) -> None:
        """Send messages made by `line`. The reader notices a closed connection, not this method."""
        with contextlib.suppress(OSError), self._sending:
            self.sock.sendall(content)

    def beat(self, content: bytes) -> None:
        """Send a heartbeat, unless a message is being sent, which shows that the host is alive too."""
        if self._sending.acquire(blocking=False):
            try:
                with contextlib.suppress(OSError):
                    self.sock.sendall(content)
            finally:
                self._sending.release()

    def receive(self) -> list[dict[str, Any]] | None:
        """Block for data; return the complete messages in it, or None if the connection is over.

        It is over at the end of the stream, and at data that is not one of our lines.
        """
        try:
            data = self.sock.recv(_CHUNK_BYTES)
        except OSError:
            return None
        if not data:
            return None
        self.heard = time.monotonic()
        first, *others = data.split(b"\n")
        self._buffer += first  # in place, as a long message arrives in thousands of pieces
        lines = []
        for other in others:
            lines.append(self._buffer)
            self._buffer = bytearray(other)
        if max(map(len, (*lines, self._buffer))) > self.longest:
            return None
        try:
            messages = [json.loads(one) for one in lines]
        except (ValueError, RecursionError):
            return None
        return messages if all(isinstance(message, dict) for message in messages) else None

    def cut(self) -> None:
        """End the connection as if the other host had closed it, for the thread that reads from it."""
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)


def line(message: dict[str, Any]) -> bytes:
    """Return a message in its wire format."""
    return json.dumps(message).encode() + b"\n"


def listen(address: str, port: int) -> socket.socket:
    """Listen at an address of this host, "" for all, with a backlog up to this process's limit of open files.

    Raises AddressError if the address cannot be bound, as when it is in use.
    """
    with contextlib.suppress(OSError, ValueError):  # more than the system allows
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if not address and socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):
            return socket.create_server(("::", port), family=socket.AF_INET6, backlog=1024, dualstack_ipv6=True)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        return socket.create_server((address, port), family=family, backlog=1024)
    except OSError as error:
        raise AddressError(f"cannot listen at {address or '*'}:{port}: {error.strerror or error}") from error


def dial(address: str, port: int, deadline: float, again: Callable[[], str] | None = None) -> socket.socket:
    """Connect, retrying until `deadline` (monotonic), as the hub may start later than this host.

    `again` returns the address to try next: a name may still resolve to the previous attempt's host, which does not
    answer. So the first timeouts are short. Raises PeerAbsent after the deadline.
    """
    patience, longest = _PATIENCE_SECONDS
    pause, longest_pause = _PAUSE_SECONDS
    while True:
        left = max(0.1, deadline - time.monotonic())
        try:
            sock = socket.create_connection((address, port), timeout=min(patience, left))
            sock.settimeout(None)
            return sock
        except OSError as error:
            if time.monotonic() > deadline:
                raise PeerAbsent(f"cannot connect to process 0 at {address}:{port}: {error}") from error
            time.sleep(pause)
        patience, pause = min(2 * patience, longest), min(2 * pause, longest_pause)
        address = again() if again else address
