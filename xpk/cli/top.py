"""`xpk top`: runs and queues in a terminal, updated once a second."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass

import click

from xpk.capacity.queues.reading import QueueInfo
from xpk.cli.forecast import interval
from xpk.cli.options import (
    all_namespaces_option,
    namespace_option,
    output_option,
    output_root_option,
    several_clusters_option,
)
from xpk.cli.target import ROOT_KEY, named_or_all_clusters
from xpk.cli.terminal.help import Command
from xpk.cli.terminal.output import Console, age, duration, echo
from xpk.cli.terminal.tables import Column
from xpk.cli.terminal.watch import Screen
from xpk.cli.workload.views import PHASE_COLORS
from xpk.console.cluster_reader import ClusterReader, ClusterView, RunLine, obstacles, waiting_in
from xpk.console.clusters import open_clusters
from xpk.model.errors import XpkError
from xpk.model.status import Phase, WorkloadStatus

_SECONDS = 1.0  # between two updates


@dataclass(frozen=True, slots=True)
class _Run:
    cluster: str
    line: RunLine


@dataclass(frozen=True, slots=True)
class _Queue:
    cluster: str
    info: QueueInfo
    waiting: str


_CLUSTER = Column("CLUSTER", lambda row: row.cluster, drop=6)
_RUNS = (
    Column("NAME", lambda row: row.line.status.name),
    Column("PHASE", lambda row: row.line.status.phase),
    Column("STEP", lambda row: _step(row.line)),
    Column("LOSS", lambda row: _loss(row.line)),
    Column("STEP TIME", lambda row: _step_time(row.line), drop=2),
    Column("GOODPUT", lambda row: _goodput(row.line), drop=1),
    Column("RESTARTS", lambda row: row.line.status.restarts),
    Column("HOSTS", lambda row: f"{row.line.status.num_hosts_up}/{row.line.status.num_hosts}", drop=3),
    Column("AGE", lambda row: age(row.line.status.created), drop=4),
    Column("REASON", lambda row: row.line.status.reason, cut=20, drop=5),
)
_QUEUES = (
    Column("QUEUE", lambda row: row.info.name),
    Column("USED", lambda row: _use(row.info), cut=12),
    Column("ADMITTED", lambda row: row.info.admitted, drop=2),
    Column("PENDING", lambda row: row.info.pending),
    Column("WAITING", lambda row: row.waiting, cut=24, drop=1),
)


@click.command(cls=Command)
@several_clusters_option
@namespace_option
@all_namespaces_option
@output_root_option
@output_option
@click.pass_context
def top(ctx: click.Context, /, cluster: str | None, namespace: str, all_namespaces: bool, output: str | None) -> None:
    """Show runs with step, loss, step time and goodput, and queues; q or Ctrl-C ends it.

    Without a terminal, and with -o, it prints them once.
    """
    console: Console = ctx.obj.choosing(output)
    clusters = open_clusters(
        named_or_all_clusters(cluster), None if all_namespaces else namespace, ctx.meta.get(ROOT_KEY)
    )
    screen = Screen()
    if console.output == "table" and screen.is_live and sys.stdin.isatty():
        _watch(console, clusters, screen)
        return
    views = [reader.read(max_accounts=None) for reader in clusters]
    if console.is_data:
        console.data([asdict(view) for view in views])
    elif console.output == "name":
        for view in views:
            for line in view.runs:
                echo(line.status.name)
    else:
        echo(_render(console, views))
    if problems := [view for view in views if view.problem and not view.queues]:
        raise XpkError(f"cannot read cluster '{problems[0].name}': {problems[0].problem}", hint="`xpk doctor`")


def _watch(console: Console, clusters: Sequence[ClusterReader], screen: Screen) -> None:
    """Show the clusters again every second until a key ends it."""
    with _keys():
        while True:
            started = time.monotonic()
            views = [reader.read() for reader in clusters]
            screen.show(f"{_render(console, views)}\n\nq quits")
            if _is_quit(max(0.1, started + _SECONDS - time.monotonic())):
                return


@contextmanager
def _keys() -> Iterator[None]:
    """Let keys take effect at once and hide the cursor; Ctrl-C still interrupts."""
    import termios
    import tty

    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    click.echo("\x1b[?25l", nl=False)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
        click.echo("\x1b[?25h", nl=False)


def _is_quit(seconds: float) -> bool:
    """Return whether q, Q or the end of the input comes within some seconds."""
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0 and select.select([sys.stdin], [], [], left)[0]:
        key = os.read(sys.stdin.fileno(), 1)
        if key.lower() in (b"q", b""):
            return True
    return False


def _render(console: Console, views: Sequence[ClusterView]) -> str:
    """Return the clusters' runs and queues as text."""
    several = (_CLUSTER,) if len(views) > 1 else ()
    runs = [_Run(view.name, line) for view in views for line in view.runs]
    queues = [_Queue(view.name, queue, _waiting(view, queue)) for view in views for queue in view.queues]
    parts = [_summary(view) for view in views]
    parts += ["", console.table(runs, (*several, *_RUNS)) if runs else "no workloads"]
    if hidden := sum(view.num_hidden_runs for view in views):
        parts.append(f"and {hidden} older workloads")
    if queues:
        parts += ["", console.table(queues, (*several, *_QUEUES))]
        lines = [line for view in views for queue in view.queues for line in obstacles(waiting_in(view, queue))]
        parts += [f"no estimated start: {line}" for line in lines]
    return "\n".join(parts)


def _summary(view: ClusterView) -> str:
    if view.problem and not view.queues:
        return f"{view.name}: {click.style('not readable', fg='red')}: {view.problem}"
    counts = {phase: sum(line.status.phase is phase for line in view.runs) for phase in Phase}
    words = [click.style(f"{number} {phase}", fg=PHASE_COLORS.get(phase)) for phase, number in counts.items() if number]
    return f"{view.name}: {', '.join(words) or 'no workloads'}" + (f" ({view.problem})" if view.problem else "")


def _waiting(view: ClusterView, queue: QueueInfo) -> str:
    waiting = waiting_in(view, queue)
    return ", ".join(f"{status.position}. {status.name}{_start(status)}" for status in waiting) or "-"


def _start(status: WorkloadStatus) -> str:
    return f" {interval(status.start)}" if status.start and status.start.expected else ""


def _use(queue: QueueInfo) -> str:
    return ", ".join(f"{share.used:g}/{share.quota:g} {share.type}" for share in queue.shares) or "-"


def _step(line: RunLine) -> str:
    progress = line.progress
    if progress is None:
        return "-"
    return f"{progress.step}/{progress.total_steps}" if progress.total_steps else str(progress.step)


def _loss(line: RunLine) -> str:
    if line.progress is None:
        return "-"
    return "not finite" if line.progress.loss is None else f"{line.progress.loss:.4f}"


def _step_time(line: RunLine) -> str:
    seconds = line.progress.step_seconds if line.progress else None
    return "-" if seconds is None else f"{seconds:.3g}s" if seconds < 60 else duration(seconds)


def _goodput(line: RunLine) -> str:
    share = line.progress.goodput if line.progress else None
    return "-" if share is None else f"{share:.1%}"
