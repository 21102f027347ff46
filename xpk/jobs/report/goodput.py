"""Goodput of a run: its wall time by cause. Pure functions over a `RunRecord`.

    wall     = end - first start
    goodput  = seconds of productive steps / wall
    lost     = sum over restarts of (last step finished before it - step restored after it)
    recovery = first finished step after a restart - kill (or the last progress before it)

All times are Unix seconds, all durations seconds. The account uses whole microseconds, so that its parts
sum to the wall time exactly.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from xpk.jobs.report.endings import Ended, ending
from xpk.jobs.report.record import Event, HostId, RunRecord, StepRecord
from xpk.jobs.report.slice_losses import elastic_attempts, waits_for_slices

# Final events of a host; none of these is progress.
_LAST_WORDS = frozenset({"done", "fail", "peer_lost", "hang", "not_finite", "replicas_differ"})
_MICROSECONDS = 1_000_000


class Cause(StrEnum):
    """Cause to which a second of wall time is assigned."""

    STEPS = "steps"
    LOST = "lost"
    INIT = "init"
    DATA = "data"
    DATA_WAIT = "data_wait"
    RESTORE = "restore"
    COMPILE = "compile"
    SAVE = "save"
    EVAL = "eval"
    DOWN = "down"
    SUSPENDED = "suspended"
    IDLE = "idle"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One attempt of the whole job, from its first start to its last event.

    After SIGTERM, `ended` is "preempted" if the JobSet restarted the job (`restart_count` increased), else "suspended".
    """

    number: int
    restart_count: int  # the trainer's own number of the attempt
    start: float
    last_work: float  # the last progress: a step, a save, any event but a host's final one
    end: float
    restored_step: int | None  # the step it resumed from (0: from the beginning), None if it did not get there
    first_step: int | None
    last_step: int | None
    first_step_time: float | None
    ended: Ended
    reason: str
    cause_host: HostId | None  # the host that ended it, if the events report one

    @property
    def waiting(self) -> bool:
        """True if it ended without a failure: the time to the next attempt is not a recovery."""
        return self.ended in ("done", "suspended")


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput:
    """Account of a run: whole microseconds by cause, with the exact sum `wall`."""

    microseconds: Mapping[Cause, int]

    @property
    def wall(self) -> int:
        """Microseconds from the first start to the end."""
        return sum(self.microseconds.values())

    @property
    def goodput(self) -> float:
        """Seconds of productive steps / wall seconds; 0 for a run of no duration."""
        return self.share(Cause.STEPS)

    def seconds(self, cause: Cause) -> float:
        """Seconds spent on one cause."""
        return self.microseconds[cause] / _MICROSECONDS

    def share(self, cause: Cause) -> float:
        """Seconds of one cause / wall seconds."""
        return self.microseconds[cause] / self.wall if self.wall else 0.0


@dataclass(frozen=True, slots=True)
class RecoveryPart:
    """One phase of a recovery, in seconds. None: no event marks its end; the next phase includes it."""

    name: str
    seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """Recovery from a failure (`since`) to the first step finished after it (`until`); `parts` sum to its duration."""

    failed_attempt: int
    attempt: int
    since: float
    until: float
    parts: tuple[RecoveryPart, ...]

    @property
    def seconds(self) -> float:
        """Seconds without a finished step."""
        return self.until - self.since


def attempts(record: RunRecord) -> tuple[Attempt, ...]:
    """Return the run's attempts in order."""
    numbers = record.attempts
    by_attempt: dict[int, list[Event]] = {number: [] for number in numbers}
    for event in _all_events(record):
        by_attempt[event.attempt].append(event)
    lines: dict[int, list[StepRecord]] = {number: [] for number in numbers}
    for line in (*record.steps, *record.lost_steps):
        lines[line.attempt].append(line)
    finished = record.finished
    counts = [record.restart_count(number) for number in numbers]
    nexts = [*counts[1:], None]
    result = tuple(
        _attempt(number, by_attempt[number], lines[number], count, after, finished=finished)
        for number, count, after in zip(numbers, counts, nexts, strict=False)
    )
    return result if not record.is_elastic else elastic_attempts(record, result)


def lost_steps(record: RunRecord) -> int:
    """Return the number of finished steps undone by restarts: the sum of (last step before - step restored)."""
    lost, reached = 0, 0
    for attempt in attempts(record):
        if attempt.restored_step is not None:
            lost += max(0, reached - attempt.restored_step)
            reached = attempt.restored_step
        reached = max(reached, attempt.last_step or 0)
    return lost


def goodput(record: RunRecord, *, end: float | None = None) -> Goodput:
    """Account for the wall time from the first start to `end` [default: the last event]."""
    total = dict.fromkeys(Cause, 0)
    for cause, begin, finish in stretches(record, end=end):
        total[cause] += finish - begin
    return Goodput(microseconds=total)


def stretches(record: RunRecord, *, end: float | None = None) -> Iterator[tuple[Cause, int, int]]:
    """Yield cause, begin and end of each stretch of the wall time in order, in Unix microseconds without gaps.

    Every moment has one cause. If hosts are in different phases, the earlier phase counts, since the job waits for its
    slowest host; elastic slices do not wait, so that a step counts while other slices join. An evaluation or a save
    during a step does not count as the step. The time from an attempt's last progress to the start of the next attempt
    is down time after a failure, and suspended otherwise; too few active slices are down time as well.
    """
    all_attempts = attempts(record)
    if not all_attempts:
        return
    origin = min(attempt.start for attempt in all_attempts)
    zero = _micro(origin)
    last = max(attempt.end for attempt in all_attempts)
    stop = _micro(max(last if end is None else end, origin) - origin)
    spans = _spans(record, origin)
    opened = 0
    for index, attempt in enumerate(all_attempts):
        closed = _micro(all_attempts[index + 1].start - origin) if index + 1 < len(all_attempts) else stop
        closed = max(opened, min(closed, stop))
        failed = index + 1 < len(all_attempts) or attempt.ended not in ("done", "running")
        worked = max(opened, min(_micro(attempt.last_work - origin), closed)) if failed else closed
        for cause, begin, finish in _paint(spans[attempt.number], opened, worked, _order(record)):
            yield cause, zero + begin, zero + finish
        yield Cause.SUSPENDED if attempt.waiting else Cause.DOWN, zero + worked, zero + closed
        opened = closed


def recoveries(record: RunRecord, *, kill_time: float | None = None) -> tuple[Recovery, ...]:
    """Return a recovery for each failure after which a step was finished before the job was suspended.

    It begins at `kill_time` for the attempt that was killed then, else at the attempt's last progress.
    An attempt that failed without finishing a step is part of the preceding recovery.
    """
    all_attempts = attempts(record)
    recovered = []
    for index, failed in enumerate(all_attempts):
        follows_failure = index > 0 and not all_attempts[index - 1].waiting
        if failed.waiting or (follows_failure and failed.first_step is None):
            continue
        later = all_attempts[index + 1 :]
        after = next((one for one in later if one.first_step_time is not None or one.waiting), None)
        if after is None or after.first_step_time is None:
            continue
        killed_now = kill_time is not None and failed.start <= kill_time < all_attempts[index + 1].start
        since = kill_time if killed_now and kill_time is not None else failed.last_work
        since = min(since, after.first_step_time)
        recovered.append(
            Recovery(
                failed_attempt=failed.number,
                attempt=after.number,
                since=since,
                until=after.first_step_time,
                parts=_recovery_parts(record, failed, after, since, after.first_step_time),
            )
        )
    return tuple(recovered)


def recovery_seconds(record: RunRecord, *, kill_time: float | None = None) -> float | None:
    """Return the seconds of the recovery from a kill, or of the slowest recovery; None if there is none.

    The other slices of an elastic run continue: the recovery from a kill then ends with their next step.
    """
    if kill_time is not None and record.is_elastic:
        return min((step.time - kill_time for step in record.steps if step.time > kill_time), default=None)
    all_recoveries = recoveries(record, kill_time=kill_time)
    of_kill = [recovery for recovery in all_recoveries if recovery.since == kill_time]
    return max((recovery.seconds for recovery in of_kill or all_recoveries), default=None)


def _all_events(record: RunRecord) -> Iterator[Event]:
    for events in record.events.values():
        yield from events


def _micro(seconds: float) -> int:
    return round(seconds * _MICROSECONDS)


def _attempt(
    number: int, events: list[Event], lines: list[StepRecord], count: int, after: int | None, *, finished: bool
) -> Attempt:
    """Summarize one attempt; `count` is the trainer's number of it, `after` that of the next one, if any."""
    starts = [event.time for event in events if event.name == "start"]
    begun = starts or [event.time - (event.seconds or 0.0) for event in events]
    begun += [line.time - line.seconds * line.count for line in lines]
    work = [line.time for line in lines] + [event.time for event in events if event.name not in _LAST_WORDS]
    start = min(begun)
    last_work = max([start, *work])
    # Hosts log only every nth step, but their events may be newer than metrics.jsonl.
    step_ends = {line.step: line.time for line in lines}
    for event in sorted((event for event in events if event.name == "step"), key=lambda event: event.time):
        if event.step is not None:
            step_ends.setdefault(event.step, event.time)
    restored = [event.step for event in events if event.name == "restore" and event.step is not None]
    first_step = min(step_ends, default=None)
    fallback = None if first_step is None else first_step - 1
    is_last, restarted = after is None, after is not None and after > count
    ended, reason, host = ending(events, is_last=is_last, restarted=restarted, finished=finished)
    return Attempt(
        number=number,
        restart_count=count,
        start=start,
        last_work=last_work,
        end=max([last_work, *(event.time for event in events)]),
        restored_step=min(restored, default=fallback),
        first_step=first_step,
        last_step=max(step_ends, default=None),
        first_step_time=min(step_ends.values(), default=None),
        ended=ended,
        reason=reason,
        cause_host=host,
    )


# Precedence of causes of the same moment. A commit in the background ("save") is last: it only counts where no
# step overlaps it.
_PRECEDENCE = (
    (Cause.INIT, "init"),
    (Cause.DATA, "data"),
    (Cause.COMPILE, "compile"),  # before "restore", which contains the compilation of its broadcast
    (Cause.RESTORE, "choose"),
    (Cause.RESTORE, "restore"),
    (Cause.EVAL, "eval"),
    (Cause.SAVE, "save_begin"),
    (Cause.LOST, "lost"),
    (Cause.DATA_WAIT, "data_wait"),
    (Cause.STEPS, "steps"),
    (Cause.SAVE, "save"),
    (Cause.SAVE, "local_save"),
    (Cause.DOWN, "wait_for_slices"),
)
_RANKS = {name: rank for rank, (_, name) in enumerate(_PRECEDENCE)}
# Elastic slices continue while another one starts.
_ELASTIC_ORDER = tuple(
    _RANKS[name]
    for name in (
        *("eval", "save_begin", "lost", "data_wait", "steps"),
        *("init", "data", "compile", "choose", "restore", "save", "local_save", "wait_for_slices"),
    )
)
Span = tuple[int, int, int]  # begin and end in microseconds since the first start, rank


def _spans(record: RunRecord, origin: float) -> dict[int, list[Span]]:
    """Return the phases of each attempt as spans of microseconds since `origin`; they may overlap."""
    spans: dict[int, list[Span]] = {number: [] for number in record.attempts}

    def add(attempt: int, begin: float, end: float, name: str) -> None:
        spans[attempt].append((_micro(begin - origin), _micro(end - origin), _RANKS[name]))

    for event in _all_events(record):
        if event.name in _RANKS and event.seconds is not None:
            add(event.attempt, event.time - event.seconds, event.time, event.name)
    lines = [(line, "steps") for line in record.steps]
    lost = [(line, "lost") for line in record.lost_steps]
    previous: dict[int, float] = {}
    for line, name in sorted(lines + lost, key=lambda pair: pair[0].time):
        begin = max(line.time - line.seconds * line.count, previous.get(line.attempt, float("-inf")))
        add(line.attempt, begin, line.time, name)
        if name == "steps":
            add(line.attempt, begin, min(begin + line.data_seconds, line.time), "data_wait")
        previous[line.attempt] = line.time
    for begin, end in waits_for_slices(record, max((change.time for change in record.changes), default=0.0)):
        for attempt in spans:  # those of other attempts are beyond its time
            add(attempt, begin, end, "wait_for_slices")
    return spans


def _order(record: RunRecord) -> Sequence[int]:
    return _ELASTIC_ORDER if record.is_elastic else range(len(_PRECEDENCE))


def _paint(spans: Iterable[Span], begin: int, end: int, order: Sequence[int]) -> Iterator[tuple[Cause, int, int]]:
    """Yield the causes of [begin, end] with their times; of overlapping spans the first rank in `order` counts."""
    edges: list[tuple[int, int, int]] = []
    for left, right, rank in spans:
        left, right = max(left, begin), min(right, end)
        if left < right:
            edges += [(left, 1, rank), (right, -1, rank)]
    edges.sort()
    active = [0] * len(_PRECEDENCE)
    at = begin
    for moment, change, rank in edges:
        if moment > at:
            top = next((index for index in order if active[index]), None)
            yield Cause.IDLE if top is None else _PRECEDENCE[top][0], at, moment
        active[rank] += change
        at = moment
    yield Cause.IDLE, at, end


def _recovery_parts(
    record: RunRecord, failed: Attempt, after: Attempt, since: float, until: float
) -> tuple[RecoveryPart, ...]:
    """Return the phases of a recovery; each ends when the slowest host has completed it."""
    events = list(_all_events(record))
    notices = [
        event.time
        for event in events
        if event.attempt == failed.number
        and event.name in ("fail", "peer_lost", "preempt")
        and (event.time >= since or not record.is_elastic)  # slices that joined again had failed before
    ]
    marks: list[tuple[str, float | None]] = [
        ("detection", min(notices, default=None)),
        ("teardown", failed.end if notices else None),
    ]
    for name in ("start", "init", "data"):
        marks.append((name, max(_times(events, after, name, until), default=None)))
    prepared = [max(_times(events, after, name, until), default=None) for name in ("restore", "compile")]
    parts, at = [], since
    for name, mark in marks:
        reached = at if mark is None else min(max(mark, at), until)
        parts.append(RecoveryPart(name, None if mark is None else reached - at))
        at = reached
    return (*parts, *_preparation(record, after, at, until, *prepared))


def _preparation(
    record: RunRecord, after: Attempt, since: float, until: float, restored: float | None, compiled: float | None
) -> Iterator[RecoveryPart]:
    """Yield the last phases of a recovery; restore and compilation overlap, so restore counts the remainder."""
    ready = max([since, *(time for time in (restored, compiled) if time is not None)])
    origin = min(since, after.start)
    spans = _spans(record, origin)[after.number]
    spent = _paint(spans, _micro(since - origin), _micro(ready - origin), _order(record))
    compiling = sum(end - begin for cause, begin, end in spent if cause is Cause.COMPILE) / _MICROSECONDS
    if restored is None:
        compiling = ready - since
    elif compiled is None:
        compiling = 0.0
    yield RecoveryPart("restore", None if restored is None else ready - since - compiling)
    yield RecoveryPart("compile", None if compiled is None else compiling)
    yield RecoveryPart("first step", until - ready)


def _times(events: Iterable[Event], attempt: Attempt, name: str, until: float) -> list[float]:
    """Return the end times of events up to `until`; later ones, such as compiling an evaluation, belong to the run."""
    return [e.time for e in events if e.attempt == attempt.number and e.name == name and e.time <= until]
