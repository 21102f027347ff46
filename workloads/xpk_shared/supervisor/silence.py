"""Silence of the first host. A frozen host keeps its connections, and so looks as if it were about to give an order."""

from __future__ import annotations

from collections.abc import Callable

_ASK_SECONDS = 2.0  # between questions
_LONGEST_TURN = 1.0  # more between two calls is time in which this host itself was suspended


class Silence:
    """Time that this host has waited for an order without hearing anything, although it asks."""

    def __init__(self, seconds: float, ask: Callable[[], None]) -> None:
        self._seconds, self._ask = seconds, ask
        self._heard = self._last = self._asked_at = self._waited = 0.0

    def check(self, now: float, heard: float, waits_since: float) -> bool:
        """Return whether the first host has been silent for too long. To be called often while this host waits.

        Times are of one monotonic clock; `heard`: that of the newest message.
        """
        if max(heard, waits_since) > self._heard:
            self._heard, self._last, self._waited = max(heard, waits_since), now, 0.0
        self._waited += min(now - self._last, _LONGEST_TURN)
        self._last = now
        if now > self._asked_at + min(_ASK_SECONDS, self._seconds / 4):
            self._asked_at = now
            self._ask()
        return self._waited > self._seconds
