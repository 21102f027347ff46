"""Reading one run for its page: status, records of its trainer, and the end of a host's log."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from xpk.api.base import LogLine, Obj, ObjectApi
from xpk.api.text import short
from xpk.console.cluster_reader import ClusterReader
from xpk.jobs.output.folder import Progress, with_time_limit
from xpk.jobs.output.roots import OutputRoots
from xpk.jobs.report.record import RunRecord, read_record
from xpk.jobs.status import reader
from xpk.jobs.status.diagnosis import attempt_of
from xpk.jobs.status.fields import PREFIX, host_key
from xpk.jobs.status.goodput import progress_of, read_bounded
from xpk.model.errors import XpkError
from xpk.model.status import Phase, WorkloadStatus
from xpk.storage import Folder, in_bucket

_LOG_LINES = 25
_METRICS_BYTES = 4 << 20  # the newest steps of a run whose records are too large: about 15,000
_RECORD_SECONDS = 5.0  # after which the account of a run that makes no step is brought up to date
_BUCKET_SECONDS = 15.0  # between two readings of the records in a bucket, which may be megabytes
_FOLLOWED = (75, 143)  # exit codes of hosts that only followed another one


@dataclass(frozen=True, slots=True, kw_only=True)
class RunKey:
    """A workload of a cluster."""

    cluster: str
    namespace: str
    name: str

    @classmethod
    def parse(cls, text: str) -> RunKey | None:
        """Return the key of CLUSTER/NAMESPACE/NAME, None for other text. A context's name may contain `/`."""
        parts = text.rsplit("/", 2)
        return cls(cluster=parts[0], namespace=parts[1], name=parts[2]) if len(parts) == 3 and all(parts) else None

    def __str__(self) -> str:
        return f"{self.cluster}/{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """State of a run at one time (`time`: Unix seconds).

    `record`: of its trainer; None without one. `is_partial`: the records are too large, so that only the newest steps
    were read. `log`: the last lines of the host `log_host`. `problem`: why a part of it could not be read.
    """

    key: RunKey
    time: float
    status: WorkloadStatus | None = None
    progress: Progress | None = None
    record: RunRecord | None = None
    is_partial: bool = False
    log_host: str = ""
    log: tuple[LogLine, ...] = ()
    problem: str = ""


@dataclass(slots=True)
class _Record:
    """A record that was read before, and what was known of the run then."""

    record: RunRecord
    is_partial: bool
    read_at: float  # of the monotonic clock
    state: tuple[object, ...]


@dataclass
class RunReader:
    """Reads runs of one cluster, with a number of requests that does not depend on their hosts. Not thread-safe."""

    cluster: ClusterReader
    clock: Callable[[], float] = time.monotonic
    now: Callable[[], float] = time.time
    _records: dict[RunKey, _Record] = field(default_factory=dict)

    def keep_only(self, keys: Collection[RunKey]) -> None:
        """Free the records of runs that nobody watches any more."""
        self._records = {key: record for key, record in self._records.items() if key in keys}

    def read(self, key: RunKey) -> RunView:
        """Return the state of a run."""
        try:
            api, roots = self.cluster.api, self.cluster.roots
            status, _ = reader.inspect(api, key.name, key.namespace, roots, brief=True)
        except XpkError as error:
            return RunView(key=key, time=self.now(), problem=short(error.message))
        (status,) = self.cluster.starts.with_starts([status])
        progress, output, problem = self._output(key, status, roots)
        slice_id, host = _host_to_read(status)
        log = () if status.phase in (Phase.QUEUED, Phase.SUSPENDED) else _log(api, status, slice_id, host)
        return RunView(
            key=key,
            time=self.now(),
            status=status,
            progress=progress,
            record=output.record if output else None,
            is_partial=output is not None and output.is_partial,
            log_host=f"s{slice_id}/h{host}",
            log=log,
            problem=problem,
        )

    def _output(
        self, key: RunKey, status: WorkloadStatus, roots: OutputRoots
    ) -> tuple[Progress | None, _Record | None, str]:
        try:
            folder = roots.to_read(status)
            progress = progress_of(folder, status) if folder else None
            return progress, self._record(key, folder, status, progress), ""
        except XpkError as error:
            return None, self._records.get(key), short(error.message)

    def _record(self, key: RunKey, folder: str, status: WorkloadStatus, progress: Progress | None) -> _Record | None:
        """Return the record: that of before if no step and no restart has come since."""
        if not folder:
            return None
        state = (progress and progress.step, status.phase, status.restarts, status.created)
        known = self._records.get(key)
        if known and self._is_current(known, state, status):
            return known
        record = read_bounded(folder, status)
        is_partial = record is None
        if record is None:
            record = with_time_limit(folder, lambda opened: read_record(_NewestSteps(opened)))
        self._records[key] = _Record(record, is_partial, self.clock(), state)
        return self._records[key]

    def _is_current(self, known: _Record, state: tuple[object, ...], status: WorkloadStatus) -> bool:
        age = self.clock() - known.read_at
        if known.state == state and (status.phase.is_final or age < _RECORD_SECONDS):
            return True
        return in_bucket(status.output_dir) and age < _BUCKET_SECONDS


@dataclass(frozen=True, slots=True)
class _NewestSteps:
    """The newest steps of a run; a `record.Reader`."""

    folder: Folder

    def read(self, path: str) -> bytes | None:
        """Return the end of the metrics after a line's end, and no other file."""
        if path != "metrics.jsonl":
            return None
        content = self.folder.read_end(path, _METRICS_BYTES)
        return content if content is None or len(content) < _METRICS_BYTES else content.partition(b"\n")[2]

    def read_all(self, folder: str) -> dict[str, bytes]:
        """Return no events."""
        return {}


def _host_to_read(status: WorkloadStatus) -> tuple[int, int]:
    """Return the host whose log tells most: the one that failed first, or the first host, which logs the steps."""
    failed = [host for host in status.hosts if host.exit_code not in (None, 0)]
    causes = [host for host in failed if host.exit_code not in _FOLLOWED] or failed
    first = min(causes, key=lambda host: host.finished or "", default=None)
    return (first.slice, first.host) if first else (0, 0)


def _log(api: ObjectApi, status: WorkloadStatus, slice_id: int, host: int) -> tuple[LogLine, ...]:
    """Return the end of a host's log; empty if it has none yet, or if it cannot be read now."""
    selector = {f"{PREFIX}/jobset-name": status.name, f"{PREFIX}/job-global-index": str(slice_id)}
    try:
        pods = [pod for pod in api.list("Pod", status.namespace, selector) if host_key(pod) == (slice_id, host)]
        newest = max(pods, key=_start, default=None)
        return () if newest is None else tuple(api.logs(newest, tail=_LOG_LINES))
    except XpkError:
        return ()


def _start(pod: Obj) -> tuple[int, str]:
    text = attempt_of(pod)
    return int(text) if text.isdigit() else 0, str(pod["metadata"].get("creationTimestamp") or "")
