"""Logs of all hosts of a workload, merged in the order of time."""

from __future__ import annotations

import heapq
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain

from xpk.api.base import Obj, ObjectApi
from xpk.api.paths import programs_of
from xpk.api.server_errors import NotStartedError
from xpk.api.text import short
from xpk.jobs.host_logs import HostLine, HostReaders, LogQuery, host_lines
from xpk.jobs.outage import SIGNS, Outage
from xpk.jobs.status.diagnosis import waits_for
from xpk.jobs.status.fields import host_key, host_label, is_true, number
from xpk.jobs.status.reader import find
from xpk.model.errors import NotFoundError, UnavailableError, UsageError, XpkError
from xpk.model.status import WorkloadStatus

_SILENCE_SECONDS = 30.0  # after the end of a workload, until hosts that have not ended are given up
_ATTEMPT = "jobset.sigs.k8s.io/restart-attempt"
_MAX_HOSTS = 128  # each needs a stream and, with --follow, a thread
_MAX_NAMED = 8  # hosts without a log that are named for one cause


def read_logs(
    api: ObjectApi,
    name: str,
    namespace: str,
    query: LogQuery,
    *,
    previous: bool = False,
    where: str = "",
    tell: Callable[[str], None] = lambda text: None,
) -> Iterator[HostLine]:
    """Yield the lines of the newest attempt, or of the previous one; `tell` reports hosts without a log and the reason.

    `where`: flags of commands in hints.
    Raises NotFoundError for an unknown workload, host or attempt, UsageError for an invalid pattern or too many hosts,
    XpkError if no host has a log yet.
    """
    keep = _filter(query)
    selected = _pods(api, name, namespace, query, previous=previous, where=where)
    pods = [program for pod in selected for program in programs_of(pod)]
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
        raise XpkError(f"no host of '{name}' has a log yet: {hosts}", hint=f"`xpk workload status {name}{where}`")
    if hosts:
        tell(f"no log yet of {hosts}")
    return filter(keep, heapq.merge(*begun))


def follow_logs(
    api: ObjectApi,
    name: str,
    namespace: str,
    query: LogQuery,
    *,
    where: str = "",
    tell: Callable[[str], None] = lambda text: None,
    pause: Callable[[float], None] = time.sleep,
    silence_seconds: float = _SILENCE_SECONDS,
) -> Iterator[HostLine]:
    """Yield the lines of the hosts, across restarts, until the workload ends.

    Hosts that have not ended then, such as those of a dead node, are waited for until nothing was received for
    `silence_seconds` or their grace period; `tell` reports them. `where`: flags of commands in hints. Raises the errors
    of `read_logs`, and of reading a host's log.
    """
    keep = _filter(query)
    status = find(api, name, namespace)
    _check_few(status, query, where)
    _check_hosts_exist(status, query)
    readers = HostReaders(api, pause)
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
        ended = readers.ended
        first_query = (
            query if passed_over is None else replace(query, tail=None)
        )  # `tail` applies to the first pods only
        if passed_over is None:
            passed_over = {pod["metadata"]["uid"] for pod in _by_age(pods)[1]}
        for pod in chain.from_iterable(map(programs_of, _matching(pods, query))):
            started = pod.get("status", {}).get("phase", "Pending") != "Pending"
            if started and pod["metadata"]["uid"] not in passed_over:
                readers.start(pod, first_query)
        if final:
            yield from filter(keep, readers.last_lines(silence_seconds))
            break
        yield from filter(keep, readers.lines_until_look(ended))
    if hosts := readers.hosts_left():
        tell(f"the log of {_some(hosts)} is incomplete: not ended, and silent since the workload has ended")


def _check_hosts_exist(status: WorkloadStatus, query: LogQuery) -> None:
    """Raise NotFoundError for a slice or host beyond the workload's size."""
    sizes = (("slice", query.slice, status.num_slices), ("host", query.host, status.hosts_per_slice))
    for noun, index, count in sizes:
        if index is not None and not 0 <= index < count:
            valid = f"choose from 0 to {count - 1}" if count > 1 else "choose 0"
            raise NotFoundError(f"'{status.name}' has no {noun} {index}", hint=valid)


def _pods(api: ObjectApi, name: str, namespace: str, query: LogQuery, *, previous: bool, where: str) -> list[Obj]:
    status = find(api, name, namespace)
    _check_few(status, query, where)
    pods = api.former_pods(namespace, _selector(name)) + api.list("Pod", namespace, _selector(name))
    newest, before = _by_age(pods)
    if previous and not before:
        raise NotFoundError(
            f"no logs of previous attempts of '{name}' are kept",
            hint=f"`xpk workload logs {name}{where}` shows the newest attempt, and those before restarts in place, "
            "which continue the same log; on Kubernetes, JobSet deletes the pods of an attempt with their logs before "
            "it starts the next one",
        )
    chosen = before if previous else newest
    selected = _matching(chosen, query)
    if not selected and (query.slice is not None or query.host is not None):
        hosts = ", ".join(sorted({"s{}/h{}".format(*host_key(pod)) for pod in chosen})) or "none yet"
        raise NotFoundError(f"no such host of '{name}' has run", hint=f"choose from {hosts}")
    if not selected:
        raise NotFoundError(
            f"no host of '{name}' has started: {status.reason}", hint=f"`xpk workload status {name}{where}`"
        )
    return selected


def _check_few(status: WorkloadStatus, query: LogQuery, where: str) -> None:
    """Raise UsageError if more hosts are selected than can be read at once."""
    slices = status.num_slices if query.slice is None else 1
    hosts = status.hosts_per_slice if query.host is None else 1
    count = min(status.num_hosts, slices * hosts)
    if count > _MAX_HOSTS:
        narrower = [f"--slice {query.slice if query.slice is not None else 'N'}"]
        narrower += ["--host M"] if hosts > _MAX_HOSTS else []
        raise UsageError(
            f"cannot read the logs of {count} hosts of '{status.name}' at once; the maximum is {_MAX_HOSTS}",
            hint=f"select fewer hosts: `xpk workload logs {status.name}{where} {' '.join(narrower)}`",
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


def _begin(api: ObjectApi, pod: Obj, query: LogQuery) -> tuple[Iterator[HostLine], str]:
    """Return a host's lines, the first already read, and the reason why it has no log yet, "" if it has one."""
    lines = host_lines(api, pod, query)
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
