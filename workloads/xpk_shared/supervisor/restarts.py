"""Restarts in place: what the first host decides when commands end, for all hosts of the job.

Every host reports the end of its command. A failure makes the first host order all others to end theirs (`stop`). Once
all have ended, so that no two attempts overlap, it orders the next attempt (`start`), or names the host whose exit
code Kubernetes is to see (`final`): the code is one that no restart can help, or no restart is left. When all commands
have succeeded, all hosts may end (`done`). Only a host that is itself lost, with its pod or node, is left to
Kubernetes, which then creates all pods again.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from xpk_shared.supervisor.host import Host
from xpk_shared.supervisor.names import PEER_LOST

SHORT_SECONDS = 5.0  # shorter attempts cause a pause, so that a broken workload does not spin
_LONGEST_PAUSE = 60.0


@dataclass(frozen=True)
class End:
    """End of one host's command. `told`: only because the first host had ordered it."""

    number: int
    code: int
    told: bool
    lost: int | None = None  # the host that the command waited for in vain, if it says so


@dataclass(frozen=True)
class Patience:
    """Time limits of the first host in seconds."""

    meet_seconds: float = 10.0  # for hosts that have never connected, after a failure
    stop_seconds: float = 20.0  # for a command to end: a host that is silent for longer is frozen


def pause_after(short_attempts: int) -> float:
    """Return the seconds before the next attempt, after so many short ones in a row: none after the first."""
    return min(2.0 ** (short_attempts - 1), _LONGEST_PAUSE) if short_attempts > 1 else 0.0


class Coordinator:
    """Decisions on restarts, on the first host. Times are of one monotonic clock."""

    def __init__(self, host: Host, now: float, patience: Patience = Patience()) -> None:
        self.restarts = 0  # in place, so far
        self.cause: End | None = None  # of the newest restart
        self._host, self._patience = host, patience
        self._began = now
        self._ends: dict[int, End] = {}  # of this attempt, in the order of their reports
        self._failed_at: float | None = None
        self._stopped_at: float | None = None
        self._start_at: float | None = None
        self._short_attempts = 0
        self._is_over = False

    def take(self, end: End, restarts: int, now: float) -> None:
        """Note the end of a command in the attempt after so many restarts."""
        if restarts != self.restarts or end.number in self._ends:
            return
        self._ends[end.number] = end
        if end.code and not end.told and self._failed_at is None:
            self._failed_at = now

    def decide(self, now: float, absent: Collection[int]) -> dict[str, Any] | None:
        """Return the next order, None if there is none now. `absent`: hosts that have never connected."""
        if self._is_over:
            return None
        if self._start_at is not None:
            return self._start(now) if now >= self._start_at else None
        if self._stopped_at is not None:
            return self._judge(now)
        if self._failed_at is not None:
            return self._stop(now, absent)
        if len(self._ends) == self._host.hosts:
            self._is_over = True
            return {"done": True}
        return None

    def _stop(self, now: float, absent: Collection[int]) -> dict[str, Any] | None:
        """Return the order to end all commands, once all hosts can hear it."""
        if absent and now < max(self._began, self._failed_at or 0.0) + self._patience.meet_seconds:
            return None
        if absent:
            return self._final(self._cause())
        self._stopped_at, cause = now, self._cause()
        return {"stop": self.restarts, "number": cause.number, "code": cause.code}

    def _judge(self, now: float) -> dict[str, Any] | None:
        """Return the order to end, if a restart cannot help; otherwise set the time of the next attempt."""
        missing = set(range(self._host.hosts)) - self._ends.keys()
        if missing:
            is_late = self._stopped_at is not None and now > self._stopped_at + self._patience.stop_seconds
            return self._final(End(min(missing), PEER_LOST, told=True), silent=True) if is_late else None
        cause, limit = self._cause(), self._host.max_restarts or 0
        if cause.code in self._host.fatal_codes:
            return self._final(cause)
        if self.restarts >= limit:
            return self._final(self._blamed(cause) if self.restarts else cause, exhausted=self.restarts > 0)
        self.cause = self._blamed(cause)
        self._short_attempts = self._short_attempts + 1 if now - self._began < SHORT_SECONDS else 0
        pause = pause_after(self._short_attempts)
        self._start_at = now + pause
        return self._start(now) if not pause else {"pause": pause, "short_attempts": self._short_attempts}

    def _start(self, now: float) -> dict[str, Any]:
        """Return the order to begin the next attempt."""
        self.restarts += 1
        self._ends, self._began = {}, now
        self._failed_at = self._stopped_at = self._start_at = None
        return {"start": self.restarts}

    def _cause(self) -> End:
        """Return the end that failed this attempt: the first that is not the consequence of another."""
        failures = [end for end in self._ends.values() if end.code and not end.told]
        fatal = [end for end in failures if end.code in self._host.fatal_codes]
        own = [end for end in failures if end.code != PEER_LOST]
        return [*fatal, *own, *failures][0]

    def _blamed(self, cause: End) -> End:
        """Return the end of the frozen command that others waited for, if no command has failed by itself."""
        named = (self._ends.get(end.lost) for end in self._ends.values() if end.lost is not None)
        frozen = next((end for end in named if end and end.told), None)
        return frozen if frozen and cause.code == PEER_LOST else cause

    def _final(self, end: End, **facts: Any) -> dict[str, Any]:
        self._is_over = True
        return {"final": end.number, **facts}
