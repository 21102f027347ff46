"""Exact sums over a ledger, in chip-microseconds. Pure functions.

held     = sum over workloads of chips x time in every state but `queued`
held     = productive + lost, each moment with one cause
capacity = held + free
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from xpk.jobs.report.goodput import Cause
from xpk.jobs.usage.ledger import Ledger
from xpk.model.usage import PREEMPTED, Capacity, Hold, Piece, State

# A program without records may do anything while all of its hosts run.
PRODUCTIVE = frozenset({Cause.STEPS.value, State.RUNNING.value})
_RESUMING = (Cause.INIT, Cause.DATA, Cause.RESTORE, Cause.COMPILE)


@dataclass(slots=True)
class Amounts:
    """Sums of chip-microseconds. `resumed`: the part of `lost` that preemptions caused."""

    productive: int = 0
    lost: int = 0
    queued: int = 0
    resumed: int = 0
    preemptions: int = 0
    of_type: dict[str, int] = field(default_factory=dict)  # held, by accelerator type

    @property
    def held(self) -> int:
        """Return the chip-microseconds that workloads held."""
        return self.productive + self.lost


@dataclass(slots=True)
class Balance:
    """Sums of chip-microseconds over all workloads; `unrecorded`: microseconds without a record of the capacity."""

    capacity: int = 0
    held: int = 0
    out_of_service: int = 0  # part of what is free
    free_while_queued: int = 0  # part of what is free, up to what workloads waited for
    unrecorded: int = 0
    of_type: dict[str, int] = field(default_factory=dict)  # recorded capacity by accelerator type
    quotas: dict[str, int] = field(default_factory=dict)  # by queue
    held_of_queue: dict[str, int] = field(default_factory=dict)
    idle_quotas: dict[str, int] = field(default_factory=dict)  # by queue: not held by its own workloads

    @property
    def free(self) -> int:
        """Return the chip-microseconds that no workload held."""
        return self.capacity - self.held


Key = tuple[str, ...]


def sums(ledger: Ledger, since: int, until: int, key: Callable[[Hold, str], Key]) -> dict[Key, Amounts]:
    """Return the sums of [since, until] by `key`, a function of a hold and a cause."""
    totals: dict[Key, Amounts] = {}
    for uid, holds in ledger.holds_of().items():
        recorded = ledger.causes.get(uid)
        pieces = recorded.pieces if recorded else ()
        for index, hold in enumerate(holds):
            begin, end = max(hold.begin, since), min(hold.end, until)
            if begin >= end:
                continue
            before = holds[index - 1] if index else None
            after = holds[index + 1] if index + 1 < len(holds) else None
            causes = causes_within(hold, begin, end, pieces)
            for cause, amount in causes.items():
                total = totals.setdefault(key(hold, cause), Amounts())
                _add(total, hold, cause, amount * hold.chips, is_resumed=_is_resumed(hold, before, after, cause))
            if _begins_preemption(hold, before) and since <= hold.begin:
                totals[key(hold, next(iter(causes)))].preemptions += 1
    return totals


def causes_within(hold: Hold, begin: int, end: int, pieces: Sequence[Piece]) -> dict[str, int]:
    """Return the microseconds of part of a hold by cause; `pieces` of its run refine the state of the workload."""
    if hold.state is State.QUEUED:
        return {hold.state.value: end - begin}
    causes: dict[str, int] = {}

    def add(cause: str, amount: int) -> None:
        if amount:
            causes[cause] = causes.get(cause, 0) + amount

    default = Cause.IDLE.value if hold.state is State.RUNNING and pieces else hold.state.value
    at = begin
    for piece in pieces:
        first, last = max(piece.begin, at), min(piece.end, end)
        if first >= last:
            continue
        add(default, first - at)
        for cause, amount in part_of(piece, first, last).items():
            # Records end before the hosts do: the state of the workload is more precise then.
            is_vague = cause in (Cause.DOWN, Cause.SUSPENDED)
            precise = Cause.DOWN.value if hold.state is State.RUNNING else hold.state.value
            add(precise if is_vague else cause, amount)
        at = last
    add(default, end - at)
    return causes


def part_of(piece: Piece, begin: int, end: int) -> dict[str, int]:
    """Return the causes of part of a piece, in proportion; they sum to its length exactly."""
    length, part = piece.end - piece.begin, end - begin
    if part == length:
        return dict(piece.causes)
    shares = {cause: divmod(amount * part, length) for cause, amount in piece.causes.items()}
    parts = {cause: whole for cause, (whole, _) in shares.items()}
    rest = part - sum(parts.values())
    for cause in sorted(shares, key=lambda cause: (-shares[cause][1], cause))[:rest]:
        parts[cause] += 1
    return parts


def balance(ledger: Ledger, since: int, until: int) -> Balance:
    """Return the sums over all workloads and the capacity. A chip that a workload holds counts as capacity."""
    total = Balance()
    for begin, end, supply, held, queued in _moments(ledger, since, until):
        length, sum_held, sum_queued = end - begin, sum(held.values()), sum(queued.values())
        size = max(supply.total if supply else 0, sum_held)
        total.capacity += size * length
        total.held += sum_held * length
        total.free_while_queued += min(size - sum_held, sum_queued) * length
        for queue, chips in held.items():
            _increase(total.held_of_queue, queue, chips * length)
        if supply is None:
            total.unrecorded += length
            continue
        total.out_of_service += min(supply.out_of_service, size - sum_held) * length
        for kind, chips in supply.chips.items():
            _increase(total.of_type, kind, chips * length)
        for queue, quota in supply.quotas.items():
            _increase(total.quotas, queue, quota * length)
            _increase(total.idle_quotas, queue, max(0, quota - held.get(queue, 0)) * length)
    return total


def _moments(
    ledger: Ledger, since: int, until: int
) -> Iterator[tuple[int, int, Capacity | None, Mapping[str, int], Mapping[str, int]]]:
    """Yield intervals without a change: begin, end, capacity, and the chips that are held and queued, by quota."""
    changes: list[tuple[int, int, Hold | Capacity]] = []
    items: Iterable[Hold | Capacity] = [*ledger.holds, *ledger.capacities]
    for item in items:
        begin, end = max(item.begin, since), min(item.end, until)
        if begin < end:
            changes += [(begin, 1, item), (end, -1, item)]
    changes.sort(key=lambda change: change[:2])
    supply: Capacity | None = None
    held, queued = dict[str, int](), dict[str, int]()
    at = since
    for time, sign, item in changes:
        if time > at:
            yield at, time, supply, held, queued
            at = time
        if isinstance(item, Capacity):
            supply = item if sign > 0 else None
        else:
            _increase(queued if item.state is State.QUEUED else held, ledger.quota_of(item), sign * item.chips)
    if until > at:
        yield at, until, supply, held, queued


def _add(total: Amounts, hold: Hold, cause: str, amount: int, *, is_resumed: bool) -> None:
    if hold.state is State.QUEUED:
        total.queued += amount
        return
    _increase(total.of_type, hold.accelerator_type, amount)
    if cause in PRODUCTIVE:
        total.productive += amount
        return
    total.lost += amount
    total.resumed += amount if is_resumed else 0


def _is_resumed(hold: Hold, before: Hold | None, after: Hold | None, cause: str) -> bool:
    """Return whether a preemption caused this loss: stopping, starting again, or the steps that it undid."""
    if hold.state is State.RUNNING:
        starts_again = before is not None and before.state is State.START and before.reason == PREEMPTED
        ends = after is not None and after.state is State.STOP and after.reason == PREEMPTED
        return (starts_again and cause in _RESUMING) or (ends and cause == Cause.LOST)
    return hold.reason == PREEMPTED and hold.state in (State.STOP, State.START)


def _begins_preemption(hold: Hold, before: Hold | None) -> bool:
    was_stopping = before is not None and before.state is State.STOP and before.end == hold.begin
    return hold.state is State.STOP and hold.reason == PREEMPTED and not was_stopping


def _increase(amounts: dict[str, int], key: str, amount: int) -> None:
    amounts[key] = amounts.get(key, 0) + amount
