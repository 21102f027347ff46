"""`xpk cluster fence`: put nodes whose machines are gone out of service, once or until Ctrl-C."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from xpk.api.text import counted
from xpk.capacity.gke.request.options import GkeOptions
from xpk.cli.cluster.provider_options import provider_options
from xpk.cli.cluster.run_plan import provider_with
from xpk.cli.google_xpk import ClusterCommand
from xpk.cli.options import context_option, is_typed, name_argument, output_option, provider_option
from xpk.cli.target import the_cluster
from xpk.cli.terminal.output import Console, echo
from xpk.cli.terminal.repeat import repeat
from xpk.cli.terminal.tables import Column
from xpk.model.durations import parse_duration
from xpk.model.errors import UsageError

if TYPE_CHECKING:
    from xpk.capacity.fencing.fencer import Fencer, Fencing

_COLUMNS = (
    Column("NODE", lambda f: f.node),
    Column("SLICE", lambda f: f.slice),
    Column("ACTION", lambda f: f.action),
    Column("PODS", lambda f: len(f.pods)),
    Column("REASON", lambda f: f.reason, wrap=True),
)
_WORDS = {
    "fence": "fenced {node} of {slice}: {reason}; ended {pods}",
    "clear": "ended {pods} on {node}, which is fenced: {reason}",
    "release": "released {node} of {slice}: {reason}",
    "defer": "did not fence {node} of {slice}, since the budget is used up: {reason}",
}
_LONGEST_SECONDS, _SHORTEST_SECONDS = 3600.0, 1.0


@click.command(cls=ClusterCommand)
@name_argument("cluster")
@click.option("-w", "--watch", "watch_", is_flag=True, help="Keep running until Ctrl-C.")
@click.option("--interval", metavar="TIME", default="2s", show_default=True, help="Interval of --watch.")
@click.option(
    "--max-nodes",
    type=click.IntRange(1),
    metavar="N",
    help="Maximum number of nodes to fence within --per. [default: the nodes of the largest slice, or a tenth of all]",
)
@click.option("--per", metavar="TIME", default="10m", show_default=True, help="Period of --max-nodes.")
@click.option("--dry-run", is_flag=True, help="Show the nodes to fence and to release without changing anything.")
@context_option
@provider_option
@provider_options("find", GkeOptions)
@output_option
@click.pass_obj
def fence(
    console: Console,
    /,
    name: str | None,
    name_flag: str | None,
    watch_: bool,
    interval: str,
    max_nodes: int | None,
    per: str,
    dry_run: bool,
    provider: str | None,
    output: str | None,
    **flags: Any,
) -> None:
    """Fence nodes whose machines are gone, so that their workloads restart elsewhere at once.

    A fenced node has the taint node.kubernetes.io/out-of-service. It is released when its kubelet is back.
    """
    console = console.choosing(output)
    seconds, per_seconds = _read_time(interval, "--interval"), _read_time(per, "--per", longest=7 * 86400.0)
    if is_typed("interval") and not watch_:
        raise UsageError("--interval requires --watch", hint="add --watch to check the nodes again and again")
    if watch_ and (console.is_data or console.output == "name"):
        raise UsageError("--watch only prints lines", hint="omit -o, or run the command without --watch")
    cluster_name = the_cluster(name or name_flag, provider)
    source = provider_with(cluster_name, provider, flags)
    if source.target(cluster_name).on_this_machine:
        console.tell(f"hosts of '{cluster_name}' are processes of this machine and have no nodes to fence")
        if console.is_data:
            console.data([])
        return
    fencer = _fencer(source, cluster_name, max_nodes, per_seconds)
    look = partial(fencer.run, dry_run=dry_run)
    if watch_:
        repeat(console, look, partial(_print, dry_run=dry_run), seconds=seconds, what="nodes")
        return
    actions = look()
    console.items(actions, columns=_COLUMNS, data=lambda f: {"name": f.node, **asdict(f)})
    if not actions:
        console.tell("no node to fence or to release")


def _fencer(source: Any, cluster: str, max_nodes: int | None, per_seconds: float) -> Fencer:
    from xpk.capacity.fencing.budget import Budget
    from xpk.capacity.fencing.fencer import Fencer
    from xpk.capacity.fencing.machines import Machines

    # Without a provider that knows machines, only reports of a cluster whose owner vouches for it count.
    asks = isinstance(source, Machines)
    return Fencer(
        source.connect(cluster),
        (lambda nodes: source.machines(cluster, nodes)) if asks else (lambda nodes: {}),
        budget=Budget(max_nodes, per_seconds) if max_nodes else None,
        per_seconds=per_seconds,
        quiet_seconds=source.quiet_seconds if asks else 0.0,
        vouches=source.target(cluster).fenced,
    )


def _print(actions: Sequence[Fencing], *, dry_run: bool) -> None:
    """Print a line for each action, with the time."""
    for action in actions:
        words = _WORDS[action.action].format(**{**asdict(action), "pods": counted(len(action.pods), "pod")})
        echo(f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ} {'dry run: ' if dry_run else ''}{words}")


def _read_time(text: str, flag: str, *, longest: float = _LONGEST_SECONDS) -> float:
    """Return the seconds of a flag. Raises UsageError for a time that is too short or too long."""
    seconds = parse_duration(text, flag) or 0.0
    if not _SHORTEST_SECONDS <= seconds <= longest:
        raise UsageError(f"{flag} must be between {_SHORTEST_SECONDS:.0f} and {longest:.0f} seconds, got {text}")
    return seconds
