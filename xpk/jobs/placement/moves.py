"""A wait for a workload of several clusters, which continues where it is moved."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

from xpk.jobs.placement.placements import chosen_cluster
from xpk.jobs.placement.placer import Placer
from xpk.model.errors import NotFoundError, XpkError
from xpk.model.status import Phase, WorkloadStatus

Tell = Callable[[WorkloadStatus], None]


class _Moved(Exception):
    """The workload runs on another cluster now."""


def wait_through_moves(
    cluster: str,
    wait: Callable[[str, float | None, Tell], WorkloadStatus],
    find_placer: Callable[[str], Placer],
    *,
    timeout: float | None,
) -> tuple[str, WorkloadStatus]:
    """Wait for the end of a workload where it runs, and where it is moved; return that cluster and the last status.

    `wait` waits on a cluster for some seconds and calls its last argument with each change, `find_placer` returns the
    placer of a workload that has a copy on a cluster. Raises the errors of `wait`.
    """
    placer: Placer | None = None
    here, left, start = cluster, timeout, time.monotonic()

    def chosen() -> str:
        if placer is not None:
            with suppress(XpkError):  # an unreadable lease: no move, until the copy here changes or is deleted
                return chosen_cluster(placer.observe(), placer.spec.run)
        return here

    def look(status: WorkloadStatus) -> None:
        nonlocal placer
        if placer is None and status.clusters:
            with suppress(XpkError):
                placer = find_placer(here)  # while its copy exists here
        if status.phase is Phase.SUSPENDED and chosen() != here:
            raise _Moved

    while True:
        try:
            return here, wait(here, left, look)
        except _Moved:
            here = chosen()
        except NotFoundError:  # as a copy whose workload has ended elsewhere
            if (other := chosen()) == here:
                raise
            here = other
        if timeout is not None:
            left = max(0.0, round(timeout - (time.monotonic() - start), 1))
