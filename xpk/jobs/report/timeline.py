"""Geometry of the report's timeline: one row per host, one bar per phase, failures as gaps.

Beyond MAX_ROWS hosts a row is a slice, beyond that many slices it is several slices: a phase then lasts
from its first host's begin to its last host's end.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from xpk.jobs.report.charts import WIDE, Band, Frame, Mark, Rule, Tick, time_ticks
from xpk.jobs.report.charts import bands as draw_bands
from xpk.jobs.report.charts import rules as draw_rules
from xpk.jobs.report.goodput import Attempt, Cause
from xpk.jobs.report.record import Event, HostId, RunRecord
from xpk.jobs.report.slice_losses import slice_lives, slice_losses
from xpk.jobs.report.wording import CAUSE_NAMES, SHORT_NAMES, duration

MAX_ROWS = 64
_PHASES = {
    "init": Cause.INIT,
    "data": Cause.DATA,
    "choose": Cause.RESTORE,
    "restore": Cause.RESTORE,
    "compile": Cause.COMPILE,
}
_WITHIN_STEPS = {"eval": Cause.EVAL, "save_begin": Cause.SAVE}
_LAST_WORDS = {"done": "done", "preempt": "stopped", "fail": "died", "peer_lost": "left"}
_LETTER = 6.0  # viewBox units: approximate width of a letter of a bar's label
_MIN_WIDTH = 0.6  # viewBox units; narrower bars are invisible, and there may be thousands


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One phase of one row, in seconds since the first start."""

    cause: Cause
    attempt: int
    begin: float
    end: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """End of a host's attempt; `at`: seconds since the first start."""

    attempt: int
    at: float
    how: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """A row's phases and endings."""

    name: str
    short_name: str
    spans: tuple[Span, ...]
    endings: tuple[Ending, ...]


@dataclass(frozen=True, slots=True)
class Bar:
    """A drawn phase. `label` is empty if it does not fit."""

    meaning: str
    x: float
    width: float
    title: str
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A drawn row; `y` is its top."""

    name: str
    y: float
    bars: tuple[Bar, ...]
    marks: tuple[Mark, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """A drawn timeline."""

    size: str
    width: float
    height: float
    left: float
    right: float
    top: float
    bottom: float
    row_height: float
    x_ticks: tuple[Tick, ...]
    rows: tuple[Row, ...]
    rules: tuple[Rule, ...]
    bands: tuple[Band, ...]


def lives(record: RunRecord, attempts: Sequence[Attempt], kill_time: float | None) -> list[Life]:
    """Return the rows: hosts, or groups of hosts if there are too many."""
    if not attempts:
        return []
    origin = min(attempt.start for attempt in attempts)
    lost_since = _lost_since(record)
    life_of = {
        host: _life(host, events, attempts, origin, lost_since, kill_time) for host, events in record.events.items()
    }
    if record.is_elastic:
        life_of = _elastic_lives(record, attempts, origin, lost_since)
    if len(life_of) <= MAX_ROWS:
        return list(life_of.values())
    slices = sorted({host.slice for host in life_of})
    size = -(-len(slices) // MAX_ROWS)
    return [_merged(life_of, slices[at : at + size]) for at in range(0, len(slices), size)]


def draw_timeline(
    rows: Sequence[Life],
    wall: float,
    frame: Frame,
    *,
    rules: Sequence[tuple[float, str]],
    bands: Sequence[tuple[float, float, str, str]],
) -> Timeline:
    """Lay the rows out over `wall` seconds."""
    wide = frame.size == WIDE.size
    row_height = next(
        height for max_rows, height in ((8, 26.0), (16, 22.0), (32, 16.0), (10**9, 11.0)) if len(rows) <= max_rows
    )
    left, right = (118.0 if wide else 52.0), frame.width - 14
    top = 26.0 if rules else 10.0
    bottom = top + row_height * max(1, len(rows)) + 4

    def x(seconds: float) -> float:
        """Return the position of a time since the first start, in viewBox units from the left."""
        return round(left + min(max(seconds / wall, 0.0), 1.0) * (right - left), 1) if wall else left

    return Timeline(
        size=frame.size,
        width=frame.width,
        height=bottom + 30,
        left=left,
        right=right,
        top=top,
        bottom=bottom,
        row_height=row_height,
        x_ticks=tuple(Tick(x(at), label) for at, label in time_ticks(wall, 10 if wide else 5)),
        rows=tuple(
            Row(
                name=life.name if wide else life.short_name,
                y=round(top + index * row_height + 2, 1),
                bars=tuple(
                    bar for span in life.spans if (bar := _bar(life.name, span, x(span.begin), x(span.end))) is not None
                ),
                marks=tuple(
                    Mark(end.how, x(end.at), 0, f"{life.name}: {end.how}, {duration(end.at)}") for end in life.endings
                ),
            )
            for index, life in enumerate(rows)
        ),
        rules=draw_rules([(x(at), label) for at, label in rules], left, right),
        bands=draw_bands([(x(a), x(b), "", title) for a, b, _, title in bands]),
    )


def _bar(name: str, span: Span, begin: float, end: float) -> Bar | None:
    if end - begin < _MIN_WIDTH:
        return None
    attempt = f" (attempt {span.attempt + 1})" if span.attempt else ""
    title = f"{name}: {CAUSE_NAMES[span.cause].lower()} {duration(span.end - span.begin)}{attempt}"
    label = SHORT_NAMES.get(span.cause, "")
    fits = end - begin > len(label) * _LETTER + 6
    return Bar(span.cause.value, begin, round(end - begin, 1), title, label if fits else "")


def _lost_since(record: RunRecord) -> dict[int, float]:
    """Return, for each attempt, the begin of its first lost step."""
    since: dict[int, float] = {}
    for line in record.lost_steps:
        began = line.time - line.seconds
        since[line.attempt] = min(began, since.get(line.attempt, began))
    return since


def _life(
    host: HostId,
    events: Sequence[Event],
    attempts: Sequence[Attempt],
    origin: float,
    lost_since: Mapping[int, float],
    kill_time: float | None,
) -> Life:
    spans: list[Span] = []
    endings: list[Ending] = []
    for index, attempt in enumerate(attempts):
        own = sorted((event for event in events if event.attempt == attempt.number), key=lambda one: one.time)
        if not own:
            continue
        followed = index + 1 < len(attempts)
        if attempt.waiting and followed:
            waited = Span(
                cause=Cause.SUSPENDED,
                attempt=attempt.number,
                begin=attempt.last_work - origin,
                end=attempts[index + 1].start - origin,
            )
            spans += [waited] if waited.end > waited.begin else []
        spans += _attempt_spans(own, attempt, lost_since.get(attempt.number), origin)
        last = own[-1]
        if last.name in _LAST_WORDS:
            ending_name, at = _LAST_WORDS[last.name], last.time
        elif followed or attempt.ended not in ("done", "running"):
            killed = attempt.cause_host in (None, host)
            ending_name = "stopped" if attempt.waiting else "died" if killed else "left"
            at = max(last.time, attempt.last_work)
            if kill_time is not None and attempt.start <= kill_time <= attempt.end and host == attempt.cause_host:
                at = kill_time
        else:
            continue
        endings.append(Ending(attempt=attempt.number, at=at - origin, how=ending_name))
    return Life(name=str(host), short_name=f"s{host.slice} h{host.host}", spans=tuple(spans), endings=tuple(endings))


def _elastic_lives(
    record: RunRecord, attempts: Sequence[Attempt], origin: float, lost_since: Mapping[int, float]
) -> dict[HostId, Life]:
    """Return the rows of hosts of elastic slices; bars and ends are numbered by the lives of the slice."""
    attempt_of = {attempt.number: attempt for attempt in attempts}
    loss_of = {(loss.slice, loss.life): loss for loss in slice_losses(record)}
    rows: dict[HostId, tuple[list[Span], list[Ending]]] = {host: ([], []) for host in record.events}
    known = slice_lives(record)
    for life, after in itertools.zip_longest(known, known[1:]):
        attempt, loss = attempt_of[life.attempt], loss_of.get((life.slice, life.number))
        until = loss.since if loss else attempt.last_work
        back = after.begin if after is not None and after.slice == life.slice else attempt.last_work
        own_attempt = replace(
            attempt,
            number=life.number,
            first_step=None if life.joined is None else attempt.first_step,
            first_step_time=max(life.joined or life.end, attempt.first_step_time or life.end),
            last_work=until,
        )
        for host in {event.host for event in life.events}:
            spans, endings = rows[host]
            own = [event for event in life.events if event.host == host]
            spans += _attempt_spans(own, own_attempt, lost_since.get(life.attempt), origin)
            is_over = attempt.ended not in ("done", "running") or attempt is not attempts[-1]
            if own[-1].name in _LAST_WORDS:
                at, how = own[-1].time, _LAST_WORDS[own[-1].name]
            elif loss or is_over:
                at, how = until, "died" if loss is None or loss.host in (None, host) else "left"
            else:
                continue
            endings.append(Ending(attempt=life.number, at=at - origin, how=how))
            if loss and back > until:
                span = Span(cause=Cause.DOWN, attempt=life.number, begin=until - origin, end=back - origin)
                spans.append(span)
    return {
        host: Life(name=str(host), short_name=f"s{host.slice} h{host.host}", spans=tuple(spans), endings=tuple(endings))
        for host, (spans, endings) in rows.items()
    }


def _attempt_spans(own: Sequence[Event], attempt: Attempt, lost_since: float | None, origin: float) -> list[Span]:
    """Return a host's phases in one attempt: those before the first step, then the steps."""

    def span(cause: Cause, begin: float, end: float) -> Span:
        """Return a phase of this attempt between two Unix times."""
        return Span(cause=cause, attempt=attempt.number, begin=begin - origin, end=end - origin)

    first_step = float("inf") if attempt.first_step_time is None else attempt.first_step_time
    on_the_way = [event for event in own if event.name in _PHASES and event.time <= first_step]
    within = [event for event in own if event.name in (_PHASES | _WITHIN_STEPS) and event.time > first_step]
    causes = _PHASES | _WITHIN_STEPS

    def spans_of(events: Sequence[Event]) -> list[Span]:
        """Return the phases of events with a duration."""
        return [
            span(causes[event.name], event.time - event.seconds, event.time)
            for event in events
            if event.seconds is not None
        ]

    spans = spans_of(on_the_way)
    if attempt.first_step is None or not on_the_way:
        return spans
    # A step involves all hosts: this host finished all steps of the job, even if it logs few.
    begin = max(event.time for event in on_the_way)
    end = max([attempt.last_work, *(event.time for event in own if event.name == "save")])
    lost = end if lost_since is None else min(max(lost_since, begin), end)
    spans += [span(Cause.STEPS, begin, lost)] if lost > begin else []
    spans += [span(Cause.LOST, lost, end)] if end > lost else []
    stayed = own[-1].time
    if own[-1].name in ("peer_lost", "fail") and stayed > end:
        spans.append(span(Cause.DOWN, end, stayed))
    return spans + spans_of(within)


def _merged(lives: Mapping[HostId, Life], slices: Sequence[int]) -> Life:
    """Return one row for all hosts of some slices."""
    members = [life for host, life in lives.items() if host.slice in slices]
    extent: dict[tuple[int, Cause, int], Span] = {}
    for life in members:
        indices: dict[tuple[int, Cause], int] = {}
        for span in life.spans:
            nth = indices[span.attempt, span.cause] = indices.get((span.attempt, span.cause), -1) + 1
            key = (span.attempt, span.cause, nth)
            other = extent.get(key, span)
            extent[key] = Span(
                cause=span.cause,
                attempt=span.attempt,
                begin=min(span.begin, other.begin),
                end=max(span.end, other.end),
            )
    worst: dict[int, Ending] = {}
    order = ("died", "stopped", "left", "done")
    for ending in (ending for life in members for ending in life.endings):
        other_end = worst.get(ending.attempt, ending)
        worst[ending.attempt] = min(ending, other_end, key=lambda one: (order.index(one.how), one.at))
    first, last = slices[0], slices[-1]
    name = f"slice {first}" if first == last else f"slices {first}–{last}"
    # Evaluations and saves overlap the steps and are drawn on top of them.
    over = (Cause.EVAL, Cause.SAVE)
    spans = sorted(extent.values(), key=lambda span: (span.attempt, span.cause in over, span.begin))
    return Life(
        name=name,
        short_name=name.replace("slices ", "s").replace("slice ", "s"),
        spans=tuple(spans),
        endings=tuple(worst.values()),
    )
