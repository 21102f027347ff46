"""Figures of usage for people and programs: sums in chip-hours, by the chosen columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from xpk.jobs.usage.ledger import Ledger
from xpk.jobs.usage.sums import Amounts, Balance, balance, sums
from xpk.model.accelerators import find_shape
from xpk.model.closest import with_closest
from xpk.model.errors import UsageError
from xpk.model.usage import MICROSECONDS, ChipHourPrice, Hold

COLUMNS = ("team", "user", "workload", "cause")
_CHIP_HOUR = 3600 * MICROSECONDS
_DIGITS = 6  # of chip-hours


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageRow:
    """Use of chips by a team, user or workload, or for a cause."""

    team: str | None = None  # queue, or namespace in the cluster's own queue; null unless by team
    user: str | None = None  # creator, empty if unknown; null unless by user
    workload: str | None = None  # workload, with its namespace unless default; null unless by workload
    cause: str | None = None  # cause; null unless by cause
    held_chip_hours: float  # chip-hours held
    productive_chip_hours: float  # part in steps that count, or in programs without records
    lost_chip_hours: float  # the other part
    queued_chip_hours: float  # requested chips x time in the queue; not part of `held_chip_hours`
    preemptions: int | None  # number of preemptions; null if by cause
    preemption_chip_hours: float  # part of `lost_chip_hours` that preemptions caused
    cost: float | None  # cost of `held_chip_hours`; null without a price of each accelerator type


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityUse:
    """Use of the capacity of a cluster. All are chip-hours; `held` and `free` sum to `capacity`."""

    capacity_chip_hours: float  # existing chips x time
    held_chip_hours: float  # held by workloads
    free_chip_hours: float  # held by no workload
    free_while_queued_chip_hours: float  # part of `free`, up to the chips for which workloads were queued
    out_of_service_chip_hours: float  # part of `free` on nodes that were cordoned or not ready
    cost: float | None  # cost of the recorded capacity; null without a price of each accelerator type


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaUse:
    """Use of the quota of a queue, in chip-hours."""

    queue: str  # name of the queue
    quota_chip_hours: float  # quota x time
    held_chip_hours: float  # held by its workloads, with borrowed chips
    idle_quota_chip_hours: float  # quota that its own workloads did not hold


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Use of a cluster's chips over time."""

    cluster: str  # name of the cluster
    since: str  # begin
    until: str  # end
    by: tuple[str, ...]  # columns of the rows
    rows: tuple[UsageRow, ...]  # sums, the largest first
    total: UsageRow  # sum of all rows
    capacity: CapacityUse  # use of the capacity
    quotas: tuple[QuotaUse, ...]  # use of each queue's quota
    prices: tuple[ChipHourPrice, ...]  # prices of the costs; empty if costs were not computed
    unrecorded_seconds: float  # seconds without a record of the capacity
    problems: tuple[str, ...]  # records that are missing, one line for each kind


def parse_columns(text: str) -> tuple[str, ...]:
    """Return the columns of `team,user`. Raises UsageError with all problems; unknown names get the closest one."""
    chosen = [name.strip() for name in text.split(",")]
    problems = [_unknown(name) for name in chosen if name not in COLUMNS]
    problems += [f"--by: '{name}' is given twice" for name in COLUMNS if chosen.count(name) > 1]
    if problems:
        raise UsageError(problems[0], problems=problems, hint=f"choose from {', '.join(COLUMNS)}, separated by commas")
    return tuple(chosen)


def usage_of(
    ledger: Ledger, cluster: str, since: int, until: int, by: Sequence[str], prices: Sequence[ChipHourPrice] = ()
) -> Usage:
    """Return the figures of [since, until], in Unix microseconds; costs only with `prices`."""
    dollars = {price.family: price.dollars for price in prices if price.dollars is not None} if prices else None
    totals = sums(ledger, since, until, lambda hold, cause: tuple(_value(name, hold, cause) for name in by))
    whole = next(iter(sums(ledger, since, until, lambda hold, cause: ()).values()), Amounts())
    ordered = sorted(totals.items(), key=lambda item: (-item[1].held, -item[1].queued, item[0]))
    totaled = balance(ledger, since, until)
    return Usage(
        cluster=cluster,
        since=_time(since),
        until=_time(until),
        by=tuple(by),
        rows=tuple(_row(dict(zip(by, key, strict=True)), amounts, dollars) for key, amounts in ordered),
        total=_row({}, whole, dollars),
        capacity=_capacity(totaled, dollars),
        quotas=tuple(
            QuotaUse(
                queue=queue,
                quota_chip_hours=_hours(amount),
                held_chip_hours=_hours(totaled.held_of_queue.get(queue, 0)),
                idle_quota_chip_hours=_hours(totaled.idle_quotas[queue]),
            )
            for queue, amount in sorted(totaled.quotas.items())
        ),
        prices=tuple(prices),
        unrecorded_seconds=round(totaled.unrecorded / MICROSECONDS, 3),
        problems=tuple(ledger.problems),
    )


def families_of(ledger: Ledger) -> list[str]:
    """Return the accelerator families in a ledger."""
    kinds = {hold.accelerator_type for hold in ledger.holds} | {
        kind for capacity in ledger.capacities for kind in capacity.chips
    }
    return sorted({family_of(kind) or "unknown" for kind in kinds})


def family_of(accelerator_type: str) -> str:
    """Return the family of an accelerator type, the type itself if it is unknown."""
    try:
        return find_shape(accelerator_type).family
    except UsageError:
        return accelerator_type


def _unknown(name: str) -> str:
    return with_closest(f"--by: unknown column '{name}'", name, COLUMNS, cutoff=0.5)


def _value(name: str, hold: Hold, cause: str) -> str:
    if name == "workload":
        return hold.workload if hold.namespace == "default" else f"{hold.namespace}/{hold.workload}"
    return {"team": hold.team, "user": hold.user, "cause": cause}[name]


def _row(key: Mapping[str, str], amounts: Amounts, prices: Mapping[str, float] | None) -> UsageRow:
    held, productive = _hours(amounts.held), _hours(amounts.productive)
    return UsageRow(
        **key,
        held_chip_hours=held,
        productive_chip_hours=productive,
        lost_chip_hours=round(held - productive, _DIGITS),
        queued_chip_hours=_hours(amounts.queued),
        preemptions=None if "cause" in key else amounts.preemptions,
        preemption_chip_hours=_hours(amounts.resumed),
        cost=_cost(amounts.of_type, prices),
    )


def _capacity(totaled: Balance, prices: Mapping[str, float] | None) -> CapacityUse:
    capacity, held = _hours(totaled.capacity), _hours(totaled.held)
    return CapacityUse(
        capacity_chip_hours=capacity,
        held_chip_hours=held,
        free_chip_hours=round(capacity - held, _DIGITS),
        free_while_queued_chip_hours=_hours(totaled.free_while_queued),
        out_of_service_chip_hours=_hours(totaled.out_of_service),
        cost=_cost(totaled.of_type, prices),
    )


def _cost(of_type: Mapping[str, int], prices: Mapping[str, float] | None) -> float | None:
    """Return the cost of chip-microseconds by accelerator type."""
    if prices is None or any(family_of(kind) not in prices for kind in of_type):
        return None
    return round(sum(amount / _CHIP_HOUR * prices[family_of(kind)] for kind, amount in of_type.items()), 2)


def _hours(chip_microseconds: int) -> float:
    return round(chip_microseconds / _CHIP_HOUR, _DIGITS)


def _time(microseconds: int) -> str:
    return datetime.fromtimestamp(microseconds // MICROSECONDS, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
