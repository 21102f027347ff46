"""Which life of the whole job each process of a host belongs to: the job's incarnations, numbered in time.

The trainer's own attempt number is not enough: after a suspension it is the same again, after a deletion
and a resume it begins again at 0. What tells are the hosts' starts. All hosts of an incarnation start
within seconds of each other and with the same attempt number, and no host starts twice; a host that was
killed before it could write has no start in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

_TOGETHER = 60.0  # seconds by which a process may start after the first one of the next attempt


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """One process of a host. `begin` is its start in Unix seconds; `attempt` the number that it was given.

    `up` is when it was connected to all others: by then they had all started.
    """

    begin: float
    attempt: int
    up: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Placed:
    """A life with its host and its place among the lives of that host."""

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
    """Return all lives by their begin; those of one host stay in order whatever its clock did."""
    found: list[_Placed] = []
    for host, lives in enumerate(hosts):
        latest = float("-inf")
        for place, life in enumerate(lives):
            latest = max(latest, life.begin)
            found.append(_Placed(begin=latest, host=host, place=place, life=life))
    return sorted(found, key=attrgetter("begin"))


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
    """Return from where on a group belongs to the incarnation in which `again` is its host's next life.

    It is the widest gap since that host's start in the group, but never between two that were connected.
    """
    first = 1 + next(place for place, one in enumerate(group) if one.host == again.host)
    up = min((one.life.up for one in group if one.life.up is not None), default=float("-inf"))
    begins = [one.begin for one in (*group, again)]
    places = [place for place in range(first, len(group)) if begins[place] > up]
    return max([*places, len(group)], key=lambda place: begins[place] - begins[place - 1])
