"""Why a workload restarted, when the pods that would tell are gone: from events, and from what hosts wrote down.

The Job controller says of each Job that fails which pod it was and with which exit code, JobSet when it restarted
and for which Job. Both are kept for an hour or so; the trainer's own records are kept for ever, but know no exit
codes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from xpk.api.base import Obj
from xpk.api.text import short
from xpk.jobs.output.folder import promptly
from xpk.jobs.output.roots import OutputRoots
from xpk.jobs.status.events import is_local
from xpk.jobs.status.fields import event_times, when
from xpk.model.errors import XpkError
from xpk.model.status import Restart, WorkloadStatus, exit_words
from xpk.storage import Folder

_MARKS = ("RestartJobSet", "Restart")  # how the reasons of JobSet's restart events begin
_PEER_LOST, _STOPPED = 75, 143  # how healthy hosts end when another one failed
_EXITED = re.compile(r"Container \S+ for pod (?:\S+/)?(\S+) failed with exit code (\d+)")
_DISRUPTED = re.compile(r"Pod (?:\S+/)?(\S+) has condition DisruptionTarget")
_LOCAL = re.compile(r"The host (ended with exit code (\d+).*)")
_BLAMED = re.compile(r"first failed job: ([^:\s)]+)")
_HOST = re.compile(r"-(\d+)-(\d+)-\w{5}$")
_LATE = timedelta(seconds=2)  # by how much a Job's event may come after the restart that it led to
_MOST_ATTEMPTS = 1000  # whose causes are looked for
_LOST_NODE = ("NodeNotReady", "TaintManagerEviction")
_EVICTED = ("Preempted", "Evicted", *_LOST_NODE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One Job, that is slice, or one host that failed; `words` say how."""

    time: str
    job: str
    words: str
    host: tuple[int, int] | None = None
    exit_code: int | None = None

    @property
    def is_own(self) -> bool:
        """Whether it failed by itself, and not because another one did."""
        return self.host is not None and self.exit_code not in (_PEER_LOST, _STOPPED)


def restarts(events: Sequence[Obj], uid: str, count: int) -> tuple[Restart, ...]:
    """Return the restarts of the JobSet `uid` that its events tell of; `count` is how many there were in all."""
    marks = _marks(events, uid)
    groups = _groups(events, marks)
    found = []
    for index, (time, message) in enumerate(marks):
        found.append(_restart(groups.pop(index, []), time, message))
    # Restarts for the same Job are one event: those in between have left their failures only.
    last = when(marks[-1][0]) if marks else None
    found += [_restart(group, group[0].time, "") for group in groups.values() if last and when(group[0].time) < last]
    found.sort(key=lambda restart: when(restart.time))
    first = count - len(found)
    return tuple(
        replace(each, attempt=first + index) if first >= 0 else each
        for index, each in enumerate(found[-count or None :])
    )


def last_failure(events: Sequence[Obj], uid: str) -> Failure | None:
    """Return what failed after the last restart."""
    marks = _marks(events, uid)
    group = _groups(events, marks).get(len(marks), [])
    return _cause(group, "") if group else None


def with_output(status: WorkloadStatus, roots: OutputRoots) -> WorkloadStatus:
    """Return a status with what hosts wrote down of the restarts whose cause events do not tell."""
    known = {restart.attempt: restart for restart in status.restart_history}
    wanted = [
        attempt
        for attempt in range(max(0, status.restarts - _MOST_ATTEMPTS), status.restarts)
        if attempt not in known or known[attempt].host is None or known[attempt].exit_code == _PEER_LOST
    ]
    if not wanted or not status.output_dir:
        return status
    try:
        written = promptly(roots.to_read(status), lambda folder: _written(folder, when(status.created)))
    except XpkError:  # whoever asks for the progress hears of it
        return status
    for attempt in wanted:
        if attempt in written:
            told = written[attempt]
            known[attempt] = replace(told, time=known[attempt].time) if attempt in known else told
    unknown = [restart for restart in status.restart_history if restart.attempt is None]
    numbered = [known[attempt] for attempt in sorted(key for key in known if key is not None)]
    return replace(status, restart_history=tuple([*unknown, *numbered]))


def _marks(events: Iterable[Obj], uid: str) -> list[tuple[str, str]]:
    """Return when JobSet restarted the workload, and what it said."""
    found = []
    for event in events:
        if (event.get("involvedObject") or {}).get("uid") != uid:
            continue
        if str(event.get("reason", "")).startswith(_MARKS):
            first, last, count = event_times(event)
            message = str(event.get("message", ""))
            found += [(time, message) for time in ([first, last] if count > 1 else [last])]
    return sorted(found, key=lambda mark: when(mark[0]))


def _groups(events: Sequence[Obj], marks: list[tuple[str, str]]) -> dict[int, list[Failure]]:
    """Return the failures by the index of the restart that followed them; those after the last come last.

    A Job fails once an attempt: where one does so twice, an attempt in between is not marked.
    """
    if any(is_local(event) for event in events):
        return _local_groups(events)
    found: dict[int, list[Failure]] = {}
    spare = 1 + len(marks)
    for failure in sorted(filter(None, (_of_job(event, events) for event in events)), key=lambda each: when(each.time)):
        index = sum(when(time) + _LATE < when(failure.time) for time, _ in marks)
        group = found.get(index, [])
        if any(each.job == failure.job for each in group):
            found[spare], spare = group, spare + 1
            group = []
        found[index] = [*group, failure]
    return found


def _local_groups(events: Iterable[Obj]) -> dict[int, list[Failure]]:
    """Return the same where every host's end is an event, and events are in the order in which they happened."""
    found: dict[int, list[Failure]] = {}
    index = 0
    ordered = sorted(events, key=lambda event: (event_times(event)[1], str(event["metadata"].get("uid"))))
    for event in ordered:
        about, reason = event.get("involvedObject") or {}, str(event.get("reason", ""))
        said = _LOCAL.match(str(event.get("message", "")))
        if about.get("kind") == "JobSet" and reason.startswith(_MARKS):
            index += 1
        elif said and about.get("kind") == "Pod" and event.get("type") == "Warning":
            name, time = str(about["name"]), event_times(event)[1]
            failure = Failure(time=time, job=_job_of(name), words=said[1], host=_host_of(name), exit_code=int(said[2]))
            found.setdefault(index, []).append(failure)
    return found


def _of_job(event: Obj, events: Iterable[Obj]) -> Failure | None:
    """Return the failure that a Job's event tells of, None if it tells of none."""
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
    """Return what happened to a pod that was taken away."""
    about = [event for event in events if (event.get("involvedObject") or {}).get("name") == pod]
    placed = next((str(e.get("message")).rpartition(" to ")[2] for e in about if e.get("reason") == "Scheduled"), "")
    told = next((event for event in about if event.get("reason") in _EVICTED), None)
    if told is None:
        return "was evicted" + (f" from node {placed}" if placed else "")
    if told["reason"] in _LOST_NODE:
        return f"was on node {placed or 'of its own'}, which was lost or drained"
    return f"was evicted: {short(told.get('message'))}"


def _only_failed_pod(job: Obj, events: Iterable[Obj]) -> str:
    """Return the one pod of a Job that nobody had to delete when the Job failed, if it is one."""
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
    who = "host s{}/h{}".format(*cause.host) if cause.host else f"slice {cause.job.rpartition('-')[2]}"
    slice_id, host = cause.host or (None, None)
    words = f"{who} {cause.words}" if cause.host else f"{who}: {cause.words}"
    return Restart(time=time, cause=words, slice=slice_id, host=host, exit_code=cause.exit_code)


def _cause(group: list[Failure], message: str) -> Failure | None:
    """Return the failure behind the others: one of its own, of the Job that JobSet blames, the first."""
    blamed = match[1] if (match := _BLAMED.search(message)) else ""
    return min(group, key=lambda each: (not each.is_own, each.job != blamed, when(each.time)), default=None)


def _host_of(pod: str) -> tuple[int, int] | None:
    match = _HOST.search(pod)
    return (int(match[1]), int(match[2])) if match else None


def _job_of(pod: str) -> str:
    return pod.rsplit("-", 2)[0]


@dataclass(frozen=True, slots=True)
class _EventsOnly:
    """A run's files without its metrics, which are large and tell nothing of failures."""

    folder: Folder

    def read(self, path: str) -> bytes | None:
        return None if path == "metrics.jsonl" else self.folder.read(path)

    def read_all(self, folder: str) -> dict[str, bytes]:
        return self.folder.read_all(folder)


def _written(folder: Folder, since: datetime) -> dict[int, Restart]:
    """Return how the attempts since a time ended, as the hosts wrote it down."""
    from xpk.jobs.report.goodput import attempts
    from xpk.jobs.report.record import read_record

    found = {}
    for attempt in attempts(read_record(_EventsOnly(folder))):
        host = attempt.cause_host
        if attempt.ended not in ("failed", "host lost") or host is None or attempt.end < since.timestamp():
            continue
        said = attempt.reason.removeprefix(f"{host}: ").removeprefix(f"{host} ")
        found[attempt.restart_count] = Restart(
            time=datetime.fromtimestamp(attempt.end, UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
            cause=f"host s{host.slice}/h{host.host} {said}"
            if said == "died"
            else f"host s{host.slice}/h{host.host}: {said}",
            attempt=attempt.restart_count,
            slice=host.slice,
            host=host.host,
        )
    return found
