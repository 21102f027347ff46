"""Progress of several workloads, for a list: as many reads of each output folder for one host as for thousands."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from xpk.jobs.output.folder import Progress
from xpk.jobs.output.roots import OutputRoots
from xpk.jobs.status.goodput import progress_of
from xpk.model.errors import XpkError
from xpk.model.status import Phase, WorkloadStatus

Key = tuple[str, str]  # a workload: its namespace and name
_STARTED = (Phase.STARTING, Phase.RUNNING, Phase.RESTARTING)
_CONCURRENT = 16


def progress_of_all(statuses: Sequence[WorkloadStatus], roots: OutputRoots) -> dict[Key, Progress]:
    """Return the progress of the workloads that run; without those whose output has none, or is not readable now.

    Each read of a bucket ends after a few seconds.
    """
    running = [status for status in statuses if status.phase in _STARTED and status.output_dir]
    if not running:
        return {}

    def read(status: WorkloadStatus) -> Progress | None:
        try:
            folder = roots.to_read(status)
            return progress_of(folder, status) if folder else None
        except XpkError:  # `xpk workload status` says why
            return None

    with ThreadPoolExecutor(min(_CONCURRENT, len(running))) as executor:
        newest_steps = list(executor.map(read, running))
    return {
        (status.namespace, status.name): progress
        for status, progress in zip(running, newest_steps, strict=True)
        if progress is not None
    }
