"""Time and random bytes of the local control plane: the machine's, or those of a simulation."""

from __future__ import annotations

import os
import time as _time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol


class Clock(Protocol):
    """A source of time and of random bytes."""

    def time_ns(self) -> int:
        """Return the time in Unix nanoseconds."""
        ...

    def random_bytes(self, count: int) -> bytes:
        """Return `count` random bytes."""
        ...


class _Machine:
    """The machine's clock and randomness."""

    def time_ns(self) -> int:
        return _time.time_ns()

    def random_bytes(self, count: int) -> bytes:
        return os.urandom(count)


_machine = _Machine()
_current: ContextVar[Clock] = ContextVar("clock")


@contextmanager
def replaced(clock: Clock) -> Iterator[None]:
    """Use another clock for the block, in this thread."""
    token = _current.set(clock)
    try:
        yield
    finally:
        _current.reset(token)


def time() -> float:
    """Return the time in Unix seconds."""
    return time_ns() / 1e9


def time_ns() -> int:
    """Return the time in Unix nanoseconds."""
    return _current.get(_machine).time_ns()


def random_bytes(count: int) -> bytes:
    """Return `count` random bytes."""
    return _current.get(_machine).random_bytes(count)
