"""The log lines of all hosts of a workload, merged in the order in which they were written."""

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
from xpk.api.server_errors import NotStartedError
from xpk.api.text import short
from xpk.jobs.retry import SIGNS, Outage
from xpk.jobs.status.diagnosis import waits_for
from xpk.jobs.status.fields import host_key, host_label, is_true
from xpk.jobs.status.reader import find
from xpk.model.errors import AuthorizationError, NotFoundError, UnavailableError, UsageError, XpkError
from xpk.model.status import WorkloadStatus

_PAUSE = 0.2  # seconds for which lines are collected
_LOOK_SECONDS = 1.5  # between looks for new hosts, unless one has ended
_TRIES, _TRY_PAUSE = 60, 1.0  # seconds, for a new host's log that may not be read though others could
_AHEAD = 10_000  # lines that are read before somebody takes them
_ATTEMPT = "jobset.sigs.k8s.io/restart-attempt"
_MOST_HOSTS = 128  # each is a stream of its own, and a thread where they are followed
_MOST_NAMED = 8  # hosts without a log yet, of one cause
# Written by every host at every start, once for each group of hosts whose collectives go over CPUs.
_CHATTER = re.compile(r".*\[Gloo\] Rank |.*\bis connected to \d+ peer ranks\b")  # its threads tear each other's lines
_CHATTER_LINES = 100  # that are read beside the wanted ones at first


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which lines: of which slice and host, since when, the last `tail` of each host, matching `grep`.

    `all_lines`: also those that Gloo writes about its connections; without them they do not count for `tail`.
    """

    slice: int | None = None
    host: int | None = None
    since: datetime | None = None
    tail: int | None = None
    grep: str | None = None
    all_lines: bool = False


@dataclass(frozen=True, slots=True, order=True)
class HostLine:
    """One line and the host that wrote it."""

    time: datetime
    slice: int
    host: int
    text: str


_Lines = queue.Queue[HostLine | Exception]  # an error is that of a reader, which has ended with it


def read_logs(
    api: ObjectApi,
    name: str,
    namespace: str,
    wanted: Wanted,
    *,
    previous: bool = False,
    tell: Callable[[str], None] = lambda text: None,
) -> Iterator[HostLine]:
    """Yield what the hosts of the newest attempt wrote, or of the one before it; `tell` which have no log yet, and why.

    Raises NotFoundError if there is no such workload, host or attempt, UsageError for a bad pattern or for more
    hosts than can be read at once, XpkError if no host has a log yet.
    """
    keep = _filter(wanted)
    pods = _pods(api, name, namespace, wanted, previous=previous)
    begun: list[Iterator[HostLine]] = []
    causes: dict[str, list[str]] = {}
    for pod in pods:
        lines, why = _begin(api, pod, wanted)
        if why:
            causes.setdefault(why, []).append(host_label(pod))
        else:
            begun.append(_to_the_break(lines, host_label(pod), tell))
    hosts = ", ".join(f"{_some(hosts)} ({why})" for why, hosts in causes.items())
    if not begun:
        raise XpkError(f"no host of '{name}' has a log yet: {hosts}", hint=f"`xpk workload status {name}` says more")
    if hosts:
        tell(f"no log yet of {hosts}")
    return filter(keep, heapq.merge(*begun))


def follow_logs(api: ObjectApi, name: str, namespace: str, wanted: Wanted) -> Iterator[HostLine]:
    """Yield what the hosts write, over restarts, until the workload ends.

    Raises as `read_logs` does, and what a host's log cannot be read for.
    """
    keep = _filter(wanted)
    status = find(api, name, namespace)
    _check_few(status, wanted)
    _check_there(status, wanted)
    lines: _Lines = queue.Queue(maxsize=_AHEAD)
    readers: dict[str, threading.Thread] = {}
    readable = threading.Event()
    passed_over: set[str] | None = None
    outage = Outage()
    while True:
        try:
            final = _is_over(api, name, namespace)
            # A host may end between two looks: what it wrote is kept.
            pods = api.former_pods(namespace, _selector(name)) + api.list("Pod", namespace, _selector(name))
            outage.over()
        except SIGNS as error:
            outage.goes_on(error)
            continue
        looked, ended = time.monotonic(), _ended(readers)
        asked = wanted if passed_over is None else replace(wanted, tail=None)  # what comes later is followed whole
        if passed_over is None:
            passed_over = {pod["metadata"]["uid"] for pod in _by_age(pods)[1]}
        for pod in _matching(pods, wanted):
            uid = pod["metadata"]["uid"]
            started = pod.get("status", {}).get("phase", "Pending") != "Pending"
            if started and uid not in readers and uid not in passed_over:
                readers[uid] = threading.Thread(target=_pump, args=(api, pod, asked, lines, readable), daemon=True)
                readers[uid].start()
        while True:
            yield from filter(keep, _drain(lines))
            # In this order: what a reader leaves as its last is seen.
            now = _ended(readers)
            if final and now == len(readers) and lines.empty():
                return
            if not final and (now > ended or time.monotonic() - looked > _LOOK_SECONDS):
                break


def _ended(readers: dict[str, threading.Thread]) -> int:
    return sum(not reader.is_alive() for reader in readers.values())


def _check_there(status: WorkloadStatus, wanted: Wanted) -> None:
    """Raise NotFoundError for a slice or host that the workload will never have."""
    sizes = (("slice", wanted.slice, status.num_slices), ("host", wanted.host, status.hosts_per_slice))
    for what, asked, count in sizes:
        if asked is not None and not 0 <= asked < count:
            there = f"they are 0 to {count - 1}" if count > 1 else "there is 0 alone"
            raise NotFoundError(f"'{status.name}' has no {what} {asked}", hint=there)


def _pods(api: ObjectApi, name: str, namespace: str, wanted: Wanted, *, previous: bool) -> list[Obj]:
    status = find(api, name, namespace)
    _check_few(status, wanted)
    pods = api.former_pods(namespace, _selector(name)) + api.list("Pod", namespace, _selector(name))
    newest, before = _by_age(pods)
    if previous and not before:
        raise NotFoundError(
            f"no log of an attempt before the newest one of '{name}' is kept",
            hint=f"`xpk workload logs {name}` shows the newest; JobSet on Kubernetes deletes an attempt's pods, "
            "and their logs with them, before the next one begins",
        )
    chosen = before if previous else newest
    found = _matching(chosen, wanted)
    if not found and (wanted.slice is not None or wanted.host is not None):
        there = ", ".join(sorted({"s{}/h{}".format(*host_key(pod)) for pod in chosen})) or "none yet"
        raise NotFoundError(f"no such host of '{name}' has run", hint=f"there are: {there}")
    if not found:
        raise NotFoundError(
            f"no host of '{name}' has started: {status.reason}", hint=f"`xpk workload status {name}` says why"
        )
    return found


def _check_few(status: WorkloadStatus, wanted: Wanted) -> None:
    """Raise UsageError where more hosts are asked for than can be read at once."""
    slices = status.num_slices if wanted.slice is None else 1
    hosts = status.hosts_per_slice if wanted.host is None else 1
    count = min(status.num_hosts, slices * hosts)
    if count > _MOST_HOSTS:
        narrower = [f"--slice {wanted.slice if wanted.slice is not None else 'N'}"]
        narrower += ["--host M"] if hosts > _MOST_HOSTS else []
        raise UsageError(
            f"the logs of {count} hosts of '{status.name}' are too many at once: {_MOST_HOSTS} are the most",
            hint=f"`xpk workload logs {status.name} {' '.join(narrower)}` shows those of fewer",
        )


def _by_age(pods: list[Obj]) -> tuple[list[Obj], list[Obj]]:
    """Return each host's newest pod, if it is of the newest attempt, and the one before it.

    A suspended workload resumes with the attempt that it had, so its pods differ by age alone.
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


def _matching(pods: list[Obj], wanted: Wanted) -> list[Obj]:
    return [
        pod
        for pod in sorted(pods, key=host_key)
        if wanted.slice in (None, host_key(pod)[0]) and wanted.host in (None, host_key(pod)[1])
    ]


def _lines(api: ObjectApi, pod: Obj, wanted: Wanted, *, follow: bool = False) -> Iterator[HostLine]:
    slice_id, host = host_key(pod)
    tail = wanted.tail
    if tail and not wanted.all_lines:
        tail = _tail_with_chatter(api, pod, wanted, tail)
    line: LogLine
    for line in api.logs(pod, follow=follow, since=wanted.since, tail=tail):
        if wanted.all_lines or not _CHATTER.match(line.text):
            yield HostLine(line.time, slice_id, host, line.text)


def _tail_with_chatter(api: ObjectApi, pod: Obj, wanted: Wanted, tail: int) -> int | None:
    """Return how many last lines of a log hold `tail` that are not chatter; None if all of them do not hold more."""
    asked = tail + _CHATTER_LINES
    while True:
        try:
            telling = [not _CHATTER.match(line.text) for line in api.logs(pod, since=wanted.since, tail=asked)]
        except (NotStartedError, UnavailableError):  # for the one who reads it next to deal with
            return tail
        if sum(telling) >= tail:
            last = [number for number, tells in enumerate(telling) if tells][-tail]
            return len(telling) - last
        if len(telling) < asked:
            return None
        asked *= 4


def _begin(api: ObjectApi, pod: Obj, wanted: Wanted) -> tuple[Iterator[HostLine], str]:
    """Return a host's lines, the first of them read already, and why it has no log yet, "" if it has one."""
    lines = _lines(api, pod, wanted)
    try:
        return chain([next(lines)], lines), ""
    except NotStartedError:
        return lines, waits_for(pod)
    except NotFoundError:
        return lines, "its pod is gone"
    except UnavailableError as error:  # its node does not answer
        return lines, short(error.message)
    except StopIteration:  # a server gives an empty log of a pod that has no node
        return lines, waits_for(pod) if pod.get("status", {}).get("phase", "Pending") == "Pending" else ""


def _to_the_break(lines: Iterator[HostLine], host: str, tell: Callable[[str], None]) -> Iterator[HostLine]:
    """Yield a host's lines as far as they can be read: those of other hosts go on."""
    try:
        yield from lines
    except UnavailableError as error:
        tell(f"the log of {host} breaks off here: {error.message}")


def _some(hosts: list[str]) -> str:
    more = len(hosts) - _MOST_NAMED
    return ", ".join(hosts[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _pump(api: ObjectApi, pod: Obj, wanted: Wanted, lines: _Lines, readable: threading.Event) -> None:
    """Put a host's lines into the queue, or why they cannot be read: nobody would hear of it on this thread."""
    for left in reversed(range(_TRIES)):
        begun = False
        try:
            for line in _lines(api, pod, wanted, follow=True):
                begun = True
                readable.set()
                lines.put(line)
            return
        except NotFoundError:
            return  # the pod went away while we were reading; its workload's end or restart tells why
        except Exception as error:
            # A server that has just started does not know yet who may read; that we may is known from other hosts.
            refused = isinstance(error, AuthorizationError) and readable.is_set() and not begun
            if not (refused and left):
                lines.put(error)
                return
        time.sleep(_TRY_PAUSE)


def _drain(lines: _Lines) -> Iterator[HostLine]:
    """Yield what came in within the pause, in order of time; then raise the error of a reader, if there is one."""
    batch: list[HostLine] = []
    failed: Exception | None = None
    try:
        found = lines.get(timeout=_PAUSE)
        while not isinstance(found, Exception):
            batch.append(found)
            if len(batch) == _AHEAD:
                break
            found = lines.get_nowait()
        else:
            failed = found
    except queue.Empty:
        pass
    yield from sorted(batch)
    if failed is not None:
        raise failed


def _is_over(api: ObjectApi, name: str, namespace: str) -> bool:
    """Tell whether there is nothing more to come. Asked several times a second, so it reads one object only."""
    try:
        jobset = api.get("JobSet", name, namespace)
    except NotFoundError:
        return True
    return is_true(jobset, "Completed") or is_true(jobset, "Failed")


def _filter(wanted: Wanted) -> Callable[[HostLine], bool]:
    if wanted.grep is None:
        return lambda line: True
    try:
        pattern = re.compile(wanted.grep)
    except re.error as error:
        raise UsageError(
            f"--grep {wanted.grep!r} is not a regular expression: {error}",
            hint="escape ( [ * + ? . with a backslash to find them as they are",
        ) from error
    return lambda line: pattern.search(line.text) is not None


def _attempt(pod: Obj) -> int:
    return int(pod["metadata"]["labels"].get(_ATTEMPT, 0))


def _selector(name: str) -> dict[str, str]:
    return {"jobset.sigs.k8s.io/jobset-name": name}
