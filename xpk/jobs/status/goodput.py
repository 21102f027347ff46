"""Progress in the status of a workload, with its end, and goodput and checkpoint intervals as the report has them.

The records of a large run are not read: it has neither of them then, and its end is that at the recent rate.
"""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime

from xpk.api.text import rfc3339
from xpk.jobs.output.event_files import all_scalars
from xpk.jobs.output.folder import Progress, latest_progress, with_time_limit
from xpk.jobs.output.json_lines import TIMES
from xpk.jobs.report.forecast import run_pace
from xpk.jobs.report.goodput import goodput
from xpk.jobs.report.intervals import chosen_intervals
from xpk.jobs.report.programs import read_run
from xpk.jobs.report.record import RunRecord
from xpk.jobs.status.fields import when
from xpk.model.errors import XpkError
from xpk.model.status import Phase, WorkloadStatus
from xpk.storage import Folder

MAX_BYTES = 16 << 20  # of metrics and events together; about 30,000 steps
_MAX_HOSTS = 1024
_MUCH = 1.1  # a later end is shown if it is this much farther away


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
            return read_run(_BoundedReader(folder, status), lambda: all_scalars(folder, MAX_BYTES))
        except _TooLargeError:
            return None

    return with_time_limit(url, read)


def with_goodput(progress: Progress, url: str, status: WorkloadStatus) -> Progress:
    """Return the progress with the time of the end of a run that runs, its goodput and its chosen intervals.

    They lack what records say that are too large, damaged or not readable now.
    """
    try:
        record = read_bounded(url, status)
    except XpkError:  # the progress was readable: a status shows that
        record = None
    if status.phase is Phase.RUNNING:
        progress = _with_end(progress, record, time.time())
    if record is None or not record.steps:
        return progress
    end = None if status.phase.is_final else time.time()
    share = round(goodput(record, end=end).goodput, 4)
    return replace(progress, goodput=share, intervals=chosen_intervals(record))


def _with_end(progress: Progress, record: RunRecord | None, now: float) -> Progress:
    """Return the progress with the time of its last step, at the recent rate and at that of the whole run."""
    if progress.eta_seconds is None or progress.total_steps is None:
        return progress
    reached = now if progress.time is None else min(now, when(progress.time).timestamp())
    steps = max(0, progress.total_steps - progress.step)
    ends = max(now, reached + progress.eta_seconds)
    pace = run_pace(record) if record and record.steps else None
    latest = ends if pace is None else reached + steps * pace
    is_later = latest - now > _MUCH * (ends - now)
    return replace(progress, ends=_date(ends), ends_latest=_date(latest) if is_later else None)


def _date(seconds: float) -> str | None:
    return rfc3339(datetime.fromtimestamp(seconds, UTC)) if seconds <= TIMES[1] else None
