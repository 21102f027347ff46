"""Workloads as people read them: the list's columns, the status in words, log lines."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from xpk.cli.output import Console, age, table
from xpk.jobs.logs import HostLine
from xpk.jobs.output import latest_progress
from xpk.model.status import Phase, WorkloadStatus

FILTERS = {
    "EVERYTHING": frozenset(Phase),
    "FINISHED": frozenset({Phase.SUCCEEDED, Phase.FAILED}),
    "RUNNING": frozenset({Phase.STARTING, Phase.RUNNING, Phase.RESTARTING}),
    "QUEUED": frozenset({Phase.QUEUED}),
    "FAILED": frozenset({Phase.FAILED}),
    "SUCCESSFUL": frozenset({Phase.SUCCEEDED}),
}
COLUMNS = (
    ("NAME", lambda w: w.name),
    ("PHASE", lambda w: w.phase),
    ("PRIORITY", lambda w: w.priority),
    ("TYPE", lambda w: w.accelerator_type),
    ("SLICES", lambda w: w.num_slices),
    (
        "HOSTS",
        lambda w: f"{sum(h.phase in ('Running', 'Succeeded') for h in w.hosts)}/{w.num_slices * w.hosts_per_slice}",
    ),
    ("RESTARTS", lambda w: w.restarts),
    ("USER", lambda w: w.user),
    ("AGE", lambda w: age(w.created)),
)
WIDE = (
    ("NAMESPACE", lambda w: w.namespace),
    ("QUEUE", lambda w: w.queue or "-"),
    ("REASON", lambda w: w.reason),
)
_HOST_COLUMNS = (
    ("HOST", lambda h: h.label),
    ("PHASE", lambda h: h.phase),
    ("NODE", lambda h: h.node or "-"),
    ("PID", lambda h: h.pid or "-"),
    ("EXIT", lambda h: "-" if h.exit_code is None else h.exit_code),
    ("REASON", lambda h: h.reason or ""),
)
_RESTARTS_SHOWN = 5
_COLOURS = {
    Phase.SUCCEEDED: "green",
    Phase.RUNNING: "green",
    Phase.FAILED: "red",
    Phase.RESTARTING: "yellow",
    Phase.QUEUED: "yellow",
    Phase.SUSPENDED: "yellow",
}
_HOST_COLOURS = ("cyan", "magenta", "blue", "green", "yellow", "bright_cyan", "bright_magenta", "bright_blue")


class Ticker:
    """Tells of each new phase or reason of a workload that is waited for."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last = ""

    def __call__(self, status: WorkloadStatus) -> None:
        """Say how the workload does, if that is news."""
        text = f" • {status.name}: {_phase(status)}, {status.reason}"
        if text != self._last:
            self._console.tell(text)
            self._last = text


def log_line(line: HostLine, *, prefix: bool, timestamps: bool) -> str:
    """Return a log line as it is printed."""
    parts = []
    if timestamps:
        parts.append(line.time.isoformat(timespec="milliseconds").replace("+00:00", "Z"))
    if prefix:
        colour = _HOST_COLOURS[(line.slice * 3 + line.host) % len(_HOST_COLOURS)]
        parts.append(click.style(f"s{line.slice}/h{line.host} │", fg=colour))
    return " ".join([*parts, line.text])


def status(found: WorkloadStatus, cluster: str) -> str:
    """Return how a workload does, why, and the next command."""
    size = f"{found.num_slices} x {found.accelerator_type}, {found.num_slices * found.hosts_per_slice} hosts"
    lines = [f"{found.name}: {_phase(found)} — {found.reason}", f"  size       {size}, priority {found.priority}"]
    if found.phase is Phase.QUEUED:
        place = f"{found.position} in '{found.queue}'" if found.position else "not in the queue yet"
        lines.append(f"  position   {place}" + (f", behind {', '.join(found.ahead)}" if found.ahead else ""))
    progress = latest_progress(Path(found.output_dir))
    if progress:
        lines.append(f"  progress   step {progress.step}, loss {progress.loss:.4f}")
    lines.append(f"  restarts   {found.restarts}, of which {found.restarts_counted} count; {found.max_restarts} may")
    shown = found.restart_history[-_RESTARTS_SHOWN:]
    lines += [f"             {restart.time}  {restart.cause}" for restart in shown]
    if len(shown) < len(found.restart_history):
        lines.append(f"             and {len(found.restart_history) - len(shown)} before them")
    lines.append(f"  created    {age(found.created)} ago" + (f" by {found.user}" if found.user else ""))
    if found.finished:
        lines.append(f"  finished   {age(found.finished)} ago")
    lines.append(f"  output     {found.output_dir}")
    lines.append(f"  next       {_next(found, cluster)}")
    return "\n".join(lines)


def describe(found: WorkloadStatus, events: Sequence[Mapping[str, str]], cluster: str) -> str:
    """Return the status, every host and every event."""
    parts = [status(found, cluster), f"  command    {shlex.join(found.command)}", ""]
    parts.append(table(found.hosts, _HOST_COLUMNS) or "no hosts yet")
    parts += [
        "",
        table(
            events,
            (
                ("AGE", lambda e: age(e["time"])),
                ("REASON", lambda e: e["reason"]),
                ("OBJECT", lambda e: e["object"]),
                ("MESSAGE", lambda e: e["message"]),
            ),
        )
        or "no events",
    ]
    return "\n".join(parts)


def _phase(found: WorkloadStatus) -> str:
    return click.style(str(found.phase), fg=_COLOURS.get(found.phase))


def _next(found: WorkloadStatus, cluster: str) -> str:
    """Return the one command that helps most now."""
    where = f"{found.name} --cluster {cluster}"
    if found.phase is Phase.QUEUED:
        return f"xpk workload list --cluster {cluster}"
    if found.phase is Phase.SUSPENDED:
        return f"xpk workload resume {where}"
    if found.phase is Phase.SUCCEEDED:
        return f"xpk workload {'report' if latest_progress(Path(found.output_dir)) else 'logs'} {where}"
    if found.phase is Phase.FAILED:
        bad = next((host for host in found.hosts if host.exit_code not in (None, 0, 75, 143)), None)
        return f"xpk workload logs {where}" + (f" --slice {bad.slice} --host {bad.host}" if bad else "")
    if found.phase is Phase.RESTARTING:
        return f"xpk workload logs {where} --previous"
    return f"xpk workload logs {where} -f"
