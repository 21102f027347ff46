"""Text output of workloads: columns of the list, status, description, log lines."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

import click

from xpk.api.text import counted
from xpk.cli.forecast import start_words
from xpk.cli.terminal.live import progress_words
from xpk.cli.terminal.output import age, duration
from xpk.cli.terminal.tables import Column, table, wrapped
from xpk.jobs.host_logs import HostLine
from xpk.jobs.output.folder import Progress
from xpk.jobs.output.intervals import ChosenIntervals
from xpk.jobs.output.slices import ActiveSlices
from xpk.jobs.status.elastic import waiting_words
from xpk.model import names
from xpk.model.status import Occurrence, Phase, Placement, Quota, SuspectHost, WorkloadStatus
from xpk.model.terminal import printable

COLUMNS = (
    Column("NAME", lambda w: w.name),
    Column("PHASE", lambda w: w.phase),
    Column("PRIORITY", lambda w: w.priority, drop=2, key=lambda w: _rank(w.priority)),
    Column("TYPE", lambda w: w.accelerator_type, drop=1),
    Column("SLICES", lambda w: w.num_slices),
    Column(
        "HOSTS",
        lambda w: f"{w.num_hosts_up}/{w.num_hosts}",
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
_MISCONFIGURED = ("Inadmissible", "Misconfigured", "NoMatchingFlavor", "Suspended")  # reasons of a queue's settings
_STALL_SECONDS, _STALL_STEPS = 60.0, 20
_SAID = ("Pending",)  # events that only repeat the headline
PHASE_COLORS = {
    Phase.SUCCEEDED: "green",
    Phase.RUNNING: "green",
    Phase.FAILED: "red",
    Phase.RESTARTING: "yellow",
    Phase.QUEUED: "yellow",
    Phase.SUSPENDED: "yellow",
    Phase.UNKNOWN: "yellow",
}
_HOST_COLORS = ("cyan", "magenta", "blue", "green", "yellow", "bright_cyan", "bright_magenta", "bright_blue")


def _rank(priority: str) -> int:
    return names.PRIORITIES.get(priority, 0)


def log_line(line: HostLine, *, prefix: bool, timestamps: bool, raw: bool = False, color: bool = False) -> bytes:
    """Return a log line for output; control sequences are escaped unless `raw`."""
    parts = []
    if timestamps:
        parts.append(line.time.isoformat(timespec="milliseconds").replace("+00:00", "Z"))
    if prefix:
        host_color = _HOST_COLORS[(line.slice * 3 + line.host) % len(_HOST_COLORS)]
        parts.append(click.style(f"s{line.slice}/h{line.host} │", fg=host_color if color else None, reset=color))
    text = " ".join([*parts, line.text if raw else printable(line.text)])
    return text.encode(errors="surrogateescape")


def status(workload: WorkloadStatus, progress: Progress | None, cluster: str, width: int | None = None) -> str:
    """Return a workload's phase, its reason, and the next command, in lines of `width` columns."""
    size = (
        f"{workload.num_slices} x {workload.accelerator_type or 'unknown type'}, {counted(workload.num_hosts, 'host')}"
    )
    lines = [("size", size + (f", priority {workload.priority}" if workload.priority else ""))]
    if workload.maker != "xpk":
        lines.insert(0, ("created by", f"{workload.maker}, not xpk"))
    lines += _placement_lines(workload)
    lines += _queue_lines(workload)
    lines += [("trouble", str(trouble)) for trouble in workload.troubles[:_ROWS_SHOWN]]
    lines += _suspect_lines(workload)
    if progress:
        lines.append(("progress", ", ".join(progress_words(replace(progress, eta_seconds=None)))))
        if workload.phase is Phase.RUNNING:
            lines += _end_lines(progress, time.time())
        if progress.slices and _is_on(workload):
            lines.append(("slices", _slices_words(progress.slices)))
        if progress.goodput is not None:
            lines.append(("goodput", f"{progress.goodput:.1%} of the wall time in productive steps"))
        if progress.intervals:
            is_elastic = workload.min_slices is not None
            lines.append(("checkpoint", _intervals_words(progress.intervals, is_elastic=is_elastic)))
    lines += _restart_lines(workload, progress.replacements if progress else 0)
    lines.append(("created", f"{age(workload.created)} ago" + (f" by {workload.user}" if workload.user else "")))
    if workload.finished:
        lines.append(("finished", f"{age(workload.finished)} ago"))
    if workload.output_dir:
        lines.append(("output", workload.output_dir))
    if not workload.phase.is_final:
        events = [event for event in workload.events if event.reason not in _SAID]
        lines += _event_lines(events[-_ROWS_SHOWN:])
    lines.append(("next", next_command(workload, progress, cluster)))
    return "\n".join([_headline(workload, width), *(_fact(*line, width) for line in lines)])


def describe(
    workload: WorkloadStatus,
    progress: Progress | None,
    events: Sequence[Occurrence],
    cluster: str,
    width: int | None = None,
) -> str:
    """Return the status, every host and every event, in lines of `width` columns."""
    parts = [status(replace(workload, events=()), progress, cluster, width)]
    parts.append(_fact("command", shlex.join(workload.command), width))
    parts += [*(_fact("" if index else "mounts", str(mount), width) for index, mount in enumerate(workload.mounts)), ""]
    parts.append(table(workload.hosts, _HOST_COLUMNS, width=width) or "no hosts yet")
    parts += ["", table(events, _EVENT_COLUMNS, width=width) or "no events"]
    return "\n".join(parts)


def _fact(title: str, text: str, width: int | None) -> str:
    line = f"  {title:<10} {text}"
    return line if title in ("next", "output", "command") else wrapped(line, width, _INDENT)  # unwrapped for copying


def _headline(workload: WorkloadStatus, width: int | None) -> str:
    """Return the name, the phase and its reason; the reason of missing quota is in slices, not in Kueue's words."""
    reason = next((text for quota in workload.quota if (text := _short_of(workload, quota))), workload.reason)
    line = wrapped(f"{workload.name}: {workload.phase} — {reason}", width, 2)
    return line.replace(
        f": {workload.phase} ", f": {click.style(str(workload.phase), fg=PHASE_COLORS.get(workload.phase))} ", 1
    )


def _short_of(workload: WorkloadStatus, quota: Quota) -> str:
    """Return the slices that a queued workload waits for, in words; "" if they are free."""
    each = quota.needed / max(1, workload.num_slices)
    if quota.free >= quota.needed or not each:
        return ""
    request = f"{counted(workload.num_slices, 'slice')} of {quota.flavor}"
    if quota.needed > quota.most:
        return f"needs {request}, but its queue can have at most {quota.most // each:g}"
    holders = ", ".join(share.workload for share in quota.holders[:_ROWS_SHOWN])
    return f"waiting for {request}: {quota.free // each:g} free" + (f", held by {holders}" if holders else "")


def next_command(workload: WorkloadStatus, progress: Progress | None, cluster: str) -> str:
    """Return the most useful next command."""
    arguments = workload.name + names.location_flags(cluster, workload.namespace)
    if workload.phase is Phase.QUEUED:
        return _next_of_queued(workload, cluster, arguments)
    if workload.queue == names.HELD_QUEUE:
        return f"xpk workload place {arguments}"
    if workload.phase is Phase.SUSPENDED:
        return f"xpk workload {'resume' if workload.queue else 'describe'} {arguments}"
    if workload.phase is Phase.SUCCEEDED:
        return f"xpk workload {'report' if progress else 'logs'} {arguments}"
    if workload.phase is Phase.FAILED:
        bad = next((host for host in workload.hosts if host.exit_code not in (None, 0, 75, 143)), None)
        return f"xpk workload logs {arguments}" + (f" --slice {bad.slice} --host {bad.host}" if bad else "")
    if workload.phase is Phase.UNKNOWN:
        return f"kubectl get jobset {workload.name} -n {workload.namespace} -o yaml"
    reasons = {trouble.reason for trouble in workload.troubles}
    if any("Image" in reason for reason in reasons):
        return f"xpk workload delete {arguments}"  # an image is fixed for a workload's life
    if reasons & {"Unschedulable", "NodeLost"}:
        return f"xpk cluster describe {cluster}"
    if reasons:
        return f"xpk workload describe {arguments}"
    if progress and progress.slices and progress.slices.count < progress.slices.min_slices:
        return f"xpk workload describe {arguments}"  # shows every host and event
    if workload.phase is Phase.RESTARTING and workload.previous_logs:
        return f"xpk workload logs {arguments} --previous"
    return f"xpk workload logs {arguments} -f"


def _next_of_queued(workload: WorkloadStatus, cluster: str, arguments: str) -> str:
    if any(quota.needed > quota.most for quota in workload.quota):
        return f"xpk workload delete {arguments}"  # it will never fit
    if workload.pending_reason == "ExceedsMaxQuota":
        return f"xpk workload delete {arguments}"
    if any(
        condition.type == "QuotaReserved" and condition.reason in _MISCONFIGURED for condition in workload.conditions
    ):
        return f"xpk cluster describe {cluster}"
    if _has_quota(workload):
        return f"xpk workload describe {arguments}"
    others = [*workload.ahead, *(share.workload for quota in workload.quota for share in quota.holders)]
    everywhere = any("/" in other for other in others)
    return "xpk workload list" + (
        f" --cluster {cluster} --all-namespaces" if everywhere else names.location_flags(cluster, workload.namespace)
    )


def _has_quota(workload: WorkloadStatus) -> bool:
    reserved = any(
        condition.type == "QuotaReserved" and condition.status == "True" for condition in workload.conditions
    )
    return reserved and workload.position is None


def _queue_lines(workload: WorkloadStatus) -> list[tuple[str, str]]:
    """Return lines about a queued workload: position, workloads ahead, quota, and Kueue's conditions."""
    if workload.phase is not Phase.QUEUED:
        return []
    place = f"{workload.position} in queue {workload.queue}" if workload.position else "not in the queue yet"
    if _has_quota(workload):
        place = "past the queue: quota reserved, waiting for admission checks"
    if workload.cluster_queue:
        place += f" (ClusterQueue {workload.cluster_queue})"
    more = f" and {len(workload.ahead) - _ROWS_SHOWN} more" if len(workload.ahead) > _ROWS_SHOWN else ""
    behind = f"; behind {', '.join(workload.ahead[:_ROWS_SHOWN])}{more}" if workload.ahead else ""
    lines = [("position", f"{place}{behind}"), *(("quota", _quota_words(quota)) for quota in workload.quota)]
    # The status with which a condition keeps the workload from running.
    bad = {"QuotaReserved": "False", "Admitted": "False", "Evicted": "True", "Preempted": "True"}
    states = ", ".join(
        f"{condition.type} {condition.reason} {age(condition.time)}"
        for condition in workload.conditions
        if bad.get(condition.type) == condition.status
    )
    reason = workload.reason if any(_short_of(workload, quota) for quota in workload.quota) else ""
    if workload.start:
        lines += [("" if index else "start", line) for index, line in enumerate(start_words(workload.start))]
    return [*lines, *([("kueue", ": ".join(filter(None, (states, reason))))] if states or reason else [])]


def _quota_words(quota: Quota) -> str:
    """Return a flavor's quota, use and holders, and the amount that a workload needs, in words."""
    used = f"{quota.used:g} of {quota.quota:g} {quota.resource} in use"
    if quota.used > quota.quota:
        used = (
            f"{quota.used:g} {quota.resource} in use (own quota {quota.quota:g}, borrowed {quota.used - quota.quota:g})"
        )
    lent = f", at most {quota.most:g} with borrowing" if quota.most > quota.quota else ""
    holders = ", ".join(f"{share.workload} ({share.amount:g})" for share in quota.holders[:_ROWS_SHOWN])
    return f"{quota.flavor}: {used}; {quota.needed:g} needed, {quota.free:g} free{lent}" + (
        f"; held by {holders}" if holders else ""
    )


def _is_on(workload: WorkloadStatus) -> bool:
    return workload.phase in (Phase.RUNNING, Phase.RESTARTING)


def _end_lines(progress: Progress, now: float) -> list[tuple[str, str]]:
    """Return when the run ends, or that it has stalled: it has finished no step for much longer than one takes."""
    reached = _unix(progress.time)
    if reached is not None and now - reached > max(_STALL_SECONDS, _STALL_STEPS * (progress.step_seconds or 0.0)):
        return [("", f"no step for {duration(now - reached)}")]
    ends, latest = _unix(progress.ends), _unix(progress.ends_latest)
    if ends is None or progress.step >= (progress.total_steps or 0):
        return []
    later = f"; in {duration(latest - now)} at the rate of the whole run with its restarts" if latest else ""
    return [("", f"ends about {_clock(ends, now)}, in {duration(ends - now)}{later}")]


def _unix(date: str | None) -> float | None:
    return None if date is None else datetime.fromisoformat(date).timestamp()


def _clock(seconds: float, now: float) -> str:
    """Return a time in UTC, with the date unless it is that of `now`."""
    at = datetime.fromtimestamp(seconds, UTC)
    return at.strftime("%H:%MZ" if at.date() == datetime.fromtimestamp(now, UTC).date() else "%Y-%m-%d %H:%MZ")


def _slices_words(slices: ActiveSlices) -> str:
    """Return which slices are active, and the last finished step before others were lost, in words."""
    if slices.count < slices.min_slices:
        return waiting_words(slices.count, slices.num_slices, slices.min_slices)
    lost_after: dict[int, list[int]] = {}
    for lost in slices.inactive:
        if lost.step is not None:
            lost_after.setdefault(lost.step, []).append(lost.slice)
    groups = [
        f"{'slice' if len(numbers) == 1 else 'slices'} {', '.join(map(str, numbers[:_ROWS_SHOWN]))}"
        f"{f' and {len(numbers) - _ROWS_SHOWN} more' if len(numbers) > _ROWS_SHOWN else ''} lost after step {step}"
        for step, numbers in sorted(lost_after.items())[-_ROWS_SHOWN:]
    ]
    note = f" ({'; '.join(groups)})" if groups else ""
    return f"{slices.count} of {slices.num_slices} active since {slices.since[11:]}{note}"


def _intervals_words(chosen: ChosenIntervals, *, is_elastic: bool) -> str:
    """Return the checkpoint intervals in use, and what they rest on, in words."""
    long = "" if chosen.every_seconds is None else f" ({duration(chosen.every_seconds)})"
    local = f", local ones every {chosen.local_every:,}" if chosen.local_every else ""
    basis = [
        None if chosen.step_seconds is None else f"{chosen.step_seconds:.3g} s a step",
        None if chosen.save_seconds is None else f"{chosen.save_seconds:.3g} s a save",
        None if chosen.local_save_seconds is None else f"{chosen.local_save_seconds:.3g} s a local save",
        None if chosen.mtbf_seconds is None else f"{duration(chosen.mtbf_seconds)} between failures",
        f"{counted(chosen.failures, 'failure')} so far" if chosen.failures is not None and not is_elastic else None,
        f"all slices lost {counted(chosen.failures, 'time')}" if chosen.failures is not None and is_elastic else None,
    ]
    known = ", ".join(filter(None, basis))
    return f"every {counted(chosen.every, 'step')}{long}{local}; chosen after step {chosen.step}: {known}".rstrip(": ")


def _placement_lines(workload: WorkloadStatus) -> list[tuple[str, str]]:
    """Return a line for each copy of a workload of several clusters, the chosen one first."""
    copies = sorted(workload.placements, key=lambda copy: not copy.is_chosen)
    lines = [placement_line(copy) for copy in copies]
    return [("" if index else "clusters", line) for index, line in enumerate(lines)]


def placement_line(copy: Placement) -> str:
    """Return the state of a copy in words."""
    return f"{copy.cluster}: {copy.state}" + (f" ({copy.reason})" if copy.reason else "")


def _restart_lines(workload: WorkloadStatus, replacements: int) -> list[tuple[str, str]]:
    others = workload.restarts - workload.restarts_counted
    more = f" ({others} more not counted)" if others else ""
    in_place = f", {workload.restarts_in_place} in place" if workload.restarts_in_place else ""
    lines = [f"{workload.restarts_counted} of {workload.max_restarts} allowed{in_place}{more}"]
    if replacements:
        lines.append(f"and {counted(replacements, 'replacement')} of trainers on the same hosts, which count as well")
    shown = workload.restart_history[-_ROWS_SHOWN:]
    lines += [f"{restart.time[:19]}Z  {restart.cause}" for restart in shown]
    if 0 < len(shown) < workload.restarts:
        lines.append(f"and {workload.restarts - len(shown)} earlier")
    return [("" if index else "restarts", line) for index, line in enumerate(lines)]


def _suspect_lines(workload: WorkloadStatus) -> list[tuple[str, str]]:
    """Return lines for the hosts on nodes that are quarantined, or have evidence against them."""
    lines = [_suspect_line(suspect) for suspect in workload.suspects[:_ROWS_SHOWN]]
    if len(workload.suspects) > _ROWS_SHOWN:
        lines.append(f"and {len(workload.suspects) - _ROWS_SHOWN} more")
    return [("" if index else "nodes", line) for index, line in enumerate(lines)]


def _suspect_line(suspect: SuspectHost) -> str:
    host = f"host s{suspect.slice}/h{suspect.host} is on"
    score = f", score {suspect.score:.1f}" if suspect.score else ""
    if suspect.quarantine is None:
        return f"{host} node {suspect.node}{score} (xpk node list)"
    return f"{host} quarantined node {suspect.node}{score}: {suspect.quarantine or 'no reason given'} (xpk node list)"


def _event_lines(events: Sequence[Occurrence]) -> list[tuple[str, str]]:
    lines = [
        f"{age(event.time):<4} {event.reason}"
        + (f" x{event.count}" if event.count > 1 else "")
        + f": {_one_line(event.message)}"
        for event in events
    ]
    return [("" if index else "events", line) for index, line in enumerate(lines)]


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MESSAGE_LENGTH else f"{line[: _MESSAGE_LENGTH - 1]}…"
