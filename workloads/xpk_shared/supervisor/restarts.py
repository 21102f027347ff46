"""Restarts in place: decisions of the first host for all hosts of the group when commands end.

Every host reports the end of its command. After a failure the first host orders all others to stop theirs (`stop`).
Once all have ended, so that attempts do not overlap, it orders the next attempt (`start`), or names the host whose exit
code Kubernetes receives (`final`): if that code is fatal, or no restarts are left. When all commands have succeeded,
all hosts may exit (`done`). Only the loss of a host with its pod or node is handled by Kubernetes, which then recreates
all pods of the group, or those of one slice (replacement_coordinator.py).

The command of an elastic slice ends with PEER_LOST also because of other slices: they have dropped it, or one was lost
while this one joined. Such a restart does not count towards the limit.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from xpk_shared.supervisor.host import Host
from xpk_shared.supervisor.names import PEER_LOST

SHORT_SECONDS = 5.0  # shorter attempts cause a pause, so that a broken workload does not restart in a tight loop
LONGEST_PAUSE = 60.0


@dataclass(frozen=True)
class End:
    """End of one host's command. `was_stopped`: the first host had ordered it."""

    number: int
    code: int
    was_stopped: bool
    lost: int | None = None  # the host that the command has declared lost, if any


@dataclass(frozen=True)
class CoordinatorLimits:
    """Time limits of the first host in seconds."""

    meet_seconds: float = 10.0  # for hosts that have never connected, after a failure
    stop_seconds: float = 20.0  # for a command to end; a host that takes longer is frozen


def pause_after(short_attempts: int) -> float:
    """Return the seconds before the next attempt after consecutive short ones; 0 after the first."""
    return min(2.0 ** (short_attempts - 1), LONGEST_PAUSE) if short_attempts > 1 else 0.0


class Coordinator:
    """Decisions on restarts, on the first host. Times are of one monotonic clock."""

    def __init__(self, host: Host, now: float, coordinator_limits: CoordinatorLimits = CoordinatorLimits()) -> None:
        self.restarts = 0  # in place, so far
        self.cause: End | None = None  # of the newest restart
        self._counted = 0  # restarts that count towards the limit
        self._host, self._limits = host, coordinator_limits
        self._started_at = now
        self._ends: dict[int, End] = {}  # of this attempt, in the order of their reports
        self._failed_at: float | None = None
        self._stopped_at: float | None = None
        self._start_at: float | None = None
        self._short_attempts = 0
        self._is_done = False

    def take(self, end: End, restarts: int, now: float) -> None:
        """Record the end of a command in the attempt after this number of restarts."""
        if restarts != self.restarts or end.number in self._ends:
            return
        self._ends[end.number] = end
        if end.code and not end.was_stopped and self._failed_at is None:
            self._failed_at = now

    def decide(self, now: float, absent: Collection[int]) -> dict[str, Any] | None:
        """Return the next order, or None if there is none yet. `absent`: hosts that have never connected."""
        if self._is_done:
            return None
        if self._start_at is not None:
            return self._start(now) if now >= self._start_at else None
        if self._stopped_at is not None:
            return self._decide_restart(now)
        if self._failed_at is not None:
            return self._stop(now, absent)
        if len(self._ends) == self._host.hosts:
            self._is_done = True
            return {"done": True}
        return None

    def _stop(self, now: float, absent: Collection[int]) -> dict[str, Any] | None:
        """Return the order to stop all commands, once all hosts are connected."""
        if absent and now < max(self._started_at, self._failed_at or 0.0) + self._limits.meet_seconds:
            return None
        if absent:
            return self._final(self._cause())
        self._stopped_at, cause = now, self._cause()
        return {"stop": self.restarts, "number": cause.number, "code": cause.code}

    def _decide_restart(self, now: float) -> dict[str, Any] | None:
        """Return the order to exit if there is no restart; otherwise set the time of the next attempt."""
        missing = set(range(self._host.hosts)) - self._ends.keys()
        if missing:
            is_late = self._stopped_at is not None and now > self._stopped_at + self._limits.stop_seconds
            return self._final(End(min(missing), PEER_LOST, was_stopped=True), silent=True) if is_late else None
        cause, limit = self._cause(), self._host.max_restarts or 0
        if cause.code in self._host.fatal_codes:
            return self._final(cause)
        self.cause = self._frozen_or(cause)
        is_counted = not self._is_caused_by_other_slices(self.cause)
        if is_counted and self._counted >= limit:
            return self._final(self.cause if self._counted else cause, exhausted=self._counted > 0)
        self._counted += is_counted
        self._short_attempts = self._short_attempts + 1 if now - self._started_at < SHORT_SECONDS else 0
        pause = pause_after(self._short_attempts)
        self._start_at = now + pause
        return self._start(now) if not pause else {"pause": pause, "short_attempts": self._short_attempts}

    def _start(self, now: float) -> dict[str, Any]:
        """Return the order to begin the next attempt."""
        self.restarts += 1
        self._ends, self._started_at = {}, now
        self._failed_at = self._stopped_at = self._start_at = None
        return {"start": self.restarts}

    def _cause(self) -> End:
        """Return the end that caused the failure of this attempt: the first that did not follow from another."""
        failures = [end for end in self._ends.values() if end.code and not end.was_stopped]
        fatal = [end for end in failures if end.code in self._host.fatal_codes]
        own = [end for end in failures if end.code != PEER_LOST]
        return [*fatal, *own, *failures][0]

    def _frozen_or(self, cause: End) -> End:
        """Return the end of the frozen command that others waited for, or the cause if a command failed itself."""
        lost = (self._ends.get(end.lost) for end in self._ends.values() if end.lost is not None)
        frozen = next((end for end in lost if end and end.was_stopped), None)
        return frozen if frozen and cause.code == PEER_LOST else cause

    def _is_caused_by_other_slices(self, cause: End) -> bool:
        return self._host.elastic is not None and cause.code == PEER_LOST and not cause.was_stopped

    def _final(self, end: End, **facts: Any) -> dict[str, Any]:
        self._is_done = True
        return {"final": end.number, **facts}
