"""`xpk workload delete`: deletion of workloads by name or filter."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import click

from xpk.api.base import ObjectApi
from xpk.capacity.provider import provider_of
from xpk.cli.durations import parse_duration
from xpk.cli.google_xpk import WorkloadCommand
from xpk.cli.options import cluster_option, names_argument, namespace_option, output_root_option, the_name
from xpk.cli.target import output_roots, the_cluster
from xpk.cli.terminal.output import Console, echo, interactive
from xpk.cli.workload.filters import filter_options, filtered
from xpk.cli.workload.target import OUT_OF_REACH
from xpk.jobs import delete as ending
from xpk.jobs.output import folder as output
from xpk.jobs.output.roots import OutputRoots
from xpk.jobs.status import reader
from xpk.model import names
from xpk.model.errors import NotFoundError, UsageError, XpkError
from xpk.model.status import WorkloadStatus


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
    many, named = some or options["every"], list(dict.fromkeys([*given_names, *name_flags]))
    if many and named:
        raise UsageError("pass either workload names, or --all and filters, not both", hint="omit one of them")
    if options["with_output"] and not options["wait"]:
        raise UsageError("--with-output and --no-wait exclude each other", hint="omit --no-wait")
    if options["dry_run"]:
        _preview(console, named, cluster, namespace, options)
        return
    if not many and not named:
        the_name("workload", None, None)
    place = the_cluster(cluster)
    api = provider_of(place).connect(place)
    existing = {status.name: status for status in reader.find_all(api, namespace, options["selector"])}
    chosen = _many(existing, options) if many else _named(api, named, existing, namespace, place, options)
    if not chosen:
        console.tell(f"no workloads on '{place}' to delete")
        return
    if many and not options["yes"]:
        _ask(chosen, place, every=not some)
    folders = _output_folders(api, chosen, namespace, output_roots(place)) if options["with_output"] else {}
    _delete(console, api, chosen, namespace, folders, options)


def _preview(console: Console, named: list[str], cluster: str | None, namespace: str, options: dict[str, Any]) -> None:
    """Print the workloads that would be deleted, and warn of refusals if the cluster can be reached."""
    if not (
        named or options["every"] or options["filter_by_status"] or options["filter_by_job"] or options["selector"]
    ):
        console.warn("a run would be refused: deleting all workloads requires --all")
    chosen, folders = named, dict[str, str]()
    try:
        place = the_cluster(cluster)
        api = provider_of(place).connect(place)
        existing = {status.name: status for status in reader.find_all(api, namespace, options["selector"])}
    except OUT_OF_REACH as error:
        console.warn(f"a run would be refused: {error.message}")
    else:
        chosen, folders = _foreseen(console, api, named, existing, namespace, place, options)
    for one in chosen:
        echo(f"workload '{one}' would be deleted" + (f", and its output {folders[one]}" if folders.get(one) else ""))
    if not chosen:
        console.tell("no workloads would be deleted")


def _foreseen(
    console: Console,
    api: ObjectApi,
    named: list[str],
    existing: dict[str, WorkloadStatus],
    namespace: str,
    place: str,
    options: dict[str, Any],
) -> tuple[list[str], dict[str, str]]:
    """Return the workloads that a run would delete and their output folders; empty if it would be refused."""
    folders: dict[str, str] = {}
    try:
        chosen = _named(api, named, existing, namespace, place, options) if named else _many(existing, options)
        if options["with_output"]:
            folders = _output_folders(api, chosen, namespace, output_roots(place))
        for one in [one for one in chosen if one not in existing]:
            try:
                ending.claimed_output(api, one, namespace)  # its hosts may still be running
            except NotFoundError as error:
                chosen.remove(one)
                console.tell(error.message)
    except XpkError as error:
        for problem in error.problems if isinstance(error, UsageError) else [error.message]:
            console.warn(f"a run would be refused: {problem}")
        return [], {}
    return chosen, folders


def _named(
    api: ObjectApi,
    named: list[str],
    existing: Mapping[str, WorkloadStatus],
    namespace: str,
    cluster: str,
    options: dict[str, Any],
) -> list[str]:
    """Return the named workloads, queued ones first. Raises all problems together."""
    wrong: list[XpkError] = []
    for one in named:
        try:
            if one not in existing and not options["ignore_not_found"]:
                ending.claimed_output(api, one, namespace)  # its hosts may still be running
            elif one in existing and not options["yes"]:
                ending.check_ours(existing[one], where=names.where(cluster, namespace))
        except XpkError as error:
            wrong.append(error)
    if len(wrong) > 1:
        problems = [error.message for error in wrong]
        refusal = UsageError(problems[0], problems=problems, hint="nothing was deleted; omit these names")
        if len(codes := {error.exit_code for error in wrong}) == 1:
            refusal.exit_code = codes.pop()
        raise refusal
    if wrong:
        raise wrong[0]
    waiting = [status.name for status in ending.in_order([existing[one] for one in named if one in existing])]
    return [*waiting, *(one for one in named if one not in existing)]


def _output_folders(api: ObjectApi, chosen: list[str], namespace: str, roots: OutputRoots) -> dict[str, str]:
    """Return the output folder of each workload to delete. Raises ConflictError before any workload is ended."""
    folders = {}
    for one in chosen:
        with suppress(NotFoundError):  # reported when the workload is ended
            folders[one] = roots.to_remove(one, namespace, ending.claimed_output(api, one, namespace))
    return folders


def _delete(
    console: Console,
    api: ObjectApi,
    chosen: list[str],
    namespace: str,
    folders: Mapping[str, str],
    options: dict[str, Any],
) -> None:
    """End all workloads before waiting for the first: capacity that one frees must not admit the next."""
    timeout, grace = parse_duration(options["timeout"], "--timeout") or 0.0, options["grace_period"]
    ended: list[str] = []
    failed: list[XpkError] = []
    for one in chosen:
        try:
            ending.end(api, one, namespace, grace_seconds=grace)
            ended.append(one)
        except NotFoundError as error:
            if len(chosen) == 1 and not options["ignore_not_found"]:
                raise
            console.tell(error.message)
    begun = time.monotonic()
    for one in ended:
        try:
            if options["wait"]:
                ending.await_end(api, one, namespace, timeout=timeout, begun=begun, hurried=grace == 0)
            if folder := folders.get(one):
                output.remove_output(folder)
            console.done(f"workload '{one}' deleted")
        except XpkError as error:
            failed.append(error)
    for each in failed[1:]:
        console.tell(f" • {each.message}")
    if failed:
        raise failed[0]


def _many(existing: dict[str, WorkloadStatus], options: dict[str, Any]) -> list[str]:
    """Return the names of the selected workloads created by xpk; others have to be named."""
    chosen = filtered(existing.values(), options["filter_by_status"], options["filter_by_job"])
    return [status.name for status in ending.in_order(chosen) if status.maker == "xpk"]


def _ask(chosen: list[str], cluster: str, *, every: bool) -> None:
    """Prompt for confirmation; abort unless it is given. Raises UsageError without a terminal."""
    which = f"all {len(chosen)} workloads" if every else f"{len(chosen)} workloads ({', '.join(chosen)})"
    if not interactive():
        raise UsageError(f"confirmation required: delete {which}?", hint="pass --yes to confirm")
    click.confirm(f"Delete {which} on '{cluster}'?", abort=True, err=True)
