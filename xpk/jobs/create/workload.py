"""A workload as a user describes it, before a cluster completes it to a `WorkloadSpec`.

Each field is written once: its meaning, default and option are the metadata from which the command line is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from xpk.jobs.create.options import COMMAND_IMAGE, parse_labels, parse_secret_env
from xpk.model import names
from xpk.model.specs import FATAL_EXIT_CODES

_OPTION = "option"


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """The command-line option of a field."""

    flags: tuple[str, ...]
    help: str
    parameter: str  # names the variable XPK_WORKLOAD_CREATE_... too
    metavar: str | None = None
    choices: tuple[str, ...] = ()
    limits: tuple[int, int | None] | None = None  # of a number
    variable: str | None = None  # of the environment, beside that of the parameter
    is_time: bool = False  # written as 90s, 5m, 2h or 1d
    parse: Callable[[Sequence[str]], Any] | None = None  # of the texts of an option that may be repeated

    @property
    def flag(self) -> str:
        """Return the flag that messages name."""
        return self.flags[0].partition("/")[0]


def _option(default: Any, *flags: str, help: str, parameter: str = "", default_factory: Any = None, **more: Any) -> Any:
    """Return a field with an option; `parameter` is the first flag's name if left out."""
    name = parameter or flags[0].partition("/")[0].lstrip("-").replace("-", "_")
    metadata = {_OPTION: Option(flags=flags, help=help, parameter=name, **more)}
    if default_factory is not None:
        return field(default_factory=default_factory, metadata=metadata)
    return field(default=default, metadata=metadata)


def options_of(kind: type[Workload]) -> Iterator[tuple[Field[Any], Option | None]]:
    """Yield each field, with its option if it has one of its own."""
    for each in fields(kind):
        yield each, each.metadata.get(_OPTION)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A workload to create: the same command on every host of N slices.

    docs/python-api.md lists the fields. None leaves the choice to the cluster.
    """

    name: str
    namespace: str = "default"

    # Capacity
    num_slices: int | None = _option(None, "--num-slices", help="Number of slices. [default: 1]")
    num_nodes: int | None = _option(
        None, "--num-nodes", help="GPU and CPU types: number of hosts, each a slice of its own."
    )
    accelerator_type: str | None = None
    capacity: str | None = None  # "on-demand", "spot", "flex" or "reservation=NAME"

    # Code and image
    command: str | None = _option(
        None, "--command", help="Command that every host runs, in bash. [default: the bundled trainer]"
    )
    args: Sequence[str] = ()  # of the bundled trainer
    peer_watch: bool = _option(
        True,
        "--peer-watch/--no-peer-watch",
        help="With --command: end the command on all hosts when one of them is lost; needs python3 in the image.",
    )
    restart_in_place: bool = _option(
        True,
        "--restart-in-place/--no-restart-in-place",
        help="After a failure, start the command again on all hosts in the same pods; needs python3 in the image.",
    )
    standby_imports: str = _option(
        "",
        "--standby-imports",
        metavar="MODULES",
        help="With --command 'python ...': modules, such as jax,flax, that an idle interpreter of each host imports "
        "for the next attempt; none: no idle interpreter, also for the bundled trainer.",
    )
    launcher: Literal["plain", "ray"] = _option(
        "plain",
        "--launcher",
        choices=("plain", "ray"),
        help="ray: form a Ray cluster of the hosts, and run the command on its head only.",
    )
    ray_dashboard: bool = _option(
        False, "--ray-dashboard", help="Serve Ray's dashboard and jobs API; see `workload port-forward`."
    )
    ray_join_seconds: float = _option(
        300.0,
        "--ray-join-timeout",
        metavar="TIME",
        limits=(0, None),
        is_time=True,
        help="Time that hosts may take to join the Ray cluster. [default: 5m]",
    )
    image: str | None = _option(
        None,
        "--docker-image",
        "--image",
        parameter="image",
        metavar="IMAGE",
        help="Image of the hosts; ignored by the local provider. [default: the cluster's trainer image; without one, "
        f"{COMMAND_IMAGE} for a --command]",
    )
    image_pull_secret: str | None = _option(
        None,
        "--docker-image-pull-secret",
        parameter="pull_secret",
        metavar="NAME",
        help="Kubernetes Secret to pull the image with.",
    )
    run_as_user: int | None = _option(
        None,
        "--run-as-user",
        metavar="UID",
        limits=(1, 2**31 - 1),
        help="User that pods run as, and that owns their volumes. [default: the image's user]",
    )
    script_dir: str | Path | None = _option(  # noqa: RUF009  # makes a field
        None,
        "--script-dir",
        metavar="DIR",
        help="Folder to ship; hosts start in a copy of it. Files that .xpkignore matches are left out.",
    )

    # Storage
    output_root: str | None = _option(
        None,
        "--output-root",
        metavar="OUTPUT_ROOT",
        variable="XPK_OUTPUT_ROOT",
        help="Write output to OUTPUT_ROOT/NAME, such as gs://BUCKET/PATH. [default: the cluster's output root]",
    )
    node_folder: str | None = _option(
        None,
        "--node-folder",
        metavar="PATH",
        help="Mount this folder of each node into its hosts, at the same path, for files that outlive them: /dev/shm, "
        "or a disk.",
    )
    mounts: Sequence[str] = _option(
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
    secret_env: Mapping[str, tuple[str, str]] = _option(
        None,
        "--env-from-secret",
        parameter="secret_env",
        metavar="NAME=SECRET[:KEY]",
        default_factory=dict,
        parse=parse_secret_env,
        help="Environment variable from a key of a Kubernetes Secret; may be repeated.",
    )

    # Scheduling
    priority: str = _option(
        "medium",
        "--priority",
        metavar="|".join(names.PRIORITIES),
        help="Priority in the queue; a workload may preempt others of lower priority.",
    )
    queue: str | None = _option(
        None,
        "--queue",
        help=f"LocalQueue of the workload. [default: {names.QUEUE}, or the only queue of the namespace]",
    )
    scheduler: str = ""
    labels: Mapping[str, str] = _option(
        None,
        "--label",
        parameter="labels",
        metavar="NAME=VALUE",
        default_factory=dict,
        parse=parse_labels,
        help="Label of the JobSet and its pods; may be repeated.",
    )
    max_run_seconds: int | None = _option(
        None,
        "--max-run-duration",
        metavar="TIME",
        is_time=True,
        help="Queued provisioning: time after which GKE takes the slices back, at most 7d. [default: 7d]",
    )
    max_cost: float | None = _option(
        None,
        "--max-cost",
        metavar="DOLLARS",
        help="gke: refuse a workload that costs more per hour, by list prices.",
    )
    check_memory: bool = _option(
        True,
        "--estimate/--no-estimate",
        parameter="estimated",
        help="Refuse a run of the bundled trainer that does not fit in the chips' memory, by its own estimate.",
    )

    # Failure handling
    max_restarts: int = _option(0, "--max-restarts", help="Number of failures to restart after.")
    fatal_exit_codes: Sequence[int] = FATAL_EXIT_CODES
    termination_grace_seconds: int = _option(
        30,
        "--termination-grace-period-seconds",
        "-tgps",
        parameter="grace",
        help="Seconds between SIGTERM and SIGKILL.",
    )
    ttl_seconds: int = _option(
        12 * 3600,
        "--ttl-seconds-after-finished",
        parameter="ttl",
        help="Seconds for which a finished workload is kept; its output is not deleted.",
    )
    resume: bool = _option(False, "--resume", help="Continue from the output of an earlier workload of the same name.")
    fresh: bool = _option(False, "--fresh", help="Move the output of an earlier workload of the same name aside.")

    @property
    def runs_trainer(self) -> bool:
        """Return True if hosts run the bundled trainer."""
        return self.command is None
