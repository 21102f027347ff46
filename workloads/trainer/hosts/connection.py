"""TCP connections that carry JSON, one message per line."""

import contextlib
import hashlib
import hmac
import json
import resource
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from trainer.errors import AddressError, PeerAbsent, reason

MAX_MESSAGE_BYTES = 1 << 20  # bytes in a message; hosts send far less, strangers may send anything
MAX_HUB_MESSAGE_BYTES = 1 << 28  # bytes in a message of process 0, which lists all files of a data set: 160 for each
_PATIENCE_SECONDS = 1.0, 10.0  # timeouts of a connection attempt: the first, and the longest
_KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 25_000}


class Link:
    """One connection carrying JSON lines of at most `longest` bytes."""

    def __init__(self, sock: socket.socket, longest: int = MAX_MESSAGE_BYTES) -> None:
        self.sock, self.peer, self.left, self.longest = sock, -1, False, longest
        self.heard = time.monotonic()
        self._buffer, self._sending = bytearray(), threading.Lock()
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE.items():  # a machine that fails sends no end of stream
            if hasattr(socket, option):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)

    def send(self, message: dict[str, Any]) -> None:
        """Send a message. Its reader notices a closed connection, not this method."""
        self.send_line(line(message))

    def send_line(self, content: bytes) -> None:
        """Send a message made by `line`."""
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
            data = self.sock.recv(65536)
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


def proof(secret: bytes, *said: object) -> str:
    """Return an HMAC that only a holder of the secret can compute."""
    return hmac.new(secret, json.dumps(said).encode(), hashlib.sha256).hexdigest()


def is_proof(received: object, expected: str) -> bool:
    """Return whether a received value equals this proof, in constant time."""
    return isinstance(received, str) and hmac.compare_digest(received.encode(), expected.encode())


def line(message: dict[str, Any]) -> bytes:
    """Return a message in its wire format."""
    return json.dumps(message).encode() + b"\n"


def listen(address: str, port: int) -> socket.socket:
    """Listen at an address of this host, with a backlog up to this process's limit of open files.

    Raises AddressError if the address cannot be bound, as when it is in use.
    """
    with contextlib.suppress(OSError, ValueError):  # more than the system allows
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        return socket.create_server((address, port), family=family, backlog=1024)
    except OSError as error:
        raise AddressError(f"cannot listen at {address}:{port}: {reason(error)}") from error


def dial(address: str, port: int, deadline: float, again: Callable[[], str] | None = None) -> socket.socket:
    """Connect, retrying until `deadline` (monotonic), as the hub may start later than this host.

    `again` returns the address to try next: a name may still resolve to the previous attempt's host, which does not
    answer. So the first timeouts are short. Raises PeerAbsent after the deadline.
    """
    patience = _PATIENCE_SECONDS[0]
    while True:
        left = max(0.1, deadline - time.monotonic())
        try:
            sock = socket.create_connection((address, port), timeout=min(patience, left))
            sock.settimeout(None)
            return sock
        except OSError as error:
            if time.monotonic() > deadline:
                raise PeerAbsent(f"cannot connect to process 0 at {address}:{port}: {error}") from error
            time.sleep(0.1)
        patience = min(2 * patience, _PATIENCE_SECONDS[1])
        address = again() if again else address
