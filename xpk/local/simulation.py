"""The queue in virtual time: when workloads of known durations start, and which are preempted.

All decisions are those of `admission.decide`, as on a local cluster.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from xpk.local.admission import decide
from xpk.local.ledger import Claim, Kind, Queue

_ARRIVES, _ENDS, _STOPS = "arrives", "ends", "stops"
_LOOP = 5  # preemptions in a row of a job that did not run a second in between


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A workload of a known duration. Times are in seconds; the simulation begins at 0.

    `uid`: UIDs sort by the time of creation. `seconds`: time that it still has to run. `arrival`: time at which it
    enters its queue. `reserved`: time since which it has its quota; None: it waits for it. `leaves`: whether it was
    told to stop, and waits afterwards.
    """

    uid: str
    queue: str
    priority: int
    needs: Mapping[str, int]
    seconds: float
    arrival: float = 0.0
    reserved: float | None = None
    leaves: bool = False


@dataclass(frozen=True, slots=True)
class Start:
    """A start at `time`, with the UIDs of workloads whose end or stop made room, and of those preempted for it."""

    time: float
    after: tuple[str, ...] = ()
    preempted: tuple[str, ...] = ()


@dataclass(slots=True)
class Course:
    """Starts and preemptions of a job: `stops` has the times, and the UIDs of the workloads that preempted it."""

    starts: list[Start] = field(default_factory=list)
    stops: list[tuple[float, str]] = field(default_factory=list)
    end: float | None = None
    lacks: Mapping[str, int] = field(default_factory=dict)  # while it waits


class Simulation:
    """Queues and jobs in virtual time.

    A preempted job stops within `stop_seconds`, waits, and continues where it was. `shared`: capacity that all queues
    share, by name.

    As in Kueue, a job that was refused is considered again once another one of its cohort has ended or stopped, after
    those for which others were preempted and the preempted ones. If jobs still preempt each other again and again,
    `loops` has the UIDs of such pairs, the preempting one first; it then waits until a job arrives or ends.
    """

    def __init__(
        self,
        queues: Mapping[str, Queue],
        jobs: Iterable[Job],
        *,
        shared: Mapping[str, int] | None = None,
        stop_seconds: float = 0.0,
    ) -> None:
        self.now = 0.0
        self.courses: dict[str, Course] = {}
        self.loops: set[tuple[str, str]] = set()
        self._held: set[str] = set()  # jobs that would go on in a loop
        self._refused: dict[str, dict[Kind, dict[str, int]]] = {}  # that wait for others to end or stop, by pool
        self._preemptors: dict[str, str] = {}  # by queue, the last job that preempted others
        self._in_vain: dict[str, int] = {}  # preemptions of a job since it last ran for a second
        self._queues, self._shared, self._stop_seconds = queues, shared or {}, stop_seconds
        self._claims: dict[str, Claim] = {}
        self._seconds: dict[str, float] = {}  # that a job had to run at its last start
        self._began: dict[str, float] = {}  # time of a job's last start
        self._running: dict[str, Claim] = {}
        self._leaving: dict[str, Claim] = {}
        self._waiting: dict[str, Claim] = {}
        self._victims: dict[str, list[str]] = {}  # jobs preempted for one that waits
        self._events: list[tuple[float, int, str, str]] = []
        self._scheduled = 0
        for job in jobs:
            self._add(job)

    def _add(self, job: Job) -> None:
        uid, claim = job.uid, Claim(job.uid, job.priority, job.needs, job.queue, job.reserved or 0.0)
        self._claims[uid], self._seconds[uid], self.courses[uid] = claim, job.seconds, Course()
        if job.leaves:
            self._leaving[uid] = claim
            self._schedule(self._stop_seconds, _STOPS, uid)
        elif job.reserved is not None:
            self._running[uid], self._began[uid] = claim, 0.0
            self.courses[uid].starts.append(Start(job.reserved))
            self._schedule(job.seconds, _ENDS, uid)
        else:
            self._schedule(job.arrival, _ARRIVES, uid)

    def run(self, until: float = math.inf, awaited: Collection[str] | None = None) -> Mapping[str, Course]:
        """Let time pass until `until`, or until all `awaited` jobs have started; return what happened to each job."""
        remaining, freed = None if awaited is None else set(awaited), list[str]()
        while self._events and self._events[0][0] <= until and remaining != set():
            self.now = self._events[0][0]
            while self._is_due():
                _, _, event, uid = heapq.heappop(self._events)
                if self._happen(event, uid):
                    freed.append(uid)
            self._settle(tuple(freed))
            if freed and not self._is_due():
                for uid in freed:
                    self._refused.pop(self._pool(self._claims[uid]), None)
                self._settle(tuple(freed))
            if not self._is_due():
                freed.clear()
            if remaining:
                remaining = {uid for uid in remaining if not self.courses[uid].starts}
        return self.courses

    def _is_due(self) -> bool:
        return bool(self._events) and self._events[0][0] == self.now

    @property
    def running(self) -> frozenset[str]:
        """Return the UIDs of the jobs that run."""
        return frozenset(self._running)

    def end(self, uid: str, time: float) -> None:
        """Let a running job end at a time, whatever its duration was."""
        self._seconds[uid] = time - self._began[uid]
        self._schedule(time, _ENDS, uid)

    def _happen(self, event: str, uid: str) -> bool:
        """Carry out an event; return whether it has made room."""
        if event == _ARRIVES:
            self._waiting[uid] = self._claims[uid]
            self._held.clear()
            return False
        if event == _STOPS:
            self._waiting[uid] = self._leaving.pop(uid)
            return True
        if uid not in self._running or self.now < self._began[uid] + self._seconds[uid]:
            return False  # it was preempted since
        del self._running[uid]
        self._held.clear()
        self.courses[uid].end = self.now
        return True

    def _settle(self, freed: tuple[str, ...]) -> None:
        """Let the queue decide until nothing changes."""
        while waiting := self._candidates():
            running, leaving = [*self._running.values()], [*self._leaving.values()]
            preemptors = set(self._preemptors.values())
            decision = decide(self._queues, self._shared, running, leaving, waiting, preemptors=preemptors)
            for uid, lacks in decision.lacking.items():
                self.courses[uid].lacks = lacks
            for uid in decision.lacking:
                claim = self._claims[uid]
                if claim.kind in decision.refused:
                    self._refused.setdefault(self._pool(claim), {})[claim.kind] = decision.refused[claim.kind]
            self._preemptors |= decision.preemptors
            for uid in decision.admit:
                self._start(uid, freed)
            for victim, winner in decision.preempt.items():
                self._stop(victim, winner)
            if not decision.admit and not decision.preempt:
                return

    def _candidates(self) -> list[Claim]:
        """Return the waiting jobs on which the queue decides."""
        candidates = list[Claim]()
        for uid, claim in self._waiting.items():
            lacks = self._refused.get(self._pool(claim), {}).get(claim.kind)
            if lacks is not None:
                self.courses[uid].lacks = lacks
            elif uid not in self._held:
                candidates.append(claim)
        return candidates

    def _pool(self, claim: Claim) -> str:
        """Return the name of the quota that a claim's queue shares with others: its cohort's, or its own."""
        queue = self._queues.get(claim.queue)
        return "" if self._shared else (queue.cohort if queue else "") or f"/{claim.queue}"

    def _start(self, uid: str, freed: tuple[str, ...]) -> None:
        claim = self._claims[uid]
        causes = tuple(other for other in freed if self._shares(claim, self._claims[other]))
        self.courses[uid].starts.append(Start(self.now, causes, tuple(self._victims.pop(uid, ()))))
        self._running[uid] = self._claims[uid] = replace(claim, reserved=self.now)
        self._began[uid] = self.now
        del self._waiting[uid]
        if self._preemptors.get(claim.queue) == uid:
            del self._preemptors[claim.queue]
        self._schedule(self.now + self._seconds[uid], _ENDS, uid)

    def _stop(self, uid: str, winner: str) -> None:
        self.courses[uid].stops.append((self.now, winner))
        self._victims.setdefault(winner, []).append(uid)
        ran = self.now - self._began[uid]
        self._in_vain[uid] = self._in_vain.get(uid, 0) + 1 if ran < 1 else 0
        if self._in_vain[uid] >= _LOOP:
            self.loops.add((winner, uid))
            self._held.add(winner)
        self._seconds[uid] -= ran
        self._leaving[uid] = self._running.pop(uid)
        self._schedule(self.now + self._stop_seconds, _STOPS, uid)

    def _shares(self, claim: Claim, other: Claim) -> bool:
        """Return whether room of one claim is of use to another: a resource that their queues share."""
        return self._pool(claim) == self._pool(other) and not claim.needs.keys().isdisjoint(other.needs)

    def _schedule(self, time: float, event: str, uid: str) -> None:
        self._scheduled += 1
        heapq.heappush(self._events, (time, self._scheduled, event, uid))
