"""Budget of fencing: at most so many nodes in any period, counted from the times at which nodes were fenced."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta


@dataclass(frozen=True, slots=True)
class Budget:
    """At most `nodes` in any `seconds`."""

    nodes: int
    seconds: float

    def room(self, fenced: Iterable[datetime], now: datetime) -> int:
        """Return the number of nodes that may be fenced now.

        `fenced`: the last time of each node that was ever fenced. Times in the future count: clocks may differ.
        """
        period = timedelta(seconds=self.seconds)
        return max(0, self.nodes - sum(now - time < period for time in fenced))
