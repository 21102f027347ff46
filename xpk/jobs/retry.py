"""How long a command that watches a workload outlasts an API server that is away."""

from __future__ import annotations

import time

from xpk.api.timing import seconds_left
from xpk.model.errors import AuthorizationError, MissingToolError, UnavailableError, XpkError

_PAUSE_SECONDS = 0.5
_LONGEST_SECONDS = 300.0  # a control plane is upgraded in less
# A server that has just started first does not know who may do what, nor which kinds there are.
SIGNS = (UnavailableError, AuthorizationError, MissingToolError)


class Outage:
    """The time since the server was last heard of."""

    def __init__(self) -> None:
        self._heard: float | None = None

    def over(self) -> None:
        """Note that the server has answered."""
        self._heard = time.monotonic()

    def goes_on(self, error: XpkError) -> None:
        """Pause for a moment at a sign that it is away.

        Raises `error` when that lasts for too long, or if it never answered.
        """
        if self._heard is None or time.monotonic() - self._heard > _LONGEST_SECONDS:
            raise error
        time.sleep(min(_PAUSE_SECONDS, max(0.0, seconds_left())))
