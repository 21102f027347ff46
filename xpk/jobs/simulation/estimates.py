"""Estimated starts: three simulations, in which all runs end early, as expected, and late."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

from xpk.api.text import rfc3339
from xpk.jobs.output.folder import Progress
from xpk.jobs.output.roots import OutputRoots
from xpk.jobs.simulation.durations import Duration, Sources, duration_of, words_of
from xpk.jobs.simulation.scenario import Entry, Scenario
from xpk.jobs.status import reader
from xpk.jobs.status.fields import Snapshot
from xpk.jobs.status.goodput import progress_of
from xpk.local.feasibility import POOLS
from xpk.local.ledger import ceilings
from xpk.local.simulation import Course, Job, Simulation, Start
from xpk.model import names
from xpk.model.forecast import PendingForecast, PreemptionForecast, QueueForecast, StartEstimate

STOP_SECONDS = 30.0  # from the preemption of a workload until its last host has ended
_BOUNDS: Mapping[str, Callable[[Duration], float]] = {
    "earliest": lambda duration: duration.low,
    "expected": lambda duration: duration.expected,
    "latest": lambda duration: duration.high,
}
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Estimates:
    """Simulations of a scenario with all runs ending early, as expected, and late."""

    scenario: Scenario
    durations: Mapping[str, Duration]  # by turn
    runs: Mapping[str, Simulation]

    @classmethod
    def of(cls, scenario: Scenario, sources: Sources, awaited: Collection[str] | None = None) -> Estimates:
        """Simulate a scenario until all `awaited` workloads have started, by their turns; None: to its end."""
        durations = {
            entry.turn: duration_of(entry.uid, entry.label, entry.ran, entry.limit, sources)
            for entry in scenario.entries
        }
        jobs = {
            bound: [_job(entry, pick(durations[entry.turn])) for entry in scenario.entries]
            for bound, pick in _BOUNDS.items()
        }
        runs = {
            bound: Simulation(scenario.queues, each, shared=scenario.shared, stop_seconds=STOP_SECONDS)
            for bound, each in jobs.items()
        }
        for run in runs.values():
            run.run(awaited=awaited)
        return cls(scenario, durations, runs)

    def start_of(self, entry: Entry) -> StartEstimate:
        """Return the estimated start of a workload that waits."""
        first = {bound: _next_start(run.courses[entry.turn]) for bound, run in self.runs.items()}
        starts = [start.time for start in first.values() if start]
        expected = first["expected"]
        complete = len(starts) == len(first)
        return StartEstimate(
            earliest=self._text(min(starts)) if starts else None,
            expected=self._text(expected.time) if expected else None,
            latest=self._text(max(starts)) if complete else None,
            rests_on=self._reasons(expected) if expected else (),
            preempts=tuple(self._labels[turn] for turn in expected.preempted) if expected else (),
            reason="" if expected else self._excess(entry) or "the workloads before it do not leave enough quota",
            is_beyond_quota=not expected and bool(self._excess(entry)),
        )

    def forecast(self) -> QueueForecast:
        """Return the estimated starts of all workloads that wait, in their order, and all preemptions."""
        scenario, courses = self.scenario, self.runs["expected"].courses
        pending = [self._pending(entry) for entry in scenario.entries if entry.reserved is None or entry.leaves]
        return QueueForecast(
            time=self._text(0.0),
            pending=tuple(sorted(pending, key=lambda item: (item.expected is None, item.expected, -item.priority))),
            preemptions=tuple(
                PreemptionForecast(
                    workload=entry.label,
                    by=self._labels[courses[entry.turn].stops[0][1]],
                    time=self._text(courses[entry.turn].stops[0][0]),
                    resumes=self._text(courses[entry.turn].starts[1].time)
                    if len(courses[entry.turn].starts) > 1
                    else None,
                )
                for entry in scenario.entries
                if entry.reserved is not None and not entry.leaves and courses[entry.turn].stops
            ),
            durations={entry.label: self.durations[entry.turn].words for entry in scenario.entries},
            changes=scenario.changes,
            refused=tuple(refused_lines(scenario)),
            loops=loop_lines(self.runs["expected"], self._labels),
        )

    @property
    def _labels(self) -> Mapping[str, str]:
        return {entry.turn: entry.label for entry in self.scenario.entries}

    def _pending(self, entry: Entry) -> PendingForecast:
        start = self.start_of(entry)
        return PendingForecast(
            name=entry.name,
            namespace=entry.namespace,
            queue=names.QUEUE if entry.queue == names.CLUSTER_QUEUE else entry.queue,
            priority=entry.priority,
            needs=dict(entry.needs),
            earliest=start.earliest,
            expected=start.expected,
            latest=start.latest,
            rests_on=start.rests_on,
            preempts=start.preempts,
            reason=start.reason,
            is_beyond_quota=start.is_beyond_quota,
        )

    def _reasons(self, start: Start) -> tuple[str, ...]:
        """Return what a start rests on, one line each."""
        ended = [turn for turn in start.after if turn not in start.preempted]
        more = (f"and {len(ended) - _SHOWN} more",) if len(ended) > _SHOWN else ()
        lines = (
            f"starts when {self._labels[turn]} ends in {words_of(start.time)} ({self.durations[turn].words})"
            for turn in ended[:_SHOWN]
        )
        return (*lines, *more)

    def _excess(self, entry: Entry) -> str:
        """Return what a workload requests beyond the most that its queue can have, "" if nothing."""
        most = ceilings(entry.queue, self.scenario.queues)
        for name, amount in entry.needs.items():
            limit = self.scenario.shared.get(name, most.get(name, 0))
            if amount > limit:
                flavor, _, resource = name.partition("/")
                what = f"{resource} in flavor {flavor}" if resource and not name.startswith(POOLS) else name
                return f"needs {amount:g} {what}, and its queue can have at most {limit:g}"
        return ""

    def _text(self, seconds: float) -> str:
        return rfc3339(datetime.fromtimestamp(round(self.scenario.time + seconds), UTC))


def progress_readers(scenario: Scenario, roots: OutputRoots) -> dict[str, Callable[[], Progress | None]]:
    """Return a reader of the progress of each workload that may have output, by UID. They raise XpkError."""
    return {entry.uid: partial(_progress, entry, roots) for entry in scenario.entries if entry.jobset is not None}


def loop_lines(simulation: Simulation, labels: Mapping[str, str]) -> tuple[str, ...]:
    """Return the pairs of workloads that preempt each other again and again, one line each."""
    pairs = sorted({(labels[winner], labels[victim]) for winner, victim in simulation.loops})
    return tuple(f"{winner} and {victim} preempt each other in a loop" for winner, victim in pairs)


def refused_lines(scenario: Scenario) -> list[str]:
    """Return the queues that are not simulated, one line each."""
    return [f"queue '{name}' is not simulated: {reason}" for name, reason in sorted(scenario.refused.items())]


def _progress(entry: Entry, roots: OutputRoots) -> Progress | None:
    if entry.jobset is None:
        return None
    status = reader.read(entry.jobset, Snapshot(jobsets=[entry.jobset]))
    folder = roots.to_read(status)
    return progress_of(folder, status) if folder else None


def _job(entry: Entry, seconds: float) -> Job:
    return Job(
        uid=entry.turn,
        queue=entry.queue,
        priority=entry.priority,
        needs=entry.needs,
        seconds=seconds,
        arrival=entry.arrival,
        reserved=entry.reserved,
        leaves=entry.leaves,
    )


def _next_start(course: Course) -> Start | None:
    """Return the first start from now on."""
    return next((start for start in course.starts if start.time >= 0), None)
