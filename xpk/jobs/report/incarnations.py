"""Incarnations of a job: assignment of each host's processes to attempts of the whole job, numbered in time.

The trainer's attempt number is not sufficient: it stays the same after a suspension, and restarts at 0 after a
deletion and a resume. Incarnations are derived from the hosts' starts: all hosts of an incarnation start within
seconds of each other with the same attempt number, and no host starts twice; a host that was killed before its
first write has no start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

_TOGETHER = 60.0  # maximum seconds from the first start of the next attempt to a late start of this one


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """One process of a host. Times are Unix seconds."""

    begin: float
    attempt: int  # the trainer's attempt number
    up: float | None = None  # the time when it was connected to all others, which had started by then


@dataclass(frozen=True, slots=True, kw_only=True)
class _Placed:
    """A life with its host and its index among the lives of that host."""

    begin: float
    host: int
    place: int
    life: Life


def number_lives(hosts: Sequence[Sequence[Life]]) -> list[list[int]]:
    """Return, for each host's lives in their order, the number of the incarnation, from 0.

    The numbers of one host ascend; one incarnation has one attempt number.
    """
    groups: list[list[_Placed]] = []
    for one in _in_time(hosts):
        home = _home(groups, one)
        if home is not None:
            home.append(one)
        elif groups and groups[-1][0].life.attempt == one.life.attempt:
            cut = _cut(groups[-1], one)
            early = groups[-1][cut:]
            del groups[-1][cut:]
            groups.append([*early, one])
        else:
            groups.append([one])
    numbers = [[0] * len(lives) for lives in hosts]
    for number, group in enumerate(groups):
        for one in group:
            numbers[one.host][one.place] = number
    return numbers


def _in_time(hosts: Sequence[Sequence[Life]]) -> list[_Placed]:
    """Return all lives by their begin; those of one host stay in order even if its clock jumped."""
    placed: list[_Placed] = []
    for host, lives in enumerate(hosts):
        latest = float("-inf")
        for place, life in enumerate(lives):
            latest = max(latest, life.begin)
            placed.append(_Placed(begin=latest, host=host, place=place, life=life))
    return sorted(placed, key=attrgetter("begin"))


def _home(groups: Sequence[list[_Placed]], one: _Placed) -> list[_Placed] | None:
    """Return the incarnation that a life joins: the newest, or the one before it for a late start."""
    if not groups:
        return None
    newest = groups[-1]
    if one.host in {other.host for other in newest}:
        return None
    if newest[0].life.attempt == one.life.attempt:
        return newest
    if len(groups) < 2 or newest[0].life.attempt != one.life.attempt + 1:
        return None
    before = groups[-2]
    late = before[0].life.attempt == one.life.attempt and one.begin - newest[0].begin <= _TOGETHER
    connected = any(other.life.up is not None and other.life.up <= one.begin for other in (*before, *newest))
    return before if late and not connected and one.host not in {other.host for other in before} else None


def _cut(group: Sequence[_Placed], again: _Placed) -> int:
    """Return the index from which a group belongs to the incarnation of `again`, its host's next life.

    It is at the widest gap since that host's start in the group, but never between connected processes.
    """
    first = 1 + next(place for place, one in enumerate(group) if one.host == again.host)
    up = min((one.life.up for one in group if one.life.up is not None), default=float("-inf"))
    begins = [one.begin for one in (*group, again)]
    places = [place for place in range(first, len(group)) if begins[place] > up]
    return max([*places, len(group)], key=lambda place: begins[place] - begins[place - 1])
