"""Attempts of a run with elastic slices, in which each slice starts, ends and joins again by itself.

An attempt of the whole job begins with a founding: a slice restores the state from a checkpoint, or makes the first
one, because no slice is active. All other slices receive the state from an active one. So steps can only be lost
between two foundings. The trainer's own attempt numbers count the processes of one slice and are unrelated to those of
other slices; metrics have the number of whichever slice was leading.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from xpk.jobs.report.incarnations import Life, number_lives

if TYPE_CHECKING:
    from xpk.jobs.report.record import EvalRecord, Event, HostId, StepRecord

    Line = TypeVar("Line", StepRecord, EvalRecord)

_PEER = "peer"  # source of a state that an active slice has sent
_TOGETHER = 60.0  # maximum seconds from the first start of an attempt to its founder's

Events = Mapping["HostId", Sequence["Event"]]
LivesOfHosts = Mapping["HostId", tuple[list[Life], list[int]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _SliceLife:
    """One set of processes of a slice. Times are Unix seconds."""

    slice: int
    number: int  # among those of the slice
    begin: float
    attempt: int  # the trainer's number
    joined: float | None  # when the state was in place
    founds: bool  # it restored the state without another slice
    is_elastic: bool  # it recorded active slices


def is_elastic(events: Events) -> bool:
    """Return True if the hosts have recorded active slices."""
    return any(event.name == "slices" for listed in events.values() for event in listed)


def renumbered(
    events: Events, lives_of: LivesOfHosts, steps: list[StepRecord], evals: list[EvalRecord]
) -> tuple[dict[int, int], dict[HostId, list[Event]], list[StepRecord], list[EvalRecord]]:
    """Return the restarts of the whole job before each attempt, and all records with the job's attempt.

    Events also get the number of their life.
    """
    life_numbers = _life_numbers(lives_of)
    with_lives = {
        host: [
            replace(event, life=life_numbers[host][life]) for event, life in zip(listed, lives_of[host][1], strict=True)
        ]
        for host, listed in events.items()
    }
    lives = _slice_lives(with_lives)
    foundings = _foundings(lives)
    attempt_of = {(life.slice, life.number): _attempt(life, foundings) for life in lives}
    hosts_per_slice = 1 + max((host.host for host in events), default=0)
    numbered = {
        host: [_of_job(event, attempt_of[host.slice, event.life], hosts_per_slice) for event in listed]
        for host, listed in with_lives.items()
    }
    begins = [founders[0].joined or founders[0].begin for founders in foundings]
    placed_steps, placed_evals = _placed(steps, begins), _placed(evals, begins)
    return _restart_counts(lives, attempt_of), numbered, placed_steps, placed_evals


def _of_job(event: Event, attempt: int, hosts_per_slice: int) -> Event:
    """Return an event with the job's numbers of its attempt and of a lost host, which are the slice's own."""
    peer = event.details.get("peer")
    if event.name != "peer_lost" or not isinstance(peer, int):
        return replace(event, attempt=attempt)
    return replace(event, attempt=attempt, details={**event.details, "peer": event.host.slice * hosts_per_slice + peer})


def _life_numbers(lives_of: LivesOfHosts) -> dict[HostId, list[int]]:
    """Return the numbers of each host's lives: those of a slice's hosts that belong together have one number."""
    numbers: dict[HostId, list[int]] = {}
    for slice_id in {host.slice for host in lives_of}:
        hosts = [host for host in lives_of if host.slice == slice_id]
        numbers |= zip(hosts, number_lives([lives_of[host][0] for host in hosts]), strict=True)
    return numbers


def _slice_lives(events: Events) -> list[_SliceLife]:
    groups: dict[tuple[int, int], list[Event]] = {}
    for host, listed in events.items():
        for event in listed:
            groups.setdefault((host.slice, event.life), []).append(event)
    return [_slice_life(slice_id, number, group) for (slice_id, number), group in sorted(groups.items())]


def _slice_life(slice_id: int, number: int, events: Sequence[Event]) -> _SliceLife:
    restores = [event for event in events if event.name == "restore"]
    return _SliceLife(
        slice=slice_id,
        number=number,
        begin=min(event.time - (event.seconds or 0.0) for event in events),
        attempt=events[0].attempt,
        joined=min((event.time for event in restores), default=None),
        founds=any(event.details.get("source") != _PEER for event in restores),
        is_elastic=any(event.name == "slices" for event in events),
    )


def _foundings(lives: Sequence[_SliceLife]) -> list[list[_SliceLife]]:
    """Return the founders of each attempt, in the order of time.

    All slices found together in attempts from before the run had elastic slices.
    """
    foundings: list[list[_SliceLife]] = []
    for life in sorted((life for life in lives if life.founds), key=lambda life: life.joined or life.begin):
        others = foundings[-1] if foundings else []
        is_new = any(other.slice == life.slice or other.attempt != life.attempt for other in others)
        if not others or is_new or life.is_elastic or others[0].is_elastic:
            foundings.append([])
        foundings[-1].append(life)
    return foundings


def _attempt(life: _SliceLife, foundings: Sequence[Sequence[_SliceLife]]) -> int:
    """Return the attempt of the whole job that a slice's life belongs to.

    It is that of its founding, else the newest that was founded when it joined or, if it did not, when it started.
    """
    if life.founds:
        return next(number for number, founders in enumerate(foundings) if life in founders)
    first = [founders[0] for founders in foundings]
    if life.joined is not None:
        return max(0, bisect.bisect_right([founder.joined or founder.begin for founder in first], life.joined) - 1)
    return max(0, bisect.bisect_right([founder.begin - _TOGETHER for founder in first], life.begin) - 1)


def _restart_counts(lives: Sequence[_SliceLife], attempt_of: Mapping[tuple[int, int], int]) -> dict[int, int]:
    """Return, by attempt, how many of the earlier ones ended because of a failure: then a slice's number increased."""
    numbers: dict[int, dict[int, int]] = {}
    for life in lives:
        numbers.setdefault(attempt_of[life.slice, life.number], {}).setdefault(life.slice, life.attempt)
    last: dict[int, int] = {life.slice: life.attempt for life in reversed(lives)}
    counts: dict[int, int] = {}
    for attempt, firsts in sorted(numbers.items()):
        restarted = any(number > last[slice_id] for slice_id, number in firsts.items())
        counts[attempt] = counts.get(attempt - 1, 0) + (restarted if attempt else 0)
        last |= {life.slice: life.attempt for life in lives if attempt_of[life.slice, life.number] == attempt}
    return counts


def _placed(lines: Sequence[Line], begins: Sequence[float]) -> list[Line]:
    """Return metrics, in the order of writing, with the attempt of the whole job.

    Clocks of hosts differ: a step that the attempt has had already belongs to the next one. Without a next one, two
    leading slices have written the same step; the later line counts.
    """
    attempt = 0
    placed: dict[tuple[int, int], Line] = {}
    for line in lines:
        attempt = max(attempt, bisect.bisect_right(begins, line.time) - 1)
        if (attempt, line.step) in placed and attempt + 1 < len(begins):
            attempt += 1
        placed.pop((attempt, line.step), None)
        placed[attempt, line.step] = replace(line, attempt=attempt)
    return list(placed.values())
