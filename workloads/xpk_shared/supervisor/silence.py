"""Detection of a frozen first host, which keeps its connections but does not reply."""

from __future__ import annotations

from collections.abc import Callable

_ASK_SECONDS = 2.0  # between questions
_MAX_INTERVAL = 1.0  # seconds between two calls; during a longer interval this host itself was suspended


class Silence:
    """Time that this host has waited for an order without a message, although it asks for replies."""

    def __init__(self, seconds: float, ask: Callable[[], None]) -> None:
        self._seconds, self._ask = seconds, ask
        self._received_at = self._last = self._asked_at = self._waited = 0.0

    def check(self, now: float, received_at: float, waits_since: float) -> bool:
        """Return whether the first host has been silent for too long. Call it often while this host waits.

        Times are of one monotonic clock; `received_at` is that of the newest message.
        """
        if max(received_at, waits_since) > self._received_at:
            self._received_at, self._last, self._waited = max(received_at, waits_since), now, 0.0
        self._waited += min(now - self._last, _MAX_INTERVAL)
        self._last = now
        if now > self._asked_at + min(_ASK_SECONDS, self._seconds / 4):
            self._asked_at = now
            self._ask()
        return self._waited > self._seconds
