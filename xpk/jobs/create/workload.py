"""A workload as a user describes it, before a cluster completes it to a `WorkloadSpec`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from xpk.model.specs import FATAL_EXIT_CODES


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A workload to create: the same command on every host of N slices.

    A field is the option of `xpk workload create` of the same meaning; None leaves the choice to the cluster.
    """

    name: str
    namespace: str = "default"

    # Capacity
    num_slices: int | None = None  # 1 if None
    num_nodes: int | None = None  # of GPU and CPU types, instead of num_slices: hosts, one slice each
    accelerator_type: str | None = None  # the cluster's if None
    capacity: str | None = None  # "on-demand", "spot", "flex" or "reservation=NAME"; GKE only
    max_run_seconds: int | None = None  # slices of queued provisioning only
    max_cost: float | None = None  # US dollars an hour, by list prices; GKE only

    # Code and image
    command: str | None = None  # run by bash on every host; None runs the bundled trainer
    args: Sequence[str] = ()  # of the bundled trainer
    script_dir: str | Path | None = None  # folder to ship; hosts start in a copy of it
    image: str | None = None
    image_pull_secret: str | None = None
    run_as_user: int | None = None  # UID of the pods; the image's if None
    env: Mapping[str, str] = field(default_factory=dict)
    secret_env: Mapping[str, tuple[str, str]] = field(default_factory=dict)  # variable: (Secret, key)
    peer_watch: bool = True  # end the command on all hosts when one of them is gone
    launcher: Literal["plain", "ray"] = "plain"
    ray_dashboard: bool = False
    ray_join_seconds: float = 300.0

    # Storage
    output_root: str | None = None  # output is written to OUTPUT_ROOT/NAME
    node_folder: str | None = None  # folder of each node, mounted at the same path
    mounts: Sequence[str] = ()  # "source=CLAIM,target=/PATH" or "source=gs://BUCKET/PREFIX,target=/PATH"
    storages: Sequence[str] = ()  # names of `xpk storage attach`
    debug_dump_gcs: str | None = None  # gs://BUCKET/PATH for XLA's programs
    resume: bool = False  # continue from the output of an earlier workload of this name
    fresh: bool = False  # move the output of an earlier workload of this name aside

    # Scheduling
    queue: str | None = None  # the cluster's own, or the only one of the namespace, if None
    priority: str = "medium"
    scheduler: str = ""  # the cluster's default if ""
    labels: Mapping[str, str] = field(default_factory=dict)

    # Failure handling
    max_restarts: int = 0
    fatal_exit_codes: Sequence[int] = FATAL_EXIT_CODES
    termination_grace_seconds: int = 30  # between SIGTERM and SIGKILL
    ttl_seconds: int = 12 * 3600  # for which a finished workload is kept
    check_memory: bool = True  # refuse what the bundled trainer estimates not to fit in the chips' memory

    @property
    def runs_trainer(self) -> bool:
        """Whether hosts run the bundled trainer."""
        return self.command is None
