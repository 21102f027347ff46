"""`xpk workload place`: keep a workload of several clusters running where there is capacity."""

from __future__ import annotations

from dataclasses import asdict

import click

from xpk.cli import complete
from xpk.cli.google_xpk import WorkloadCommand
from xpk.cli.options import cluster_option, name_argument, namespace_option, output_option, output_root_option, the_name
from xpk.cli.target import output_roots, the_cluster
from xpk.cli.terminal.output import Console, echo
from xpk.cli.workload import views
from xpk.client import Cluster
from xpk.client import placement as placing
from xpk.client.cluster import connect
from xpk.jobs.placement.decision import Done, Stay
from xpk.jobs.placement.placements import placements, placer_of
from xpk.jobs.placement.placer import Pass


@click.command(cls=WorkloadCommand)
@name_argument("workload")
@cluster_option
@namespace_option
@click.option("--to", metavar="CLUSTER", shell_complete=complete.clusters, help="Move it to this cluster first.")
@click.option("--once", is_flag=True, help="Exit when there is nothing to do at present, for a periodic job.")
@output_root_option
@output_option
@click.pass_obj
def place(
    console: Console,
    name: str | None,
    name_flag: str | None,
    cluster: str | None,
    namespace: str,
    to: str | None,
    once: bool,
    output: str | None,
) -> None:
    """Keep a workload of several clusters running where there is capacity, until it ends.

    --cluster names any of its clusters. Any number of these commands may run at a time, on any machines, and each may
    be stopped at any time: a lease beside the workload's output lets only one copy run.
    """
    known, workload_name = the_cluster(cluster), the_name("workload", name, name_flag)
    console = console.choosing(output)
    placer = placer_of(Cluster(known).api, output_roots(known), workload_name, namespace, connect)
    if to is not None:
        placer.move(to)
    shown = ""
    for done in placer.passes(once=once):
        shown = _show(console, done, shown)
    rows = placements(placer.observe(), placer.spec.run)
    if console.is_data:
        console.data([asdict(row) for row in rows])
    elif once:
        for row in rows:
            echo(views.placement_line(row))


def _show(console: Console, done: Pass, shown: str) -> str:
    """Print what a pass has done or waits for, unless that was printed last; return the last line."""
    text = placing.action_words(done.action, done.scene)
    if not text or text == shown or not (done.is_changed or isinstance(done.action, Stay | Done)):
        return shown
    console.tell(f" • {text}")
    return text
