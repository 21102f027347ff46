"""Text output of workloads: columns of the list, status, description, log lines."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace

import click

from xpk.api.text import counted
from xpk.cli.terminal.live import progress_words
from xpk.cli.terminal.output import age
from xpk.cli.terminal.tables import Column, table, wrapped
from xpk.jobs.logs import HostLine
from xpk.jobs.output.folder import Progress
from xpk.model import names
from xpk.model.status import Occurrence, Phase, Quota, WorkloadStatus
from xpk.model.terminal import printable

COLUMNS = (
    Column("NAME", lambda w: w.name),
    Column("PHASE", lambda w: w.phase),
    Column("PRIORITY", lambda w: w.priority, drop=2, key=lambda w: _rank(w.priority)),
    Column("TYPE", lambda w: w.accelerator_type, drop=1),
    Column("SLICES", lambda w: w.num_slices),
    Column(
        "HOSTS",
        lambda w: f"{sum(h.phase in ('Running', 'Succeeded') for h in w.hosts)}/{w.num_hosts}",
        key=lambda w: w.num_hosts,
    ),
    Column("RESTARTS", lambda w: w.restarts),
    Column("USER", lambda w: w.user, drop=3),
    Column("AGE", lambda w: age(w.created), key=lambda w: w.created),
)
NAMESPACE = Column("NAMESPACE", lambda w: w.namespace)
WIDE = (
    Column("QUEUE", lambda w: w.queue or "-"),
    Column("REASON", lambda w: w.reason, wrap=True),
)
_HOST_COLUMNS = (
    Column("HOST", lambda h: h.label),
    Column("PHASE", lambda h: h.phase),
    Column("NODE", lambda h: h.node or "-", drop=1),
    Column("PID", lambda h: h.pid or "-", drop=2),
    Column("EXIT", lambda h: "-" if h.exit_code is None else h.exit_code),
    Column("REASON", lambda h: h.reason or "", wrap=True),
)
_EVENT_COLUMNS = (
    Column("AGE", lambda e: age(e.time)),
    Column("COUNT", lambda e: e.count, drop=1),
    Column("REASON", lambda e: e.reason),
    Column("OBJECT", lambda e: e.object, cut=16, drop=2),
    Column("MESSAGE", lambda e: _one_line(e.message), wrap=True),
)
_ROWS_SHOWN = 5
_INDENT = 13  # columns of a fact's continuation lines
_MESSAGE_LENGTH = 240
_SAID = ("Pending",)  # events that only repeat the headline
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


def _rank(priority: str) -> int:
    return names.PRIORITIES.get(priority, 0)


def log_line(line: HostLine, *, prefix: bool, timestamps: bool, raw: bool = False, color: bool = False) -> bytes:
    """Return a log line for output; control sequences are escaped unless `raw`."""
    parts = []
    if timestamps:
        parts.append(line.time.isoformat(timespec="milliseconds").replace("+00:00", "Z"))
    if prefix:
        colour = _HOST_COLOURS[(line.slice * 3 + line.host) % len(_HOST_COLOURS)]
        parts.append(click.style(f"s{line.slice}/h{line.host} │", fg=colour if color else None, reset=color))
    text = " ".join([*parts, line.text if raw else printable(line.text)])
    return text.encode(errors="surrogateescape")


def status(found: WorkloadStatus, progress: Progress | None, cluster: str, width: int | None = None) -> str:
    """Return a workload's phase, its reason, and the next command, in lines of `width` columns."""
    size = f"{found.num_slices} x {found.accelerator_type or 'unknown type'}, {counted(found.num_hosts, 'host')}"
    lines = [("size", size + (f", priority {found.priority}" if found.priority else ""))]
    if found.maker != "xpk":
        lines.insert(0, ("made by", f"{found.maker}, not xpk"))
    lines += _queue_lines(found)
    lines += [("trouble", str(trouble)) for trouble in found.troubles[:_ROWS_SHOWN]]
    if progress:
        words = progress_words(progress if found.phase is Phase.RUNNING else replace(progress, eta_seconds=None))
        lines.append(("progress", ", ".join(words)))
        if progress.goodput is not None:
            lines.append(("goodput", f"{progress.goodput:.1%} of the wall time in productive steps"))
    lines += _restart_lines(found, progress.replacements if progress else 0)
    lines.append(("created", f"{age(found.created)} ago" + (f" by {found.user}" if found.user else "")))
    if found.finished:
        lines.append(("finished", f"{age(found.finished)} ago"))
    if found.output_dir:
        lines.append(("output", found.output_dir))
    if not found.phase.is_final:
        told = [event for event in found.events if event.reason not in _SAID]
        lines += _event_lines(told[-_ROWS_SHOWN:])
    lines.append(("next", next_command(found, progress, cluster)))
    return "\n".join([_headline(found, width), *(_fact(*line, width) for line in lines)])


def describe(
    found: WorkloadStatus,
    progress: Progress | None,
    events: Sequence[Occurrence],
    cluster: str,
    width: int | None = None,
) -> str:
    """Return the status, every host and every event, in lines of `width` columns."""
    parts = [status(replace(found, events=()), progress, cluster, width)]
    parts.append(_fact("command", shlex.join(found.command), width))
    parts += [*(_fact("" if index else "mounts", str(mount), width) for index, mount in enumerate(found.mounts)), ""]
    parts.append(table(found.hosts, _HOST_COLUMNS, width=width) or "no hosts yet")
    parts += ["", table(events, _EVENT_COLUMNS, width=width) or "no events"]
    return "\n".join(parts)


def _fact(title: str, text: str, width: int | None) -> str:
    line = f"  {title:<10} {text}"
    return line if title in ("next", "output", "command") else wrapped(line, width, _INDENT)  # unwrapped for copying


def _headline(found: WorkloadStatus, width: int | None) -> str:
    """Return the name, the phase and its reason; the reason of missing quota is in slices, not in Kueue's words."""
    reason = next((text for each in found.quota if (text := _short_of(found, each))), found.reason)
    line = wrapped(f"{found.name}: {found.phase} — {reason}", width, 2)
    return line.replace(f": {found.phase} ", f": {click.style(str(found.phase), fg=_COLOURS.get(found.phase))} ", 1)


def _short_of(found: WorkloadStatus, quota: Quota) -> str:
    """Return the slices that a queued workload waits for, in words; "" if they are free."""
    each = quota.needed / max(1, found.num_slices)
    if quota.free >= quota.needed or not each:
        return ""
    wanted = f"{counted(found.num_slices, 'slice')} of {quota.flavor}"
    if quota.needed > quota.most:
        return f"needs {wanted}, but its queue can have at most {quota.most // each:g}"
    holders = ", ".join(share.workload for share in quota.holders[:_ROWS_SHOWN])
    return f"waiting for {wanted}: {quota.free // each:g} free" + (f", held by {holders}" if holders else "")


def next_command(found: WorkloadStatus, progress: Progress | None, cluster: str) -> str:
    """Return the most useful next command."""
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


def _queue_lines(found: WorkloadStatus) -> list[tuple[str, str]]:
    """Return lines about a queued workload: position, workloads ahead, quota, and Kueue's conditions."""
    if found.phase is not Phase.QUEUED:
        return []
    place = f"{found.position} in queue {found.queue}" if found.position else "not in the queue yet"
    if _has_quota(found):
        place = "past the queue: quota reserved, waiting for admission checks"
    if found.cluster_queue:
        place += f" (ClusterQueue {found.cluster_queue})"
    more = f" and {len(found.ahead) - _ROWS_SHOWN} more" if len(found.ahead) > _ROWS_SHOWN else ""
    behind = f"; behind {', '.join(found.ahead[:_ROWS_SHOWN])}{more}" if found.ahead else ""
    lines = [("position", f"{place}{behind}"), *(("quota", _quota_words(each)) for each in found.quota)]
    # The status with which a condition keeps the workload from running.
    bad = {"QuotaReserved": "False", "Admitted": "False", "Evicted": "True", "Preempted": "True"}
    told = ", ".join(
        f"{each.type} {each.reason} {age(each.time)}" for each in found.conditions if bad.get(each.type) == each.status
    )
    said = found.reason if any(_short_of(found, each) for each in found.quota) else ""
    return [*lines, *([("kueue", ": ".join(filter(None, (told, said))))] if told or said else [])]


def _quota_words(quota: Quota) -> str:
    """Return a flavor's quota, use and holders, and the amount that a workload needs, in words."""
    used = f"{quota.used:g} of {quota.quota:g} {quota.resource} in use"
    if quota.used > quota.quota:
        used = (
            f"{quota.used:g} {quota.resource} in use (own quota {quota.quota:g}, borrowed {quota.used - quota.quota:g})"
        )
    lent = f", at most {quota.most:g} with borrowing" if quota.most > quota.quota else ""
    held = ", ".join(f"{share.workload} ({share.amount:g})" for share in quota.holders[:_ROWS_SHOWN])
    return f"{quota.flavor}: {used}; {quota.needed:g} needed, {quota.free:g} free{lent}" + (
        f"; held by {held}" if held else ""
    )


def _restart_lines(found: WorkloadStatus, replacements: int) -> list[tuple[str, str]]:
    others = found.restarts - found.restarts_counted
    more = f" ({others} more not counted)" if others else ""
    lines = [f"{found.restarts_counted} of {found.max_restarts} allowed{more}"]
    if replacements:
        lines.append(f"and {counted(replacements, 'replacement')} of trainers on the same hosts, which count as well")
    shown = found.restart_history[-_ROWS_SHOWN:]
    lines += [f"{restart.time[:19]}Z  {restart.cause}" for restart in shown]
    if 0 < len(shown) < found.restarts:
        lines.append(f"and {found.restarts - len(shown)} earlier")
    return [("" if index else "restarts", line) for index, line in enumerate(lines)]


def _event_lines(events: Sequence[Occurrence]) -> list[tuple[str, str]]:
    lines = [
        f"{age(each.time):<4} {each.reason}"
        + (f" x{each.count}" if each.count > 1 else "")
        + f": {_one_line(each.message)}"
        for each in events
    ]
    return [("" if index else "events", line) for index, line in enumerate(lines)]


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MESSAGE_LENGTH else f"{line[: _MESSAGE_LENGTH - 1]}…"
