"""`xpk workload create`."""

from __future__ import annotations

import getpass
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from xpk.api.base import ObjectApi
from xpk.capacity.provider import Provider, provider_of
from xpk.cli import show
from xpk.cli.options import (
    cluster_option,
    name_argument,
    namespace_option,
    output_option,
    parse_duration,
    the_cluster,
    the_name,
)
from xpk.cli.output import Console
from xpk.cli.upstream import WorkloadCommand
from xpk.jobs import create as creating
from xpk.jobs import manage, observe, output, request
from xpk.model import names
from xpk.model.accelerators import find_shape
from xpk.model.errors import UsageError, XpkError
from xpk.model.specs import Target, WorkloadSpec
from xpk.model.status import WorkloadStatus
from xpk.proc import LocalRunner
from xpk.render import render_workload, to_yaml


@click.command(cls=WorkloadCommand)
@name_argument("workload")
@cluster_option
@namespace_option
@click.option("--num-slices", type=int, default=1, show_default=True, help="How many slices it takes.")
@click.option("--tpu-type", "--device-type", "accelerator_type", metavar="TYPE", help="The cluster's, if left out.")
@click.option("--command", help="What every host runs, in bash; the bundled trainer if left out.")
@click.option(
    "--docker-image",
    "--image",
    "image",
    default=request.TRAINER_IMAGE,
    show_default=True,
    help="The hosts' image; the local provider runs without one.",
)
@click.option("--env", "env", multiple=True, metavar="NAME=VALUE", help="A variable for every host; may be repeated.")
@click.option("--env-file", "env_files", multiple=True, type=click.Path(path_type=Path), help="NAME=VALUE lines.")
@click.option("--priority", default="medium", show_default=True, help=f"One of {', '.join(names.PRIORITIES)}.")
@click.option("--max-restarts", type=int, default=0, show_default=True, help="How many failures to restart after.")
@click.option("--fatal-exit-codes", metavar="CODES", help="Exit codes that fail it at once, beside 42, 126 and 127.")
@click.option(
    "--termination-grace-period-seconds",
    "-tgps",
    "grace",
    type=int,
    default=30,
    show_default=True,
    help="From SIGTERM to SIGKILL.",
)
@click.option(
    "--ttl-seconds-after-finished",
    "ttl",
    type=int,
    default=12 * 3600,
    show_default=True,
    help="How long it is kept after its end; its output stays.",
)
@click.option("--resume", is_flag=True, help="Continue from the output of an earlier workload of this name.")
@click.option("--fresh", is_flag=True, help="Move the output of an earlier workload of this name aside.")
@click.option("--wait/--no-wait", default=False, help="Stay until it ends; Ctrl-C detaches.")
@click.option("--timeout", metavar="TIME", help="How long --wait stays.")
@click.option("--dry-run", is_flag=True, help="Print the objects that would be created, and create nothing.")
@click.option("--output-manifest-file", type=click.Path(path_type=Path), help="Write those objects to a file too.")
@output_option
@click.pass_context
def create(ctx: click.Context, /, name: str | None, name_flag: str | None, cluster: str | None, **given: Any) -> None:
    """Create a workload: the same command on every host of N slices.

    With no --command, every host runs the bundled trainer, with the arguments that follow `--`:

    \b
      xpk workload create demo --num-slices 2 -- --config tiny --set run.steps=200
    """
    console: Console = ctx.obj.choosing(given["output"])
    chosen = the_name("workload", name, name_flag)
    timeout = parse_duration(given["timeout"], "--timeout")
    if given["resume"] and given["fresh"]:
        raise UsageError("--resume and --fresh exclude each other", hint="give one of them")
    place = the_cluster(cluster)
    provider = provider_of(place)
    spec = _spec(chosen, place, provider, ctx.meta.get("trainer_args", ()), given)
    _check(spec, ctx.meta.get("trainer_args", ()), bundled=given["command"] is None)
    _write_manifest(spec, given["output_manifest_file"])
    if given["dry_run"]:
        click.echo(to_yaml(render_workload(spec)), nl=False)
        return
    api = provider.connect(place)
    creating.check_fits(api, spec, cluster=place)
    creating.check_free(api, spec, cluster=place)
    output.check_output(Path(spec.output_dir), chosen, resume=given["resume"], fresh=given["fresh"])
    creating.create_workload(api, spec, cluster=place)
    hosts = spec.num_slices * spec.shape.hosts
    console.done(f"workload '{chosen}' is queued on '{place}': {spec.num_slices} x {spec.shape.name}, {hosts} hosts")
    status = None
    if given["wait"]:
        status = _stay(console, api, spec, place, timeout)
    else:
        console.tell(f"  next: xpk workload logs {chosen} --cluster {place} -f")
    if console.is_data:
        console.data(asdict(status or observe.find(api, chosen, spec.namespace)))
    if status:
        manage.check_succeeded(status, where=f" --cluster {place}")


def _write_manifest(spec: WorkloadSpec, file: Path | None) -> None:
    if file:
        try:
            file.write_text(to_yaml(render_workload(spec)), encoding="utf-8")
        except OSError as error:
            raise XpkError(f"cannot write {file}: {error.strerror}", hint="--output-manifest-file elsewhere") from error


def _working_dir() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError as error:
        raise XpkError("the folder that you are in was deleted", hint="cd to one that exists") from error


def _check(spec: WorkloadSpec, trainer_args: tuple[str, ...], *, bundled: bool) -> None:
    """Find all that can be wrong before anything is created."""
    creating.check_spec(spec)
    if bundled:
        if spec.target.emulated and not spec.target.shared_folder:  # processes of this machine
            creating.check_trainer_installed()
        creating.check_trainer(LocalRunner(), spec, trainer_args, see_data=spec.target.emulated)


def _spec(
    name: str, cluster: str, provider: Provider, trainer_args: tuple[str, ...], given: dict[str, Any]
) -> WorkloadSpec:
    """Put together what was asked for. Raises UsageError if its type is not the cluster's."""
    have = provider.describe(cluster).accelerator_type
    shape = find_shape(given["accelerator_type"] or have)
    if shape.name != find_shape(have).name:
        raise UsageError(
            f"cluster '{cluster}' has slices of type {have}, not {shape.name}",
            hint=f"leave out --tpu-type, or `xpk cluster create NAME --tpu-type {shape.name}`",
        )
    target = provider.target(cluster)
    return WorkloadSpec(
        name=name,
        namespace=given["namespace"],
        shape=shape,
        num_slices=given["num_slices"],
        command=request.host_command(given["command"], trainer_args),
        target=target,
        image=_image(given["image"], target),
        env=request.parse_env(given["env"], given["env_files"]),
        priority=given["priority"],
        max_restarts=given["max_restarts"],
        fatal_exit_codes=request.parse_exit_codes(given["fatal_exit_codes"]),
        termination_grace_seconds=given["grace"],
        ttl_seconds=given["ttl"],
        working_dir=_working_dir() if target.emulated and not target.shared_folder else None,
        user=getpass.getuser(),
    )


def _image(asked: str, target: Target) -> str:
    """Return the image that was asked for, or the bundled trainer's as the cluster's nodes have it."""
    return target.trainer_image or asked if asked == request.TRAINER_IMAGE else asked


def _stay(console: Console, api: ObjectApi, spec: WorkloadSpec, cluster: str, timeout: float | None) -> WorkloadStatus:
    """Wait for the end; Ctrl-C leaves the workload to itself."""
    where = f" --cluster {cluster}"
    try:
        return manage.wait(api, spec.name, spec.namespace, timeout=timeout, tell=show.Ticker(console), where=where)
    except KeyboardInterrupt:
        console.tell(f"\ndetached; workload '{spec.name}' goes on")
        for verb, more in (("logs", " -f"), ("wait", ""), ("delete", "")):
            console.tell(f"  xpk workload {verb} {spec.name}{where}{more}")
        raise
