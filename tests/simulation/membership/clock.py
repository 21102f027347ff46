"""Virtual time, and processes whose threads run one event at a time, unless the process is frozen or has died."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable
from random import Random

_WAKE_SECONDS = 0.05  # at most, in which the threads of a process run again after it was frozen
_KEEPALIVE_SECONDS = 25.0
_SWITCH_SECONDS = 0.0001  # between two events of a thread

Action = Callable[[], None]


class Clock:
    """The events of a life, in the order of their times."""

    def __init__(self, rng: Random) -> None:
        self.now, self.events, self.rng = 0.0, 0, rng
        self.split_until, self.far = 0.0, frozenset[int]()  # while the hosts of these slices do not reach the others
        self._order = itertools.count()
        self._heap: list[tuple[float, int, Action]] = []

    def at(self, time: float, action: Action) -> None:
        """Do something at a time, whichever processes are frozen."""
        heapq.heappush(self._heap, (time, next(self._order), action))

    def run(self, until: float) -> None:
        """Let all events before a time happen."""
        while self._heap and self._heap[0][0] <= until:
            self.now, _, action = heapq.heappop(self._heap)
            self.events += 1
            action()
        self.now = until


class Process:
    """A process that may be frozen or killed."""

    def __init__(self, clock: Clock, name: str, slice_id: int) -> None:
        """`slice_id`: of the slice on whose host it runs."""
        self.clock, self.name, self.slice_id = clock, name, slice_id
        self.is_alive, self.frozen_until = True, 0.0
        self.on_kill: list[Action] = []  # what its kernel does then

    @property
    def runs(self) -> bool:
        """Return whether it is alive and not frozen."""
        return self.is_alive and self.clock.now >= self.frozen_until

    def reaches_at(self, other: Process) -> float:
        """Return when something that is sent now sets out for another process: at once unless the network is split."""
        is_split = (self.slice_id in self.clock.far) != (other.slice_id in self.clock.far)
        return max(self.clock.now, self.clock.split_until) if is_split else self.clock.now

    def freeze(self, seconds: float) -> None:
        """Freeze it from now on; its sockets stay open."""
        self.frozen_until = max(self.frozen_until, self.clock.now + seconds)

    def kill(self, *, with_node: bool = False) -> None:
        """End it; with its node, nothing tells the others before their kernels find its connections dead."""
        self.is_alive = False
        for action in self.on_kill:
            self.clock.at(self.clock.now + (_KEEPALIVE_SECONDS if with_node else 0.0), action)


class Lane:
    """A thread of a process: its events happen in the order in which they were put."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self._events: deque[tuple[float, Action]] = deque()

    def put(self, seconds: float, action: Action) -> None:
        """Do something after some seconds, and after everything that was put before."""
        due = self.process.clock.now + seconds
        self._events.append((due, action))
        if len(self._events) == 1:
            self.process.clock.at(due, self._run)

    def _run(self) -> None:
        process, clock = self.process, self.process.clock
        if not process.is_alive:
            self._events.clear()
            return
        if not process.runs:
            clock.at(process.frozen_until + clock.rng.random() * _WAKE_SECONDS, self._run)
            return
        _, action = self._events[0]
        action()
        self._events.popleft()
        if self._events and process.is_alive:
            clock.at(max(self._events[0][0], clock.now + _SWITCH_SECONDS), self._run)
