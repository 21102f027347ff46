"""`xpk workload create --clusters`, and the cluster where such a workload runs."""

from __future__ import annotations

import time
from collections.abc import Sequence

import click

from xpk.api.base import Obj
from xpk.api.text import counted
from xpk.cli import complete
from xpk.cli.options import Command, is_typed
from xpk.cli.target import CONTEXT_KEY, the_cluster
from xpk.cli.terminal.output import Console
from xpk.client import Cluster, destination_of
from xpk.client import placement as placing
from xpk.client.cluster import WorkloadHandle
from xpk.cost import price
from xpk.jobs.create import copies as copying
from xpk.jobs.create import create as creating
from xpk.jobs.create.notice import Report
from xpk.jobs.create.workload import Workload
from xpk.jobs.placement.decision import Done
from xpk.jobs.placement.placer import Pass
from xpk.model import names
from xpk.model.durations import parse_duration
from xpk.model.errors import Problems, TimedOutError
from xpk.proc import Runner


def several_clusters_options(command: Command) -> Command:
    """Add the options of a workload that may run on several clusters."""
    command = click.option(
        "--move-after",
        metavar="TIME",
        help="With --clusters: time to wait on a cluster before `xpk workload place` moves it. [default: 30s]",
    )(command)
    return click.option(
        "--clusters",
        metavar="A,B,...",
        shell_complete=complete.clusters,
        help="Clusters that the workload may run on, the preferred one first, instead of --cluster.",
    )(command)


def clusters_of(ctx: click.Context, problems: Problems) -> tuple[str, ...]:
    """Return the clusters of `--clusters`, none without it; `problems` takes what excludes them."""
    params, stated = ctx.params, ctx.params["clusters"]
    if stated is None:
        if params["move_after"]:
            problems.add("--move-after requires --clusters", hint="omit --move-after")
        return ()
    clusters = tuple(filter(None, (part.strip() for part in stated.split(",")))) or ("",)
    if is_typed("cluster") or ctx.meta.get(CONTEXT_KEY):
        problems.add("--clusters excludes --cluster and --context", hint="name all clusters in --clusters")
    if params["when"]:
        problems.add("--when requires a single cluster", hint="use --cluster, or omit --when")
    return clusters


def resolve(
    ctx: click.Context,
    clusters: Sequence[str],
    request: Workload,
    problems: Problems,
    runner: Runner,
    report: Report,
) -> copying.ResolvedCopies:
    """Return the checked copies of a workload. Raises UsageError with all that is wrong."""
    seconds = problems.read(None, parse_duration, ctx.params["move_after"], "--move-after")
    return copying.resolve_copies(
        request,
        clusters,
        lambda cluster: destination_of(Cluster(the_cluster(cluster)), request),
        move_after=copying.MOVE_AFTER_SECONDS if seconds is None else seconds,
        report=report,
        problems=problems,
        runner=runner,
        price=price,
    )


def objects(resolved: copying.ResolvedCopies, *, stored: bool) -> list[Obj]:
    """Return the objects of all copies; `stored`: as the API servers would store them."""
    pairs = zip(resolved.copies, resolved.destinations, strict=True)
    listed = [
        creating.preview(destination.reached(), one.spec) if stored else creating.manifest(one.spec)
        for one, destination in pairs
    ]
    return [obj for objects_of_one in listed for obj in objects_of_one]


def create(console: Console, resolved: copying.ResolvedCopies, report: Report) -> WorkloadHandle:
    """Create all copies and release the first one; return its handle."""
    handle, spec = placing.create(resolved, report), resolved.spec
    size = f"{spec.num_slices} x {spec.shape.name}, {counted(spec.num_hosts, 'host')}"
    console.done(f"workload '{spec.name}' is queued on '{handle.cluster.name}', with held copies elsewhere: {size}")
    return handle


def place_until_end(console: Console, handle: WorkloadHandle, report: Report, timeout: float | None) -> WorkloadHandle:
    """Place a workload until it ends; return its handle where it ended. Ctrl-C stops placing, not the workload.

    Raises TimedOutError after `timeout` seconds.
    """
    command = f"xpk workload place {handle.name}{names.location_flags(handle.cluster.name, handle.namespace)}"
    deadline = None if timeout is None else time.monotonic() + timeout

    def on_pass(done: Pass) -> None:
        placing.report_action(done, report)
        if deadline is not None and time.monotonic() > deadline and not isinstance(done.action, Done):
            raise TimedOutError(
                f"timed out after {timeout:g} s: workload '{handle.name}' has not ended", hint=f"`{command}` continues"
            )

    try:
        return placing.place(handle, on_pass=on_pass)
    except KeyboardInterrupt:
        console.tell(f"stopped placing; workload '{handle.name}' continues where it is")
        console.tell(f"  {command}")
        raise
