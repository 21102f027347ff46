"""Time limits, back-off and rate limiting of requests to a server."""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")
Pause = Callable[[float], None]

# Not the module's own generator: a retry on another thread must not change what a seeded program draws from that.
_RANDOM = random.Random()  # noqa: S311  # no secret depends on it
_DEADLINE: ContextVar[float] = ContextVar("xpk_deadline", default=math.inf)  # a time of time.monotonic


@contextmanager
def time_limit(seconds: float | None) -> Iterator[None]:
    """Limit all requests inside the block, on this thread, to `seconds` in total. An earlier outer limit holds."""
    ends = math.inf if seconds is None else time.monotonic() + seconds
    token = _DEADLINE.set(min(ends, _DEADLINE.get()))
    try:
        yield
    finally:
        _DEADLINE.reset(token)


def seconds_left() -> float:
    """Return the seconds until the limit of `time_limit`, `math.inf` without one."""
    return _DEADLINE.get() - time.monotonic()


class Backoff:
    """Pauses that double from `first` to `longest` seconds, with jitter, so that clients do not retry in step."""

    def __init__(self, first: float = 0.5, longest: float = 30.0) -> None:
        self._first, self._longest, self._next = first, longest, first

    def next(self) -> float:
        """Return the next pause in seconds."""
        seconds, self._next = self._next, min(2 * self._next, self._longest)
        return seconds * _RANDOM.uniform(1.0, 1.25)

    def reset(self) -> None:
        """Restart with the first pause."""
        self._next = self._first


class Pace:
    """A token bucket of requests: `burst` at once, `rate` per second in the long run."""

    def __init__(self, rate: float, burst: int, pause: Pause, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._burst, self._pause, self._clock = rate, burst, pause, clock
        self._budget, self._last, self._lock = float(burst), clock(), threading.Lock()

    def take(self) -> None:
        """Take one request from the budget; pause first if it is used up."""
        with self._lock:
            now = self._clock()
            self._budget = min(self._burst, self._budget + (now - self._last) * self._rate) - 1
            self._last = now
            wait = -self._budget / self._rate
        if wait > 0:
            self._pause(max(0.0, min(wait, seconds_left())))


def within(seconds: float, work: Callable[[], T], *, notice_after: float, notice: Callable[[], None]) -> T:
    """Return the result of `work`, which runs on a thread of its own; call `notice` if it takes long.

    Raises TimeoutError after `seconds` whatever `work` is doing: name resolution, and a peer that sends a byte now
    and then, have no time limit of their own. The thread is abandoned.
    """
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    if notice_after < seconds:
        try:
            return done.result(notice_after)
        except TimeoutError:
            if done.done():
                raise
            notice()
    return done.result(max(0.0, seconds - notice_after) if notice_after < seconds else seconds)
