"""Retries of commands that watch a workload while the API server is unreachable."""

from __future__ import annotations

import time

from xpk.api.timing import seconds_left
from xpk.model.errors import AuthorizationError, MissingToolError, UnavailableError, XpkError

_PAUSE_SECONDS = 0.5
_LONGEST_SECONDS = 300.0  # an upgrade of a control plane takes less
# A server that has just started does not know permissions and kinds yet.
SIGNS = (UnavailableError, AuthorizationError, MissingToolError)


class Outage:
    """Outage of an API server: the time since its last response."""

    def __init__(self) -> None:
        self._last_response: float | None = None

    def end(self) -> None:
        """Record a response of the server."""
        self._last_response = time.monotonic()

    def pause_or_raise(self, error: XpkError) -> None:
        """Pause after an error of an unreachable server.

        Raises `error` if the outage lasts too long, or if the server never responded.
        """
        if self._last_response is None or time.monotonic() - self._last_response > _LONGEST_SECONDS:
            raise error
        time.sleep(min(_PAUSE_SECONDS, max(0.0, seconds_left())))
