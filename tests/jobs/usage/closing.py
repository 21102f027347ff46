"""The ledger of a simulated fleet, and the chips that were really there and held."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from tests.jobs.usage.fleet import EPOCH, HOUR, MONTH, Fleet
from xpk.jobs.usage.ledger import Ledger, read
from xpk.jobs.usage.sums import Amounts, Balance, balance, sums
from xpk.model.usage import Causes, Piece

_CAUSES = (
    "steps",
    "data_wait",
    "lost",
    "init",
    "restore",
    "compile",
    "save",
    "eval",
    "down",
    "suspended",
    "hang",
    "idle",
)


def causes(rng: Random, uid: str, begin: int, end: int) -> Causes:
    """Return random causes of a workload's time, with gaps."""
    pieces, at = [], begin
    while at < end:
        first = at + rng.choice((0, 0, rng.randrange(HOUR)))
        last = min(end, first + rng.randrange(1, HOUR))
        if first < last:
            cut = rng.randrange(last - first + 1)
            names = rng.sample(_CAUSES, 2)
            pieces.append(Piece(first, last, dict(zip(names, (cut, last - first - cut), strict=True))))
        at = max(last, first)
    return Causes(uid=uid, end=end, pieces=tuple(pieces))


def totals(ledger: Ledger, since: int, until: int) -> Amounts:
    return next(iter(sums(ledger, since, until, lambda hold, cause: ()).values()), Amounts())


@dataclass(frozen=True, slots=True, kw_only=True)
class Closing:
    """A ledger from `since` to `until`, with its sums, and the fleet that it is of."""

    fleet: Fleet
    ledger: Ledger
    since: int
    until: int
    whole: Amounts
    balanced: Balance


def close(seed: int, months: int) -> Closing:
    """Let a fleet live for some months, with the causes of three in ten workloads' time, and read its ledger."""
    fleet = Fleet(seed)
    fleet.run(EPOCH + months * MONTH)
    records = [causes(fleet.rng, uid, *life) for uid, life in fleet.lives.items() if fleet.rng.random() < 0.3]
    since, until = EPOCH - MONTH, max(fleet.wall, fleet.now) + HOUR
    more = [*fleet.writer.open_records(fleet.wall), *records]
    ledger = read(fleet.folder, since=since, until=until, more=more)
    return Closing(
        fleet=fleet,
        ledger=ledger,
        since=since,
        until=until,
        whole=totals(ledger, since, until),
        balanced=balance(ledger, since, until),
    )
