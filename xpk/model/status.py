"""Status of a workload, read from its objects."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from enum import StrEnum

from xpk.model.mounts import Mount


class Phase(StrEnum):
    """Phase of a workload's life."""

    QUEUED = "Queued"
    STARTING = "Starting"
    RUNNING = "Running"
    RESTARTING = "Restarting"
    SUSPENDED = "Suspended"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    UNKNOWN = "Unknown"

    @property
    def is_final(self) -> bool:
        """Return whether the phase is final."""
        return self in (Phase.SUCCEEDED, Phase.FAILED)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostStatus:
    """One host of the current attempt. `pid` is set on local clusters only."""

    slice: int  # number of its slice, from 0
    host: int  # number in its slice, from 0
    pod: str  # name of its pod
    node: str | None  # name of its node; null before it is scheduled
    phase: str  # as in Kubernetes: Pending, Running, Succeeded or Failed
    pid: int | None  # process on a local cluster; null elsewhere
    exit_code: int | None  # null while it runs
    reason: str | None  # why it waits or has failed
    started: str | None  # time
    finished: str | None  # time

    @property
    def label(self) -> str:
        """Return the short name that logs and messages use: `s0/h1`."""
        return f"s{self.slice}/h{self.host}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """One restart: its time and its cause, as text and, where known, as fields.

    `attempt` is the one that ended. `exit_code` is that of host `host` of slice `slice`.
    """

    time: str  # of the restart
    cause: str  # in words
    attempt: int | None = None  # that ended
    slice: int | None = None  # of the host that failed
    host: int | None = None  # that failed
    exit_code: int | None = None  # of that host


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """A condition that the queue controller set on a workload: `status` is `True` or `False`, `reason` one word."""

    type: str  # such as QuotaReserved or Admitted
    status: str  # `True` or `False`
    reason: str  # one word
    message: str  # explanation
    time: str  # of the last change


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """The amount of a quota that one workload holds. `workload` includes its namespace if that is another one."""

    workload: str  # with its namespace if that is another one
    amount: float  # in units of the resource


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """Quota of a resource, in one flavor, that a queued workload needs.

    `free`: available to its queue now; `most`: available if nothing were in use. Both include borrowing.
    `holders`: workloads that hold some of it, including those of queues that could lend it.
    """

    flavor: str  # ResourceFlavor in Kueue
    resource: str  # such as google.com/tpu
    quota: float  # nominal quota of its queue
    used: float  # in use
    needed: float  # by the workload
    free: float
    most: float
    holders: tuple[Share, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """An admission check of a workload: `state` is Kueue's Pending, Retry, Ready or Rejected.

    `failures`: earlier attempts. `next_attempt`: time of the next try after a failure.
    """

    name: str  # name of the check
    state: str  # Pending, Retry, Ready or Rejected
    message: str  # explanation
    failures: int
    next_attempt: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """A reason why hosts do not start or run. `hosts` are labels such as `s1/h0`; empty: no single host is affected."""

    reason: str  # one word, such as Unschedulable
    message: str  # explanation
    hosts: tuple[str, ...] = ()  # labels such as `s1/h0`; empty if no single host is affected
    image: str | None = None  # that cannot be pulled

    def __str__(self) -> str:
        """Return a one-line description that names the first host."""
        more = f" and {len(self.hosts) - 1} more" if len(self.hosts) > 1 else ""
        who = f"{self.hosts[0]}{more}" if self.hosts else "no host"
        verb = "has no node" if self.reason == "Unschedulable" else f"cannot start: {self.reason}"
        if self.reason == "NodeLost":
            verb = "lost"
        return ": ".join(filter(None, [f"{who} {verb}", self.image, self.message]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Occurrence:
    """An event, or several equal ones: `first` is the time of the first one, `time` of the last one."""

    time: str  # of the last event
    first: str  # time of the first event
    count: int  # number of equal events
    type: str  # Normal or Warning
    reason: str  # one word
    object: str  # that it is about, as kind/name
    message: str  # explanation


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadStatus:
    """Status of a workload, as its objects show it. Times are RFC 3339.

    `quota`, `restart_history` and `events` are empty in lists of workloads.
    """

    name: str  # unique in its namespace
    namespace: str  # Kubernetes namespace
    phase: Phase  # phase of its life
    reason: str  # why it is in this phase, in one line; may be empty
    priority: str  # low, medium or high, or a class of another tool
    accelerator_type: str  # such as v5litepod-8; empty if unknown
    num_slices: int  # requested slices
    hosts_per_slice: int  # of the largest slice
    num_hosts: int  # of all slices
    restarts: int  # of the JobSet, and in place
    restarts_counted: int  # those that `max_restarts` limits
    max_restarts: int  # limit of `restarts_counted`
    created: str  # time of the request
    started: str | None  # time of the first start of hosts
    finished: str | None  # time of the end
    queue: str | None  # name of its queue in its namespace
    cluster_queue: str | None  # the ClusterQueue of its queue
    position: int | None  # in its cluster queue, from 1, while it is queued
    ahead: tuple[str, ...]  # workloads before it in its cluster queue, while it is queued
    conditions: tuple[Condition, ...]  # that the queue controller set
    checks: tuple[Check, ...]  # admission checks
    quota: tuple[Quota, ...]  # that it waits for, while it is queued
    user: str  # who created it; empty if unknown
    command: tuple[str, ...]  # of each host
    output_dir: str  # shared folder or bucket of its output; empty if it has none
    hosts: tuple[HostStatus, ...]  # of the current attempt
    troubles: tuple[Trouble, ...]  # why hosts do not start or run
    restart_history: tuple[Restart, ...]  # known restarts, oldest first
    events: tuple[Occurrence, ...]  # oldest first
    maker: str  # "xpk", also for Google's, or the tool that created it
    mounts: tuple[Mount, ...] = ()  # storage that its hosts see
    previous_logs: bool = False  # logs of earlier attempts are kept
    launcher: str = "plain"  # plain or ray
    restarts_in_place: int = 0  # those of `restarts` without new pods; in lists, only where the output is a folder


_KNOWN = {
    42: "fatal error",
    75: "lost a peer",
    76: "hung",
    77: "state differs from the other replicas",
    78: "no restart is left",
}


def exit_words(code: int) -> str:
    """Return an exit code with its meaning: `exit code 137 (SIGKILL)`."""
    known = _KNOWN.get(code)
    if known is None and 128 < code <= 128 + max(signal.Signals):
        known = next((each.name for each in signal.Signals if each == code - 128), None)
    return f"exit code {code}" + (f" ({known})" if known else "")
