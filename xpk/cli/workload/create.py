"""`xpk workload create`."""

from __future__ import annotations

import os
import stat
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from xpk.api.base import ObjectApi
from xpk.api.words import counted
from xpk.cli import complete
from xpk.cli.durations import parse_duration
from xpk.cli.options import accelerator_option, cluster_option, name_argument, namespace_option, the_name
from xpk.cli.terminal.output import FORMATS, Console
from xpk.cli.workload import google_xpk, spec_file
from xpk.cli.workload.request import asked_for
from xpk.cli.workload.target import Place, find_place
from xpk.cli.workload.wait import await_end
from xpk.jobs import lifecycle, mounts
from xpk.jobs.code import upload
from xpk.jobs.code.archive import Archive
from xpk.jobs.create import create as creating
from xpk.jobs.create import memory_estimate, options, trainer_preflight
from xpk.jobs.output import folder as output
from xpk.jobs.status import reader
from xpk.model import names
from xpk.model.errors import CapacityError, UsageError, XpkError
from xpk.model.specs import WorkloadSpec
from xpk.proc import LocalRunner
from xpk.render import to_yaml
from xpk.storage import open_folder


@click.command(cls=spec_file.SpecCommand)
@name_argument("workload")
@cluster_option
@namespace_option
@click.option("--num-slices", type=int, help="How many slices it takes; one if left out.")
@click.option("--num-nodes", type=int, help="GPU and CPU types: how many hosts, one slice each.")
@accelerator_option("The cluster's, if left out.")
@click.option("--on-demand", is_flag=True, help="Use on-demand slices, also in node pools that GKE adds (gke).")
@click.option("--spot", is_flag=True, help="Use spot slices (gke).")
@click.option("--reservation", metavar="R", help="Use slices of a reservation: a name, or projects/P/... (gke).")
@click.option("--flex", is_flag=True, help="Use flex-start slices (gke).")
@click.option("--command", help="What every host runs, in bash; the bundled trainer if left out.")
@click.option(
    "--peer-watch/--no-peer-watch",
    default=True,
    show_default=True,
    help="With --command: when a host is gone, end the command on all others at once (needs python3 in the image).",
)
@click.option(
    "--launcher",
    type=click.Choice(["plain", "ray"]),
    default="plain",
    show_default=True,
    help="ray: the hosts form a Ray cluster, and the command runs on its head alone.",
)
@click.option("--ray-dashboard", is_flag=True, help="Serve Ray's dashboard and jobs; see `workload port-forward`.")
@click.option(
    "--ray-join-timeout", default="5m", show_default=True, metavar="TIME", help="How long hosts may take to join Ray."
)
@click.option(
    "--docker-image",
    "--image",
    "image",
    metavar="IMAGE",
    help="The hosts' image; the cluster's trainer image if left out, or for a --command where it has none "
    f"{options.COMMAND_IMAGE}. The local provider runs without one.",
)
@click.option("--docker-image-pull-secret", "pull_secret", metavar="NAME", help="A Secret to pull the image with.")
@click.option(
    "--run-as-user",
    type=click.IntRange(1, 2**31 - 1),
    metavar="UID",
    help="Run pods as this user, who owns their volumes; the image's user if left out.",
)
@click.option(
    "--script-dir",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Ship this folder; hosts start in a copy of it. What .xpkignore names stays here.",
)
@click.option(
    "--output-root",
    envvar="XPK_OUTPUT_ROOT",
    show_envvar=True,
    metavar="OUTPUT_ROOT",
    help="Workloads write to OUTPUT_ROOT/NAME, such as gs://BUCKET/PATH; the cluster's own place if left out.",
)
@click.option(
    "--node-folder",
    metavar="PATH",
    help="Give hosts this folder of their node, at the same path, for what is to outlive them: /dev/shm, or a disk.",
)
@click.option(
    "--mount",
    "mounts",
    multiple=True,
    metavar="SPEC",
    help="Give all hosts a claim or a bucket: source=CLAIM,target=/PATH or source=gs://BUCKET/PREFIX,target=/PATH, "
    "with subpath=FOLDER (of a claim) and readonly; may be repeated.",
)
@click.option("--env", "env", multiple=True, metavar="NAME=VALUE", help="A variable for every host; may be repeated.")
@click.option(
    "--env-from-secret",
    "secret_env",
    multiple=True,
    metavar="NAME=SECRET[:KEY]",
    help="A variable whose value is a key of a Kubernetes Secret; may be repeated.",
)
@click.option("--env-file", "env_files", multiple=True, type=click.Path(path_type=Path), help="NAME=VALUE lines.")
@click.option(
    "--priority",
    default="medium",
    show_default=True,
    metavar="|".join(names.PRIORITIES),
    shell_complete=complete.priorities,
    help="Priority in its queue; a higher one may preempt lower ones.",
)
@click.option(
    "--queue",
    shell_complete=complete.queues,
    help=f"The LocalQueue that it waits in; {names.QUEUE}, or the only one of its namespace, if left out.",
)
@click.option("--max-restarts", type=int, default=0, show_default=True, help="How many failures to restart after.")
@click.option("--fatal-exit-codes", metavar="CODES", help="Exit codes that fail it at once, beside 42, 126 and 127.")
@click.option(
    "--termination-grace-period-seconds",
    "-tgps",
    "grace",
    type=int,
    default=30,
    show_default=True,
    help="Seconds between SIGTERM and SIGKILL.",
)
@click.option(
    "--ttl-seconds-after-finished",
    "ttl",
    type=int,
    default=12 * 3600,
    show_default=True,
    help="How long it is kept after its end; its output stays.",
)
@click.option(
    "--max-run-duration",
    metavar="TIME",
    help="Slices of queued provisioning: how long GKE leaves them to it, at most 7d. [default: 7d]",
)
@click.option("--resume", is_flag=True, help="Continue from the output of an earlier workload of this name.")
@click.option("--fresh", is_flag=True, help="Move the output of an earlier workload of this name aside.")
@click.option("--wait/--no-wait", default=False, help="Stay until it ends; Ctrl-C detaches.")
@click.option("--timeout", metavar="TIME", help="How long --wait stays.")
@click.option(
    "--max-cost", type=float, metavar="DOLLARS", help="On GKE: refuse what costs more an hour, by list prices."
)
@click.option(
    "--estimate/--no-estimate",
    "estimated",
    default=True,
    help="Refuse what the bundled trainer says cannot fit in the chips' memory (default).",
)
@click.option(
    "--dry-run",
    type=click.Choice(["client", "server"]),
    help="Print the objects that would be created (server: as the cluster would store them), and create nothing.",
)
@click.option("--output-manifest-file", type=click.Path(path_type=Path), help="Write those objects to a file too.")
@click.option("--label", "labels", multiple=True, metavar="NAME=VALUE", help="A label of its objects; may be repeated.")
@google_xpk.upstream_options
@spec_file.file_option
@click.option(
    "-o",
    "--output",
    type=click.Choice((*FORMATS, "spec")),
    help="How to print what is read; spec, with --dry-run: as a file for -f.",
)
@click.pass_context
def create(ctx: click.Context, /, name: str | None, name_flag: str | None, cluster: str | None, **given: Any) -> None:
    """Create a workload: the same command on every host of N slices.

    With no --command, every host runs the bundled trainer, with the arguments that follow `--`:

    \b
      xpk workload create demo --num-slices 2 -- --config tiny --set run.steps=200

    With `--launcher ray` one driver tells all hosts what to do: the trainer's, or your own program.
    """
    console: Console = ctx.obj.choosing(given["output"])
    chosen = the_name("workload", name, spec_file.flag_of_name(ctx, name, name_flag))
    timeout = parse_duration(given["timeout"], "--timeout")
    if given["resume"] and given["fresh"]:
        raise UsageError("--resume and --fresh exclude each other", hint="give one of them")
    if given["output"] == "spec":
        if not given["dry_run"]:
            raise UsageError("-o spec requires --dry-run", hint="add --dry-run")
        click.echo(spec_file.spec_of(ctx, chosen), nl=False)
        return
    trainer_args = ctx.meta.get("trainer_args", ())
    google_xpk.translate(ctx, given)
    where = find_place(console, cluster, given)
    spec, archive = asked_for(console, chosen, where, trainer_args, given)
    check(console, spec, trainer_args, given)
    _write_manifest(spec, given["output_manifest_file"])
    if given["dry_run"]:
        _preview(console, where, spec, given["dry_run"])
        return
    api, place = where.reached(), where.cluster
    creating.check_fits(api, where.queue, spec, cluster=place)
    cost = _cost(spec, given["max_cost"])
    _create(console, api, spec, archive, place, given)
    hosts = spec.num_slices * spec.shape.hosts
    if cost:
        console.tell(f" • {cost}")
    size = f"{spec.num_slices} x {spec.shape.name}, {counted(hosts, 'host')}"
    console.done(f"workload '{chosen}' is queued on '{place}': {size}")
    status = None
    if given["wait"]:
        status = await_end(console, api, spec.name, spec.namespace, place, timeout, must_start=True)
    else:
        console.tell(f"  next: xpk workload logs {chosen}{names.where(place, spec.namespace)} -f")
    if console.is_data:
        console.data(asdict(status or reader.find(api, chosen, spec.namespace)))
    if status:
        lifecycle.check_succeeded(status, where=names.where(place, spec.namespace))


def _preview(console: Console, place: Place, spec: WorkloadSpec, how: str) -> None:
    """Print the objects that would be created, and warn of what would keep them from it."""
    is_stored = how == "server"
    if place.api:
        try:
            creating.check_fits(place.api, place.queue, spec, cluster=place.cluster)
        except CapacityError as error:
            if is_stored:
                raise
            console.warn(f"a run would be refused: {error.message}")
    console.objects(creating.preview(place.reached(), spec) if is_stored else creating.manifest(spec))


def _create(
    console: Console, api: ObjectApi, spec: WorkloadSpec, archive: Archive | None, cluster: str, given: dict[str, Any]
) -> None:
    """Create a checked workload with what it needs, the workload last."""
    for note in mounts.check_mounts(api, spec, cluster=cluster):
        console.tell(f" • warning: {note}")
    folder = open_folder(spec.output_dir) if spec.output_dir else None
    in_the_way = folder if folder and not given["resume"] and not folder.is_empty() else None
    if in_the_way:
        creating.check_free(api, spec, cluster=cluster)  # it may be the output of one that runs
        if not given["fresh"]:
            raise output.in_the_way(in_the_way, spec.name)
    new = upload.upload(api, archive, spec.code, spec.target) if archive and spec.code and spec.code.source else False
    if in_the_way:
        console.tell(f" • the earlier output is now '{output.move_aside(in_the_way, spec.name)}'")
    new |= creating.create_workload(api, spec, cluster=cluster)
    if archive:
        console.tell(f" • {upload.describe(archive, new=new)}")


def _cost(spec: WorkloadSpec, most: float | None) -> str | None:
    """Return what it costs where somebody charges for it. Raises CapacityError if it is more than `most`."""
    if spec.target.region is None:
        return None
    from xpk.capacity.gke.cost import check_cost, cost_of  # elsewhere nobody needs prices

    cost = cost_of(spec.shape, spec.num_slices, region=spec.target.region, on_demand=False)
    if refusal := check_cost(cost, most):
        raise refusal
    return cost.line()


def _write_manifest(spec: WorkloadSpec, file: Path | None) -> None:
    if file:
        try:
            with open(file, "w", encoding="utf-8", opener=_private) as opened:
                opened.write(to_yaml(creating.manifest(spec)))
        except OSError as error:
            raise XpkError(f"cannot write {file}: {error.strerror}", hint="--output-manifest-file elsewhere") from error


def _private(path: str, flags: int) -> int:
    """Open a file that only its owner can read, as there is a secret in it."""
    descriptor = os.open(path, flags, 0o600)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.fchmod(descriptor, 0o600)  # it may exist with another mode
    return descriptor


def check(console: Console, spec: WorkloadSpec, trainer_args: tuple[str, ...], given: dict[str, Any]) -> None:
    """Find all that can be wrong before anything is created."""
    options.check_local_path(trainer_args, spec)
    if spec.ray and spec.target.on_this_machine:
        trainer_preflight.check_ray_installed()
    if given["command"] is None:
        if spec.target.on_this_machine:
            trainer_preflight.check_trainer_installed()
        with tempfile.TemporaryDirectory(prefix="xpk-empty-") as empty:  # as hosts start without --script-dir
            _ask_trainer(console, spec, trainer_args, given["script_dir"] or Path(empty), given)


def _ask_trainer(
    console: Console, spec: WorkloadSpec, trainer_args: tuple[str, ...], folder: Path, given: dict[str, Any]
) -> None:
    """Let the bundled trainer find what is wrong, and what does not fit. Raises UsageError, CapacityError."""
    see_data = spec.target.emulated and not spec.mounts
    trainer_preflight.check_trainer(LocalRunner(), spec, trainer_args, see_data=see_data, folder=folder)
    if given["estimated"] and spec.shape.kind == "tpu":
        warning = memory_estimate.check_memory(LocalRunner(), spec.shape, spec.num_slices, trainer_args, folder)
        if warning:
            console.tell(f" • warning: {warning}")
