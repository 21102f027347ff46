"""Logs of all hosts of a workload, merged in the order of time."""

from __future__ import annotations

import heapq
import queue
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import chain

from xpk.api.base import LogLine, Obj, ObjectApi
from xpk.api.paths import container_of, programs_of
from xpk.api.server_errors import NotStartedError
from xpk.api.text import short
from xpk.jobs.outage import SIGNS, Outage
from xpk.jobs.status.diagnosis import waits_for
from xpk.jobs.status.fields import host_key, host_label, is_true, number
from xpk.jobs.status.reader import find
from xpk.model.errors import AuthorizationError, NotFoundError, UnavailableError, UsageError, XpkError
from xpk.model.status import WorkloadStatus

_PAUSE = 0.2  # seconds during which lines are collected
_LOOK_SECONDS = 1.5  # between checks for new hosts, unless one has ended
_TRIES, _TRY_PAUSE = 60, 1.0  # tries, and seconds between them, if reading a new host's log is refused
_AHEAD = 10_000  # buffered lines
_ATTEMPT = "jobset.sigs.k8s.io/restart-attempt"
_MAX_HOSTS = 128  # each needs a stream and, with --follow, a thread
_MAX_NAMED = 8  # hosts without a log that are named for one cause
# Written by every host at every start, once for each group of hosts with collectives over CPUs.
_CHATTER = re.compile(r".*\[Gloo\] Rank |.*\bis connected to \d+ peer ranks\b")  # threads tear each other's lines
_CHATTER_LINES = 100  # extra lines that are read at first to find `tail` other lines


@dataclass(frozen=True, slots=True, kw_only=True)
class LogQuery:
    """Selection of log lines. Raises UsageError for a negative number of lines."""

    slice: int | None = None
    host: int | None = None
    since: datetime | None = None
    tail: int | None = None  # the last lines of each host
    grep: str | None = None
    all_lines: bool = False  # include Gloo's lines about connections; otherwise `tail` does not count them

    def __post_init__(self) -> None:
        if self.tail is not None and self.tail < 0:
            raise UsageError(f"tail must be 0 or more, got {self.tail}", hint="omit it for all lines")


@dataclass(frozen=True, slots=True, order=True)
class HostLine:
    """One line and the host that wrote it."""

    time: datetime
    slice: int
    host: int
    text: str


_Lines = queue.Queue[HostLine | Exception]  # an exception is the last item of a reader that failed


def read_logs(
    api: ObjectApi,
    name: str,
    namespace: str,
    query: LogQuery,
    *,
    previous: bool = False,
    tell: Callable[[str], None] = lambda text: None,
) -> Iterator[HostLine]:
    """Yield the lines of the newest attempt, or of the previous one; `tell` reports hosts without a log and the reason.

    Raises NotFoundError for an unknown workload, host or attempt, UsageError for an invalid pattern or too many hosts,
    XpkError if no host has a log yet.
    """
    keep = _filter(query)
    pods = [program for pod in _pods(api, name, namespace, query, previous=previous) for program in programs_of(pod)]
    begun: list[Iterator[HostLine]] = []
    causes: dict[str, list[str]] = {}
    for pod in pods:
        lines, why = _begin(api, pod, query)
        if why:
            causes.setdefault(why, []).append(host_label(pod))
        else:
            begun.append(_until_failure(lines, host_label(pod), tell))
    hosts = ", ".join(f"{_some(hosts)} ({why})" for why, hosts in causes.items())
    if not begun:
        raise XpkError(f"no host of '{name}' has a log yet: {hosts}", hint=f"`xpk workload status {name}`")
    if hosts:
        tell(f"no log yet of {hosts}")
    return filter(keep, heapq.merge(*begun))


def follow_logs(
    api: ObjectApi, name: str, namespace: str, query: LogQuery, *, pause: Callable[[float], None] = time.sleep
) -> Iterator[HostLine]:
    """Yield the lines of the hosts, across restarts, until the workload ends.

    Raises the errors of `read_logs`, and of reading a host's log.
    """
    keep = _filter(query)
    status = find(api, name, namespace)
    _check_few(status, query)
    _check_hosts_exist(status, query)
    lines: _Lines = queue.Queue(maxsize=_AHEAD)
    readers: dict[tuple[str, str], threading.Thread] = {}  # by pod and container
    readable = threading.Event()
    passed_over: set[str] | None = None
    outage = Outage()
    while True:
        try:
            final = _is_over(api, name, namespace)
            # Former pods have the lines of hosts that ended since the last check.
            pods = api.former_pods(namespace, _selector(name)) + api.list("Pod", namespace, _selector(name))
            outage.end()
        except SIGNS as error:
            outage.pause_or_raise(error)
            continue
        checked_at, ended = time.monotonic(), _ended(readers)
        first_query = (
            query if passed_over is None else replace(query, tail=None)
        )  # `tail` applies to the first pods only
        if passed_over is None:
            passed_over = {pod["metadata"]["uid"] for pod in _by_age(pods)[1]}
        for pod in chain.from_iterable(map(programs_of, _matching(pods, query))):
            uid = pod["metadata"]["uid"]
            source = (uid, container_of(pod))
            started = pod.get("status", {}).get("phase", "Pending") != "Pending"
            if started and source not in readers and uid not in passed_over:
                readers[source] = threading.Thread(
                    target=_pump, args=(api, pod, first_query, lines, readable, pause), daemon=True
                )
                readers[source].start()
        while True:
            yield from filter(keep, _drain(lines))
            # In this order, so that the last lines of a reader are not missed.
            now = _ended(readers)
            if final and now == len(readers) and lines.empty():
                return
            if not final and (now > ended or time.monotonic() - checked_at > _LOOK_SECONDS):
                break


def _ended(readers: dict[tuple[str, str], threading.Thread]) -> int:
    return sum(not reader.is_alive() for reader in readers.values())


def _check_hosts_exist(status: WorkloadStatus, query: LogQuery) -> None:
    """Raise NotFoundError for a slice or host beyond the workload's size."""
    sizes = (("slice", query.slice, status.num_slices), ("host", query.host, status.hosts_per_slice))
    for noun, index, count in sizes:
        if index is not None and not 0 <= index < count:
            valid = f"choose from 0 to {count - 1}" if count > 1 else "choose 0"
            raise NotFoundError(f"'{status.name}' has no {noun} {index}", hint=valid)


def _pods(api: ObjectApi, name: str, namespace: str, query: LogQuery, *, previous: bool) -> list[Obj]:
    status = find(api, name, namespace)
    _check_few(status, query)
    pods = api.former_pods(namespace, _selector(name)) + api.list("Pod", namespace, _selector(name))
    newest, before = _by_age(pods)
    if previous and not before:
        raise NotFoundError(
            f"no logs of previous attempts of '{name}' are kept",
            hint=f"`xpk workload logs {name}` shows the newest attempt, and those before restarts in place, which "
            "continue the same log; on Kubernetes, JobSet deletes the pods of an attempt with their logs before it "
            "starts the next one",
        )
    chosen = before if previous else newest
    selected = _matching(chosen, query)
    if not selected and (query.slice is not None or query.host is not None):
        hosts = ", ".join(sorted({"s{}/h{}".format(*host_key(pod)) for pod in chosen})) or "none yet"
        raise NotFoundError(f"no such host of '{name}' has run", hint=f"choose from {hosts}")
    if not selected:
        raise NotFoundError(f"no host of '{name}' has started: {status.reason}", hint=f"`xpk workload status {name}`")
    return selected


def _check_few(status: WorkloadStatus, query: LogQuery) -> None:
    """Raise UsageError if more hosts are selected than can be read at once."""
    slices = status.num_slices if query.slice is None else 1
    hosts = status.hosts_per_slice if query.host is None else 1
    count = min(status.num_hosts, slices * hosts)
    if count > _MAX_HOSTS:
        narrower = [f"--slice {query.slice if query.slice is not None else 'N'}"]
        narrower += ["--host M"] if hosts > _MAX_HOSTS else []
        raise UsageError(
            f"cannot read the logs of {count} hosts of '{status.name}' at once; the maximum is {_MAX_HOSTS}",
            hint=f"select fewer hosts: `xpk workload logs {status.name} {' '.join(narrower)}`",
        )


def _by_age(pods: list[Obj]) -> tuple[list[Obj], list[Obj]]:
    """Return the hosts' newest pods, if of the newest attempt, and their previous pods.

    A suspended workload resumes with the same attempt number, so its pods differ only by age.
    """
    latest = max((_attempt(pod) for pod in pods), default=0)
    newest: dict[tuple[int, int], Obj] = {}
    before: dict[tuple[int, int], Obj] = {}
    for pod in sorted(pods, key=lambda pod: (_attempt(pod), pod["metadata"]["creationTimestamp"])):
        key = host_key(pod)
        if key in newest:
            before[key] = newest.pop(key)
        if _attempt(pod) == latest:
            newest[key] = pod
        else:
            before[key] = pod
    return list(newest.values()), list(before.values())


def _matching(pods: list[Obj], query: LogQuery) -> list[Obj]:
    return [
        pod
        for pod in sorted(pods, key=host_key)
        if query.slice in (None, host_key(pod)[0]) and query.host in (None, host_key(pod)[1])
    ]


def _lines(api: ObjectApi, pod: Obj, query: LogQuery, *, follow: bool = False) -> Iterator[HostLine]:
    slice_id, host = host_key(pod)
    tail = query.tail
    if tail and not query.all_lines:
        tail = _tail_with_chatter(api, pod, query, tail)
    line: LogLine
    for line in api.logs(pod, follow=follow, since=query.since, tail=tail):
        if query.all_lines or not _CHATTER.match(line.text):
            yield HostLine(line.time, slice_id, host, line.text)


def _tail_with_chatter(api: ObjectApi, pod: Obj, query: LogQuery, tail: int) -> int | None:
    """Return the number of last lines of a log that contain `tail` lines without chatter; None for the whole log."""
    count = tail + _CHATTER_LINES
    while True:
        try:
            notable_events = [not _CHATTER.match(line.text) for line in api.logs(pod, since=query.since, tail=count)]
        except (NotStartedError, UnavailableError):  # handled by the following read
            return tail
        if sum(notable_events) >= tail:
            last = [number for number, tells in enumerate(notable_events) if tells][-tail]
            return len(notable_events) - last
        if len(notable_events) < count:
            return None
        count *= 4


def _begin(api: ObjectApi, pod: Obj, query: LogQuery) -> tuple[Iterator[HostLine], str]:
    """Return a host's lines, the first already read, and the reason why it has no log yet, "" if it has one."""
    lines = _lines(api, pod, query)
    try:
        return chain([next(lines)], lines), ""
    except NotStartedError:
        return lines, waits_for(pod)
    except NotFoundError:
        return lines, "its pod was deleted"
    except UnavailableError as error:  # its node does not respond
        return lines, short(error.message)
    except StopIteration:  # servers return an empty log for a pod without a node
        return lines, waits_for(pod) if pod.get("status", {}).get("phase", "Pending") == "Pending" else ""


def _until_failure(lines: Iterator[HostLine], host: str, tell: Callable[[str], None]) -> Iterator[HostLine]:
    """Yield a host's lines up to a failure, which is reported, so that lines of other hosts continue."""
    try:
        yield from lines
    except UnavailableError as error:
        tell(f"the log of {host} is incomplete: {error.message}")


def _some(hosts: list[str]) -> str:
    more = len(hosts) - _MAX_NAMED
    return ", ".join(hosts[:_MAX_NAMED]) + (f" and {more} more" if more > 0 else "")


def _pump(
    api: ObjectApi,
    pod: Obj,
    query: LogQuery,
    lines: _Lines,
    readable: threading.Event,
    pause: Callable[[float], None],
) -> None:
    """Put a host's lines into the queue, and the exception if they cannot be read."""
    for tries_left in reversed(range(_TRIES)):
        begun = False
        try:
            for line in _lines(api, pod, query, follow=True):
                begun = True
                readable.set()
                lines.put(line)
            return
        except NotFoundError:
            return  # deleted while it was read; the workload's end or restart has the reason
        except Exception as error:
            # A server that has just started does not know permissions yet; they are known to suffice for other hosts.
            is_refused = isinstance(error, AuthorizationError) and readable.is_set() and not begun
            if not (is_refused and tries_left):
                lines.put(error)
                return
        pause(_TRY_PAUSE)


def _drain(lines: _Lines) -> Iterator[HostLine]:
    """Yield the lines of one pause in order of time, then raise the exception of a reader, if any."""
    batch: list[HostLine] = []
    failed: Exception | None = None
    try:
        item = lines.get(timeout=_PAUSE)
        while not isinstance(item, Exception):
            batch.append(item)
            if len(batch) == _AHEAD:
                break
            item = lines.get_nowait()
        else:
            failed = item
    except queue.Empty:
        pass
    yield from sorted(batch)
    if failed is not None:
        raise failed


def _is_over(api: ObjectApi, name: str, namespace: str) -> bool:
    """Return True if the workload has ended. Called several times a second, so it reads only one object."""
    try:
        jobset = api.get("JobSet", name, namespace)
    except NotFoundError:
        return True
    return is_true(jobset, "Completed") or is_true(jobset, "Failed")


def _filter(query: LogQuery) -> Callable[[HostLine], bool]:
    if query.grep is None:
        return lambda line: True
    try:
        pattern = re.compile(query.grep)
    except re.error as error:
        raise UsageError(
            f"--grep {query.grep!r} is not a regular expression: {error}",
            hint="escape ( [ * + ? . with a backslash to match them literally",
        ) from error
    return lambda line: pattern.search(line.text) is not None


def _attempt(pod: Obj) -> int:
    """Return the attempt of a pod, 0 for a pod that JobSet did not label."""
    return number((pod["metadata"].get("labels") or {}).get(_ATTEMPT))


def _selector(name: str) -> dict[str, str]:
    return {"jobset.sigs.k8s.io/jobset-name": name}
