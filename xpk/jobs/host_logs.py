"""Logs of single hosts: the lines of one, and threads that read those of many at a time."""

from __future__ import annotations

import queue
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime

from xpk.api.base import LogLine, Obj, ObjectApi
from xpk.api.paths import container_of
from xpk.api.server_errors import NotStartedError
from xpk.jobs.status.fields import host_key, host_label
from xpk.model.errors import AuthorizationError, NotFoundError, UnavailableError, UsageError

_PAUSE = 0.2  # seconds during which lines are collected
_LOOK_SECONDS = 1.5  # between checks for new hosts, unless one has ended
_TRIES, _TRY_PAUSE = 60, 1.0  # tries, and seconds between them, if reading a new host's log is refused
_AHEAD = 10_000  # buffered lines
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


def host_lines(api: ObjectApi, pod: Obj, query: LogQuery, *, follow: bool = False) -> Iterator[HostLine]:
    """Yield the lines of one host. Raises the errors of `ObjectApi.logs`."""
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


class HostReaders:
    """Threads that read the logs of hosts into one queue."""

    def __init__(self, api: ObjectApi, pause: Callable[[float], None]) -> None:
        self._api, self._pause = api, pause
        self._lines: _Lines = queue.Queue(maxsize=_AHEAD)
        self._readable = threading.Event()
        self._threads: dict[tuple[str, str], tuple[threading.Thread, Obj]] = {}  # by pod and container

    def start(self, pod: Obj, query: LogQuery) -> None:
        """Read a container's log, unless it is read already."""
        source = (pod["metadata"]["uid"], container_of(pod))
        if source not in self._threads:
            arguments = (self._api, pod, query, self._lines, self._readable, self._pause)
            thread = threading.Thread(target=_pump, args=arguments, daemon=True)
            self._threads[source] = thread, pod
            thread.start()

    @property
    def ended(self) -> int:
        """Return the number of logs that were read to their end."""
        return sum(not thread.is_alive() for thread, _ in self._threads.values())

    def lines_until_look(self, ended: int) -> Iterator[HostLine]:
        """Yield lines until more than `ended` readers have ended, or for a short time."""
        looked_at = time.monotonic()
        while True:
            yield from _drain(self._lines)
            if self.ended > ended or time.monotonic() - looked_at > _LOOK_SECONDS:
                return

    def last_lines(self, silence_seconds: float) -> Iterator[HostLine]:
        """Yield lines until all readers have ended, or nothing was received for some time."""
        ended, heard_at = self.ended, time.monotonic()
        while True:
            for line in _drain(self._lines):
                yield line
                heard_at = time.monotonic()
            # In this order, so that the last lines of a reader are not missed.
            now = self.ended
            if now == len(self._threads) and self._lines.empty():
                return
            if now > ended:
                ended, heard_at = now, time.monotonic()
            if time.monotonic() - heard_at > max([silence_seconds, *map(_grace_seconds, self._unended())]):
                return

    def hosts_left(self) -> list[str]:
        """Return the hosts whose logs were not read to their end."""
        return list(dict.fromkeys(map(host_label, sorted(self._unended(), key=host_key))))

    def _unended(self) -> list[Obj]:
        return [pod for thread, pod in self._threads.values() if thread.is_alive()]


def _grace_seconds(pod: Obj) -> float:
    """Return the time that a host has to end, in which it may save without a word."""
    seconds = pod.get("spec", {}).get("terminationGracePeriodSeconds")
    return seconds if isinstance(seconds, int) else 0


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
            for line in host_lines(api, pod, query, follow=True):
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
