"""`xpk node`: the evidence against nodes of a cluster's slices, and quarantine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from xpk.api.text import counted
from xpk.cli import complete
from xpk.cli.cluster.check_options import check_options, read_options, refuse_options
from xpk.cli.google_xpk import Group
from xpk.cli.options import cluster_option, is_typed, output_option
from xpk.cli.target import the_cluster
from xpk.cli.terminal.output import Console, age, echo
from xpk.cli.terminal.repeat import repeat
from xpk.cli.terminal.tables import Column
from xpk.model.durations import parse_duration
from xpk.model.errors import UsageError
from xpk.model.evidence import NEEDED_PASSES

if TYPE_CHECKING:
    from xpk.capacity.quarantine.listing import NodeInfo
    from xpk.capacity.quarantine.verdict import Verdict
    from xpk.client import Cluster
    from xpk.nodes import Nodes

_COLUMNS = (
    Column("NODE", lambda n: n.node),
    Column("SLICE", lambda n: n.slice),
    Column("STATE", lambda n: n.state),
    Column("SCORE", lambda n: f"{n.score:.1f}", key=lambda n: n.score),
    Column("EVIDENCE", lambda n: _kinds(n) or "-"),
    Column("SINCE", lambda n: age(n.since) if n.since else "-", drop=2),
    Column("WORKLOAD", lambda n: n.workload or "-", drop=1),
    Column("CHECKS", lambda n: f"{n.passes} of {NEEDED_PASSES}" if n.since else "-", drop=3),
    Column("REASON", lambda n: n.reason or _newest(n), wrap=True),
)
_VERDICT_COLUMNS = (
    Column("NODE", lambda v: v.node),
    Column("SLICE", lambda v: v.slice),
    Column("ACTION", lambda v: v.action),
    Column("REASON", lambda v: v.reason, wrap=True),
)
_WORDS = {
    "quarantine": "quarantined slice {slice} because of {node}: {reason}",
    "defer": "did not quarantine slice {slice} because of {node}: {reason}",
}
_SHORTEST_SECONDS, _LONGEST_SECONDS = 10.0, 86400.0

_dry_run = click.option("--dry-run", is_flag=True, help="Show the slices to change without changing anything.")


@click.group(cls=Group)
def node() -> None:
    """Take nodes that evidence speaks against out of use, and return them.

    A slice is quarantined as a whole: on GKE a slice is a node pool, and workloads use all hosts of a slice.
    """


@node.command("list")
@cluster_option
@output_option
@click.pass_obj
def list_(console: Console, /, cluster: str | None, output: str | None) -> None:
    """List the nodes of slices with the evidence against them, worst first.

    Each piece of evidence weighs 0.3 to 1, and its weight halves every seven days. The score is the sum of the weights;
    a node is a suspect from 1.
    """
    nodes = _nodes(cluster).list()
    console.choosing(output).items(nodes, columns=_COLUMNS, data=lambda n: {"name": n.node, **asdict(n)})


@node.command()
@click.argument("name", required=False, metavar="[NODE]", shell_complete=complete.nodes)
@cluster_option
@click.option("--reason", metavar="TEXT", help="Reason, which `xpk node list` shows.")
@click.option("--evict", is_flag=True, help="Also end the workloads on the slice; they save and restart elsewhere.")
@click.option("--by-evidence", is_flag=True, help="Quarantine the slices of suspects, within --max-percent.")
@click.option(
    "--max-percent",
    type=click.FloatRange(0, 100),
    default=5.0,
    show_default=True,
    metavar="N",
    help="Maximum share of slices in quarantine with --by-evidence; one slice may always be.",
)
@click.option("-w", "--watch", "watch_", is_flag=True, help="Repeat --by-evidence until Ctrl-C.")
@click.option("--interval", metavar="TIME", default="1m", show_default=True, help="Interval of --watch.")
@_dry_run
@output_option
@click.pass_obj
def quarantine(
    console: Console,
    /,
    name: str | None,
    cluster: str | None,
    reason: str | None,
    evict: bool,
    by_evidence: bool,
    max_percent: float,
    watch_: bool,
    interval: str,
    dry_run: bool,
    output: str | None,
) -> None:
    """Quarantine the slice of NODE, or the slices of all suspects: no workload starts on it.

    A workload on the slice stays until it needs new pods, unless --evict is given. With --by-evidence, at most
    --max-percent of the slices are quarantined, and only while another slice of the type is free.
    """
    console = console.choosing(output)
    seconds = _check(console, name, interval, reason, by_evidence=by_evidence, watch=watch_)
    nodes = _nodes(cluster)
    if not by_evidence:
        verdict = nodes.quarantine(name or "", reason=reason or "", evict=evict, dry_run=dry_run)
        _show(console, [verdict], "quarantined", dry_run=dry_run)
        if not evict:
            console.tell("  a workload on the slice stays until it needs new pods; --evict moves it")
        return

    def look() -> Sequence[Verdict]:
        return nodes.quarantine_by_evidence(max_percent, evict=evict, dry_run=dry_run)

    if watch_:
        repeat(console, look, partial(_print, dry_run=dry_run), seconds=seconds, what="evidence")
        return
    verdicts = look()
    console.items(verdicts, columns=_VERDICT_COLUMNS, data=lambda v: {"name": v.node, **asdict(v)})
    if not verdicts:
        console.tell("no suspect among the nodes in service")


@node.command("return")
@click.argument("name", metavar="NODE", shell_complete=complete.nodes)
@cluster_option
@click.option("--preflight", "checks", is_flag=True, help="Run the preflight checks that the slice has not passed yet.")
@click.option("--force", is_flag=True, help="Return a slice that has not passed two preflight checks.")
@check_options
@_dry_run
@output_option
@click.pass_context
def return_(
    ctx: click.Context,
    /,
    name: str,
    cluster: str | None,
    checks: bool,
    force: bool,
    dry_run: bool,
    output: str | None,
    **options: Any,
) -> None:
    """Return the slice of NODE to service and forget the evidence against it.

    The slice must have passed two preflight checks in a row: --preflight runs them, and ends with 1 if a host fails.
    """
    if checks and force:
        raise UsageError("--preflight and --force exclude each other", hint="--force returns it without checks")
    if not checks:
        refuse_options()
    console = ctx.obj.choosing(output)
    arguments, place = read_options(options, console) if checks else {}, _cluster(cluster)
    if checks and not dry_run:
        from xpk.checks import return_node

        verdict = return_node(place, name, **arguments)
    else:
        verdict = place.nodes.return_to_service(name, force=force or checks, dry_run=dry_run)
    first = "checked and " if checks and dry_run else ""
    _show(console, [verdict], f"{first}returned to service", dry_run=dry_run)


def _cluster(name: str | None) -> Cluster:
    from xpk.client import Cluster

    return Cluster(the_cluster(name))


def _nodes(cluster: str | None) -> Nodes:
    return _cluster(cluster).nodes


def _check(
    console: Console, name: str | None, interval: str, reason: str | None, *, by_evidence: bool, watch: bool
) -> float:
    """Return the seconds of --interval. Raises UsageError with all problems of the options."""
    problems = []
    if bool(name) == by_evidence:
        problems.append("pass either a node or --by-evidence, not both" if name else "no node given")
    if by_evidence and reason:
        problems.append("--reason requires a node: with --by-evidence, the reason is the evidence")
    if watch and not by_evidence:
        problems.append("--watch requires --by-evidence")
    if is_typed("max_percent") and not by_evidence:
        problems.append("--max-percent requires --by-evidence")
    if is_typed("interval") and not watch:
        problems.append("--interval requires --watch")
    if watch and (console.is_data or console.output == "name"):
        problems.append("--watch only prints lines: omit -o, or run the command without --watch")
    seconds = parse_duration(interval, "--interval") or 0.0
    if not _SHORTEST_SECONDS <= seconds <= _LONGEST_SECONDS:
        limits = f"{_SHORTEST_SECONDS:.0f} and {_LONGEST_SECONDS:.0f} seconds"
        problems.append(f"--interval must be between {limits}, got {interval}")
    if problems:
        hint = "`xpk node list` lists the nodes; `xpk node quarantine --by-evidence` takes all suspects"
        raise UsageError(problems[0], problems=problems, hint=hint)
    return seconds


def _print(verdicts: Sequence[Verdict], *, dry_run: bool) -> None:
    """Print a line for each verdict, with the time."""
    for verdict in verdicts:
        words = _WORDS[verdict.action].format(slice=verdict.slice, node=verdict.node, reason=verdict.reason)
        echo(f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ} {'dry run: ' if dry_run else ''}{words}")


def _show(console: Console, verdicts: Sequence[Verdict], participle: str, *, dry_run: bool) -> None:
    """Print what was done to a slice, or would be."""
    if console.is_data or console.output == "name":
        console.items(verdicts, columns=_VERDICT_COLUMNS, data=lambda v: {"name": v.node, **asdict(v)})
    for verdict in verdicts:
        verb = f"would be {participle}" if dry_run else participle
        console.done(f"slice {verdict.slice} {verb}: {counted(len(verdict.nodes), 'node')}, {verdict.reason}")


def _kinds(info: NodeInfo) -> str:
    counts: dict[str, Any] = Counter(str(one.kind) for one in info.evidence)
    return ", ".join(f"{number} {kind}" for kind, number in sorted(counts.items()))


def _newest(info: NodeInfo) -> str:
    return info.evidence[-1].message if info.evidence else "-"
