"""Handshake: two hosts prove to each other that they belong to one attempt of one job.

    challenge  hub -> host  {"challenge": nonce}
    hello      host -> hub  {"hello": id, "nonce", "proof"}
    welcome    hub -> host  {"welcome": proof}

A proof is an HMAC with the workload's secret over the role, the job, the attempt, the host's id and both nonces, so it
is worthless on another connection or for another host. Nothing else counts before it.
"""

import contextlib
import secrets
import selectors
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trainer.hosts.connection import Link, is_proof, proof

HANDSHAKE_SECONDS = 5.0  # deadline of a handshake
_PAUSE_SECONDS = 0.5
_STRANGERS = 64  # minimum of the limit on connections without a handshake
_MAX_MESSAGE_BYTES = 1024  # bytes in a stranger's message


@dataclass(frozen=True, slots=True)
class Identity:
    """Identity of an attempt, shared by its hosts. Without a secret, as in manual runs, anybody may know it."""

    job: Sequence[str]
    attempt: int
    secret: bytes

    def proof(self, role: str, peer: int, challenge: str, nonce: object) -> str:
        """Return the proof of `role`, "hub" or "host", on one connection of host `peer`."""
        return proof(self.secret, role, [*self.job], self.attempt, peer, challenge, nonce)


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
            self._selector.unregister(link.sock)
            self.forget(link)
        if self._resumes is not None and now >= self._resumes and self._has_room:
            self._selector.register(self._listener, selectors.EVENT_READ)
            self._resumes = None
        return _PAUSE_SECONDS if self._strangers or self._resumes is not None else None

    def accept(self) -> None:
        """Accept a connection and challenge it."""
        try:
            sock, _ = self._listener.accept()
        except OSError:  # it is closed already, or there are no descriptors left
            self._pause()
            return
        link, challenge = Link(sock, _MAX_MESSAGE_BYTES), secrets.token_hex(16)
        self._strangers[link] = challenge, time.monotonic() + self._seconds
        self._selector.register(sock, selectors.EVENT_READ, link)
        link.send({"challenge": challenge})
        if not self._has_room:
            self._pause()

    def admits(self, link: Link, hello: dict[str, Any]) -> bool:
        """Return whether a stranger's hello is valid, and welcome it if so."""
        peer, nonce = hello["hello"], hello["nonce"]
        if type(peer) is not int or not 0 < peer < self._hosts:
            return False
        challenge, _ = self._strangers[link]
        if not is_proof(hello["proof"], self._me.proof("host", peer, challenge, nonce)):
            return False
        del self._strangers[link]
        link.send({"welcome": self._me.proof("hub", peer, challenge, nonce)})
        return True

    def forget(self, link: Link) -> None:
        """Remove a connection that is over."""
        self._strangers.pop(link, None)
        with contextlib.suppress(OSError):
            link.sock.close()

    @property
    def _has_room(self) -> bool:
        return len(self._strangers) < max(_STRANGERS, self._hosts)

    def _pause(self) -> None:
        self._selector.unregister(self._listener)
        self._resumes = time.monotonic() + _PAUSE_SECONDS


def introduce(link: Link, me: Identity, peer: int, deadline: float) -> list[dict[str, Any]] | None:
    """Host `peer`: exchange proofs with the hub.

    Returns the messages received since; None if the hub does not answer by `deadline` (monotonic), or is of another
    attempt.
    """
    nonce = secrets.token_hex(16)
    with contextlib.suppress(TypeError, KeyError, AttributeError, ValueError):
        (said,) = _next(link, min(deadline, time.monotonic() + 2 * HANDSHAKE_SECONDS)) or [{}]
        challenge = str(said["challenge"])
        link.send({"hello": peer, "nonce": nonce, "proof": me.proof("host", peer, challenge, nonce)})
        first, *others = _next(link, deadline) or [{}]
        if is_proof(first["welcome"], me.proof("hub", peer, challenge, nonce)):
            link.sock.settimeout(None)
            return others
    link.sock.close()
    return None


def _next(link: Link, deadline: float) -> list[dict[str, Any]] | None:
    """Wait for the next complete messages; None if the connection is over."""
    messages: list[dict[str, Any]] | None = []
    while messages == []:
        link.sock.settimeout(max(0.1, deadline - time.monotonic()))
        messages = link.receive()
    return messages
