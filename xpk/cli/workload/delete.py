"""`xpk workload delete`: deletion of workloads by name or filter."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from xpk.api.base import ObjectApi
from xpk.capacity.provider import provider_of
from xpk.cli.google_xpk import WorkloadCommand
from xpk.cli.options import cluster_option, names_argument, namespace_option, output_root_option, the_name
from xpk.cli.target import output_roots, the_cluster
from xpk.cli.terminal.output import Console, echo, interactive
from xpk.cli.workload.filters import filter_options, is_match
from xpk.cli.workload.target import OUT_OF_REACH
from xpk.jobs import deletion
from xpk.jobs.create.notice import Report
from xpk.jobs.deletion import Deletion
from xpk.model.durations import parse_duration
from xpk.model.errors import NotFoundError, UsageError, XpkError


@click.command(cls=WorkloadCommand)
@names_argument
@cluster_option
@namespace_option
@click.option("--all", "every", is_flag=True, help="Delete all workloads of the namespace.")
@filter_options
@click.option("-y", "--yes", "--force", "yes", is_flag=True, help="Do not prompt for confirmation.")
@click.option(
    "--grace-period",
    type=click.IntRange(min=0),
    help="Seconds between SIGTERM and SIGKILL. [default: the workload's]",
)
@click.option("--with-output", is_flag=True, help="Also delete checkpoints and metrics; logs are always deleted.")
@output_root_option
@click.option("--wait/--no-wait", default=True, show_default=True, help="Wait until all hosts have ended.")
@click.option("--timeout", default="120", show_default=True, metavar="TIME", help="Maximum time for --wait.")
@click.option("--ignore-not-found", is_flag=True, help="Exit with code 0 if a workload does not exist.")
@click.option("--dry-run", is_flag=True, help="Print the workloads that would be deleted without deleting them.")
@click.pass_obj
def delete(
    console: Console,
    /,
    given_names: tuple[str, ...],
    name_flags: tuple[str, ...],
    cluster: str | None,
    namespace: str,
    **options: Any,
) -> None:
    """Delete workloads by name, by filter, or all with --all.

    Output is kept unless --with-output is given. If one of several named workloads cannot be deleted, none is.
    """
    some = bool(options["filter_by_status"] or options["filter_by_job"] or options["selector"])
    many, named = some or options["every"], [*given_names, *name_flags]
    if many and named:
        raise UsageError("pass either workload names, or --all and filters, not both", hint="omit one of them")
    if options["with_output"] and not options["wait"]:
        raise UsageError("--with-output and --no-wait exclude each other", hint="omit --no-wait")
    if options["dry_run"]:
        if not many and not named:
            console.warn("without --dry-run, this command would fail: deleting all workloads requires --all")
        _preview(console, named, cluster, namespace, options)
        return
    if not many and not named:
        the_name("workload", None, None)
    place = the_cluster(cluster)
    api = provider_of(place).connect(place)
    deletions = _plan(console, api, named, namespace, place, options)
    if many and not deletions:
        console.tell(f"no workloads on '{place}' to delete")
        return
    if many and not options["yes"]:
        _ask([deletion.name for deletion in deletions], place, every=not some)
    from xpk.jobs.usage.deletion import DeletionRecorder  # not needed to refuse a request
    from xpk.usage import usage_source

    timeout = (parse_duration(options["timeout"], "--timeout") or 0.0) if options["wait"] else None
    deletion.delete_copies(
        api,
        deletions,
        namespace,
        output_roots(place),
        connect=lambda cluster: provider_of(cluster).connect(cluster),
        usage=lambda cluster: DeletionRecorder(usage_source(cluster), namespace, console.warn),
        grace_seconds=options["grace_period"],
        timeout=timeout,
        report=_printer(console),
    )
    deletion.carry_out(
        api,
        deletions,
        namespace,
        grace_seconds=options["grace_period"],
        timeout=timeout,
        ignore_not_found=options["ignore_not_found"],
        usage=DeletionRecorder(usage_source(place, api=api), namespace, console.warn),
        report=_printer(console),
    )


def _preview(console: Console, named: list[str], cluster: str | None, namespace: str, options: dict[str, Any]) -> None:
    """Print the workloads that would be deleted, and warn of refusals; names are printed if no cluster can be asked."""
    deletions: list[Deletion] = []
    api: ObjectApi | None = None
    try:
        place = the_cluster(cluster)
        api = provider_of(place).connect(place)
        deletions = _plan(console, api, named, namespace, place, options)
    except XpkError as error:
        if api is None and not isinstance(error, OUT_OF_REACH):
            raise
        for problem in error.problems if isinstance(error, UsageError) else [error.message]:
            console.warn(f"without --dry-run, this command would fail: {problem}")
        if isinstance(error, OUT_OF_REACH) and not (api and isinstance(error, NotFoundError)):
            deletions = [Deletion(one) for one in dict.fromkeys(named)]
    for item in deletions:
        output = f", and its output {item.output_dir}" if item.output_dir else ""
        copies = f" on {', '.join(item.clusters)}" if item.clusters else ""
        echo(f"workload '{item.name}' would be deleted{copies}{output}")
    if not deletions:
        console.tell("no workloads would be deleted")


def _plan(
    console: Console, api: ObjectApi, named: list[str], namespace: str, cluster: str, options: dict[str, Any]
) -> list[Deletion]:
    """Return the deletions of the named workloads; without names, of those that pass the filters."""
    roots = output_roots(cluster) if options["with_output"] else None
    if named:
        return deletion.plan_named(
            api,
            named,
            namespace,
            cluster=cluster,
            roots=roots,
            force=options["yes"],
            ignore_not_found=options["ignore_not_found"],
            report=_printer(console),
        )
    matches = partial(is_match, phase=options["filter_by_status"], text=options["filter_by_job"])
    return deletion.plan_all(api, namespace, labels=options["selector"], matches=matches, roots=roots)


def _printer(console: Console) -> Report:
    """Return a printer of the notices of a deletion."""
    return lambda notice: console.warn(notice.text) if notice.is_warning else console.done(notice.text)


def _ask(names: list[str], cluster: str, *, every: bool) -> None:
    """Prompt for confirmation; abort unless it is given. Raises UsageError without a terminal."""
    which = f"all {len(names)} workloads" if every else f"{len(names)} workloads ({', '.join(names)})"
    if not interactive():
        raise UsageError(f"confirmation required: delete {which}?", hint="pass --yes to confirm")
    click.confirm(f"Delete {which} on '{cluster}'?", abort=True, err=True)
