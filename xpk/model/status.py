"""Status of a workload, read from its objects."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from enum import StrEnum

from xpk.model.forecast import StartEstimate
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
    exit_code: int | None  # exit code; null while it runs
    reason: str | None  # reason for waiting or failing
    started: str | None  # time of the start
    finished: str | None  # time of the end

    @property
    def label(self) -> str:
        """Return the short name that logs and messages use: `s0/h1`."""
        return f"s{self.slice}/h{self.host}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """One restart: its time and its cause, as text and, where known, as fields.

    `attempt` is the one that ended. `exit_code` is that of host `host` of slice `slice`.
    """

    time: str  # time of the restart
    cause: str  # cause in words
    attempt: int | None = None  # number of the attempt that ended
    slice: int | None = None  # slice of the host that failed
    host: int | None = None  # index of the host that failed
    exit_code: int | None = None  # exit code of the host that failed


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """A condition that the queue controller set on a workload: `status` is `True` or `False`, `reason` one word."""

    type: str  # type, such as QuotaReserved or Admitted
    status: str  # `True` or `False`
    reason: str  # reason in one word
    message: str  # explanation
    time: str  # time of the last change


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """The amount of a quota that one workload holds. `workload` includes its namespace if that is another one."""

    workload: str  # name of the workload, with its namespace if that is another one
    amount: float  # amount, in units of the resource


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """Quota of a resource, in one flavor, that a queued workload needs.

    `free`: available to its queue now; `most`: available if nothing were in use. Both include borrowing.
    `holders`: workloads that hold some of it, including those of queues that could lend it.
    """

    flavor: str  # ResourceFlavor of Kueue
    resource: str  # resource, such as google.com/tpu
    quota: float  # nominal quota of its queue
    used: float  # amount in use
    needed: float  # amount that the workload needs
    free: float  # amount available to its queue now
    most: float  # amount available if nothing were in use
    holders: tuple[Share, ...]  # workloads that hold some of it, including those of queues that could lend it


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """An admission check of a workload: `state` is Kueue's Pending, Retry, Ready or Rejected.

    `failures`: earlier attempts. `next_attempt`: time of the next try after a failure.
    """

    name: str  # name of the check
    state: str  # state: Pending, Retry, Ready or Rejected
    message: str  # explanation
    failures: int  # number of earlier attempts
    next_attempt: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """A reason why hosts do not start or run. `hosts` are labels such as `s1/h0`; empty: no single host is affected."""

    reason: str  # reason in one word, such as Unschedulable
    message: str  # explanation
    hosts: tuple[str, ...] = ()  # affected hosts, such as `s1/h0`; empty if no single host is affected
    image: str | None = None  # image that cannot be pulled

    def __str__(self) -> str:
        """Return a one-line description that names the first host."""
        more = f" and {len(self.hosts) - 1} more" if len(self.hosts) > 1 else ""
        subject = f"{self.hosts[0]}{more}" if self.hosts else "no host"
        verb = "has no node" if self.reason == "Unschedulable" else f"cannot start: {self.reason}"
        if self.reason == "NodeLost":
            verb = "lost"
        return ": ".join(filter(None, [f"{subject} {verb}", self.image, self.message]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Occurrence:
    """An event, or several equal ones: `first` is the time of the first one, `time` of the last one."""

    time: str  # time of the last event
    first: str  # time of the first event
    count: int  # number of equal events
    type: str  # Normal or Warning
    reason: str  # reason in one word
    object: str  # object of the event, as kind/name
    message: str  # explanation


# Tools whose workloads xpk deletes by name: they keep no state of them besides the JobSet.
STATELESS_MAKERS = ("xpk", "gcluster")


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspectHost:
    """A host of a workload on a node that is quarantined, or has evidence against it (`xpk node list`)."""

    slice: int  # number of its slice, from 0
    host: int  # number in its slice, from 0
    node: str  # name of its node
    score: float  # score of the evidence; a node is a suspect from 1
    quarantine: str | None = None  # reason of the quarantine of its slice; null if it is in service


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The copy of a workload on one of the clusters that it may run on."""

    cluster: str  # name of the cluster
    state: str  # held, starting, waiting, running, suspended, stopping, ended, missing or unreachable
    reason: str  # reason for the state; may be empty
    is_chosen: bool  # whether the workload runs there, or will


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadStatus:
    """Status of a workload, as its objects show it. Times are RFC 3339.

    `quota`, `restart_history` and `events` are empty in lists of workloads.
    """

    name: str  # name, unique in its namespace
    namespace: str  # Kubernetes namespace
    phase: Phase  # current phase
    reason: str  # reason for the phase, in one line; may be empty
    priority: str  # very-low, low, medium, high or very-high, or a class of another tool
    accelerator_type: str  # accelerator type, such as v5litepod-8; empty if unknown
    num_slices: int  # number of requested slices
    hosts_per_slice: int  # hosts of the largest slice
    num_hosts: int  # hosts of all slices
    restarts: int  # restarts of the JobSet, of single slices and in place
    restarts_counted: int  # restarts that `max_restarts` limits
    max_restarts: int  # limit of `restarts_counted`
    created: str  # time of the request
    started: str | None  # time at which hosts first started
    finished: str | None  # time of the end
    queue: str | None  # name of its queue in its namespace
    cluster_queue: str | None  # the ClusterQueue of its queue
    position: int | None  # position in its cluster queue, from 1, while it is queued
    ahead: tuple[str, ...]  # workloads ahead of it in its cluster queue, while it is queued
    conditions: tuple[Condition, ...]  # conditions that the queue controller set
    checks: tuple[Check, ...]  # admission checks
    quota: tuple[Quota, ...]  # quota that it waits for, while it is queued
    user: str  # creator; empty if unknown
    command: tuple[str, ...]  # command of each host
    output_dir: str  # folder or bucket of its output; empty if it has none
    hosts: tuple[HostStatus, ...]  # hosts of the current attempt
    troubles: tuple[Trouble, ...]  # reasons for hosts not starting or not running
    restart_history: tuple[Restart, ...]  # known restarts, oldest first
    events: tuple[Occurrence, ...]  # events, oldest first
    maker: str  # creating tool: "xpk", also for Google's xpk, or the name of another tool
    mounts: tuple[Mount, ...] = ()  # storage mounted on its hosts
    previous_logs: bool = False  # whether logs of earlier attempts are kept
    launcher: str = "plain"  # launcher: plain or ray
    num_hosts_up: int = 0  # hosts that run or have finished
    restarts_in_place: int = 0  # restarts in `restarts` without new pods; in lists, only where the output is a folder
    min_slices: int | None = None  # slices with which it trains at least; null unless its slices are elastic
    suspects: tuple[SuspectHost, ...] = ()  # hosts on suspect nodes, one of each quarantined slice; empty in lists
    pending_reason: str = ""  # reason for waiting in one word, such as WaitingForQuota; empty if Kueue gives none
    clusters: tuple[str, ...] = ()  # clusters that it may run on; empty if it has only one
    placements: tuple[Placement, ...] = ()  # its copies on these clusters; empty in lists
    start: StartEstimate | None = None  # estimated start of a queued one; null in `workload list`, or if unknown


_KNOWN = {
    42: "fatal error",
    75: "lost a peer",
    76: "hung",
    77: "state differs from the other replicas",
    78: "no restart is left",
    79: "failed a preflight check",
    80: "its run continues on another cluster",
}


def exit_words(code: int) -> str:
    """Return an exit code with its meaning: `exit code 137 (SIGKILL)`."""
    meaning = _KNOWN.get(code)
    if meaning is None and 128 < code <= 128 + max(signal.Signals):
        meaning = next((candidate.name for candidate in signal.Signals if candidate == code - 128), None)
    return f"exit code {code}" + (f" ({meaning})" if meaning else "")
