"""Decisions of the first host on restarts around the replacement of a slice.

If a host is lost with its node, or is asked to end, Kubernetes creates new pods for its slice alone. The other hosts
end their commands and keep their pods. Once the hosts of the new slice have joined, all commands start again. This is
not a restart in place: Kubernetes names its cause. Kubernetes also decides: if a host has failed by itself, it ends the
waiting hosts, and creates the pods of all slices again.

A host joins when it connects. Its command runs if the host's pod is new, as are all others. It waits for its first
order if its slice was replaced. It has ended if the first host was lost, and replaced since: such a first host knows
nothing of earlier attempts, and waits until all hosts have joined.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection
from dataclasses import replace
from typing import Any

from xpk_shared.supervisor.host import Host
from xpk_shared.supervisor.names import PEER_LOST
from xpk_shared.supervisor.restarts import Coordinator, CoordinatorLimits, End

_PATIENCE = 1.5  # 30 s: the order to stop goes to a dead node, too, whose connection then ends after 25 s
NEVER = -1  # restarts in place of a host that has not started its command


class ReplacingCoordinator(Coordinator):
    """Decisions on restarts where Kubernetes replaces single slices."""

    def __init__(self, host: Host, now: float, coordinator_limits: CoordinatorLimits | None = None) -> None:
        limits = coordinator_limits or CoordinatorLimits()
        super().__init__(host, now, replace(limits, stop_seconds=_PATIENCE * limits.stop_seconds))
        self._gathers = bool(host.slice_attempt)  # this host's slice was replaced: it knows nothing of the others
        self._replaces = self._gathers  # the next attempt begins once all hosts have joined
        self._missing = set(range(1, host.hosts)) if self._gathers else set()  # hosts that have to join
        self._generation = {0: host.slice_attempt or 0}  # how often the slice of a host was replaced before it joined
        self._running: set[int] = set()  # hosts that joined with a running command
        self._newest = NEVER  # newest attempt of the hosts that joined after its end
        self._asked: dict[int, float] = {}  # hosts that were asked to end and have not left yet, and the times
        self._saves = False  # the commands that were stopped may save
        self._stop_facts: dict[str, Any] | None = None  # of the stop to order next
        self._seen_at: dict[int, float] = {}  # time since which a host has to follow the order to stop
        self._messages: deque[dict[str, Any]] = deque()  # to all hosts, before the next order
        self._left: set[int] = set()  # hosts that have learned that the run is over
        self._now = now
        self._admits = self._is_counted = self._has_succeeded = False
        if self._gathers:
            self._ends[0] = End(0, 0, was_stopped=True)

    def ask(self, number: int) -> None:
        """Note that a host was asked to end. Until it has left, the commands of all hosts may save and end."""
        self._asked[number] = self._now

    @property
    def is_over(self) -> bool:
        """True if the run has succeeded and all hosts know it. Those of a slice that is replaced meanwhile ask."""
        return self._has_succeeded and len(self._left) == self._host.hosts - 1

    def leave(self, number: int) -> None:
        """Note that a host has left as announced. It will be replaced if it was asked to end."""
        self._left.add(number)
        if number in self._asked:
            self.lose(number)

    def lose(self, number: int) -> None:
        """Note that a host is lost, or has left after it was asked to end: its slice will be replaced."""
        saves = bool(self._asked)
        generation = self._generation.get(number)
        beside = {other for other in self._slice_of(number) if self._generation.get(other, generation) == generation}
        self._mark_missing(beside | {number})
        self._messages.append({"gone": number, "generation": generation or 0})
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
        if self._has_succeeded:
            self._messages.append({"done": True})
            return
        self._left.discard(number)
        stale = {other for other in self._slice_of(number) if self._generation.get(other, generation) < generation}
        self._generation[number] = generation
        if stale - self._missing - {number}:
            self.lose(min(stale - self._missing - {number}))
        if runs:
            self._missing.discard(number)
            self._running.add(number)
            return
        is_expected = self._replaces or self._failed_at is not None
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
        if self._messages:
            return self._messages.popleft()
        if self._is_done or self._start_at is not None:
            return super().decide(now, absent)
        if self._replaces:
            return self._decide_replacement(now, absent)
        if self._admits:
            self._admits = False
            return {"start": 0}
        if self._asked and not self._have_all_succeeded:
            return self._decide_on_asked(now)
        order = super().decide(now, absent)
        self._has_succeeded = order is not None and "done" in order
        return order

    def _decide_on_asked(self, now: float) -> dict[str, Any] | None:
        """Return the order to exit if a host that was asked to end does not, and others have failed meanwhile."""
        number, at = next(iter(self._asked.items()))
        is_late = self._failed_at is not None and now > at + self._limits.stop_seconds + self._host.grace_seconds
        return self._final(End(number, PEER_LOST, was_stopped=True), silent=True) if is_late else None

    def _decide_replacement(self, now: float, absent: Collection[int]) -> dict[str, Any] | None:
        """Return the order to stop, to exit if a host is frozen, or to start once all hosts have joined."""
        if self._stop_facts:
            order, self._stop_facts, self._stopped_at = self._stop_facts, None, now
            self._saves = order["saves"]
            return {"stop": self.restarts, "code": 0, **order}
        running = set(range(self._host.hosts)) - self._ends.keys() - self._missing
        for number in running - set(absent):
            self._seen_at.setdefault(number, now)
        late = sorted(number for number in running if self._is_late(number, now))
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
        own_ends = {number: end for number, end in self._ends.items() if not end.was_stopped}
        self._renew(now)  # all pods are new: the others run the first attempt already
        self._ends = own_ends
        return {"start": 0}

    def _is_late(self, number: int, now: float) -> bool:
        """Return whether the command of a host was stopped and should have ended by now."""
        patience = self._limits.stop_seconds + (self._host.grace_seconds if self._saves or self._asked else 0.0)
        since = max(self._stopped_at or math.inf, self._seen_at.get(number, math.inf))
        return now > since + patience

    def _start_together(self, now: float) -> dict[str, Any]:
        """Return the order to begin the next attempt, which follows the newest one that any host knows."""
        known = [self._newest, *([0] if self._running else []), *([] if self._gathers else [self.restarts])]
        self.restarts = max(known)
        if not self._is_counted:
            self.cause = None
        self._renew(now)
        return {**self._start(now), "replaced": True}

    def _renew(self, now: float) -> None:
        """Forget what concerned the replacement."""
        self._gathers = self._replaces = self._is_counted = self._admits = False
        self._saves, self._running, self._newest, self._seen_at = False, set(), NEVER, {}
        self._asked, self._ends, self._started_at = {}, {}, now

    @property
    def _have_all_succeeded(self) -> bool:
        return len(self._ends) == self._host.hosts and not any(end.code for end in self._ends.values())
