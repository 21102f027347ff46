"""TCP connections between simulated processes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tests.simulation.membership.clock import Clock, Lane, Process

_DELAYS = (0.0005, 0.003, 0.02, 0.1)  # seconds at most; most messages need little


def delay(clock: Clock) -> float:
    """Return the seconds that a message needs."""
    return clock.rng.random() * clock.rng.choice(_DELAYS)


class End:
    """One process's end of a connection. `on_end` is called once, when a thread reads the end of the stream."""

    def __init__(self, process: Process, lane: Lane | None = None) -> None:
        self.process, self.lane = process, lane or Lane(process)
        self.other: End | None = None
        self.on_message: Callable[[Any], None] = lambda message: None
        self.on_end: Callable[[], None] = lambda: None
        self.held_until = 0.0  # time before which nothing that is sent arrives
        self._is_closed = self._has_ended = False

    def send(self, message: Any) -> None:
        """Send a message, which is lost if the connection has ended or its other process dies first."""
        other = self.other
        if other and not self._is_closed:
            self._transmit(other, lambda: other.receive(message))

    def close(self) -> None:
        """End the connection, for both processes."""
        if self._is_closed:
            return
        self._is_closed = True
        self.lane.put(0.0, self._end)
        self.hang_up()

    def hang_up(self) -> None:
        """Send the end of the stream, as the kernel of a process that was killed."""
        self._is_closed = True
        if other := self.other:
            self._transmit(other, other._end)

    def _transmit(self, other: End, action: Callable[[], None]) -> None:
        """Let something happen at the other end as soon as it arrives."""
        clock = self.process.clock
        begin, sets_out_at = partial(other.lane.put, delay(clock), action), self.process.reaches_at(other.process)
        sets_out_at = max(self.held_until, sets_out_at)
        begin() if clock.now >= sets_out_at else clock.at(sets_out_at, begin)

    def receive(self, message: Any) -> None:
        """Read a message."""
        if not self._has_ended:
            self.on_message(message)

    def _end(self) -> None:
        if not self._has_ended:
            self._is_closed = self._has_ended = True
            self.on_end()


def connect(one: End, other: End) -> None:
    """Join two ends. If a process is killed, the other one reads the end of the stream, unless its node is lost."""
    one.other, other.other = other, one
    for end in (one, other):
        end.process.on_kill.append(end.hang_up)
