"""The open intervals of a cluster's usage, which become records of the ledger when they end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from xpk.model.usage import MICROSECONDS, Capacity, Hold, Holding, Record, Supply

_WRONG_CLOCK = 86400 * MICROSECONDS  # a clock that was set back by more was wrong before


@dataclass(slots=True)
class Book:
    """Holdings and supply since the time of each. `last`: the newest time that a record begins or ends.

    Records never overlap: if the clock is set back, the book waits until it reaches `last` again.
    """

    holds: dict[str, tuple[int, Holding]] = field(default_factory=dict)  # by the UID of the workload
    supply: tuple[int, Supply] | None = None
    last: int = 0

    def time(self, now: int) -> int:
        """Return the time of a change at `now`, in Unix microseconds."""
        return now if now < self.last - _WRONG_CLOCK else max(now, self.last)

    def advance(self, now: int, holdings: Mapping[str, Holding], supply: Supply) -> list[Record]:
        """Change the book to the present holdings and supply; return the records of the intervals that end."""
        at, ended, has_changed = self.time(now), list[Record](), False
        for uid in sorted(self.holds.keys() | holdings.keys()):
            begin, before = self.holds.get(uid, (at, None))
            after = holdings.get(uid)
            if before == after:
                continue
            has_changed = True
            if before is not None and at > begin:
                ended.append(Hold(**asdict(before), begin=begin, end=at))
            if after is None:
                del self.holds[uid]
            else:
                self.holds[uid] = at, after
        begin, known = self.supply or (at, None)
        if known != supply:
            has_changed = True
            if known is not None and at > begin:
                ended.append(Capacity(**asdict(known), begin=begin, end=at))
            self.supply = at, supply
        if has_changed:
            self.last = at
        return ended

    def open_records(self, now: int) -> list[Record]:
        """Return the intervals that have not ended, up to `now`."""
        at = self.time(now)
        records: list[Record] = [
            Hold(**asdict(holding), begin=begin, end=at) for begin, holding in self.holds.values() if at > begin
        ]
        if self.supply and at > self.supply[0]:
            records.append(Capacity(**asdict(self.supply[1]), begin=self.supply[0], end=at))
        return records
