"""Progress in the status of a workload, with the goodput as the report computes it, if its records are small enough."""

from __future__ import annotations

import time
from dataclasses import replace

from xpk.jobs.output.folder import Progress, latest_progress, with_time_limit
from xpk.jobs.report.goodput import goodput
from xpk.jobs.report.record import RunRecord, read_record
from xpk.jobs.status.fields import when
from xpk.model.errors import XpkError
from xpk.model.status import WorkloadStatus
from xpk.storage import Folder

MAX_BYTES = 16 << 20  # of metrics and events together; about 30,000 steps
_MAX_HOSTS = 1024


class _TooLargeError(Exception):
    """Records are larger than what a status reads."""


class _BoundedReader:
    """A run's files, MAX_BYTES at most. Only files of the workload's own hosts are read."""

    def __init__(self, folder: Folder, status: WorkloadStatus) -> None:
        self._folder, self._status, self._bytes_left = folder, status, MAX_BYTES

    def read(self, path: str) -> bytes | None:
        """See `record.Reader`."""
        content = self._folder.read_end(path, self._bytes_left + 1)
        self._bytes_left -= len(content or b"")
        if self._bytes_left < 0:
            raise _TooLargeError
        return content

    def read_all(self, folder: str) -> dict[str, bytes]:
        """See `record.Reader`."""
        slices, hosts = self._status.num_slices, self._status.hosts_per_slice
        if slices * hosts > _MAX_HOSTS:
            raise _TooLargeError
        names = [f"s{slice_id}-h{host}.jsonl" for slice_id in range(slices) for host in range(hosts)]
        contents = {name: self.read(f"{folder}/{name}") for name in names}
        return {name: content for name, content in contents.items() if content is not None}


def progress_of(url: str, status: WorkloadStatus) -> Progress | None:
    """Return the progress of a workload, None before its first step. Raises XpkError if it cannot be read."""
    since = None if status.min_slices is None else when(status.created).timestamp()
    return latest_progress(url, ray=status.launcher == "ray", elastic_since=since)


def read_bounded(url: str, status: WorkloadStatus) -> RunRecord | None:
    """Return the record of a run, None if it is too large for a status. Raises XpkError if it cannot be read."""

    def read(folder: Folder) -> RunRecord | None:
        try:
            return read_record(_BoundedReader(folder, status))
        except _TooLargeError:
            return None

    return with_time_limit(url, read)


def with_goodput(progress: Progress, url: str, status: WorkloadStatus) -> Progress:
    """Return the progress with the run's goodput, unless its records are too large, damaged or not readable now."""
    try:
        record = read_bounded(url, status)
    except XpkError:  # the progress was readable: a status shows that
        return progress
    if record is None or not record.steps:
        return progress
    end = None if status.phase.is_final else time.time()
    return replace(progress, goodput=round(goodput(record, end=end).goodput, 4))
