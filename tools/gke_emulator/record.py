"""Recorded requests to the emulator."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Call:
    """One call.

    `time` is real seconds since 1970, `code` the status, `in_flight` the number of concurrent calls including itself,
    and `operations` the number of long-running operations.
    """

    method: str
    request: dict[str, Any]
    time: float
    in_flight: int
    operations: int
    code: str = "OK"


@dataclass
class Record:
    """All calls, in order of arrival. `on_done` is called after each call, before its response."""

    calls: list[Call] = field(default_factory=list)
    on_done: Callable[[Call], None] = lambda call: None
    _now: int = 0

    def __post_init__(self) -> None:
        self._lock = threading.Lock()

    @contextmanager
    def call(self, method: str, request: dict[str, Any], operations: int) -> Iterator[Call]:
        """Record a call while it runs."""
        with self._lock:
            self._now += 1
            call = Call(method, request, time.time(), self._now, operations)
            self.calls.append(call)
        try:
            yield call
        finally:
            with self._lock:
                self._now -= 1
            self.on_done(call)
