"""`xpk workload list`: the workloads of a cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import click

from xpk.capacity.provider import provider_of
from xpk.cli.google_xpk import WorkloadCommand
from xpk.cli.options import cluster_option, namespace_option, output_option
from xpk.cli.target import output_roots, the_cluster
from xpk.cli.terminal.output import Console, list_options
from xpk.cli.terminal.tables import Column
from xpk.cli.terminal.watch import Rows, watch, watch_option
from xpk.cli.workload import views
from xpk.cli.workload.filters import filter_options, filtered
from xpk.cli.workload.wait import wait_for
from xpk.jobs.status import reader
from xpk.jobs.status.in_place import with_local_restarts
from xpk.jobs.status.progress import Key, progress_of_all
from xpk.model.errors import UsageError
from xpk.model.status import WorkloadStatus

if TYPE_CHECKING:
    from xpk.jobs.output.folder import Progress


@click.command("list", cls=WorkloadCommand)
@cluster_option
@namespace_option
@click.option("-A", "--all-namespaces", is_flag=True, help="List the workloads of all namespaces.")
@filter_options
@list_options((views.NAMESPACE, *views.COLUMNS, *views.WIDE))
@watch_option
@click.option("--wait-for-job-completion", "awaited", metavar="NAME", help="Same as `xpk workload wait NAME`.")
@click.option("--timeout", metavar="TIME", help="Maximum time for --wait-for-job-completion. [default: unlimited]")
@output_option
@click.pass_obj
def list_(
    console: Console,
    /,
    cluster: str | None,
    namespace: str,
    all_namespaces: bool,
    filter_by_status: str | None,
    filter_by_job: str | None,
    selector: Mapping[str, str],
    awaited: str | None,
    timeout: str | None,
    **options: Any,
) -> None:
    """List workloads, oldest first. With -o wide, also their queue, progress and reason."""
    place = the_cluster(cluster)
    console = console.choosing(options["output"], headers=not options["no_headers"], sort_by=options["sort_by"])
    if awaited:
        wait_for(console, place, awaited, namespace, timeout)
        return
    if timeout:
        raise UsageError("--timeout requires --wait-for-job-completion", hint="--wait-for-job-completion NAME")
    api, list_namespace = provider_of(place).connect(place), None if all_namespaces else namespace
    roots = output_roots(place)
    columns = (views.NAMESPACE, *views.COLUMNS) if all_namespaces or console.output == "wide" else views.COLUMNS

    progress: dict[Key, Progress] = {}
    wide = _with_progress(views.WIDE, progress)

    def read() -> Rows:
        brief = not console.is_data  # text has no hosts
        statuses = with_local_restarts(reader.find_all(api, list_namespace, selector, brief=brief), roots)
        rows = filtered(statuses, filter_by_status, filter_by_job)
        if console.output == "wide":
            progress.update(progress_of_all(rows, roots))
        return rows

    def render(rows: Rows, begins: bool) -> str:
        return replace(console, headers=console.headers and begins).rows(rows, columns=columns, wide=wide)

    if options["watch_"]:
        watch(console, api, read, render, namespace=list_namespace)
        return
    statuses = read()
    console.items(statuses, columns=columns, wide=wide, data=asdict)
    if not statuses:
        console.tell(f"no workloads on '{place}'")


def _with_progress(wide: Sequence[Column], progress: Mapping[Key, Progress]) -> list[Column]:
    """Return the columns of a wide list, with the newest step of each workload before the reason."""

    def words(workload: WorkloadStatus) -> str:
        newest = progress.get((workload.namespace, workload.name))
        if newest is None:
            return "-"
        if not newest.total_steps:
            return f"step {newest.step}"
        return f"step {newest.step} of {newest.total_steps} ({100 * newest.step // newest.total_steps} %)"

    *others, reason = wide
    return [*others, Column("PROGRESS", words), reason]
