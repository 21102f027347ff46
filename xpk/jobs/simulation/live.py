"""Simulations of a cluster's queues as they are now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from xpk.api.base import ObjectApi
from xpk.api.text import counted, short
from xpk.jobs.output.roots import OutputRoots
from xpk.jobs.simulation.durations import DEFAULT_SECONDS, Sources, read_all
from xpk.jobs.simulation.estimates import Estimates, progress_readers, refused_lines
from xpk.jobs.simulation.scenario import Entry, Scenario, read_objects, scenario_of
from xpk.jobs.simulation.trace import read_trace, replay
from xpk.jobs.simulation.what_if import NO_CHANGES, NewWorkload, WhatIf, apply, entry_of, place_of
from xpk.model import names
from xpk.model.closest import did_you_mean
from xpk.model.errors import AuthorizationError, ConflictError, MissingToolError, NotFoundError, UsageError, XpkError
from xpk.model.forecast import QueueForecast, StartEstimate
from xpk.model.specs import Target, WorkloadSpec
from xpk.model.status import Phase, WorkloadStatus
from xpk.model.terminal import printable

_SECONDS = 10.0  # for reading the progress of all runs
_BRIEF_SECONDS = 0.2  # the same, where the estimate is not the command's main purpose
_BACKGROUND_SECONDS = 2.0  # the same, where nobody waits for it
_BRIEF_QUEUE = 100  # waiting workloads that are simulated there; 200 take more than half a second


@dataclass(frozen=True, slots=True, kw_only=True)
class Starts:
    """Estimated starts of all queued workloads, from one scenario, by namespace and name.

    `refused`: reasons by the ClusterQueues that cannot be simulated. `reason`: why there is no estimate at all.
    """

    starts: Mapping[tuple[str, str], StartEstimate] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    reason: str = ""

    def of(self, status: WorkloadStatus) -> StartEstimate | None:
        """Return the estimate of a queued workload, with a reason if there is none; None if it came later."""
        reason = self.reason or self.refused.get(status.cluster_queue or "")
        return _no_start(reason) if reason else self.starts.get((status.namespace, status.name))


class _Cluster(Protocol):
    """A cluster that is reached by its API."""

    @property
    def api(self) -> ObjectApi: ...

    @property
    def target(self) -> Target: ...


@dataclass(frozen=True, slots=True)
class QueueSimulation:
    """Simulations of a cluster's queues; nothing is changed. `roots`: where the output of its workloads may be read."""

    api: ObjectApi
    roots: OutputRoots

    @classmethod
    def of(cls, cluster: _Cluster) -> QueueSimulation:
        """Return the simulations of an `xpk.Cluster`."""
        return cls(cluster.api, OutputRoots(lambda: cluster.target))

    def forecast(
        self,
        changes: WhatIf = NO_CHANGES,
        *,
        assumed: float = DEFAULT_SECONDS,
        durations: Mapping[str, float] | None = None,
    ) -> QueueForecast:
        """Return the estimated starts of all queued workloads, with assumed changes.

        `assumed`: total seconds of runs of unknown duration; `durations`: of named ones, as `namespace/name`. Raises
        UsageError with all problems of the changes, ConflictError if no queue can be simulated, AuthorizationError.
        """
        scenario, added = apply(_simulated(self.api, self.roots), changes)
        stated = {_label(name): seconds for name, seconds in (durations or {}).items()}
        if unknown := stated.keys() - {entry.label for entry in scenario.entries}:
            name, labels = min(unknown), [entry.label for entry in scenario.entries]
            raise UsageError(
                f"workload '{name}' not found in the queues",
                hint=did_you_mean(name, labels)
                or "`xpk workload list --all-namespaces` shows them; --duration NAMESPACE/NAME=TIME",
            )
        progress, _ = read_all(progress_readers(scenario, self.roots), _SECONDS)
        sources = Sources(assumed=assumed, stated={**stated, **added}, progress=progress)
        return Estimates.of(scenario, sources).forecast()

    def starts_of(self, workloads: Sequence[NewWorkload], *, queue: str) -> list[StartEstimate]:
        """Return the estimated start of each workload of a queue, as if it alone were submitted now.

        Without a start, the estimate has a reason. Raises UsageError for an unknown queue, also without workloads, and
        as `forecast`.
        """
        scenario = _simulated(self.api, self.roots)
        place_of(scenario, NewWorkload(name="", slices=1, queue=queue))
        progress, _ = read_all(progress_readers(scenario, self.roots), _SECONDS)
        return [_start_beside(scenario, Sources(progress=progress), workload) for workload in workloads]

    def replay(self, trace: Path, changes: WhatIf = NO_CHANGES) -> QueueForecast:
        """Return the result of a trace under the quotas of the cluster, with assumed changes. Raises as `forecast`."""
        scenario, _ = apply(replace(_simulated(self.api, self.roots), entries=()), changes)
        return replay(*read_trace(trace, scenario))


def start_of_new(api: ObjectApi, roots: OutputRoots, spec: WorkloadSpec) -> StartEstimate:
    """Return the estimated start of a workload that does not exist yet; with a reason if there is none.

    Raises AuthorizationError without permission to list the workloads of all namespaces.
    """
    scenario = _scenario(api, roots)
    place = scenario.places.get((spec.namespace, spec.queue), spec.queue)
    if place in scenario.refused:
        return _no_start(_refusal(scenario, place))
    workload = NewWorkload(
        name=spec.name,
        namespace=spec.namespace,
        slices=spec.num_slices,
        queue=spec.queue,
        type=(spec.within or spec.shape).name,
        priority=names.PRIORITIES[spec.priority],
    )
    entry = entry_of(scenario, workload)
    return _brief(replace(scenario, entries=(*scenario.entries, entry)), roots, entry)


def _start_beside(scenario: Scenario, sources: Sources, workload: NewWorkload) -> StartEstimate:
    """Return the estimated start of a workload beside those of a scenario."""
    place = place_of(scenario, workload)
    if workload.type not in scenario.types[place]:
        types = ", ".join(scenario.types[place]) or "no types"
        return replace(_no_start(f"queue '{workload.queue}' has {types}, not {workload.type}"), is_beyond_quota=True)
    entry = entry_of(scenario, workload)
    with_entry = replace(scenario, entries=(*scenario.entries, entry))
    return Estimates.of(with_entry, sources, [entry.turn]).start_of(entry)


def with_start(api: ObjectApi, status: WorkloadStatus, roots: OutputRoots) -> WorkloadStatus:
    """Return a status, with the estimated start if the workload waits and the user may list all workloads."""
    if status.phase is not Phase.QUEUED or status.position is None:
        return status
    try:
        scenario = _scenario(api, roots)
    except (AuthorizationError, ConflictError, MissingToolError):
        return status
    if status.cluster_queue in scenario.refused:
        return replace(status, start=_no_start(_refusal(scenario, str(status.cluster_queue))))
    own = [entry for entry in scenario.entries if (entry.namespace, entry.name) == (status.namespace, status.name)]
    return replace(status, start=_brief(scenario, roots, own[0])) if own else status


def all_starts(api: ObjectApi, roots: OutputRoots) -> Starts:
    """Return the estimated starts of all queued workloads, unless very many wait."""
    try:
        scenario = _scenario(api, roots)
    except XpkError as error:
        return Starts(reason=f"the queues are not simulated: {short(error.message)}")
    refused = {place: _refusal(scenario, place) for place in scenario.refused}
    waiting = [entry for entry in scenario.entries if entry.reserved is None]
    if len(waiting) > _BRIEF_QUEUE:
        return Starts(refused=refused, reason=_too_many(len(waiting)))
    progress, _ = read_all(progress_readers(scenario, roots), _BACKGROUND_SECONDS)
    estimates = Estimates.of(scenario, Sources(progress=progress), [entry.turn for entry in waiting])
    starts = {(entry.namespace, entry.name): estimates.start_of(entry) for entry in waiting}
    return Starts(starts=starts, refused=refused)


def _brief(scenario: Scenario, roots: OutputRoots, entry: Entry) -> StartEstimate:
    """Return the start of one workload, unless many wait; runs whose progress is not read at once count as unknown."""
    count = sum(other.reserved is None for other in scenario.entries)
    if count > _BRIEF_QUEUE:
        return _no_start(_too_many(count))
    progress, _ = read_all(progress_readers(scenario, roots), _BRIEF_SECONDS)
    return Estimates.of(scenario, Sources(progress=progress), [entry.turn]).start_of(entry)


def _scenario(api: ObjectApi, roots: OutputRoots) -> Scenario:
    try:
        is_local = roots.target().on_this_machine
    except (NotFoundError, AuthorizationError):  # the cluster's settings are missing or unreadable
        is_local = False
    objects = read_objects(api, is_local=is_local)
    try:
        return scenario_of(objects)
    except (UsageError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        why = printable(f"{type(error).__name__}: {short(error)}")
        raise ConflictError(
            f"the objects of the queues cannot be read: {why}", hint="`kubectl get clusterqueues,workloads -A -o yaml`"
        ) from error


def _simulated(api: ObjectApi, roots: OutputRoots) -> Scenario:
    """Return the queues and workloads. Raises ConflictError if no queue can be simulated."""
    scenario = _scenario(api, roots)
    if not scenario.queues:
        raise ConflictError(
            "; ".join(refused_lines(scenario)) or "the cluster has no queues", hint="`xpk queue list` shows the queues"
        )
    return scenario


def _refusal(scenario: Scenario, place: str) -> str:
    return f"queue '{place}' is not simulated: {scenario.refused[place]}"


def _too_many(count: int) -> str:
    limit = f"more than the {_BRIEF_QUEUE} whose starts are estimated here"
    return f"{counted(count, 'workload')} are queued, {limit}; `xpk queue simulate` estimates all"


def _no_start(reason: str) -> StartEstimate:
    return StartEstimate(earliest=None, expected=None, latest=None, rests_on=(), preempts=(), reason=reason)


def _label(name: str) -> str:
    """Return `namespace/name`; the namespace may be left out for "default"."""
    return name if "/" in name else f"default/{name}"
