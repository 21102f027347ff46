"""Base class of both ends of the links: open connections, and heartbeats."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from xpk_shared.links.connection import Link, line
from xpk_shared.links.handshake import Identity


@dataclass(frozen=True)
class Beats:
    """Heartbeats, and the silence after which a host counts as dead."""

    seconds: float = 2.0  # between beats
    silent_seconds: float = 20.0  # importing JAX on a busy machine may keep a host silent for seconds


@dataclass(frozen=True)
class Handlers:
    """Callbacks, called on a background thread; the last argument is the number of the other host."""

    lost: Callable[[int], None]  # the host died
    broadcast: Callable[[str, int], None]  # the host sent a text to all others
    message: Callable[[dict[str, Any], int], None] = lambda message, number: None  # the host sent any other message
    left: Callable[[int], None] = lambda number: None  # the connection of a host ended that had announced its end


class Endpoint:
    """One host's end of its links. Without `beats`, a host may be silent without a limit."""

    def __init__(
        self, identity: Identity, number: int, absent: set[int], handlers: Handlers, beats: Beats | None
    ) -> None:
        self.number = number
        self.absent = absent  # expected hosts that have never connected
        self.links: dict[int, Link] = {}
        self.hub_address = ""  # at which the others reach the hub, once a host has connected
        self.unresolved_at = -math.inf  # monotonic time at which the hub's name last did not resolve
        self._changed = threading.Condition()
        self._is_closing = False
        self._identity, self._handlers, self._beats = identity, handlers, beats
        self.silent_seconds = beats.silent_seconds if beats else 0.0  # may be changed while the links are open
        self.silence_limits: dict[int, float] = {}  # of single hosts, instead; may be replaced, too

    def send(self, content: bytes, excluded: int = -1) -> None:
        """Send a message made by `line` to all connected hosts except `excluded`."""
        for number, link in list(self.links.items()):
            if number != excluded and not link.has_left:
                link.send(content)

    def _start(self, target: Callable[..., None], *args: object) -> None:
        """Start the threads that read and that send heartbeats."""
        threading.Thread(target=target, args=args, name="links", daemon=True).start()
        if self._beats:
            threading.Thread(target=self._beat, args=(self._beats,), name="links-beat", daemon=True).start()

    def _beat(self, beats: Beats) -> None:
        """Send heartbeats, and shut down the connections of silent hosts."""
        woke = time.monotonic()
        while not self._is_closing:
            time.sleep(beats.seconds)
            now = time.monotonic()
            self._send_beats(now, now - woke - 2 * beats.seconds)
            woke = now

    def _send_beats(self, now: float, late: float) -> None:
        """Send a heartbeat on each connection, and shut down silent ones. This thread runs `late` seconds too late."""
        beat = line({"beat": self.number})
        for number, link in [(n, link) for n, link in list(self.links.items()) if not link.has_left]:
            link.beat(beat)
            if late > 0:  # this host itself was suspended, so what others have sent may be unread
                link.received_at = min(now, link.received_at + late)
            if now - link.received_at > self.silence_limits.get(number, self.silent_seconds) and not self._is_closing:
                link.shut_down()
