"""Causes of restarts after the pods are deleted, from events and from the records of hosts.

The Job controller's events have the pod and the exit code of each failed Job, JobSet's events the time of a restart
and the Job that caused it. Both expire after about an hour; the trainer's records are permanent, without exit codes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from xpk.api.base import Obj
from xpk.api.text import rfc3339, short
from xpk.jobs.output.folder import with_time_limit
from xpk.jobs.output.roots import OutputRoots
from xpk.jobs.status.events import is_local
from xpk.jobs.status.fields import event_times, when
from xpk.model.errors import XpkError
from xpk.model.status import Phase, Restart, WorkloadStatus, exit_words
from xpk.storage import Folder
from xpk_shared.supervisor.names import RECORD

_MARKS = ("RestartJobSet", "Restart")  # prefixes of the reasons of JobSet's restart events
_JOB_MARK = re.compile(r"RestartJob(?!Set)")  # of restarts of single Jobs, which are slices
_PEER_LOST, _STOPPED = 75, 143  # exit codes of healthy hosts after another one failed
_EXITED = re.compile(r"Container \S+ for pod (?:\S+/)?(\S+) failed with exit code ([0-9]{1,9})")
_DISRUPTED = re.compile(r"Pod (?:\S+/)?(\S+) has condition DisruptionTarget")
_LOCAL = re.compile(r"The host (ended with exit code ([0-9]{1,9})(.*))")
_BLAMED = re.compile(r"first failed job: ([^:\s)]+)")
_HOST = re.compile(r"-([0-9]{1,9})-([0-9]{1,9})-\w{5}$")
_DIGITS = 9  # of a slice's number
_LATE = timedelta(seconds=2)  # maximum delay of a Job's event after the restart that it caused
_NEAR = timedelta(seconds=60)  # maximum time between the loss of a slice and the restart of its Job
_MAX_ATTEMPTS = 1000  # the newest ones, whose causes are searched
_LOST_NODE = ("NodeNotReady", "TaintManagerEviction")
_EVICTED = ("Preempted", "Evicted", *_LOST_NODE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A failed Job, that is slice, or host; `words` describe the failure."""

    time: str
    job: str
    words: str
    host: tuple[int, int] | None = None
    exit_code: int | None = None

    @property
    def is_own(self) -> bool:
        """True if it failed by itself, not as a consequence of another failure."""
        return self.host is not None and self.exit_code not in (_PEER_LOST, _STOPPED)


def restarts(events: Sequence[Obj], uid: str, count: int) -> tuple[Restart, ...]:
    """Return the restarts of the JobSet `uid` that its events report; `count` is the total number of restarts.

    A single Job that was restarted has a history of its own.
    """
    history: list[Restart] = []
    others = list(events)
    for job in _restarted_jobs(events, uid):
        own = [event for event in others if _concerns(event, job, uid)]
        others = [event for event in others if not _concerns(event, job, uid)]
        history += [_of_slice(restart, job) for restart in _history(own, uid)]
    history += _history(others, uid)
    history.sort(key=lambda restart: when(restart.time))
    first = count - len(history)
    return tuple(
        replace(restart, attempt=first + index) if first >= 0 else restart
        for index, restart in enumerate(history[-count or None :])
    )


def _history(events: Sequence[Obj], uid: str) -> list[Restart]:
    """Return the restarts that these events report, without their numbers."""
    marks = _marks(events, uid)
    groups = _groups(events, marks)
    history = []
    for index, (time, message) in enumerate(marks):
        history.append(_restart(groups.pop(index, []), time, message))
    # Restarts for the same Job are one event with a first and a last time; failures in between are restarts, too.
    last = when(marks[-1][0]) if marks else None
    history += [_restart(group, group[0].time, "") for group in groups.values() if last and when(group[0].time) < last]
    return history


def _restarted_jobs(events: Iterable[Obj], uid: str) -> list[str]:
    """Return the Jobs that were restarted by themselves, as events of the JobSet name them."""
    blamed = [_BLAMED.search(str(event.get("message", ""))) for event in events if _is_job_mark(event, uid)]
    return sorted({match[1] for match in blamed if match})


def _is_job_mark(event: Obj, uid: str) -> bool:
    about = event.get("involvedObject") or {}
    return about.get("uid") == uid and bool(_JOB_MARK.match(str(event.get("reason", ""))))


def _concerns(event: Obj, job: str, uid: str) -> bool:
    """Return True for an event about the restart of a single Job, about the Job itself or about its pods."""
    if _is_job_mark(event, uid):
        match = _BLAMED.search(str(event.get("message", "")))
        return match is not None and match[1] == job
    about = event.get("involvedObject") or {}
    kind, name = about.get("kind"), str(about.get("name", ""))
    return (kind == "Job" and name == job) or (kind == "Pod" and _job_of(name) == job)


def _of_slice(restart: Restart, job: str) -> Restart:
    """Return a restart of a single Job, which is a slice, with its number."""
    number = job.rpartition("-")[2]
    if not number.isdecimal() or len(number) > _DIGITS:
        return restart
    return replace(restart, slice=int(number), cause=f"{restart.cause}; slice {number} restarted")


def last_failure(events: Sequence[Obj], uid: str, message: str = "") -> Failure | None:
    """Return the failure after the last restart; `message` is that of the JobSet's condition Failed."""
    blamed = match[1] if (match := _BLAMED.search(message)) else ""
    if any(_is_job_mark(event, uid) for event in events) and blamed:
        events = [event for event in events if _concerns(event, blamed, uid)]
    marks = _marks(events, uid)
    group = _groups(events, marks).get(len(marks), [])
    return _cause(group, "") if group else None


def with_output(status: WorkloadStatus, roots: OutputRoots, *, restarts_slices: bool = False) -> WorkloadStatus:
    """Return a status with causes from the hosts' records for restarts that events do not explain.

    `restarts_slices`: they are restarts of single slices, which attempts of the whole job do not number.
    """
    if restarts_slices or status.min_slices is not None:
        return _with_losses(status, roots, _written_failures if status.min_slices is None else _written_losses)
    restart_of = {restart.attempt: restart for restart in status.restart_history}
    unexplained = [
        attempt
        for attempt in range(max(0, status.restarts - _MAX_ATTEMPTS), status.restarts)
        if attempt not in restart_of or restart_of[attempt].host is None or restart_of[attempt].exit_code == _PEER_LOST
    ]
    if not unexplained or not status.output_dir:
        return status
    try:
        written = with_time_limit(roots.to_read(status), lambda folder: _written(folder, when(status.created)))
    except XpkError:  # reported when the progress is read
        return status
    causes = {restart.attempt: restart for restart in written}
    for attempt in unexplained:
        if attempt in causes:
            recorded = causes[attempt]
            restart_of[attempt] = (
                replace(recorded, time=restart_of[attempt].time) if attempt in restart_of else recorded
            )
    unknown = [restart for restart in status.restart_history if restart.attempt is None]
    numbered = [restart_of[attempt] for attempt in sorted(key for key in restart_of if key is not None)]
    return replace(status, restart_history=tuple([*unknown, *numbered]))


def _with_losses(
    status: WorkloadStatus, roots: OutputRoots, read_losses: Callable[[Folder, datetime], list[Restart]]
) -> WorkloadStatus:
    """Return a status with causes of single slices' restarts from the records of their losses, by slice and time."""
    known = list(status.restart_history)
    is_complete = len(known) >= status.restarts and all(restart.host is not None for restart in known)
    if is_complete or not status.output_dir:
        return status
    try:
        losses = with_time_limit(roots.to_read(status), lambda folder: read_losses(folder, when(status.created)))
    except XpkError:  # reported when the progress is read
        return status
    if losses and status.phase is Phase.FAILED and when(status.finished) - when(losses[-1].time) < _NEAR:
        losses.pop()  # the workload's end, not a restart
    for index, restart in enumerate(known):
        near = next((loss for loss in losses if _is_near(loss, restart)), None)
        if near is not None and (restart.host is None or restart.exit_code == _PEER_LOST):
            known[index] = replace(near, time=restart.time)
        losses = [loss for loss in losses if loss is not near]
    missing = max(0, status.restarts - len(known))
    history = sorted([*known, *losses[len(losses) - missing :]], key=lambda restart: when(restart.time))
    first = status.restarts - len(history)
    numbered = [replace(restart, attempt=first + index) for index, restart in enumerate(history)]
    return replace(status, restart_history=tuple(numbered))


def _is_near(one: Restart, other: Restart) -> bool:
    return other.slice in (None, one.slice) and abs(when(one.time) - when(other.time)) < _NEAR


def _marks(events: Iterable[Obj], uid: str) -> list[tuple[str, str]]:
    """Return the time and the message of each of JobSet's restarts."""
    marks = []
    for event in events:
        if (event.get("involvedObject") or {}).get("uid") != uid:
            continue
        if str(event.get("reason", "")).startswith(_MARKS):
            first, last, count = event_times(event)
            message = str(event.get("message", ""))
            marks += [(time, message) for time in ([first, last] if count > 1 else [last])]
    return sorted(marks, key=lambda mark: when(mark[0]))


def _groups(events: Sequence[Obj], marks: list[tuple[str, str]]) -> dict[int, list[Failure]]:
    """Return the failures by the index of the restart that followed them; those after the last have the last index.

    A Job fails once per attempt: two failures of one Job mean a restart in between without an event of its own.
    """
    if any(is_local(event) for event in events):
        return _local_groups(events)
    groups: dict[int, list[Failure]] = {}
    spare = 1 + len(marks)
    for failure in sorted(
        filter(None, (_of_job(event, events) for event in events)), key=lambda failure: when(failure.time)
    ):
        index = sum(when(time) + _LATE < when(failure.time) for time, _ in marks)
        group = groups.get(index, [])
        if any(earlier.job == failure.job for earlier in group):
            groups[spare], spare = group, spare + 1
            group = []
        groups[index] = [*group, failure]
    return groups


def _local_groups(events: Iterable[Obj]) -> dict[int, list[Failure]]:
    """Like `_groups`, for the local control plane, which has an event for each host's end, in order."""
    groups: dict[int, list[Failure]] = {}
    index = 0
    ordered = sorted(events, key=lambda event: (event_times(event)[1], str(event["metadata"].get("uid"))))
    for event in ordered:
        about, reason = event.get("involvedObject") or {}, str(event.get("reason", ""))
        match = _LOCAL.match(str(event.get("message", "")))
        if about.get("kind") == "JobSet" and reason.startswith(_MARKS):
            index += 1
        elif match and about.get("kind") == "Pod" and event.get("type") == "Warning":
            name, time, code = str(about["name"]), event_times(event)[1], int(match[2])
            words = match[1] if match[3] else f"ended with {exit_words(code)}"
            failure = Failure(time=time, job=_job_of(name), words=words, host=_host_of(name), exit_code=code)
            groups.setdefault(index, []).append(failure)
    return groups


def _of_job(event: Obj, events: Iterable[Obj]) -> Failure | None:
    """Return the failure of a Job's event, None for other events."""
    about, message = event.get("involvedObject") or {}, str(event.get("message", ""))
    if about.get("kind") != "Job" or event.get("type") != "Warning" or event.get("reason") == "FailedCreate":
        return None
    time, job = event_times(event)[1], str(about.get("name", ""))
    if match := _EXITED.search(message):
        host, code = _host_of(match[1]), int(match[2])
        return Failure(time=time, job=job, words=f"ended with {exit_words(code)}", host=host, exit_code=code)
    if match := _DISRUPTED.search(message):
        return Failure(time=time, job=job, words=_disruption(match[1], events), host=_host_of(match[1]))
    name = _only_failed_pod(about, events)
    if name:
        return Failure(time=time, job=job, words="failed", host=_host_of(name))
    return Failure(time=time, job=job, words=short(message))


def _disruption(pod: str, events: Iterable[Obj]) -> str:
    """Return the reason why a pod was evicted, in words."""
    about = [event for event in events if (event.get("involvedObject") or {}).get("name") == pod]
    placed = next((str(e.get("message")).rpartition(" to ")[2] for e in about if e.get("reason") == "Scheduled"), "")
    eviction = next((event for event in about if event.get("reason") in _EVICTED), None)
    if eviction is None:
        return "was evicted" + (f" from node {placed}" if placed else "")
    if eviction["reason"] in _LOST_NODE:
        return f"was on node {placed or 'of its own'}, which was lost or drained"
    return f"was evicted: {short(eviction.get('message'))}"


def _only_failed_pod(job: Obj, events: Iterable[Obj]) -> str:
    """Return the only pod that was not deleted when its Job failed, "" unless there is exactly one."""
    made: set[str] = set()
    for event in events:
        if (event.get("involvedObject") or {}).get("uid") != job.get("uid"):
            continue
        name = str(event.get("message", "")).rpartition(" ")[2]
        if event.get("reason") == "SuccessfulCreate":
            made.add(name)
        elif event.get("reason") == "SuccessfulDelete":
            made.discard(name)
    return made.pop() if len(made) == 1 else ""


def _restart(group: list[Failure], time: str, message: str) -> Restart:
    cause = _cause(group, message)
    if cause is None:
        return Restart(time=time, cause=short(message, 300))
    subject = "host s{}/h{}".format(*cause.host) if cause.host else f"slice {cause.job.rpartition('-')[2]}"
    slice_id, host = cause.host or (None, None)
    words = f"{subject} {cause.words}" if cause.host else f"{subject}: {cause.words}"
    return Restart(time=time, cause=words, slice=slice_id, host=host, exit_code=cause.exit_code)


def _cause(group: list[Failure], message: str) -> Failure | None:
    """Return the root failure: preferably a host's own, of the Job that JobSet blames, and the earliest."""
    blamed = match[1] if (match := _BLAMED.search(message)) else ""
    return min(group, key=lambda failure: (not failure.is_own, failure.job != blamed, when(failure.time)), default=None)


def _host_of(pod: str) -> tuple[int, int] | None:
    match = _HOST.search(pod)
    return (int(match[1]), int(match[2])) if match else None


def _job_of(pod: str) -> str:
    return pod.rsplit("-", 2)[0]


@dataclass(frozen=True, slots=True)
class _EventsOnly:
    """A run's files without its metrics, which are large and not needed for failures."""

    folder: Folder

    def read(self, path: str) -> bytes | None:
        return None if path == "metrics.jsonl" else self.folder.read(path)

    def read_all(self, folder: str) -> dict[str, bytes]:
        return self.folder.read_all(folder)


def _written(folder: Folder, since: datetime) -> list[Restart]:
    """Return the causes of restarts of the whole job since a time from the hosts' records."""
    from xpk.jobs.report.goodput import attempts
    from xpk.jobs.report.record import read_record

    causes = []
    for attempt in attempts(read_record(_EventsOnly(folder))):
        host = attempt.cause_host
        if attempt.ended not in ("failed", "host lost") or host is None or attempt.end < since.timestamp():
            continue
        reason = attempt.reason.removeprefix(f"{host}: ").removeprefix(f"{host} ")
        causes.append(
            Restart(
                time=rfc3339(datetime.fromtimestamp(attempt.end, UTC)),
                cause=f"host s{host.slice}/h{host.host} {reason}"
                if reason == "died"
                else f"host s{host.slice}/h{host.host}: {reason}",
                attempt=attempt.restart_count,
                slice=host.slice,
                host=host.host,
            )
        )
    return causes


def _written_failures(folder: Folder, since: datetime) -> list[Restart]:
    """Return the failures of the whole job since a time after which pods were created again."""
    return _without_repeats(_written(folder, since), folder, since)


def _written_losses(folder: Folder, since: datetime) -> list[Restart]:
    """Return the losses of elastic slices since a time after which their pods were created again."""
    from xpk.jobs.report.record import read_record
    from xpk.jobs.report.slice_losses import slice_losses

    losses = []
    for loss in slice_losses(read_record(_EventsOnly(folder))):
        if loss.host is None or loss.since < since.timestamp():
            continue
        reason = loss.reason.removeprefix(f"{loss.host}: ").removeprefix(f"{loss.host} ")
        subject = f"host s{loss.host.slice}/h{loss.host.host}"
        losses.append(
            Restart(
                time=rfc3339(datetime.fromtimestamp(loss.since, UTC)),
                cause=f"{subject}{'' if reason == 'died' else ':'} {reason}; slice {loss.slice} restarted",
                slice=loss.slice,
                host=loss.host.host,
            )
        )
    return _without_repeats(losses, folder, since)


def _without_repeats(losses: Iterable[Restart], folder: Folder, since: datetime) -> list[Restart]:
    """Return the losses of slices without those after which hosts were restarted in place."""
    from xpk.jobs.status import in_place

    repeats = in_place.read_record(folder.read_end(RECORD, in_place.TAIL) or b"", since)
    return [loss for loss in losses if not any(_is_near(loss, restart) for restart in repeats)]
