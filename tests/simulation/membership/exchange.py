"""Connections of slices to each other, like `trainer.elastic.connections.Connections` but without sockets."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from tests.simulation.membership.clock import Lane, Process
from tests.simulation.membership.wires import End, connect, delay
from trainer.hosts.membership import Membership, Peer
from xpk_shared.slices.registry import BEATS

if TYPE_CHECKING:
    from tests.simulation.membership.world import World

_RETRY_SECONDS, _HANDSHAKE_SECONDS = 0.1, 5.0


class Exchange:
    """One slice's connections; its first host is its only one."""

    def __init__(
        self, process: Process, world: World, own: Peer, membership: Membership, on_frame: Callable[..., None]
    ) -> None:
        self._process, self._world, self._own = process, world, own
        self._membership, self._on_frame = membership, on_frame
        self._expected: dict[Peer, int] = {}
        self._open: dict[Peer, tuple[int, End]] = {}
        self._received_at: dict[End, float] = {}
        self._dialing: set[Peer] = set()
        self._generations, self._beating = 0, Lane(process)
        self.port = world.listen(self)
        self._beat()

    def expect(self, peers: Mapping[Peer, tuple[str, int]]) -> None:
        """Connect to these slices, and close connections to all others, which are told that they were dropped."""
        self._expected = {peer: port for peer, (_, port) in peers.items()}
        for end in [self._open.pop(peer)[1] for peer in list(self._open) if peer not in peers]:
            self._send_beat(end)
            end.close()
        for peer in peers:
            if peer[0] < self._own[0] and peer not in self._dialing and peer not in self._open:
                self._dialing.add(peer)
                self._dial(Lane(self._process), peer)

    def generation(self, peer: Peer) -> int:
        """Return the number of the connection to a slice, 0 without one."""
        return self._open[peer][0] if peer in self._open else 0

    def send(self, peer: Peer, header: dict[str, Any], payload: memoryview) -> None:
        """Send a frame."""
        if peer in self._open:
            self._open[peer][1].send((dict(header), bytes(payload)))

    def silence(self, peer: Peer) -> float:
        """Return the seconds since a slice has sent anything, infinity without a connection."""
        return self._process.clock.now - self._received_at[self._open[peer][1]] if peer in self._open else math.inf

    def _beat(self) -> None:
        for _, end in list(self._open.values()):
            self._send_beat(end)
        self._beating.put(BEATS.seconds, self._beat)

    def _send_beat(self, end: End) -> None:
        end.send(({"beat": self._membership.dropped}, b""))

    def _dial(self, lane: Lane, peer: Peer) -> None:
        port = self._expected.get(peer)
        if port is None:
            self._dialing.discard(peer)
            return

        def again() -> None:
            lane.put(_RETRY_SECONDS, lambda: self._dial(lane, peer))

        other = self._world.listeners[port]
        if not other._process.is_alive:
            again()
            return
        end = End(self._process)
        end.on_message, end.on_end = lambda message: self._serve(peer, end, again), again
        other._accept(end, self._own)
        clock = self._process.clock
        clock.at(clock.now + _HANDSHAKE_SECONDS, lambda: None if end in self._received_at else end.close())

    def _accept(self, dialed: End, peer: Peer) -> None:
        end = End(self._process)
        connect(end, dialed)

        def welcome() -> None:
            end.send("welcome")
            self._serve(peer, end, lambda: None)

        end.lane.put(delay(self._process.clock), welcome)

    def _serve(self, peer: Peer, end: End, after: Callable[[], None]) -> None:
        self._generations += 1
        former = self._open.get(peer)
        self._open[peer], self._received_at[end] = (self._generations, end), -math.inf
        end.on_message, end.on_end = lambda frame: self._read(peer, end, frame), lambda: self._end(peer, end, after)
        if former:
            former[1].close()
        self._membership.notify()
        self._send_beat(end)

    def _read(self, peer: Peer, end: End, frame: tuple[dict[str, Any], bytes]) -> None:
        header, payload = frame
        self._received_at[end] = self._process.clock.now
        if "beat" in header:
            self._membership.hear(peer, header["beat"])
        else:
            self._on_frame(peer, header, memoryview(payload))

    def _end(self, peer: Peer, end: End, after: Callable[[], None]) -> None:
        if peer in self._open and self._open[peer][1] is end:
            del self._open[peer]
        self._membership.notify()
        after()
