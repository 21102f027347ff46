"""Pairs of hosts that exchange data, in rounds in which every host has at most one partner. Pure functions."""

from collections.abc import Sequence

Pair = tuple[int, int]  # process ids
Rounds = list[list[Pair]]


def rounds(places: Sequence[int]) -> Rounds:
    """Return the exchanges of neighbors in a ring, as rounds in which every host has at most one partner."""
    count = len(places)
    first = [(places[n], places[n + 1]) for n in range(0, count - 1, 2)]
    second = [(places[n], places[n + 1]) for n in range(1, count - 1, 2)]
    if count > 2 and count % 2 == 0:
        second.append((places[0], places[-1]))
    return [pairs for pairs in (first, second) if pairs]


def rounds_within(num_slices: int, hosts_per_slice: int) -> Rounds:
    """Return the exchanges within slices."""
    return _joined([range(s * hosts_per_slice, (s + 1) * hosts_per_slice) for s in range(num_slices)])


def rounds_between(num_slices: int, hosts_per_slice: int) -> Rounds:
    """Return the exchanges of the hosts of the same index in neighboring slices."""
    return _joined([range(h, num_slices * hosts_per_slice, hosts_per_slice) for h in range(hosts_per_slice)])


def _joined(groups: Sequence[Sequence[int]]) -> Rounds:
    """Run the rounds of groups of equal size at the same time."""
    return [[pair for pairs in parts for pair in pairs] for parts in zip(*map(rounds, groups), strict=True)]
