"""A workload as a user describes it, before a cluster completes it to a `WorkloadSpec`.

Each field is written once: its meaning, default, check and option are the metadata from which the command line is made.
Those that the manifest uses unchanged are in `WorkloadOptions`; the cluster completes the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from xpk.jobs.create.options import COMMAND_IMAGE
from xpk.model import names
from xpk.model.options import option
from xpk.model.workload_options import WorkloadOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload(WorkloadOptions):
    """A workload to create: the same command on every host of N slices.

    docs/python-api.md lists the fields. None leaves the choice to the cluster.
    """

    # Capacity
    num_slices: int | None = option(None, help="Number of slices. [default: 1]")
    num_nodes: int | None = option(None, help="GPU and CPU types: number of hosts, each a slice of its own.")
    accelerator_type: str | None = None
    capacity: str | None = None  # "on-demand", "spot", "flex" or "reservation=NAME"

    # Code and image
    command: str | None = option(None, help="Command that every host runs, in bash. [default: the bundled trainer]")
    args: Sequence[str] = ()  # of the bundled trainer
    peer_watch: bool = option(
        True,
        "--peer-watch/--no-peer-watch",
        help="With --command: end the command on all hosts when one of them is lost; needs python3 in the image.",
    )
    restart_in_place: bool = option(
        True,
        "--restart-in-place/--no-restart-in-place",
        help="After a failure, start the command again on all hosts in the same pods; needs python3 in the image.",
    )
    launcher: Literal["plain", "ray"] = option(
        "plain",
        choices=("plain", "ray"),
        help="ray: form a Ray cluster of the hosts, and run the command on its head only.",
    )
    ray_dashboard: bool = option(False, help="Serve Ray's dashboard and jobs API; see `workload port-forward`.")
    ray_join_seconds: float = option(
        300.0,
        "--ray-join-timeout",
        metavar="TIME",
        limits=(0, None),
        is_time=True,
        help="Time that hosts may take to join the Ray cluster. [default: 5m]",
    )
    image: str | None = option(
        None,
        "--docker-image",
        "--image",
        parameter="image",
        metavar="IMAGE",
        help="Image of the hosts; ignored by the local provider. [default: the cluster's trainer image; without one, "
        f"{COMMAND_IMAGE} for a --command]",
    )
    script_dir: str | Path | None = option(  # noqa: RUF009  # makes a field
        None,
        metavar="DIR",
        help="Folder to ship; hosts start in a copy of it. Files that .xpkignore matches are left out.",
    )

    # Storage
    output_root: str | None = option(
        None,
        metavar="OUTPUT_ROOT",
        variables=("XPK_OUTPUT_ROOT",),
        help="Write output to OUTPUT_ROOT/NAME, such as gs://BUCKET/PATH. [default: the cluster's output root]",
    )
    mounts: Sequence[str] = option(
        (),
        "--mount",
        parameter="mounts",
        metavar="SPEC",
        help="Mount a claim or a bucket on all hosts: source=CLAIM,target=/PATH or "
        "source=gs://BUCKET/PREFIX,target=/PATH, with subpath=FOLDER (of a claim) and readonly; may be repeated.",
    )
    storages: Sequence[str] = ()  # names of `xpk storage attach`
    debug_dump_gcs: str | None = None  # gs://BUCKET/PATH for XLA's programs

    # Environment
    env: Mapping[str, str] = field(default_factory=dict)

    # Scheduling
    queue: str | None = option(
        None,
        help=f"LocalQueue of the workload. [default: {names.QUEUE}, or the only queue of the namespace]",
    )
    max_cost: float | None = option(
        None,
        metavar="DOLLARS",
        help="gke: refuse a workload that costs more per hour, by list prices.",
    )
    check_memory: bool = option(
        True,
        "--estimate/--no-estimate",
        parameter="estimated",
        help="Refuse a run of the bundled trainer that does not fit in the chips' memory, by its own estimate.",
    )

    # Failure handling
    resume: bool = option(False, help="Continue from the output of an earlier workload of the same name.")
    fresh: bool = option(False, help="Move the output of an earlier workload of the same name aside.")

    @property
    def runs_trainer(self) -> bool:
        """Return True if hosts run the bundled trainer."""
        return self.command is None
