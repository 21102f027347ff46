"""Handshake: two hosts prove to each other that they belong to one attempt of one job.

    challenge  hub -> host  {"challenge": nonce}
    hello      host -> hub  {"hello": number, "nonce", "proof"}
    welcome    hub -> host  {"welcome": proof}

A proof is an HMAC with the workload's secret over the role, the job, the attempt, the host's number and both nonces, so
it is worthless on another connection or for another host. Nothing else counts before it.
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

PROTOCOL_ERRORS = (TypeError, ValueError, KeyError, AttributeError)  # raised by messages that no host sends
HANDSHAKE_SECONDS = 5.0  # deadline of a handshake
_PAUSE_SECONDS = 0.5
_STRANGERS = 64  # minimum of the limit on connections without a handshake
_MAX_MESSAGE_BYTES = 1024  # bytes in a stranger's message


@dataclass(frozen=True)
class Identity:
    """Identity of an attempt, shared by its hosts. Without a secret, as in manual runs, anybody may know it."""

    job: Sequence[str]
    attempt: int
    secret: bytes

    def proof(self, role: str, number: int, challenge: str, nonce: object) -> str:
        """Return the proof of `role`, "hub" or "host", on one connection of host `number`."""
        said = [role, [*self.job], self.attempt, number, challenge, nonce]
        return hmac.new(self.secret, json.dumps(said).encode(), hashlib.sha256).hexdigest()


class Gate:
    """The hub's listener: accepts connections, and closes those without a handshake in time.

    The number of connections without a handshake is limited; further ones wait in the kernel's queue, also while
    descriptors are lacking.
    """

    def __init__(
        self, listener: socket.socket, selector: selectors.BaseSelector, me: Identity, hosts: int, seconds: float
    ) -> None:
        self._listener, self._selector, self._me, self._hosts = listener, selector, me, hosts
        self._seconds = seconds  # for a handshake
        self._strangers: dict[Link, tuple[str, float]] = {}  # challenge and deadline of each
        self._resumes: float | None = 0.0

    def tend(self) -> float | None:
        """Close late connections, listen again if there is room; return the seconds until the next call."""
        now = time.monotonic()
        for link in [link for link, (_, deadline) in self._strangers.items() if now > deadline]:
            self.close(link)
        if self._resumes is not None and now >= self._resumes and self._has_room:
            self._selector.register(self._listener, selectors.EVENT_READ)
            self._resumes = None
        return _PAUSE_SECONDS if self._strangers or self._resumes is not None else None

    def accept(self) -> None:
        """Accept a connection and challenge it."""
        try:
            link, challenge = Link(self._listener.accept()[0], _MAX_MESSAGE_BYTES), secrets.token_hex(16)
        except OSError:  # it is closed already, or there are no descriptors left
            self._pause()
            return
        self._strangers[link] = challenge, time.monotonic() + self._seconds
        self._selector.register(link.sock, selectors.EVENT_READ, link)
        link.send(line({"challenge": challenge}))
        if not self._has_room:
            self._pause()

    def admit(self, link: Link, hello: dict[str, Any]) -> bytes:
        """Return the welcome of a stranger whose hello is valid, b"" if it is not."""
        number, nonce, proof = hello["hello"], hello["nonce"], hello["proof"]
        if type(number) is not int or not 0 < number < self._hosts:
            return b""
        challenge, _ = self._strangers[link]
        if not _is_same(proof, self._me.proof("host", number, challenge, nonce)):
            return b""
        del self._strangers[link]
        return line({"welcome": self._me.proof("hub", number, challenge, nonce)})

    def close(self, link: Link) -> None:
        """Remove and close a connection."""
        self._strangers.pop(link, None)
        self._selector.unregister(link.sock)
        with contextlib.suppress(OSError):
            link.sock.close()

    @property
    def _has_room(self) -> bool:
        return len(self._strangers) < max(_STRANGERS, self._hosts)

    def _pause(self) -> None:
        self._selector.unregister(self._listener)
        self._resumes = time.monotonic() + _PAUSE_SECONDS


def introduce(
    link: Link, me: Identity, number: int, deadline: float, greet: Callable[[Link, bytes], None]
) -> list[dict[str, Any]] | None:
    """Host `number`: exchange proofs with the hub; `greet` sends the hello.

    Returns the messages received since; None if the hub does not answer by `deadline` (monotonic), or is of another
    attempt.
    """
    nonce = secrets.token_hex(16)
    with contextlib.suppress(*PROTOCOL_ERRORS):
        (said,) = _next(link, min(deadline, time.monotonic() + 2 * HANDSHAKE_SECONDS)) or [{}]
        challenge = str(said["challenge"])
        greet(link, line({"hello": number, "nonce": nonce, "proof": me.proof("host", number, challenge, nonce)}))
        first, *others = _next(link, deadline) or [{}]
        if _is_same(first["welcome"], me.proof("hub", number, challenge, nonce)):
            link.sock.settimeout(None)
            return others
    return None


def _next(link: Link, deadline: float) -> list[dict[str, Any]] | None:
    """Wait for the next complete messages; None if the connection is over."""
    messages: list[dict[str, Any]] | None = []
    while messages == []:
        link.sock.settimeout(None if deadline == math.inf else max(0.1, deadline - time.monotonic()))
        messages = link.receive()
    return messages


def _is_same(proof: object, expected: str) -> bool:
    """Return whether a received value equals this proof, in constant time."""
    return isinstance(proof, str) and hmac.compare_digest(proof.encode(), expected.encode())
