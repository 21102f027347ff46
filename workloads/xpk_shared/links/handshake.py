"""Handshake: two hosts prove to each other that they belong to one attempt of one job.

    challenge  hub -> host  {"challenge": nonce}
    hello      host -> hub  {"hello": number, "nonce", "proof"}
    welcome    hub -> host  {"welcome": proof}

A proof is an HMAC with the workload's secret over the role, the job, the attempt, the host's number and both nonces, so
it is not valid on another connection or for another host. Other messages are invalid before the handshake.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import math
import secrets
import selectors
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from xpk_shared.links.connection import Link, line

# Raised by invalid messages: the last two by a number such as 1e999, and by deep nesting.
PROTOCOL_ERRORS = (TypeError, ValueError, KeyError, AttributeError, OverflowError, RecursionError)
HANDSHAKE_SECONDS = 5.0  # deadline of a handshake
_PAUSE_SECONDS = 0.5
_MIN_UNVERIFIED = 64  # minimum of the limit on connections without a handshake
_MAX_MESSAGE_BYTES = 1024  # before the handshake


@dataclass(frozen=True)
class Identity:
    """Identity of an attempt, shared by its hosts. Without a secret, as in manual runs, it proves nothing."""

    job: Sequence[str]
    attempt: int
    secret: bytes

    def proof(self, role: str, number: int, challenge: str, nonce: object) -> str:
        """Return the proof of `role`, "hub" or "host", on one connection of host `number`."""
        fields = [role, [*self.job], self.attempt, number, challenge, nonce]
        return hmac.new(self.secret, json.dumps(fields).encode(), hashlib.sha256).hexdigest()


class Gate:
    """The hub's listener: accepts connections, and closes those without a handshake in time.

    The number of connections without a handshake is limited; further connections wait in the kernel's queue, as they do
    when no file descriptors are available.
    """

    def __init__(
        self, listener: socket.socket, selector: selectors.BaseSelector, identity: Identity, hosts: int, seconds: float
    ) -> None:
        self._listener, self._selector, self._identity, self._hosts = listener, selector, identity, hosts
        self._seconds = seconds  # for a handshake
        self._unverified: dict[Link, tuple[str, float]] = {}  # challenge and deadline of each
        self._resume_at: float | None = 0.0

    def close_late(self) -> float | None:
        """Close late connections, and listen again if the limit allows; return the seconds until the next call."""
        now = time.monotonic()
        for link in [link for link, (_, deadline) in self._unverified.items() if now > deadline]:
            self.close(link)
        if self._resume_at is not None and now >= self._resume_at and self._has_room:
            self._selector.register(self._listener, selectors.EVENT_READ)
            self._resume_at = None
        return _PAUSE_SECONDS if self._unverified or self._resume_at is not None else None

    def accept(self) -> None:
        """Accept a connection and challenge it."""
        try:
            link, challenge = Link(self._listener.accept()[0], _MAX_MESSAGE_BYTES), secrets.token_hex(16)
        except OSError:  # the connection is closed already, or no file descriptors are available
            self._pause()
            return
        self._unverified[link] = challenge, time.monotonic() + self._seconds
        self._selector.register(link.sock, selectors.EVENT_READ, link)
        link.send(line({"challenge": challenge}))
        if not self._has_room:
            self._pause()

    def admit(self, link: Link, hello: dict[str, Any]) -> bytes:
        """Return the welcome for a valid hello, or b"" for an invalid one."""
        number, nonce, proof = hello["hello"], hello["nonce"], hello["proof"]
        if type(number) is not int or not 0 < number < self._hosts:
            return b""
        challenge, _ = self._unverified[link]
        if not is_same(proof, self._identity.proof("host", number, challenge, nonce)):
            return b""
        del self._unverified[link]
        return line({"welcome": self._identity.proof("hub", number, challenge, nonce)})

    def close(self, link: Link) -> None:
        """Remove and close a connection."""
        self._unverified.pop(link, None)
        self._selector.unregister(link.sock)
        with contextlib.suppress(OSError):
            link.sock.close()

    @property
    def _has_room(self) -> bool:
        return len(self._unverified) < max(_MIN_UNVERIFIED, self._hosts)

    def _pause(self) -> None:
        self._selector.unregister(self._listener)
        self._resume_at = time.monotonic() + _PAUSE_SECONDS


def shake_hands(
    link: Link, identity: Identity, number: int, deadline: float, greet: Callable[[Link, bytes], None]
) -> list[dict[str, Any]] | None:
    """Exchange proofs with the hub as host `number`; `greet` sends the hello.

    Returns the messages received after the welcome; None if the hub does not answer by `deadline` (monotonic), or
    belongs to another attempt.
    """
    nonce = secrets.token_hex(16)
    with contextlib.suppress(*PROTOCOL_ERRORS):
        (message,) = _receive(link, min(deadline, time.monotonic() + 2 * HANDSHAKE_SECONDS)) or [{}]
        challenge = str(message["challenge"])
        greet(link, line({"hello": number, "nonce": nonce, "proof": identity.proof("host", number, challenge, nonce)}))
        first, *others = _receive(link, deadline) or [{}]
        if is_same(first["welcome"], identity.proof("hub", number, challenge, nonce)):
            link.sock.settimeout(None)
            return others
    return None


def _receive(link: Link, deadline: float) -> list[dict[str, Any]] | None:
    """Wait for the next complete messages; None if the connection has ended."""
    messages: list[dict[str, Any]] | None = []
    while messages == []:
        link.sock.settimeout(None if deadline == math.inf else max(0.1, deadline - time.monotonic()))
        messages = link.receive()
    return messages


def is_same(proof: object, expected: str) -> bool:
    """Return whether a received value equals this proof, in constant time."""
    return isinstance(proof, str) and hmac.compare_digest(proof.encode(), expected.encode())
