"""Roster of the slices of an elastic workload, without threads or clocks.

A slice is present while its first host is connected. Its incarnation changes with every restart, and one that has been
dropped does not return. A slice is `waiting` until it may prepare, `ready` once it can receive the state of the run,
and `active` once it has that state. The first view names a founder among the slices, which reads the state from
storage; later slices receive it from an active one.
"""

from __future__ import annotations

import math
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
    term: int = 0  # of the list of slices: higher each time that one is formed anew

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
        values = {"view": self.number, "slices": slices, "founder": self.founder}
        return values | {"done": self.is_done, "term": self.term}


def read_view(message: dict[str, Any]) -> View:
    """Return the view in a message. Raises ValueError, KeyError or TypeError if it is invalid."""
    slices = {int(number): read_entry(entry) for number, entry in message["slices"].items()}
    number, term = int(message["view"]), int(message.get("term", 0))
    return View(number, slices, str(message["founder"]), bool(message["done"]), term)


@dataclass(frozen=True)
class Progress:
    """Newest step of an active slice, and with whom it made it: slices that others have left out are behind them."""

    seq: tuple[int, ...] = ()  # position in the run of its newest reduction
    active: frozenset[str] = frozenset()  # incarnations of the active slices that it knows
    term: int = 0  # of the view in which its newest step was made

    @property
    def rank(self) -> tuple[int, tuple[int, ...]]:
        """Order of progress: a later term has the newest step, even if it went on from an older one."""
        return self.term, self.seq

    def as_json(self) -> dict[str, Any]:
        """Return the progress in its wire format."""
        return {"progress": [list(self.seq), sorted(self.active)], "term": self.term}

    @property
    def is_start(self) -> bool:
        """True of a slice that begins the run and has had no reduction yet."""
        return bool(self.seq) and self.seq[0] < 0


def read_progress(message: dict[str, Any]) -> Progress:
    """Return the progress in a message, if it has one. Raises ValueError or TypeError if it is invalid."""
    seq, active = message.get("progress", ((), ()))
    position, names = tuple(int(part) for part in seq), frozenset(str(name) for name in active)
    return Progress(position, names, int(message.get("term", 0)))


@dataclass(frozen=True)
class RosterLimits:
    """Time limits in seconds."""

    form_seconds: float = 60.0  # for all slices to connect, before a run begins with fewer
    settle_seconds: float = 5.0  # for the other active slices to connect to a new registry, after the first one


def quorum(num_slices: int, min_slices: int) -> int:
    """Return how many slices may continue without the registry: the others are too few to do the same."""
    return max(min_slices, num_slices - min_slices + 1)


class Roster:
    """The present slices. Times are of one monotonic clock."""

    def __init__(self, num_slices: int, min_slices: int, limits: RosterLimits = RosterLimits()) -> None:
        self._num_slices, self._min_slices, self._limits = num_slices, min_slices, limits
        self._slices: dict[int, Entry] = {}
        self._dropped: set[str] = set()
        self._founder, self._number, self._is_done = "", 0, False
        self._term, self._known_term = 0, 0  # of the newest view; the highest one of which a slice has told
        self._first_at: float | None = None
        self._active_at: float | None = None  # when the first active slice connected
        self._is_formed = False
        self._continued: set[str] | None = None  # incarnations that may be active in the first view; None: any
        self._claimants: set[str] = set()  # incarnations that have said so
        self._progress: dict[str, Progress] = {}  # of active incarnations
        self._last_active = -1, ""  # number and incarnation of the only active slice, whose connection was lost
        self._awaited_until = -math.inf  # until when it may return before another slice begins the run
        self._former: set[str] = set()  # incarnations that were present before this registry began again
        self._reports: dict[str, tuple[Progress, set[str]]] = {}  # what incarnations said that was dropped, and when
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
        self._known_term = max(self._known_term, progress.term)
        if not self._is_formed:
            self._learn(entry, set(continued), set(dropped), progress)
        former = self._slices.get(number)
        is_new = former is None or former.incarnation != entry.incarnation
        begins = entry.phase == ACTIVE and progress.is_start
        if (is_new and self._is_left_out(entry)) or (begins and not self._may_begin(number, entry)):
            self._dropped.add(entry.incarnation)
        if entry.incarnation in self._dropped:
            return False
        if former and is_new:
            self._dropped.add(former.incarnation)
        if number == self._last_active[0] and is_new:  # the last one has started again
            self._awaited_until = -math.inf
        self._slices[number] = entry
        self.report(number, progress)
        self._first_at = now if self._first_at is None else self._first_at
        if entry.phase == ACTIVE and self._active_at is None:
            self._active_at = now
        return True

    def is_superseded(self, number: int, entry: Entry, continued: Collection[str], progress: Progress) -> bool:
        """Return whether a slice and others have continued without this registry, where too few are left to train.

        False for a slice that was frozen: it continued with slices that are here, or its steps are older.
        """
        former = self._slices.get(number)
        is_new = former is None or former.incarnation != entry.incarnation
        have_continued = entry.incarnation in continued and self._active.isdisjoint(continued)
        is_newest = progress.rank >= self._newest.rank
        return is_new and have_continued and is_newest and self._is_formed and len(self._active) < self._min_slices

    def supersede(self) -> None:
        """Begin again; the active slices here have followed views that others did not see, so they do not return."""
        self._stale |= self._active
        self._dropped |= self._stale
        self.begin_again()
        self._continued = None

    def begin_again(self) -> None:
        """Forget the present slices until they connect again: they may have dropped some of themselves meanwhile.

        Only they may be active then, unless they were too few to train: others may have continued without them.
        """
        if self._is_formed:
            self._former = {entry.incarnation for entry in self._slices.values()}
            self._continued = self._former if len(self._active) >= self._min_slices else None
        self._slices, self._is_formed, self._progress, self._claimants = {}, False, {}, set()
        self._first_at = self._active_at = None

    def postpone(self, seconds: float) -> None:
        """Do not count a time in which the registry did not run, and no slice could connect."""
        self._first_at = None if self._first_at is None else self._first_at + seconds
        self._active_at = None if self._active_at is None else self._active_at + seconds

    def pop_evicted(self) -> list[tuple[int, str]]:
        """Return the slices, with their incarnations, that were dropped since because others have left them out."""
        evicted, self._evicted = self._evicted, []
        return evicted

    def report(self, number: int, progress: Progress) -> None:
        """Keep the progress of an active slice that is present."""
        entry = self._slices.get(number)
        if entry and entry.phase == ACTIVE:
            known = self._progress.get(entry.incarnation, progress)
            self._progress[entry.incarnation] = max(known, progress, key=lambda each: each.rank)

    @property
    def _newest(self) -> Progress:
        """The newest progress of all active slices that were not dropped."""
        kept = (progress for incarnation, progress in self._progress.items() if incarnation not in self._dropped)
        return max(kept, key=lambda progress: progress.rank, default=Progress())

    def _learn(self, entry: Entry, continued: set[str], dropped: set[str], progress: Progress) -> None:
        """Take note of what a slice knows of the others, before the first view."""
        self._note_dropped(entry, dropped - self._former, progress)
        if progress.term > self._newest.term:  # a later list has readmitted its slices
            self._dropped -= progress.active - self._stale - self._former
        self._dropped |= self._reported
        if entry.phase == ACTIVE and entry.incarnation not in self._dropped:
            self._compare(entry, progress)
        newest = self._newest
        is_believed = self._continued is None or entry.incarnation in self._continued
        is_believed &= progress.rank >= newest.rank or entry.incarnation in newest.active
        if continued and is_believed and entry.incarnation not in self._reported:
            self._continue_with(entry, continued - self._stale)
        self._evict()

    def _note_dropped(self, entry: Entry, dropped: set[str], progress: Progress) -> None:
        """Note what a slice says that an earlier registry has dropped.

        It does not count for those that train, if a later list has readmitted them, or if they have continued without
        the registry and have left out the slice that says so.
        """
        leading = max(self._newest, progress, key=lambda each: each.rank)
        earlier = self._reports.get(entry.incarnation, (progress, set[str]()))[1]
        self._reports[entry.incarnation] = progress, earlier | dropped
        can_continue = len(leading.active) >= quorum(self._num_slices, self._min_slices)
        self._reported = set()
        for incarnation, (known, names) in self._reports.items():
            is_left_out = can_continue and known.rank < leading.rank and incarnation not in leading.active
            is_outdated = is_left_out or known.term < leading.term
            self._reported |= names - leading.active if is_outdated else names

    def _is_left_out(self, entry: Entry) -> bool:
        """Return whether others train without a slice that connects, or may do so since the first view."""
        if self._is_formed:
            is_back = entry.phase == ACTIVE and entry.incarnation == self._last_active[1] and not self._has_active
            return entry.phase != WAITING and not is_back
        newest = self._newest
        is_left_out = self._continued is not None and entry.incarnation not in self._continued
        is_left_out |= bool(newest.active) and entry.incarnation not in newest.active
        return entry.phase == ACTIVE and is_left_out

    def _may_begin(self, number: int, entry: Entry) -> bool:
        """Return whether a slice may begin the run: this registry has named it, and no other slice has the state."""
        has_state = any(each.phase == ACTIVE and other != number for other, each in self._slices.items())
        return entry.incarnation == self._founder and not has_state

    def _compare(self, entry: Entry, progress: Progress) -> None:
        """Note the progress of an active slice; forget what slices have said that are behind it and left out."""
        if progress.rank > self._newest.rank:
            is_known = entry.incarnation in (self._continued or ())
            is_outdated = self._claimants.isdisjoint(progress.active) if self._claimants else not is_known
            if is_outdated:
                self._continued, self._claimants = None, set()
        self._progress[entry.incarnation] = progress

    def _continue_with(self, entry: Entry, continued: set[str]) -> None:
        self._continued = continued if self._continued is None else self._continued & continued
        self._claimants.add(entry.incarnation)
        self._dropped -= self._continued - self._reported
        self._dropped |= self._active - self._continued

    def _evict(self) -> None:
        """Remove the slices of which it has become known that they were dropped."""
        for number, entry in list(self._slices.items()):
            trains = self._newest.active
            if entry.phase == ACTIVE and trains and entry.incarnation not in trains:
                self._dropped.add(entry.incarnation)
            if entry.incarnation in self._dropped:
                self._evicted.append((number, entry.incarnation))
                self.drop(number)

    def lose(self, number: int, now: float) -> None:
        """Remove a slice whose connection is lost. The only active one may return: no other slice has the state."""
        entry = self._slices.get(number)
        self.drop(number)
        if entry and entry.phase == ACTIVE and not self._has_active:
            self._last_active = number, entry.incarnation
            self._awaited_until = now + self._limits.settle_seconds
            self._dropped.discard(entry.incarnation)

    def drop(self, number: int) -> None:
        """Remove a slice that is lost or has left. It may connect again until a view tells others that it is absent."""
        entry = self._slices.pop(number, None)
        if entry:
            self._progress.pop(entry.incarnation, None)
        if entry and self._is_formed:
            self._dropped.add(entry.incarnation)
        if not self._has_active:
            self._active_at = None
        if not self._slices:  # the next slices begin like the first ones
            self._first_at = None
            if self._is_formed:
                self._is_formed, self._progress = False, {}

    def finish(self) -> None:
        """Record that the run has finished."""
        self._is_done = True

    def view(self, now: float, least_term: int = 0) -> View | None:
        """Return a new view of the slices; None while slices that are expected may still connect.

        `least_term`: of a list that is formed now, so that it is later than those of registries of which nobody tells.
        """
        if not self._is_formed and not self._forms(now):
            return None
        if not self._is_formed or self._known_term > self._term:
            self._term = max(self._term + 1, self._known_term + 1, least_term)
        self._is_formed, self._continued, self._claimants = True, None, set()
        if self.needs_founder(now):
            self._founder = self._slices[min(self._slices)].incarnation
        has_founder = not self._has_active and self._has(self._founder)
        self._number += 1
        founder = self._founder if has_founder else ""
        return View(self._number, dict(self._slices), founder, self._is_done, self._term)

    def needs_founder(self, now: float) -> bool:
        """Return whether the next view names a founder."""
        can_begin = self._is_formed and bool(self._slices) and not self._has_active
        return can_begin and not self._has(self._founder) and now >= self._awaited_until

    def _has(self, incarnation: str) -> bool:
        return any(entry.incarnation == incarnation for entry in self._slices.values())

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
        return bool(self._active)

    @property
    def _active(self) -> set[str]:
        """Incarnations of the active slices that are present."""
        return {entry.incarnation for entry in self._slices.values() if entry.phase == ACTIVE}

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
