"""`xpk workload create`."""

from __future__ import annotations

import os
import stat
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from xpk.api.words import counted
from xpk.cli import complete
from xpk.cli.durations import parse_duration
from xpk.cli.options import accelerator_option, cluster_option, name_argument, namespace_option, the_name
from xpk.cli.terminal.output import FORMATS, Console
from xpk.cli.workload import google_xpk, spec_file
from xpk.cli.workload.request import read_request
from xpk.cli.workload.target import find_destination
from xpk.cli.workload.wait import await_end
from xpk.client import price
from xpk.jobs import lifecycle
from xpk.jobs.create import create as creating
from xpk.jobs.create import options, submit
from xpk.jobs.create.destination import Destination
from xpk.jobs.create.notice import Notice, Report
from xpk.jobs.create.resolve import resolve
from xpk.jobs.status import reader
from xpk.model import names
from xpk.model.errors import CapacityError, Problems, UsageError, XpkError
from xpk.model.specs import WorkloadSpec
from xpk.render import to_yaml


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
    options.check_resume(resume=given["resume"], fresh=given["fresh"])
    if given["output"] == "spec":
        if not given["dry_run"]:
            raise UsageError("-o spec requires --dry-run", hint="add --dry-run")
        click.echo(spec_file.spec_of(ctx, chosen), nl=False)
        return
    problems = Problems()
    request = read_request(ctx, chosen, given, problems)
    destination = find_destination(console, cluster, request, problems, dry_run=given["dry_run"])
    resolved = resolve(request, destination, print_notices(console), problems)
    submit.preflight(resolved, print_steps(console))
    _write_manifest(resolved.spec, given["output_manifest_file"])
    if given["dry_run"]:
        _preview(console, destination, resolved.spec, given["dry_run"])
        return
    submitted = submit.create_resolved(resolved, destination, report=print_steps(console), price=price)
    _tell_submitted(console, submitted)
    status = None
    api, place, namespace = destination.reached(), submitted.cluster, request.namespace
    if given["wait"]:
        status = await_end(console, api, chosen, namespace, place, timeout, must_start=True)
    else:
        console.tell(f"  next: xpk workload logs {chosen}{names.where(place, namespace)} -f")
    if console.is_data:
        console.data(asdict(status or reader.find(api, chosen, namespace)))
    if status:
        lifecycle.check_succeeded(status, where=names.where(place, namespace))


def print_notices(console: Console) -> Report:
    """Return what prints the notices on options."""

    def report(notice: Notice) -> None:
        if notice.is_warning:
            console.warn(notice.text)
        else:
            console.tell(f" • {notice.text}")

    return report


def print_steps(console: Console) -> Report:
    """Return what prints the notices of a submission, each as one of its steps."""

    def report(notice: Notice) -> None:
        console.tell(f" • {'warning: ' if notice.is_warning else ''}{notice.text}")

    return report


def _tell_submitted(console: Console, submitted: submit.Submitted) -> None:
    spec = submitted.spec
    if submitted.cost:
        console.tell(f" • {submitted.cost}")
    size = f"{spec.num_slices} x {spec.shape.name}, {counted(spec.num_hosts, 'host')}"
    console.done(f"workload '{spec.name}' is queued on '{submitted.cluster}': {size}")


def _preview(console: Console, destination: Destination, spec: WorkloadSpec, dry_run: str) -> None:
    """Print the objects that would be created, with a warning if the workload does not fit."""
    is_stored = dry_run == "server"
    if destination.api:
        try:
            creating.check_fits(destination.api, destination.queue, spec, cluster=destination.cluster)
        except CapacityError as error:
            if is_stored:
                raise
            console.warn(f"a run would be refused: {error.message}")
    console.objects(creating.preview(destination.reached(), spec) if is_stored else creating.manifest(spec))


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
