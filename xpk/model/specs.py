"""What a user asks for: a cluster of slices, a workload on them. Checked whole, all problems at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from xpk.model import names
from xpk.model.accelerators import SliceShape

MOST_SLICES = 1024
FATAL_EXIT_CODES = (42, 126, 127)  # ours; "not executable" and "not found", as shells report them


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSpec:
    """N slices of one accelerator type under a name."""

    name: str
    shape: SliceShape
    num_slices: int

    def problems(self) -> list[str]:
        """Return everything that is wrong with it, one line each."""
        return [*names.cluster_name_problems(self.name), *_slices_problems(self.num_slices)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What differs between the places where a workload's hosts run.

    `emulated`: the chips are virtual CPU devices. `sets_slice_environment`: nobody else injects
    MEGASCALE_* and TPU_WORKER_*, so the manifest does. `output_root`: the shared folder or bucket.
    `shared_folder`: a folder of the nodes that pods mount at the same path. `trainer_image`: the bundled
    trainer's image, where the nodes have one.
    """

    emulated: bool
    sets_slice_environment: bool
    output_root: str
    shared_folder: str | None = None
    trainer_image: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadSpec:
    """A job over `num_slices` slices: the same `command` on every host.

    Times are in seconds. `fatal_exit_codes` fail the workload at once, any other restarts it, up to
    `max_restarts` times.
    """

    name: str
    shape: SliceShape
    num_slices: int
    command: tuple[str, ...]
    target: Target
    image: str
    namespace: str = "default"
    queue: str = names.QUEUE
    priority: str = "medium"
    env: Mapping[str, str] = field(default_factory=dict)
    max_restarts: int = 0
    fatal_exit_codes: tuple[int, ...] = FATAL_EXIT_CODES
    termination_grace_seconds: int = 30
    ttl_seconds: int = 12 * 3600
    working_dir: str | None = None
    user: str = ""

    def problems(self) -> list[str]:
        """Return everything that is wrong with it, one line each."""
        found = _slices_problems(self.num_slices)
        found += names.workload_name_problems(self.name, num_slices=self.num_slices, hosts_per_slice=self.shape.hosts)
        for key, value in self.env.items():
            found += names.env_problems(key, value)
        if self.priority not in names.PRIORITIES:
            found.append(f"unknown priority '{self.priority}': choose from {', '.join(names.PRIORITIES)}")
        if not self.command:
            found.append("the command is empty")
        found += [f"the command {problem}" for part in self.command for problem in names.text_problems(part)]
        for code in self.fatal_exit_codes:
            if not 1 <= code <= 255 or code == 143:
                found.append(f"{code} cannot be a fatal exit code: 1 to 255, except 143 (ended by SIGTERM, saved)")
        for flag, number in (
            ("--max-restarts", self.max_restarts),
            ("--termination-grace-period-seconds", self.termination_grace_seconds),
            ("--ttl-seconds-after-finished", self.ttl_seconds),
        ):
            if number < 0:
                found.append(f"{flag} is {number}; it cannot be negative")
        return found

    @property
    def output_dir(self) -> str:
        """Return the folder that all hosts share and that outlives restarts."""
        return f"{self.target.output_root}/{self.name}"

    @property
    def total(self) -> int:
        """Return the units of `shape.resource` that it needs."""
        return self.num_slices * self.shape.hosts * self.shape.resource_per_host


def _slices_problems(num_slices: int) -> list[str]:
    if 1 <= num_slices <= MOST_SLICES:
        return []
    return [f"{num_slices} slices cannot be had: ask for 1 to {MOST_SLICES}"]
