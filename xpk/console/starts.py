"""Estimated starts of queued workloads for people who watch them, computed beside the readings of their cluster."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from xpk.api.base import ObjectApi
from xpk.api.text import short
from xpk.jobs.output.roots import OutputRoots
from xpk.jobs.simulation.live import Starts, all_starts
from xpk.model.status import Phase, WorkloadStatus

_SECONDS = 5.0  # between two simulations, at least
_MAX_SHARE = 0.2  # of the time that is spent on simulating


@dataclass
class StartEstimator:
    """Estimates the starts of all queued workloads of a cluster, only while there are any.

    `api` returns its API server. A slow simulation does not delay the reader: it gets the newest result.
    """

    api: Callable[[], ObjectApi]
    roots: OutputRoots
    clock: Callable[[], float]
    _starts: Starts | None = None
    _due_at: float = float("-inf")
    _thread: threading.Thread | None = field(default=None, repr=False)

    def with_starts(self, statuses: Sequence[WorkloadStatus], *, waits: bool = False) -> list[WorkloadStatus]:
        """Return the statuses, those of queued workloads with their estimated start, once there is one.

        `waits`: simulate now, if that is due, and wait for the result.
        """
        if any(map(_is_queued, statuses)) and not (self._thread and self._thread.is_alive()):
            if self.clock() >= self._due_at:
                self._thread = threading.Thread(target=self._simulate, name="xpk-starts", daemon=True)
                self._thread.start()
            if waits and self._thread:
                self._thread.join()
        starts = self._starts
        if starts is None:
            return list(statuses)
        return [replace(one, start=starts.of(one)) if _is_queued(one) else one for one in statuses]

    def _simulate(self) -> None:
        started = self.clock()
        try:
            self._starts = all_starts(self.api(), self.roots)
        except Exception as error:  # odd objects of a queue must not end the estimates of later ones
            self._starts = Starts(reason=f"internal error: {type(error).__name__}: {short(error)}")
        pause = max(_SECONDS, (self.clock() - started) * (1 / _MAX_SHARE - 1))
        self._due_at = self.clock() + pause


def _is_queued(status: WorkloadStatus) -> bool:
    return status.phase is Phase.QUEUED and status.position is not None
