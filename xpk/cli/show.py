"""Workloads as people read them: the list's columns, the status in words, log lines."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace

import click

from xpk.cli.live import progress_words
from xpk.cli.output import age, table
from xpk.jobs.logs import HostLine
from xpk.jobs.output import Progress
from xpk.model import names
from xpk.model.status import Occurrence, Phase, WorkloadStatus

COLUMNS = (
    ("NAME", lambda w: w.name),
    ("PHASE", lambda w: w.phase),
    ("PRIORITY", lambda w: w.priority),
    ("TYPE", lambda w: w.accelerator_type),
    ("SLICES", lambda w: w.num_slices),
    (
        "HOSTS",
        lambda w: f"{sum(h.phase in ('Running', 'Succeeded') for h in w.hosts)}/{w.num_hosts}",
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
_EVENT_COLUMNS = (
    ("AGE", lambda e: age(e.time)),
    ("COUNT", lambda e: e.count),
    ("REASON", lambda e: e.reason),
    ("OBJECT", lambda e: e.object),
    ("MESSAGE", lambda e: _one_line(e.message)),
)
_ROWS_SHOWN = 5
_MESSAGE_LENGTH = 240
_COLOURS = {
    Phase.SUCCEEDED: "green",
    Phase.RUNNING: "green",
    Phase.FAILED: "red",
    Phase.RESTARTING: "yellow",
    Phase.QUEUED: "yellow",
    Phase.SUSPENDED: "yellow",
    Phase.UNKNOWN: "yellow",
}
_HOST_COLOURS = ("cyan", "magenta", "blue", "green", "yellow", "bright_cyan", "bright_magenta", "bright_blue")


def log_line(line: HostLine, *, prefix: bool, timestamps: bool) -> str:
    """Return a log line as it is printed."""
    parts = []
    if timestamps:
        parts.append(line.time.isoformat(timespec="milliseconds").replace("+00:00", "Z"))
    if prefix:
        colour = _HOST_COLOURS[(line.slice * 3 + line.host) % len(_HOST_COLOURS)]
        parts.append(click.style(f"s{line.slice}/h{line.host} │", fg=colour))
    return " ".join([*parts, line.text])


def status(found: WorkloadStatus, progress: Progress | None, cluster: str) -> str:
    """Return how a workload does, why, and the next command."""
    size = f"{found.num_slices} x {found.accelerator_type or 'unknown type'}, {found.num_hosts} hosts"
    maker = [] if found.maker == "xpk" else [f"  made by    {found.maker}, not xpk"]
    lines = [f"{found.name}: {_phase(found)} — {found.reason}", *maker]
    lines.append(f"  size       {size}" + (f", priority {found.priority}" if found.priority else ""))
    lines += _queue_lines(found)
    lines += [f"  trouble    {trouble}" for trouble in found.troubles[:_ROWS_SHOWN]]
    if progress:
        words = progress_words(progress if found.phase is Phase.RUNNING else replace(progress, eta_seconds=None))
        lines.append(f"  progress   {', '.join(words)}")
    lines += _restart_lines(found, progress.replacements if progress else 0)
    lines.append(f"  created    {age(found.created)} ago" + (f" by {found.user}" if found.user else ""))
    if found.finished:
        lines.append(f"  finished   {age(found.finished)} ago")
    if found.output_dir:
        lines.append(f"  output     {found.output_dir}")
    if not found.phase.is_final:
        lines += _event_lines(found.events[-_ROWS_SHOWN:])
    lines.append(f"  next       {next_command(found, progress, cluster)}")
    return "\n".join(lines)


def describe(found: WorkloadStatus, progress: Progress | None, events: Sequence[Occurrence], cluster: str) -> str:
    """Return the status, every host and every event."""
    parts = [status(replace(found, events=()), progress, cluster), f"  command    {shlex.join(found.command)}"]
    parts += [*(f"  {'' if index else 'mounts':<10} {mount}" for index, mount in enumerate(found.mounts)), ""]
    parts.append(table(found.hosts, _HOST_COLUMNS) or "no hosts yet")
    parts += ["", table(events, _EVENT_COLUMNS) or "no events"]
    return "\n".join(parts)


def next_command(found: WorkloadStatus, progress: Progress | None, cluster: str) -> str:
    """Return the one command that helps most now."""
    where = found.name + names.where(cluster, found.namespace)
    if found.phase is Phase.QUEUED:
        return _next_of_queued(found, cluster, where)
    if found.phase is Phase.SUSPENDED:
        return f"xpk workload {'resume' if found.queue else 'describe'} {where}"
    if found.phase is Phase.SUCCEEDED:
        return f"xpk workload {'report' if progress else 'logs'} {where}"
    if found.phase is Phase.FAILED:
        bad = next((host for host in found.hosts if host.exit_code not in (None, 0, 75, 143)), None)
        return f"xpk workload logs {where}" + (f" --slice {bad.slice} --host {bad.host}" if bad else "")
    if found.phase is Phase.UNKNOWN:
        return f"kubectl get jobset {found.name} -n {found.namespace} -o yaml"
    reasons = {trouble.reason for trouble in found.troubles}
    if any("Image" in reason for reason in reasons):
        return f"xpk workload delete {where}"  # an image is fixed for a workload's life
    if reasons & {"Unschedulable", "NodeLost"}:
        return f"xpk cluster describe {cluster}"
    if reasons:
        return f"xpk workload describe {where}"
    if found.phase is Phase.RESTARTING and found.previous_logs:
        return f"xpk workload logs {where} --previous"
    return f"xpk workload logs {where} -f"


def _next_of_queued(found: WorkloadStatus, cluster: str, where: str) -> str:
    if any(each.needed > each.most for each in found.quota):
        return f"xpk workload delete {where}"  # it will never fit
    if any(each.type == "QuotaReserved" and each.reason == "Inadmissible" for each in found.conditions):
        return f"xpk cluster describe {cluster}"
    if _has_quota(found):
        return f"xpk workload describe {where}"
    others = [*found.ahead, *(share.workload for each in found.quota for share in each.holders)]
    everywhere = any("/" in other for other in others)
    return "xpk workload list" + (
        f" --cluster {cluster} --all-namespaces" if everywhere else names.where(cluster, found.namespace)
    )


def _has_quota(found: WorkloadStatus) -> bool:
    reserved = any(each.type == "QuotaReserved" and each.status == "True" for each in found.conditions)
    return reserved and found.position is None


def _queue_lines(found: WorkloadStatus) -> list[str]:
    """Return who is before a workload that waits, what it waits for, and how its queue's controller calls that."""
    if found.phase is not Phase.QUEUED:
        return []
    place = f"{found.position} in '{found.queue}'" if found.position else "not in the queue yet"
    if _has_quota(found):
        place = "past the queue: it has its quota, and waits for its admission checks"
    if found.cluster_queue:
        place += f", which is of cluster queue '{found.cluster_queue}'"
    more = f" and {len(found.ahead) - _ROWS_SHOWN} more" if len(found.ahead) > _ROWS_SHOWN else ""
    behind = f"; behind {', '.join(found.ahead[:_ROWS_SHOWN])}{more}" if found.ahead else ""
    lines = [f"  position   {place}{behind}"]
    for each in found.quota:
        held = ", ".join(f"{share.workload} ({share.amount:g})" for share in each.holders[:_ROWS_SHOWN])
        lines.append(
            f"  quota      {each.flavor}: {each.used:g} of {each.quota:g} {each.resource} in use; "
            f"{each.needed:g} needed, {each.free:g} free"
            + (f", {each.most:g} with what others lend" if each.most > each.quota else "")
            + (f"; held by {held}" if held else "")
        )
    # Not to be admitted is bad news when it is false, to be evicted when it is true.
    bad = {"QuotaReserved": "False", "Admitted": "False", "Evicted": "True", "Preempted": "True"}
    told = [
        f"{each.type} {each.reason} {age(each.time)}" for each in found.conditions if bad.get(each.type) == each.status
    ]
    return [*lines, *([f"  kueue      {', '.join(told)}"] if told else [])]


def _restart_lines(found: WorkloadStatus, replacements: int) -> list[str]:
    lines = [f"  restarts   {found.restarts}, of which {found.restarts_counted} count; {found.max_restarts} may"]
    if replacements:
        lines.append(f"             and {replacements} of the trainers alone, on the same hosts, which count, too")
    shown = found.restart_history[-_ROWS_SHOWN:]
    lines += [f"             {restart.time[:19]}Z  {restart.cause}" for restart in shown]
    if 0 < len(shown) < found.restarts:
        lines.append(f"             and {found.restarts - len(shown)} before them")
    return lines


def _event_lines(events: Sequence[Occurrence]) -> list[str]:
    lines = [
        f"{age(each.time):<4} {each.reason}"
        + (f" x{each.count}" if each.count > 1 else "")
        + f": {_one_line(each.message)}"
        for each in events
    ]
    return [f"  {'' if index else 'events':<10} {line}" for index, line in enumerate(lines)]


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MESSAGE_LENGTH else f"{line[: _MESSAGE_LENGTH - 1]}…"


def _phase(found: WorkloadStatus) -> str:
    return click.style(str(found.phase), fg=_COLOURS.get(found.phase))
