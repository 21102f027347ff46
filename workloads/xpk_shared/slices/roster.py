"""Roster of the slices of an elastic workload, without threads or clocks.

A slice is present while its first host is connected. Its incarnation changes with every restart, and one that has been
dropped does not return. A slice is `waiting` until it may prepare, `ready` once it can receive the state of the run,
and `active` once it has that state. The first view names a founder among the slices, which reads the state from
storage; later slices receive it from an active one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

WAITING, READY, ACTIVE = "waiting", "ready", "active"  # phases of a slice
_PHASES = (WAITING, READY, ACTIVE)


@dataclass(frozen=True)
class Entry:
    """A slice that is present; each of its hosts listens at its address."""

    incarnation: str
    phase: str
    hosts: tuple[tuple[str, int], ...]

    def as_json(self) -> dict[str, Any]:
        """Return the entry in its wire format."""
        return {"incarnation": self.incarnation, "phase": self.phase, "hosts": [list(host) for host in self.hosts]}


def read_entry(value: Any) -> Entry:
    """Return the entry in a message. Raises ValueError, KeyError or TypeError if it is invalid."""
    hosts = tuple((str(address), int(port)) for address, port in value["hosts"])
    if value["phase"] not in _PHASES or not isinstance(value["incarnation"], str):
        raise ValueError("invalid entry")
    return Entry(value["incarnation"], value["phase"], hosts)


@dataclass(frozen=True)
class View:
    """The slices that are present, by number."""

    number: int = 0
    slices: dict[int, Entry] = field(default_factory=dict)
    founder: str = ""  # incarnation of the slice that reads the state from storage, while no slice is active
    is_done: bool = False  # the run has finished

    @property
    def has_active(self) -> bool:
        """True if a slice has the state of the run."""
        return any(entry.phase == ACTIVE for entry in self.slices.values())

    def has(self, number: int, incarnation: str) -> bool:
        """Return whether this incarnation of a slice is present."""
        return number in self.slices and self.slices[number].incarnation == incarnation

    def as_json(self) -> dict[str, Any]:
        """Return the view in its wire format."""
        slices = {str(number): entry.as_json() for number, entry in self.slices.items()}
        return {"view": self.number, "slices": slices, "founder": self.founder, "done": self.is_done}


def read_view(message: dict[str, Any]) -> View:
    """Return the view in a message. Raises ValueError, KeyError or TypeError if it is invalid."""
    slices = {int(number): read_entry(entry) for number, entry in message["slices"].items()}
    return View(int(message["view"]), slices, str(message["founder"]), bool(message["done"]))


@dataclass(frozen=True)
class Progress:
    """Newest step of an active slice, and with whom it made it: slices that others have left out are behind them."""

    seq: tuple[int, ...] = ()  # position in the run of its newest reduction
    active: frozenset[str] = frozenset()  # incarnations of the active slices that it knows

    @property
    def is_start(self) -> bool:
        """True of a slice that begins the run and has had no reduction yet."""
        return bool(self.seq) and self.seq[0] < 0


@dataclass(frozen=True)
class RosterLimits:
    """Time limits in seconds."""

    form_seconds: float = 60.0  # for all slices to connect, before a run begins with fewer
    settle_seconds: float = 5.0  # for the other active slices to connect to a new registry, after the first one


class Roster:
    """The present slices. Times are of one monotonic clock."""

    def __init__(self, num_slices: int, min_slices: int, limits: RosterLimits = RosterLimits()) -> None:
        self._num_slices, self._min_slices, self._limits = num_slices, min_slices, limits
        self._slices: dict[int, Entry] = {}
        self._dropped: set[str] = set()
        self._founder, self._number, self._is_done = "", 0, False
        self._first_at: float | None = None
        self._active_at: float | None = None  # when the first active slice connected
        self._is_formed = False
        self._continued: set[str] | None = None  # incarnations that may be active in the first view; None: any
        self._is_claimed = False  # by slices with the newest progress
        self._newest = Progress()  # of the active slices
        self._former: set[str] = set()  # incarnations that were present before this registry began again
        self._reported: set[str] = set()  # incarnations that an earlier registry has dropped
        self._stale: set[str] = set()  # incarnations whose views others did not see
        self._evicted: list[tuple[int, str]] = []

    def take(
        self,
        number: int,
        entry: Entry,
        now: float,
        continued: Iterable[str] = (),
        dropped: Iterable[str] = (),
        progress: Progress = Progress(),
    ) -> bool:
        """Record what a slice says of itself; return False if that incarnation was dropped before.

        A slice was also dropped if it became ready or active under an earlier registry and connects after the first
        view of this one, or if `continued` leaves it out: incarnations that have continued without a registry.
        `dropped`: those that an earlier registry has dropped. Of active slices, the one with the most `progress` knows
        which ones train.
        """
        if not self._is_formed:
            self._reported |= set(dropped) - self._former
            self._dropped |= self._reported
            self._compare(entry, progress)
            is_believed = self._continued is None or entry.incarnation in self._continued
            is_believed &= progress.seq >= self._newest.seq and entry.incarnation not in self._reported
            if continued and is_believed:
                self._continue_with(set(continued) - self._stale)
            self._evict()
        former = self._slices.get(number)
        is_new = former is None or former.incarnation != entry.incarnation
        is_left_out = self._continued is not None and entry.incarnation not in self._continued
        is_left_out |= bool(self._newest.active) and entry.incarnation not in self._newest.active
        if is_new and (entry.phase != WAITING if self._is_formed else entry.phase == ACTIVE and is_left_out):
            self._dropped.add(entry.incarnation)
        if entry.phase == ACTIVE and progress.is_start and not self._may_begin(number, entry):
            self._dropped.add(entry.incarnation)  # an earlier view has named it
        if entry.incarnation in self._dropped:
            return False
        if former and is_new:
            self._dropped.add(former.incarnation)
        self._slices[number] = entry
        self._compare(entry, progress)
        self._first_at = now if self._first_at is None else self._first_at
        if entry.phase == ACTIVE and self._active_at is None:
            self._active_at = now
        return True

    def is_superseded(self, number: int, entry: Entry, continued: Collection[str], progress: Progress) -> bool:
        """Return whether a slice and others have continued without this registry, where too few are left to train.

        A slice that was frozen may say so of slices that are here, or of those that have left it out since.
        """
        former = self._slices.get(number)
        is_new = former is None or former.incarnation != entry.incarnation
        active = {each.incarnation for each in self._slices.values() if each.phase == ACTIVE}
        have_continued = entry.incarnation in continued and active.isdisjoint(continued)
        is_newest = progress.seq >= self._newest.seq
        return is_new and have_continued and is_newest and self._is_formed and len(active) < self._min_slices

    def supersede(self) -> None:
        """Begin again; the active slices here have followed views that others did not see, so they do not return."""
        self._stale |= {entry.incarnation for entry in self._slices.values() if entry.phase == ACTIVE}
        self._dropped |= self._stale
        self.begin_again()
        self._continued = None

    def begin_again(self) -> None:
        """Forget the present slices until they connect again: they may have dropped some of themselves meanwhile."""
        if self._is_formed:
            self._former = self._continued = {entry.incarnation for entry in self._slices.values()}
        self._slices, self._is_formed, self._is_claimed, self._newest = {}, False, False, Progress()
        self._first_at = self._active_at = None

    def postpone(self, seconds: float) -> None:
        """Do not count a time in which the registry did not run, and no slice could connect."""
        self._first_at = None if self._first_at is None else self._first_at + seconds
        self._active_at = None if self._active_at is None else self._active_at + seconds

    def pop_evicted(self) -> list[tuple[int, str]]:
        """Return the slices, with their incarnations, that were dropped since because others have left them out."""
        evicted, self._evicted = self._evicted, []
        return evicted

    def _may_begin(self, number: int, entry: Entry) -> bool:
        """Return whether a slice may begin the run: it is the founder, and no other has the state."""
        has_state = any(each.phase == ACTIVE and other != number for other, each in self._slices.items())
        return entry.incarnation == self._founder and not has_state

    def _compare(self, entry: Entry, progress: Progress) -> None:
        """Keep the progress of an active slice if it is the newest; those that have left it out are behind."""
        if entry.phase == ACTIVE and entry.incarnation not in self._dropped and progress.seq > self._newest.seq:
            self._newest = progress
            if self._is_claimed or entry.incarnation not in (self._continued or ()):
                self._continued, self._is_claimed = None, False

    def _continue_with(self, continued: set[str]) -> None:
        self._continued = continued if self._continued is None else self._continued & continued
        self._is_claimed = True
        self._dropped -= self._continued - self._reported
        active = {entry.incarnation for entry in self._slices.values() if entry.phase == ACTIVE}
        self._dropped |= active - self._continued

    def _evict(self) -> None:
        """Remove the slices of which it has become known that they were dropped."""
        for number, entry in list(self._slices.items()):
            if entry.phase == ACTIVE and self._newest.active and entry.incarnation not in self._newest.active:
                self._dropped.add(entry.incarnation)
            if entry.incarnation in self._dropped:
                self._evicted.append((number, entry.incarnation))
                self.drop(number)

    def drop(self, number: int) -> None:
        """Remove a slice that is lost or has left. It may connect again until a view tells others that it is absent."""
        entry = self._slices.pop(number, None)
        if entry and self._is_formed:
            self._dropped.add(entry.incarnation)
        if not self._has_active:
            self._active_at = None
        if not self._slices:  # the next slices begin like the first ones
            self._first_at = None
            if self._is_formed:
                self._is_formed, self._newest = False, Progress()

    def finish(self) -> None:
        """Record that the run has finished."""
        self._is_done = True

    def view(self, now: float) -> View | None:
        """Return a new view of the slices; None while slices that are expected may still connect."""
        if not self._is_formed and not self._forms(now):
            return None
        self._is_formed, self._continued, self._is_claimed = True, None, False
        incarnations = {entry.incarnation for entry in self._slices.values()}
        if not self._has_active and self._founder not in incarnations and self._slices:
            self._founder = self._slices[min(self._slices)].incarnation
        self._number += 1
        return View(self._number, dict(self._slices), "" if self._has_active else self._founder, self._is_done)

    @property
    def is_formed(self) -> bool:
        """True from the first view on, until the registry begins again or all slices have left."""
        return self._is_formed

    @property
    def is_forming(self) -> bool:
        """True if the next view depends on the time."""
        return bool(self._slices) and not self._is_formed

    @property
    def _has_active(self) -> bool:
        return any(entry.phase == ACTIVE for entry in self._slices.values())

    def _forms(self, now: float) -> bool:
        if not self._slices or self._first_at is None:
            return False
        is_complete = len(self._slices) == self._num_slices
        if self._continued and self._continued <= {entry.incarnation for entry in self._slices.values()}:
            return True
        if self._active_at is not None:
            # The former registry was lost with slice 0, so only the others may be active.
            have_connected = self._continued is None and self._slices.keys() >= set(range(1, self._num_slices))
            has_settled = now - self._active_at >= self._limits.settle_seconds
            return have_connected or (has_settled and len(self._slices) >= self._min_slices)
        is_late = now - self._first_at >= self._limits.form_seconds and len(self._slices) >= self._min_slices
        return is_complete or is_late or self._is_done
