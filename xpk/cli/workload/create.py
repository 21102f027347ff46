"""`xpk workload create`."""

from __future__ import annotations

import os
import stat
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click

from xpk.api.base import Obj
from xpk.api.text import counted
from xpk.cli.options import cluster_option, is_typed, name_argument, namespace_option, the_name
from xpk.cli.target import output_roots
from xpk.cli.terminal.output import FORMATS, Console, echo
from xpk.cli.workload import google_xpk, several_clusters, spec_file
from xpk.cli.workload.options import invalid_options, workload_options
from xpk.cli.workload.request import read_request
from xpk.cli.workload.target import find_destination
from xpk.cli.workload.wait import await_end
from xpk.cost import price
from xpk.jobs import lifecycle
from xpk.jobs.create import copies, options, slice_replacement, submit
from xpk.jobs.create import create as creating
from xpk.jobs.create.copies import ResolvedCopies
from xpk.jobs.create.destination import Destination
from xpk.jobs.create.notice import Notice, Report
from xpk.jobs.create.resolve import Resolved, resolve
from xpk.jobs.create.trainer_preflight import InProcessRunner
from xpk.jobs.status import reader
from xpk.model import names
from xpk.model.durations import parse_duration
from xpk.model.errors import Problems, XpkError
from xpk.render import to_yaml


@click.command(cls=spec_file.SpecCommand)
@name_argument("workload")
@cluster_option
@several_clusters.several_clusters_options
@namespace_option
@workload_options
@click.option("--wait/--no-wait", default=False, help="Wait until the workload ends; Ctrl-C stops only the wait.")
@click.option("--timeout", metavar="TIME", help="Time limit of --wait.")
@click.option(
    "--dry-run",
    type=click.Choice(["client", "server"]),
    help="Print the objects without creating them; server: print them as the API server would store them.",
)
@click.option(
    "--when",
    is_flag=True,
    help="Print the estimated start and the workloads that would be preempted; create nothing.",
)
@click.option("--output-manifest-file", type=click.Path(path_type=Path), help="Also write the objects to this file.")
@google_xpk.upstream_options
@spec_file.file_option
@click.option(
    "-o",
    "--output",
    type=click.Choice((*FORMATS, "spec")),
    help="Output format; spec, with --dry-run: a file for -f. [default: table]",
)
@click.pass_context
def create(ctx: click.Context, /, name: str | None, name_flag: str | None, cluster: str | None, **params: Any) -> None:
    """Create a workload: the same command on every host of N slices.

    Without --command, every host runs the bundled trainer with the arguments after `--`:

    \b
      xpk workload create demo --num-slices 2 -- --config tiny --set run.steps=200

    With `--launcher ray`, one driver controls all hosts: the trainer's, or your own program.
    """
    console: Console = ctx.obj.choosing(params["output"])
    workload_name = the_name("workload", name, spec_file.flag_of_name(ctx, name, name_flag))
    problems, runner = Problems(), InProcessRunner()
    timeout = problems.read(None, parse_duration, params["timeout"], "--timeout")
    _check_combinations(ctx, timeout, problems)
    if params["output"] == "spec":
        if not params["dry_run"]:
            problems.add("-o spec requires --dry-run", hint="add --dry-run")
        invalid_options(ctx, problems)
        problems.check(f"workload '{workload_name}' cannot be written as a file", hint=creating.HELP)
        click.echo(spec_file.spec_of(ctx, workload_name), nl=False)
        return
    clusters = several_clusters.clusters_of(ctx, problems)
    request = read_request(ctx, workload_name, params, problems)
    if clusters:
        resolved_copies = several_clusters.resolve(ctx, clusters, request, problems, runner, print_notices(console))
        _create_copies(console, resolved_copies, params, runner, timeout)
        return
    destination = find_destination(console, cluster, request, problems, runner, dry_run=params["dry_run"])
    resolved = resolve(request, destination, print_notices(console), problems, runner)
    if params["when"]:
        _print_start(console, destination, resolved)
        return
    submit.preflight(resolved, print_steps(console), runner)
    if params["dry_run"] or params["output_manifest_file"]:
        resolved = replace(resolved, spec=slice_replacement.try_out(resolved.spec, destination.api))
    _write_manifest(creating.manifest(resolved.spec), params["output_manifest_file"])
    if params["dry_run"]:
        _preview(console, destination, resolved, params["dry_run"])
        return
    submitted = submit.create_resolved(resolved, destination, report=print_steps(console), price=price)
    _tell_submitted(console, submitted)
    status = None
    api, place, namespace = destination.reached(), submitted.cluster, request.namespace
    if params["wait"]:
        status = await_end(console, api, workload_name, namespace, place, timeout, must_start=True)
    else:
        console.tell(f"  next: xpk workload logs {workload_name}{names.location_flags(place, namespace)} -f")
    if console.is_data:
        console.data(asdict(status or reader.find(api, workload_name, namespace)))
    if status:
        lifecycle.check_succeeded(status, where=names.location_flags(place, namespace))


def _check_combinations(ctx: click.Context, timeout: float | None, problems: Problems) -> None:
    """Check options that exclude or require each other; `timeout` is None for none and for an invalid one."""
    params = ctx.params
    problems.read(None, options.check_resume, resume=params["resume"], fresh=params["fresh"])
    if params["when"] and (params["dry_run"] or params["wait"]):
        problems.add("--when excludes --dry-run and --wait: it creates nothing", hint="omit the others")
    # An environment variable may state it for all commands.
    is_limited = timeout is not None and is_typed("timeout")
    if is_limited and not params["wait"]:
        problems.add("--timeout requires --wait", hint="add --wait, or omit --timeout")


def _create_copies(
    console: Console, resolved: ResolvedCopies, params: dict[str, Any], runner: InProcessRunner, timeout: float | None
) -> None:
    """Create a workload on several clusters, or print its objects; with --wait, place it until it ends."""
    report = print_steps(console)
    copies.preflight(resolved, report, runner)
    _write_manifest(several_clusters.objects(resolved, stored=False), params["output_manifest_file"])
    if params["dry_run"]:
        console.objects(several_clusters.objects(resolved, stored=params["dry_run"] == "server"))
        return
    handle = several_clusters.create(console, resolved, report)
    status = None
    if params["wait"]:
        handle = several_clusters.place_until_end(console, handle, report, timeout)
        status = handle.status()
    where = names.location_flags(handle.cluster.name, handle.namespace)
    if status is None:
        console.tell(f"  next: xpk workload place {handle.name}{where} keeps it running where there is capacity")
    if console.is_data:
        console.data(asdict(status or handle.status()))
    if status:
        lifecycle.check_succeeded(status, where=where)


def print_notices(console: Console) -> Report:
    """Return a printer of notices about options."""

    def report(notice: Notice) -> None:
        if notice.is_warning:
            console.warn(notice.text)
        else:
            console.tell(f" • {notice.text}")

    return report


def print_steps(console: Console) -> Report:
    """Return a printer of notices about the steps of a submission."""

    def report(notice: Notice) -> None:
        console.tell(f" • {'warning: ' if notice.is_warning else ''}{notice.text}")

    return report


def _tell_submitted(console: Console, submitted: submit.Submitted) -> None:
    spec = submitted.spec
    if submitted.cost:
        console.tell(f" • {submitted.cost}")
    size = f"{spec.num_slices} x {spec.shape.name}, {counted(spec.num_hosts, 'host')}"
    console.done(f"workload '{spec.name}' is queued on '{submitted.cluster}': {size}")


def _preview(console: Console, destination: Destination, resolved: Resolved, dry_run: str) -> None:
    """Print the objects that would be created, with a warning for each reason why they would not.

    As they would be stored: raises the first reason instead.
    """
    is_stored, spec = dry_run == "server", resolved.spec
    cost, refusals = submit.check(resolved, destination, report=print_steps(console), price=price)
    if is_stored and refusals:
        raise refusals[0]
    for error in refusals:
        console.warn(f"without --dry-run, this command would fail: {error.message}")
    if cost:
        console.tell(f" • {cost}")
    console.objects(creating.preview(destination.reached(), spec) if is_stored else creating.manifest(spec))


def _print_start(console: Console, destination: Destination, resolved: Resolved) -> None:
    """Print when a workload would start if it were created now. Raises CapacityError if it does not fit."""
    from xpk.cli.forecast import start_words
    from xpk.jobs.simulation import live  # which only --when needs

    api, spec = destination.reached(), resolved.spec
    creating.check_fits(api, destination.queue, spec, cluster=destination.cluster)
    price(spec, resolved.request.max_cost)
    start = live.start_of_new(api, output_roots(destination.cluster), spec)
    if console.is_data:
        console.data(asdict(start))
    else:
        first, *more = start_words(start)
        echo("\n  ".join([f"{spec.name}: starts {first}" if start.expected else f"{spec.name}: {first}", *more]))


def _write_manifest(objects: list[Obj], file: Path | None) -> None:
    if file:
        try:
            with open(file, "w", encoding="utf-8", opener=_private) as opened:
                opened.write(to_yaml(objects))
        except OSError as error:
            raise XpkError(f"cannot write {file}: {error.strerror}", hint="--output-manifest-file elsewhere") from error


def _private(path: str, flags: int) -> int:
    """Open a file that only its owner can read, as there is a secret in it."""
    descriptor = os.open(path, flags, 0o600)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.fchmod(descriptor, 0o600)  # it may exist with another mode
    return descriptor
