"""`xpk queue`: queues with quotas on a cluster."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import click

from xpk.capacity.provider import provider_of
from xpk.capacity.queues.planning import plan_create
from xpk.capacity.queues.reading import QueueInfo, Queues
from xpk.capacity.queues.removal import find, plan_delete
from xpk.capacity.queues.request import RECLAIM, QueueRequest
from xpk.capacity.queues.workloads import summary_of, workloads_in
from xpk.cli.cluster.run_plan import ask, carry_out, dry_run_option
from xpk.cli.google_xpk import Group
from xpk.cli.options import cluster_option, name_argument, output_option, the_name
from xpk.cli.target import the_cluster
from xpk.cli.terminal.output import Console, age, echo, list_options
from xpk.cli.terminal.tables import Column, wrapped
from xpk.cli.terminal.watch import Rows, watch, watch_option
from xpk.model import names
from xpk.model.amounts import amounts_text
from xpk.model.errors import NotFoundError

COLUMNS = (
    Column("NAME", lambda q: q.name),
    Column("NAMESPACES", lambda q: ",".join(q.namespaces) or "-", cut=16),
    Column("QUOTA", lambda q: _slices(q, "quota"), key=lambda q: _total(q, "quota")),
    Column("USED", lambda q: _slices(q, "used"), key=lambda q: _total(q, "used")),
    Column("ADMITTED", lambda q: q.admitted),
    Column("PENDING", lambda q: q.pending),
    Column("AGE", lambda q: age(q.created), drop=1, key=lambda q: q.created),
)
_WIDE = (
    Column("FREE", lambda q: _slices(q, "free"), key=lambda q: _total(q, "free")),
    Column("MOST", lambda q: _slices(q, "most"), key=lambda q: _total(q, "most")),
    Column("RECLAIM", lambda q: q.reclaim),
    Column("MAX PRIORITY", lambda q: q.max_priority or "-", key=lambda q: names.PRIORITIES.get(q.max_priority or "")),
    Column("COHORT", lambda q: q.cohort or "-"),
    Column("MADE BY", lambda q: q.maker),
)
_INSIDE = (
    Column("NAMESPACE", lambda w: w.namespace),
    Column("WORKLOAD", lambda w: w.name),
    Column("STATE", lambda w: w.state),
    Column("PRIORITY", lambda w: w.priority),
    Column(
        "REQUESTS", lambda w: ", ".join(f"{amount:g} {resource}" for resource, amount in w.requests.items()), drop=2
    ),
    Column("AGE", lambda w: age(w.created), drop=1),
)
_amounts = "[TYPE=]N"


# Imported when it is used.
_MODULES = {"simulate": "xpk.cli.queue_simulate:simulate"}


@click.group(cls=Group, other_names={"status": "describe"}, modules=_MODULES)
def queue() -> None:
    """Share a cluster among teams by queues with quotas for their namespaces."""


@queue.command()
@name_argument("queue")
@cluster_option
@click.option(
    "-n",
    "--namespace",
    "namespaces",
    multiple=True,
    help="Namespace that the queue serves; may be repeated.",
    metavar="NAME",
)
@click.option("--create-namespace", is_flag=True, help="Create missing namespaces.")
@click.option(
    "--quota",
    metavar=_amounts,
    multiple=True,
    help="Quota in slices, such as v5litepod-16=4, 64chips or 25%.",
)
@click.option(
    "--borrowing-limit",
    metavar=_amounts,
    multiple=True,
    help="Maximum number of idle slices to borrow from other queues; none: unlimited. [default in a new queue: none]",
)
@click.option(
    "--lending-limit",
    metavar=_amounts,
    multiple=True,
    help="Maximum number of idle slices to lend to other queues; none: unlimited. [default in a new queue: none]",
)
@click.option(
    "--reclaim",
    type=click.Choice(list(RECLAIM)),
    help="Workloads of other queues to preempt when the queue needs lent slices back. [default in a new queue: any]",
)
@click.option(
    "--max-priority",
    type=click.Choice(list(names.PRIORITIES)),
    help="Reject workloads of a higher priority. [default in a new queue: very-high]",
)
@click.option("-y", "--yes", is_flag=True, help="Do not prompt for confirmation.")
@click.option(
    "--force", is_flag=True, help="Allow quotas above the cluster's capacity; do not prompt for confirmation."
)
@dry_run_option
@output_option
@click.pass_obj
def create(console: Console, /, name: str | None, name_flag: str | None, cluster: str | None, **options: Any) -> None:
    """Create or update a queue with a quota. Idempotent.

    Other queues borrow unused quota; the queue's own workloads get it back at once. The rest of the cluster belongs to
    multislice-queue, which can serve more namespaces as well:

    \b
      xpk queue create red --cluster dev --namespace team-red --quota v5litepod-16=4
      xpk queue create multislice-queue --cluster dev --namespace team-red
    """
    queue_name, place = the_name("queue", name, name_flag), the_cluster(cluster)
    request = QueueRequest(
        name=queue_name,
        namespaces=options["namespaces"],
        quota=options["quota"],
        borrowing_limit=options["borrowing_limit"],
        lending_limit=options["lending_limit"],
        reclaim=options["reclaim"],
        max_priority=options["max_priority"],
        create_namespace=options["create_namespace"],
        force=options["force"],
    )
    plan = plan_create(provider_of(place).connect(place), request)
    if plan.question and not (options["yes"] or options["force"] or options["dry_run"]):
        ask(plan.question)
    next_command = f"xpk queue describe {queue_name} --cluster {place}"
    if request.namespaces:
        next_command = f"xpk workload create NAME --cluster {place} -n {request.namespaces[0]} --queue {queue_name}"
    carry_out(console.choosing(options["output"]), plan, dry_run=options["dry_run"], then=next_command)


@queue.command("list")
@cluster_option
@click.option("-n", "--namespace", metavar="NAME", help="Show only queues of this namespace.")
@list_options((*COLUMNS, *_WIDE))
@watch_option
@output_option
@click.pass_obj
def list_(console: Console, /, cluster: str | None, namespace: str | None, watch_: bool, **options: Any) -> None:
    """List queues with their quotas and use in slices, the cluster's own queue first."""
    place = the_cluster(cluster)
    api = provider_of(place).connect(place)
    console = console.choosing(options["output"], headers=not options["no_headers"], sort_by=options["sort_by"])

    def read() -> Rows:
        queues = Queues.read(api).infos()
        return [
            queue for queue in queues if not namespace or namespace in [at.partition("/")[0] for at in queue.namespaces]
        ]

    def render(rows: Rows, begins: bool) -> str:
        return replace(console, headers=console.headers and begins).rows(rows, columns=COLUMNS, wide=_WIDE)

    if watch_:
        watch(console, api, read, render, kind="ClusterQueue")
        return
    queues = read()
    console.items(queues, columns=COLUMNS, wide=_WIDE, data=asdict)
    if not queues:
        console.tell(f"no queues on '{place}'" + (f" for namespace '{namespace}'" if namespace else ""))


@queue.command()
@name_argument("queue")
@cluster_option
@output_option
@click.pass_obj
def describe(
    console: Console, name: str | None, name_flag: str | None, cluster: str | None, output: str | None
) -> None:
    """Show a queue's quota, borrowing and lending limits, and workloads."""
    queue_name, place = the_name("queue", name, name_flag), the_cluster(cluster)
    console, api = console.choosing(output), provider_of(place).connect(place)
    queues = Queues.read(api)
    info = find(queues, queue_name)
    workloads = [summary_of(workload) for workload in workloads_in(api, queues.locals_of(info.cluster_queue))]
    if console.is_data:
        console.data({**asdict(info), "workloads": [asdict(workload) for workload in workloads]})
        return
    if console.output == "name":
        echo(info.name)
        return
    for title, value in _facts(info).items():
        echo(wrapped(f"{title + ':':<16} {value}", console.width, 17))
    echo()
    echo(console.table(workloads, _INSIDE) or "no workloads")


@queue.command()
@name_argument("queue")
@cluster_option
@click.option("-n", "--namespace", metavar="NAME", help="Remove the queue only from this namespace.")
@click.option("-y", "--yes", is_flag=True, help="Do not prompt for confirmation.")
@click.option("--force", is_flag=True, help="Delete the workloads in the queue; do not prompt for confirmation.")
@click.option("--ignore-not-found", is_flag=True, help="Exit with code 0 if the queue does not exist.")
@dry_run_option
@output_option
@click.pass_obj
def delete(console: Console, /, name: str | None, name_flag: str | None, cluster: str | None, **options: Any) -> None:
    """Delete a queue and return its quota to multislice-queue. Namespaces are kept."""
    queue_name, place = the_name("queue", name, name_flag), the_cluster(cluster)
    api = provider_of(place).connect(place)
    try:
        plan = plan_delete(api, queue_name, options["namespace"], where=f" --cluster {place}", force=options["force"])
    except NotFoundError:
        if not options["ignore_not_found"]:
            raise
        console.tell(f"queue '{queue_name}' not found")
        return
    if not (options["yes"] or options["force"] or options["dry_run"]):
        ask(f"Delete queue '{queue_name}' of '{place}'?")
    carry_out(console.choosing(options["output"]), plan, dry_run=options["dry_run"])


def _slices(info: QueueInfo, field: str) -> str:
    return amounts_text({share.type: getattr(share, field) for share in info.shares}) or "-"


def _total(info: QueueInfo, field: str) -> float:
    return float(sum(getattr(share, field) for share in info.shares))


def _facts(info: QueueInfo) -> dict[str, Any]:
    return {
        "Name": info.name,
        "Namespaces": ", ".join(info.namespaces) or "none",
        "Quota": _slices(info, "quota"),
        "Used": _slices(info, "used"),
        "Free": _slices(info, "free"),
        "Maximum": _slices(info, "most"),
        "Borrowing limit": _slices(info, "borrowing_limit"),
        "Lending limit": _slices(info, "lending_limit"),
        "Reclaims": next((word for word, policy in RECLAIM.items() if policy == info.reclaim), info.reclaim),
        "Max priority": info.max_priority or "any",
        "Workloads": f"{info.admitted} admitted, {info.pending} pending",
        "ClusterQueue": f"{info.cluster_queue}, created by {info.maker}",
        "Created": f"{info.created} ({age(info.created)} ago)",
    }
