"""Emulated time: minutes of the cloud in milliseconds of a test."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime


class Clock:
    """Seconds since 1970, `speed` of them to each real second."""

    def __init__(self, speed: float, start: float | None = None) -> None:
        self.speed = speed
        self._start = time.time() if start is None else start
        self._real = time.monotonic()

    def now(self) -> float:
        """Return the emulated time."""
        return self._start + (time.monotonic() - self._real) * self.speed


def rfc3339(seconds: float) -> str:
    """Return a time as the API writes it."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class Schedule:
    """Runs scheduled actions, in order, in its own thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._changed = threading.Condition()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="gke-schedule", daemon=True)
        self._thread.start()

    def at(self, when: float, action: Callable[[], None]) -> None:
        """Run `action` at the emulated time `when`."""
        with self._changed:
            heapq.heappush(self._due, (when, next(self._order), action))
            self._changed.notify()

    def stop(self) -> None:
        """End the thread; later actions are not run."""
        with self._changed:
            self._stopped = True
            self._changed.notify()
        self._thread.join(timeout=30)

    def _run(self) -> None:
        while action := self._next():
            action()

    def _next(self) -> Callable[[], None] | None:
        with self._changed:
            while not self._stopped:
                wait = None
                if self._due:
                    wait = (self._due[0][0] - self._clock.now()) / self._clock.speed
                    if wait <= 0:
                        return heapq.heappop(self._due)[2]
                self._changed.wait(wait)
            return None
