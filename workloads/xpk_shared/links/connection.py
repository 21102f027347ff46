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
_FIRST_DIAL_SECONDS, DIAL_SECONDS = 1.0, 10.0  # timeouts of a connection attempt: the first, and the longest
_PAUSE_SECONDS = 0.01, 0.5  # between two attempts, each of which queries the name server: the first, and the longest
_LONG_PAUSE = 30.0, 5.0  # after this time, the longest for a name that does not resolve: its pod waits for a machine
_KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 25_000}


class Link:
    """One connection carrying JSON lines of at most `max_bytes` bytes; by default, one chunk."""

    def __init__(self, sock: socket.socket, max_bytes: int = _CHUNK_BYTES) -> None:
        self.sock, self.peer, self.has_left, self.max_bytes = sock, -1, False, max_bytes
        self.received_at = time.monotonic()
        self._buffer, self._sending = bytearray(), threading.Lock()
        configure(sock)

    def send(self, content: bytes) -> None:
        """Send messages made by `line`. Errors are ignored: the reader detects a closed connection."""
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
        """Wait for data; return the complete messages in it, or None if the connection has ended.

        It has ended at the end of the stream, and at data that is not a valid message.
        """
        try:
            data = self.sock.recv(_CHUNK_BYTES)
        except OSError:
            return None
        if not data:
            return None
        self.received_at = time.monotonic()
        first, *others = data.split(b"\n")
        self._buffer += first  # in place, because a long message arrives in thousands of pieces
        lines = []
        for other in others:
            lines.append(self._buffer)
            self._buffer = bytearray(other)
        if max(map(len, (*lines, self._buffer))) > self.max_bytes:
            return None
        try:
            messages = [json.loads(content) for content in lines]
        except (ValueError, RecursionError):
            return None
        return messages if all(isinstance(message, dict) for message in messages) else None

    def shut_down(self) -> None:
        """End the connection as if the other host had closed it, for the thread that reads from it."""
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)


def configure(sock: socket.socket) -> None:
    """Send small messages at once, and detect a lost machine, which sends no end of stream."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE.items():
        if hasattr(socket, option):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def line(message: dict[str, Any]) -> bytes:
    """Return a message in its wire format."""
    return json.dumps(message).encode() + b"\n"


def listen(address: str, port: int) -> socket.socket:
    """Listen at an address of this host ("" for all), with a backlog up to this process's limit of open files.

    Raises AddressError if the address cannot be bound, for example because it is in use.
    """
    with contextlib.suppress(OSError, ValueError):  # more than the system allows
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    if not address and socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):
            return socket.create_server(("::", port), family=socket.AF_INET6, backlog=1024, dualstack_ipv6=True)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        return socket.create_server((address, port), family=family, backlog=1024)
    except OSError as error:
        raise AddressError(f"cannot listen at {address or '*'}:{port}: {error.strerror or error}") from error


def dial(
    address: str,
    port: int,
    deadline: float,
    resolve: Callable[[], str] | None = None,
    max_timeout: float = DIAL_SECONDS,
    report: Callable[[OSError], None] | None = None,
) -> socket.socket:
    """Connect, retrying until `deadline` (monotonic), because the hub may start later than this host.

    `resolve` returns the address to try next: a name may still resolve to the previous attempt's host, which does not
    answer. Therefore the first timeouts are short; none is longer than `max_timeout` seconds. `report` is called with
    each error. Raises PeerAbsent after the deadline.
    """
    began = time.monotonic()
    timeout = min(_FIRST_DIAL_SECONDS, max_timeout)
    pause, longest_pause = _PAUSE_SECONDS
    while True:
        remaining = max(0.1, deadline - time.monotonic())
        try:
            sock = socket.create_connection((address, port), timeout=min(timeout, remaining))
            sock.settimeout(None)
            return sock
        except OSError as error:
            now = time.monotonic()
            if now > deadline:
                raise PeerAbsent(f"cannot connect to process 0 at {address}:{port}: {error}") from error
            if report:
                report(error)
            if isinstance(error, socket.gaierror) and now > began + _LONG_PAUSE[0]:
                longest_pause = _LONG_PAUSE[1]
            time.sleep(min(pause, deadline - now))
        timeout, pause = min(2 * timeout, max_timeout), min(2 * pause, longest_pause)
        address = resolve() if resolve else address
