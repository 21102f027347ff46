"""Reading a cluster again and again for people who watch it: what its objects and the output of its runs show."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from xpk.api.base import ObjectApi
from xpk.api.text import short
from xpk.capacity.queues.reading import QueueInfo, Queues
from xpk.console.starts import StartEstimator
from xpk.jobs.output.folder import Progress
from xpk.jobs.output.roots import OutputRoots
from xpk.jobs.status import reader
from xpk.jobs.status.goodput import progress_of, with_goodput
from xpk.jobs.status.in_place import with_local_restarts
from xpk.model.errors import AuthorizationError, MissingToolError, XpkError
from xpk.model.status import Phase, WorkloadStatus
from xpk.storage import in_bucket

MAX_RUNS = 200  # of a cluster that are shown: those that have not ended, then the newest
_NAMED_OBSTACLES = 5  # of a queue
_BUCKET_SECONDS = 5.0  # between two reads of a run's progress in a bucket
_ACCOUNT_SECONDS, _BUCKET_ACCOUNT_SECONDS = 5.0, 60.0  # between two accounts, for which all records of a run are read


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLine:
    """A workload with the newest step of its trainer."""

    status: WorkloadStatus  # status, without hosts that run
    progress: Progress | None = None  # newest step; null before the first, or if it cannot be read


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """State of a cluster at one time."""

    name: str  # name of the cluster
    queues: tuple[QueueInfo, ...] = ()  # its queues
    runs: tuple[RunLine, ...] = ()  # its workloads: those that have not ended, then the others, each newest first
    num_hidden_runs: int = 0  # number of older workloads that are left out
    problem: str = ""  # why it, or a part of it, cannot be read; empty if it can


@dataclass(slots=True)
class _Known:
    """Progress of a run that was read before. Times are of the monotonic clock."""

    progress: Progress | None
    read_at: float
    account_at: float | None = None  # None before its goodput was computed
    was_final: bool = False


@dataclass
class ClusterReader:
    """Reads one cluster.

    `connect` returns its API server. `namespace`: None for all of them. `pause_seconds`: least time between two
    readings. The number of requests of a reading does not depend on the number of hosts, and except for output in
    buckets not on the number of workloads. Not thread-safe.
    """

    name: str
    connect: Callable[[], ObjectApi]
    roots: OutputRoots
    namespace: str | None = "default"
    pause_seconds: float = 0.5
    clock: Callable[[], float] = time.monotonic
    starts: StartEstimator = field(init=False, repr=False)
    _api: ObjectApi | None = None
    _known: dict[tuple[str, str, str], _Known] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Prepare the estimates of starts."""
        self.starts = StartEstimator(lambda: self.api, self.roots, self.clock)

    @property
    def api(self) -> ObjectApi:
        """The API server, connected on first use. Raises as `Provider.connect`."""
        if self._api is None:
            self._api = self.connect()
        return self._api

    def read(self, *, max_accounts: int | None = 1) -> ClusterView:
        """Return the state of the cluster.

        `max_accounts`: runs whose goodput is computed again; None for all of them, and to wait for estimated starts.
        """
        try:
            statuses = with_local_restarts(reader.find_all(self.api, self.namespace, brief=True), self.roots)
            queues, problem = self._queues()
        except XpkError as error:
            return ClusterView(name=self.name, problem=short(error.message))
        shown = self.starts.with_starts(_first(statuses), waits=max_accounts is None)
        return ClusterView(
            name=self.name,
            queues=queues,
            runs=tuple(self._with_progress(shown, max_accounts)),
            num_hidden_runs=len(statuses) - len(shown),
            problem=problem,
        )

    def _queues(self) -> tuple[tuple[QueueInfo, ...], str]:
        """Return the queues, or why they cannot be read: runs are shown without them."""
        try:
            return tuple(Queues.read(self.api).infos()), ""
        except (AuthorizationError, MissingToolError) as error:
            return (), f"queues: {short(error.message)}"

    def _with_progress(self, statuses: Sequence[WorkloadStatus], max_accounts: int | None) -> list[RunLine]:
        self._known = {key: known for status in statuses if (known := self._known.get(key := _key_of(status)))}
        for status in statuses:
            if self._is_due(status, self._known.get(_key_of(status))):
                self._read_progress(status)
        for status in sorted(filter(self._needs_account, statuses), key=self._account_time)[:max_accounts]:
            self._read_goodput(status, self._known[_key_of(status)])
        known_of = [self._known.get(_key_of(status)) for status in statuses]
        return [
            RunLine(status=status, progress=known.progress if known else None)
            for status, known in zip(statuses, known_of, strict=True)
        ]

    def _account_time(self, status: WorkloadStatus) -> float:
        account_at = self._known[_key_of(status)].account_at
        return float("-inf") if account_at is None else account_at

    def _is_due(self, status: WorkloadStatus, known: _Known | None) -> bool:
        if not status.output_dir or status.phase in (Phase.QUEUED, Phase.UNKNOWN):
            return False
        if known is None:
            return True
        pause = _BUCKET_SECONDS if in_bucket(status.output_dir) else 0.0
        return not known.was_final and self.clock() - known.read_at >= pause

    def _needs_account(self, status: WorkloadStatus) -> bool:
        known = self._known.get(_key_of(status))
        if known is None or known.progress is None:
            return False
        if known.account_at is None:
            return True
        pause = _BUCKET_ACCOUNT_SECONDS if in_bucket(status.output_dir) else _ACCOUNT_SECONDS
        return not known.was_final and self.clock() - known.account_at >= pause

    def _read_progress(self, status: WorkloadStatus) -> None:
        before = self._known.get(_key_of(status), _Known(None, 0.0))
        known = self._known[_key_of(status)] = _Known(before.progress, self.clock(), before.account_at)
        try:
            folder = self.roots.to_read(status)
            progress = progress_of(folder, status) if folder else None
        except XpkError:  # it is tried again, and the page of the run says why
            return
        known.was_final = status.phase.is_final
        if progress and before.progress:
            known.progress = replace(progress, goodput=before.progress.goodput)
            known.account_at = None if known.was_final else before.account_at  # the account of the end is the last
        else:
            known.progress = progress

    def _read_goodput(self, status: WorkloadStatus, known: _Known) -> None:
        assert known.progress is not None
        known.account_at = self.clock()
        try:
            known.progress = with_goodput(known.progress, self.roots.to_read(status), status)
        except XpkError:  # of a run that has ended, all is read again
            known.was_final = False


def waiting_in(view: ClusterView, queue: QueueInfo) -> list[WorkloadStatus]:
    """Return the workloads of a view that wait in a queue, in order."""
    waiting = [
        one.status for one in view.runs if one.status.position and one.status.cluster_queue == queue.cluster_queue
    ]
    return sorted(waiting, key=lambda status: status.position or 0)


def obstacles(waiting: Sequence[WorkloadStatus]) -> tuple[str, ...]:
    """Return why workloads of a queue have no estimated start, one line each; one line if it is the same for all."""
    reasons = [(one.name, one.start.reason) for one in waiting if one.start and one.start.reason]
    if len(reasons) == len(waiting) and len({reason for _, reason in reasons}) == 1:
        return (reasons[0][1],)
    return tuple(f"{name}: {reason}" for name, reason in reasons[:_NAMED_OBSTACLES])


def _key_of(status: WorkloadStatus) -> tuple[str, str, str]:
    return status.namespace, status.name, status.created


def _first(statuses: Sequence[WorkloadStatus]) -> list[WorkloadStatus]:
    """Return the workloads to show: those that have not ended, then the others, each newest first."""
    newest = sorted(statuses, key=lambda status: status.created, reverse=True)
    return sorted(newest, key=lambda status: status.phase.is_final)[:MAX_RUNS]
