"""A TCP connection that carries JSON, one message a line."""

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

LONGEST = 1 << 20  # bytes in a message; hosts send far less, a stranger may send anything
LONGEST_OF_HUB = 1 << 28  # bytes in one of process 0, which tells of all files of a data set: 160 for each
_PATIENCE_SECONDS = 1.0, 10.0  # for a connection, at first and at most
_KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 25_000}


class Link:
    """One connection carrying JSON lines, of which it takes none that is longer than `longest` bytes."""

    def __init__(self, sock: socket.socket, longest: int = LONGEST) -> None:
        self.sock, self.peer, self.left, self.longest = sock, -1, False, longest
        self.heard = time.monotonic()
        self._buffer, self._sending = bytearray(), threading.Lock()
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE.items():  # a machine that vanishes sends no end of stream
            if hasattr(socket, option):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)

    def send(self, message: dict[str, Any]) -> None:
        """Send; a connection that is already gone is noticed by its reader, not here."""
        self.send_line(line(message))

    def send_line(self, content: bytes) -> None:
        """Send a message that `line` has made."""
        with contextlib.suppress(OSError), self._sending:
            self.sock.sendall(content)

    def beat(self, content: bytes) -> None:
        """Send a line that shows no more than that this host lives; what is being sent now shows that too."""
        if self._sending.acquire(blocking=False):
            try:
                with contextlib.suppress(OSError):
                    self.sock.sendall(content)
            finally:
                self._sending.release()

    def receive(self) -> list[dict[str, Any]] | None:
        """Block for data; return the whole messages in it, or None where the connection is over.

        It is over at the end of the stream, and when what came is no line of ours.
        """
        try:
            data = self.sock.recv(65536)
        except OSError:
            return None
        if not data:
            return None
        self.heard = time.monotonic()
        first, *others = data.split(b"\n")
        self._buffer += first  # in place: a long message comes in thousands of pieces
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
    """Return what only who knows the secret can say about something."""
    return hmac.new(secret, json.dumps(said).encode(), hashlib.sha256).hexdigest()


def is_proof(said: object, wanted: str) -> bool:
    """Tell whether what somebody said is this proof, in a time that tells nothing of it."""
    return isinstance(said, str) and hmac.compare_digest(said.encode(), wanted.encode())


def line(message: dict[str, Any]) -> bytes:
    """Return a message as it is sent."""
    return json.dumps(message).encode() + b"\n"


def listen(address: str, port: int) -> socket.socket:
    """Listen at an address of this host, for as many as this process may have open.

    Raises AddressError where that cannot be, as when it is taken.
    """
    with contextlib.suppress(OSError, ValueError):  # more than the system ever gives
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        return socket.create_server((address, port), family=family, backlog=1024)
    except OSError as error:
        raise AddressError(f"cannot listen at {address}:{port}: {reason(error)}") from error


def dial(address: str, port: int, deadline: float, again: Callable[[], str] | None = None) -> socket.socket:
    """Connect, trying again until `deadline` (monotonic): the hub may start later than this host.

    `again` gives the address to try next: a name may stand for the host of an attempt before, from which nothing comes
    back. So the first waits are short. Raises PeerAbsent after the deadline.
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
                raise PeerAbsent(f"process 0 cannot be reached at {address}:{port}: {error}") from error
            time.sleep(0.1)
        patience = min(2 * patience, _PATIENCE_SECONDS[1])
        address = again() if again else address
