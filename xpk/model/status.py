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

    slice: int
    host: int
    pod: str
    node: str | None
    phase: str
    pid: int | None
    exit_code: int | None
    reason: str | None
    started: str | None
    finished: str | None

    @property
    def label(self) -> str:
        """Return the short name that logs and messages use: `s0/h1`."""
        return f"s{self.slice}/h{self.host}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """One restart: its time and its cause, as text and, where known, as fields.

    `attempt` is the one that ended. `exit_code` is that of host `host` of slice `slice`.
    """

    time: str
    cause: str
    attempt: int | None = None
    slice: int | None = None
    host: int | None = None
    exit_code: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """A condition that the queue controller set on a workload: `status` is `True` or `False`, `reason` one word."""

    type: str
    status: str
    reason: str
    message: str
    time: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """The amount of a quota that one workload holds. `workload` includes its namespace if that is another one."""

    workload: str
    amount: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """Quota of a resource, in one flavor, that a queued workload needs.

    `free`: available to its queue now; `most`: available if nothing were in use. Both include borrowing.
    `holders`: workloads that hold some of it, including those of queues that could lend it.
    """

    flavor: str
    resource: str
    quota: float
    used: float
    needed: float
    free: float
    most: float
    holders: tuple[Share, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """An admission check of a workload: `state` is Kueue's Pending, Retry, Ready or Rejected.

    `failures`: earlier attempts. `next_attempt`: time of the next try after a failure.
    """

    name: str
    state: str
    message: str
    failures: int
    next_attempt: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """A reason why hosts do not start or run. `hosts` are labels such as `s1/h0`; empty: no single host is affected."""

    reason: str
    message: str
    hosts: tuple[str, ...] = ()
    image: str | None = None

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

    time: str
    first: str
    count: int
    type: str
    reason: str
    object: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadStatus:
    """Status of a workload, as its objects show it. Times are RFC 3339.

    `quota`, `restart_history` and `events` are empty in lists of workloads.
    """

    name: str
    namespace: str
    phase: Phase
    reason: str
    priority: str
    accelerator_type: str
    num_slices: int
    hosts_per_slice: int
    num_hosts: int
    restarts: int
    restarts_counted: int  # those that `max_restarts` limits
    max_restarts: int
    created: str
    started: str | None
    finished: str | None
    queue: str | None
    cluster_queue: str | None
    position: int | None
    ahead: tuple[str, ...]  # workloads before it in its cluster queue, while it is queued
    conditions: tuple[Condition, ...]
    checks: tuple[Check, ...]
    quota: tuple[Quota, ...]  # that it waits for, while it is queued
    user: str
    command: tuple[str, ...]
    output_dir: str
    hosts: tuple[HostStatus, ...]
    troubles: tuple[Trouble, ...]
    restart_history: tuple[Restart, ...]
    events: tuple[Occurrence, ...]
    maker: str  # "xpk", also for Google's, or the tool that created it
    mounts: tuple[Mount, ...] = ()
    previous_logs: bool = False  # logs of earlier attempts are kept
    launcher: str = "plain"  # or "ray"


_KNOWN = {
    42: "fatal error",
    75: "lost a peer",
    76: "hung",
    77: "state differs from the other replicas",
}


def exit_words(code: int) -> str:
    """Return an exit code with its meaning: `exit code 137 (SIGKILL)`."""
    known = _KNOWN.get(code)
    if known is None and 128 < code <= 128 + max(signal.Signals):
        known = next((each.name for each in signal.Signals if each == code - 128), None)
    return f"exit code {code}" + (f" ({known})" if known else "")
