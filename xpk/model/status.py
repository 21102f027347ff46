"""What is known of a workload, read from its objects."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from enum import StrEnum

from xpk.model.mounts import Mount


class Phase(StrEnum):
    """Where a workload is in its life."""

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
        """Whether nothing more will happen."""
        return self in (Phase.SUCCEEDED, Phase.FAILED)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostStatus:
    """One host of the current attempt. `pid` is known where hosts are processes of this machine."""

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
    """One restart: when, and what caused it, in words and, as far as is known, as fields.

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
    """What the queue's controller says of a workload: `status` is `True` or `False`, `reason` one word."""

    type: str
    status: str
    reason: str
    message: str
    time: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """How much of a quota one workload holds. `workload` names its namespace too where that is another one."""

    workload: str
    amount: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """What a flavor has of a resource that a queued workload needs.

    `free`: what its queue could have now, and `most`: what it could ever have, both with what others lend it.
    `holders`: who has some of it, those of queues that could lend it among them.
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
    """What a workload waits for beside its quota: `state` is Kueue's Pending, Retry, Ready or Rejected.

    `failures`: attempts before this one. `next_attempt`: when it is tried again, after a failure.
    """

    name: str
    state: str
    message: str
    failures: int
    next_attempt: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """Why hosts do not start or go on. `hosts` are labels such as `s1/h0`; none: it is not about a single host."""

    reason: str
    message: str
    hosts: tuple[str, ...] = ()
    image: str | None = None

    def __str__(self) -> str:
        """Return it in a line, by the name of its first host."""
        more = f" and {len(self.hosts) - 1} more" if len(self.hosts) > 1 else ""
        who = f"{self.hosts[0]}{more}" if self.hosts else "no host"
        verb = "has no node" if self.reason == "Unschedulable" else f"cannot start: {self.reason}"
        if self.reason == "NodeLost":
            verb = "lost"
        return ": ".join(filter(None, [f"{who} {verb}", self.image, self.message]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Occurrence:
    """An event, or several that say the same: `time` is the last one's, `first` the first one's."""

    time: str
    first: str
    count: int
    type: str
    reason: str
    object: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadStatus:
    """A workload as its objects show it. Times are RFC 3339.

    `ahead` names the workloads before it in its cluster queue, while it is queued; `quota` is what it then waits
    for. `restarts_counted` are those that `max_restarts` limits. What only the status of a single workload tells is
    empty in a list: `quota`, `restart_history`, `events`. `maker` is "xpk", also for Google's, or who else made it.
    `mounts`: the claims and buckets that hosts see. `previous_logs`: whether the logs of earlier attempts are kept.
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
    restarts_counted: int
    max_restarts: int
    created: str
    started: str | None
    finished: str | None
    queue: str | None
    cluster_queue: str | None
    position: int | None
    ahead: tuple[str, ...]
    conditions: tuple[Condition, ...]
    checks: tuple[Check, ...]
    quota: tuple[Quota, ...]
    user: str
    command: tuple[str, ...]
    output_dir: str
    hosts: tuple[HostStatus, ...]
    troubles: tuple[Trouble, ...]
    restart_history: tuple[Restart, ...]
    events: tuple[Occurrence, ...]
    maker: str
    mounts: tuple[Mount, ...] = ()
    previous_logs: bool = False
    launcher: str = "plain"  # or "ray"


_KNOWN = {
    42: "cannot work however often it is tried",
    75: "it had lost a peer",
    76: "it hung",
    77: "its state is not that of the other replicas",
}


def exit_words(code: int) -> str:
    """Return an exit code with what it means: `exit code 137 (SIGKILL)`."""
    known = _KNOWN.get(code)
    if known is None and 128 < code <= 128 + max(signal.Signals):
        known = next((each.name for each in signal.Signals if each == code - 128), None)
    return f"exit code {code}" + (f" ({known})" if known else "")
