"""What is known of a workload, read from its objects."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Phase(StrEnum):
    """Where a workload is in its life."""

    QUEUED = "Queued"
    STARTING = "Starting"
    RUNNING = "Running"
    RESTARTING = "Restarting"
    SUSPENDED = "Suspended"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"

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
    """One restart: when, and what the control plane said was the cause."""

    time: str
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadStatus:
    """A workload as its objects show it. Times are RFC 3339.

    `ahead` names the workloads before it in the queue, while it is queued. `restarts_counted` are those
    that `max_restarts` limits.
    """

    name: str
    namespace: str
    phase: Phase
    reason: str
    priority: str
    accelerator_type: str
    num_slices: int
    hosts_per_slice: int
    restarts: int
    restarts_counted: int
    max_restarts: int
    created: str
    started: str | None
    finished: str | None
    queue: str | None
    position: int | None
    ahead: tuple[str, ...]
    user: str
    command: tuple[str, ...]
    output_dir: str
    hosts: tuple[HostStatus, ...]
    restart_history: tuple[Restart, ...]
