"""Losses of elastic slices in a run: when a slice was lost, why, and when it joined again. Pure functions.

The other slices continue, so that a loss neither restarts the job nor loses a step.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from xpk.jobs.output.slices import SlicesChange
from xpk.jobs.report.endings import Ended, ending
from xpk.jobs.report.record import Event, HostId, RunRecord

if TYPE_CHECKING:
    from xpk.jobs.report.goodput import Attempt

_LAST_WORDS = frozenset({"done", "fail", "peer_lost", "hang", "preempt"})
_SKEW = 2.0  # maximum seconds between the clocks of two hosts


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceLife:
    """One set of processes of a slice, from their start to their last event. Times are Unix seconds."""

    slice: int
    number: int
    attempt: int  # of the whole job
    begin: float
    end: float
    joined: float | None  # None: it ended before
    joined_step: int | None
    events: tuple[Event, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceLoss:
    """Loss of a slice while others continued. Times are Unix seconds."""

    slice: int
    life: int  # number of the life that ended
    since: float
    until: float | None  # when it joined again, if it did
    step: int | None  # last finished step before the loss
    joined_step: int | None  # last finished step before it joined again
    ended: Ended
    reason: str
    host: HostId | None  # the host that caused it, if the events report one


def slice_lives(record: RunRecord) -> tuple[SliceLife, ...]:
    """Return the lives of all slices, by slice and in the order of time."""
    groups: dict[tuple[int, int], list[Event]] = {}
    for host, events in record.events.items():
        for event in events:
            groups.setdefault((host.slice, event.life), []).append(event)
    return tuple(_life(slice_id, number, group) for (slice_id, number), group in sorted(groups.items()))


def slice_losses(record: RunRecord) -> tuple[SliceLoss, ...]:
    """Return the losses of slices during attempts of the job, in the order of time."""
    if not record.is_elastic:
        return ()
    losses: list[SliceLoss] = []
    lives = slice_lives(record)
    for life, after in itertools.zip_longest(lives, lives[1:]):
        follows = after if after is not None and after.slice == life.slice else None
        if follows is None or follows.attempt == life.attempt:
            losses += _losses(record, life, follows)
    return tuple(sorted(_without_retries(losses), key=lambda loss: loss.since))


def seconds_on_fewer(record: RunRecord, attempts: Sequence[Attempt], *, end: float | None = None) -> float:
    """Return the seconds, from the first step of each attempt to its last progress, on fewer slices than requested.

    `end` is the present time of a run that continues.
    """
    total = 0.0
    for attempt in attempts:
        if attempt.first_step_time is None:
            continue
        last = attempt.last_work if end is None or attempt.ended != "running" else max(end, attempt.last_work)
        for change, until in _intervals(record, last):
            if len(change.slices) < change.num_slices:
                total += max(0.0, min(until, last) - max(change.time, attempt.first_step_time))
    return total


def waits_for_slices(record: RunRecord, end: float) -> list[tuple[float, float]]:
    """Return the times, up to `end`, in which too few slices were active."""
    return [
        (change.time, until)
        for change, until in _intervals(record, end)
        if len(change.slices) < change.min_slices and change.time < until
    ]


def elastic_attempts(record: RunRecord, attempts: Sequence[Attempt]) -> tuple[Attempt, ...]:
    """Return attempts of a job with elastic slices: they end with the last life of each slice, not with each loss."""
    lives = slice_lives(record)
    result: list[Attempt] = []
    for index, attempt in enumerate(attempts):
        newest = {life.slice: life for life in lives if life.attempt == attempt.number}
        events = [event for life in newest.values() for event in life.events]
        after = attempts[index + 1] if index + 1 < len(attempts) else None
        restarted = after is not None and after.restart_count > attempt.restart_count
        ended, reason, host = ending(events, is_last=after is None, restarted=restarted, finished=record.finished)
        if after is None and ended != "done" and not _have_all_ended(events):
            ended, reason, host = "running", "", None
        # A slice may have started before the others ended, and founded the next attempt.
        start = max(attempt.start, result[-1].last_work) if result else attempt.start
        last_work = max(attempt.last_work, start)
        result.append(
            replace(
                attempt,
                start=start,
                last_work=last_work,
                end=max(attempt.end, last_work),
                ended=ended,
                reason=reason,
                cause_host=host,
            )
        )
    return tuple(result)


def _life(slice_id: int, number: int, events: Sequence[Event]) -> SliceLife:
    ordered = sorted(events, key=lambda event: event.time)
    restores = [event for event in ordered if event.name == "restore"]
    return SliceLife(
        slice=slice_id,
        number=number,
        attempt=ordered[0].attempt,
        begin=ordered[0].time - (ordered[0].seconds or 0.0),
        end=ordered[-1].time,
        joined=restores[0].time if restores else None,
        joined_step=restores[0].step if restores else None,
        events=tuple(ordered),
    )


def _losses(record: RunRecord, life: SliceLife, after: SliceLife | None) -> Iterator[SliceLoss]:
    """Yield the loss at the end of a life, if the slice was lost then."""
    change = None
    if life.joined is not None:
        limit = float("inf") if after is None else (after.joined or float("inf"))
        later = (one for one in record.changes if life.joined - _SKEW <= one.time < limit)
        present = itertools.dropwhile(lambda one: life.slice not in one.slices, later)
        change = next((one for one in present if life.slice not in one.slices), None)
    if after is None and change is None:
        return
    ended, reason, host = _end_of(life)
    yield SliceLoss(
        slice=life.slice,
        life=life.number,
        since=change.time if change else life.end,
        until=after.joined if after else None,
        step=change.step if change else None,
        joined_step=after.joined_step if after else None,
        ended=ended,
        reason=reason,
        host=host,
    )


def _without_retries(losses: Sequence[SliceLoss]) -> list[SliceLoss]:
    """Return losses without those of lives that had not joined: they lengthen the absence before them."""
    kept: list[SliceLoss] = []
    for loss in losses:
        if kept and kept[-1].slice == loss.slice and kept[-1].until is None:
            kept[-1] = replace(kept[-1], until=loss.until, joined_step=loss.joined_step)
        else:
            kept.append(loss)
    return kept


def _end_of(life: SliceLife) -> tuple[Ended, str, HostId | None]:
    """Return how a life ended that others survived."""
    dropped = (event.details.get("reason") for event in life.events if event.name == "peer_lost")
    reason = next((str(text) for text in dropped if text), "")
    hosts = sorted({event.host for event in life.events})
    if reason:
        return "host lost", reason, hosts[0] if len(hosts) == 1 else None
    ended, words, host = ending([*life.events], is_last=False, restarted=True, finished=False)
    if ended == "host lost" and host is None and len(hosts) == 1:
        return ended, f"{hosts[0]} died", hosts[0]
    return ended, words, host


def _have_all_ended(events: Sequence[Event]) -> bool:
    last = {event.host: event.name for event in sorted(events, key=lambda event: event.time)}
    return bool(last) and all(name in _LAST_WORDS for name in last.values())


def _intervals(record: RunRecord, end: float) -> Iterator[tuple[SlicesChange, float]]:
    """Yield each change of the active slices and the time until which it was in effect."""
    ends = [change.time for change in record.changes[1:]] + [end]
    yield from zip(record.changes, ends, strict=False)
