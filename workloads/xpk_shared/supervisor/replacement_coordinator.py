"""Decisions of the first host on restarts around the replacement of a slice.

If a host is lost with its pod or node, or is asked to end, Kubernetes creates new pods for its slice alone. The other
hosts end their commands and keep their pods. Once the hosts of the new slice have joined, all commands start again.
This is not a restart in place: Kubernetes counts the replacement of the slice, and names its cause.

A host joins when it connects. Its command runs if the host's pod is new, as are all others. It waits for its first
order if its slice was replaced. It has ended if the first host was lost, and replaced since: such a first host knows
nothing of earlier attempts, and waits until all hosts have joined.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from xpk_shared.supervisor.host import Host
from xpk_shared.supervisor.names import PEER_LOST
from xpk_shared.supervisor.restarts import Coordinator, CoordinatorLimits, End

_ALL_SECONDS = 120.0  # for a slice with a frozen host to be replaced: twice the grace period, and a minute
NEVER = -1  # restarts in place of a host that has not started its command


class ReplacingCoordinator(Coordinator):
    """Decisions on restarts where Kubernetes replaces single slices."""

    def __init__(self, host: Host, now: float, coordinator_limits: CoordinatorLimits | None = None) -> None:
        super().__init__(host, now, coordinator_limits or CoordinatorLimits())
        self._gathers = bool(host.slice_attempt)  # this host's slice was replaced: it knows nothing of the others
        self._replaces = self._gathers  # the next attempt begins once all hosts have joined
        self._missing = set(range(1, host.hosts)) if self._gathers else set()  # hosts that have to join
        self._generation = {0: host.slice_attempt or 0}  # how often the slice of a host was replaced before it joined
        self._running: set[int] = set()  # hosts that joined with a running command
        self._newest = NEVER  # newest attempt of the hosts that joined after its end
        self._asked: dict[int, float] = {}  # hosts that were asked to end and have not left yet, and the times
        self._saves = False  # the commands that were stopped may save
        self._stop_facts: dict[str, Any] | None = None  # of the stop to order next
        self._frozen: dict[int, float] = {}  # hosts, and the time at which the others of their slices were told
        self._now = now
        self._admits = self._is_counted = False
        if self._gathers:
            self._ends[0] = End(0, 0, was_stopped=True)

    @property
    def awaited(self) -> tuple[int, ...]:
        """Numbers of the hosts that have to join before the next attempt."""
        return tuple(sorted(self._missing))

    def ask(self, number: int) -> None:
        """Note that a host was asked to end. Until it has left, the commands of all hosts may save and end."""
        self._asked[number] = self._now

    def leave(self, number: int) -> None:
        """Note that a host has left as announced. It will be replaced if it was asked to end."""
        if number in self._asked:
            self.lose(number)

    def lose(self, number: int) -> None:
        """Note that a host is lost, or has left after it was asked to end: its slice will be replaced."""
        self._frozen.pop(number, None)
        self._give_up(number)

    def _give_up(self, number: int) -> None:
        saves = bool(self._asked)
        generation = self._generation.get(number)
        beside = {other for other in self._slice_of(number) if self._generation.get(other, generation) == generation}
        self._mark_missing(beside | {number})
        self._replaces = True
        if self._start_at is not None:  # during the pause before a restart
            self._start_at, self._is_counted = None, True
        if self._stopped_at is None and self._stop_facts is None:
            self._stop_facts = {"number": number, "replaces": True, "saves": saves}

    def _mark_missing(self, gone: set[int]) -> None:
        self._missing |= gone
        self._running -= gone
        self._asked = {other: at for other, at in self._asked.items() if other not in gone}
        self._ends = {other: end for other, end in self._ends.items() if other not in gone}

    def _slice_of(self, number: int) -> set[int]:
        size = self._host.hosts_per_slice
        return set(range(number // size * size, number // size * size + size))

    def join(self, number: int, restarts: int, generation: int, *, runs: bool) -> None:
        """Note that a host has connected. If its command has ended, it had been restarted this often, or NEVER.

        `generation`: how often its slice was replaced before. Hosts of an earlier one are lost, known or not.
        """
        stale = {other for other in self._slice_of(number) if self._generation.get(other, generation) < generation}
        self._generation[number] = generation
        if stale - self._missing - {number}:
            self.lose(min(stale - self._missing - {number}))
        if runs:
            self._missing.discard(number)
            self._running.add(number)
            return
        is_expected = number in self._missing or self._replaces or self._failed_at is not None
        if not is_expected and restarts == NEVER and self.restarts == 0 and number not in self._ends:
            self._admits = True  # the first attempt runs, and this host was no part of it yet
            return
        if not is_expected:
            self.lose(number)
        self._missing.discard(number)
        self._ends[number] = End(number, 0, was_stopped=True)
        self._newest = max(self._newest, restarts)

    def decide(self, now: float, absent: Collection[int]) -> dict[str, Any] | None:
        """Return the next order, or None if there is none yet. `absent`: hosts that have never connected."""
        self._now = now
        if self._is_done or self._start_at is not None:
            return super().decide(now, absent)
        if self._replaces:
            return self._decide_replacement(now, absent)
        if self._admits:
            self._admits = False
            return {"start": 0}
        if self._asked and not self._have_all_succeeded:
            return self._decide_on_asked(now)
        return super().decide(now, absent)

    def _decide_on_asked(self, now: float) -> dict[str, Any] | None:
        """Return the order to replace a host that was asked to end and does not, if others have failed meanwhile."""
        number, at = next(iter(self._asked.items()))
        is_late = self._failed_at is not None and now > at + self._limits.stop_seconds + self._host.grace_seconds
        return self._final(End(number, PEER_LOST, was_stopped=True), silent=True) if is_late else None

    def _decide_replacement(self, now: float, absent: Collection[int]) -> dict[str, Any] | None:
        """Return the order to stop, to replace frozen hosts too, or to start once all hosts have joined."""
        if overdue := sorted(number for number, at in self._frozen.items() if now > at + _ALL_SECONDS):
            self._is_done = True
            return {"final": 0, "all": overdue[0]}
        if self._stop_facts:
            order, self._stop_facts, self._stopped_at = self._stop_facts, None, now
            self._saves = order["saves"]
            return {"stop": self.restarts, "code": 0, **order}
        running = set(range(self._host.hosts)) - self._ends.keys() - self._missing
        late = sorted(running - set(absent)) if self._is_late(now) else []
        if late:
            return self._final(End(late[0], PEER_LOST, was_stopped=True), silent=True)
        if self._missing:
            return None
        if not running:
            return self._start_together(now)
        if self._stopped_at is not None:
            return None
        if self._newest != NEVER or self._failed_at is not None:
            self._stop_facts = {"number": self._host.number, "replaces": True, "saves": False}
            return self._decide_replacement(now, absent)
        self._renew(now)  # all pods are new: the others run the first attempt already
        return {"start": 0}

    def _is_late(self, now: float) -> bool:
        """Return whether every command that was stopped should have ended by now."""
        patience = self._limits.stop_seconds + (self._host.grace_seconds if self._saves else 0.0)
        return self._stopped_at is not None and now > self._stopped_at + patience

    def _start_together(self, now: float) -> dict[str, Any]:
        """Return the order to begin the next attempt, which follows the newest one that any host knows."""
        known = [self._newest, *([0] if self._running else []), *([] if self._gathers else [self.restarts])]
        self.restarts = max(known)
        if not self._is_counted:
            self.cause = None
        self._renew(now)
        return self._start(now)

    def _renew(self, now: float) -> None:
        """Forget what concerned the replacement."""
        self._gathers = self._replaces = self._is_counted = self._admits = False
        self._saves, self._running, self._newest = False, set(), NEVER
        self._asked, self._ends, self._started_at = {}, {}, now

    @property
    def _have_all_succeeded(self) -> bool:
        return len(self._ends) == self._host.hosts and not any(end.code for end in self._ends.values())

    def _final(self, end: End, **facts: Any) -> dict[str, Any]:
        """Return the order for a host to end with its own exit code: its slice is replaced, or the JobSet fails.

        A frozen one cannot end; the others of its slice do.
        """
        if facts.get("silent"):
            self._frozen[end.number] = self._now
        self._give_up(end.number)
        return {"final": end.number, **facts}
