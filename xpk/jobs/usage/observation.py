"""Usage of a Kubernetes cluster, derived from its objects at each reading.

Kueue keeps only the last time of each condition, and events expire after an hour. Each reading therefore continues the
records of the one before. What happened between two readings is derived from conditions and events; where neither
tells, nothing is recorded.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from xpk.api.base import Obj, ObjectApi, Objs
from xpk.api.usage import holding_of, microseconds_of, supply_of
from xpk.jobs.status.fields import Snapshot, condition, event_times, is_true
from xpk.jobs.usage.ledger import Ledger
from xpk.model.errors import AuthorizationError, MissingToolError, UsageError
from xpk.model.usage import EVICTED, PREEMPTED, Capacity, Hold, Holding, Record, State, stop_reason

_EVICTIONS = ("Evicted", "Preempted")  # prefixes of the reasons of events
_UNREADABLE = (UsageError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


@dataclass(slots=True)
class Observation:
    """Records since the last reading.

    `live`: UIDs of workloads that have not ended. `lost`: the last known holds of workloads that another tool has
    deleted, so that their end is unknown.
    """

    records: list[Record] = field(default_factory=list)
    live: set[str] = field(default_factory=set)
    lost: list[Hold] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Change:
    """A change of a workload's state, in Unix microseconds; None: it holds nothing and does not wait."""

    time: int
    state: State | None
    reason: str = ""


def observe_workloads(
    api: ObjectApi,
    ledger: Ledger,
    *,
    now: int,
    namespace: str | None = None,
    workloads: Collection[str] | None = None,
) -> Observation:
    """Return the use of chips by workloads since the readings in `ledger`; of some `workloads`, or of all.

    Raises AuthorizationError if this user may not read them.
    """
    snapshot = Snapshot(
        jobsets=api.list("JobSet", namespace),
        workloads=_of_kueue(api, "Workload", namespace),
        local_queues=_of_kueue(api, "LocalQueue", namespace),
    )
    evictions = _evictions(_events(api, namespace))
    observation, present, holds = Observation(), set[str](), ledger.holds_of()
    for jobset in snapshot.jobsets:
        uid = str(jobset["metadata"].get("uid"))
        present.add(uid)
        if workloads is not None and jobset["metadata"]["name"] not in workloads:
            continue
        try:
            workload = snapshot.workload_of.get(uid)
            changes = _changes(jobset, workload)
            holding = holding_of(jobset, snapshot.local_queues, state=State.RUNNING)
        except _UNREADABLE:  # objects of another tool may have any content
            continue
        known = list(holds.get(uid, ()))
        times = evictions.get(str(workload["metadata"].get("uid")), []) if workload else []
        observation.records += _continued(holding, known, changes, times, now)
        if changes and changes[-1].state is not None:
            observation.live.add(uid)
    if workloads is None:
        observation.lost = _lost(ledger, holds, present)
    return observation


def observe_capacity(api: ObjectApi, capacities: Sequence[Capacity], *, now: int) -> list[Record]:
    """Return the capacity since the last reading: slices that were added since then count from their creation.

    Raises AuthorizationError if this user may not list nodes or queues.
    """
    nodes, queues = api.list("Node", None), _of_kueue(api, "ClusterQueue", None)
    created = {
        str(node["metadata"].get("uid")): microseconds_of(node["metadata"].get("creationTimestamp")) for node in nodes
    }
    begin = max((capacity.end for capacity in capacities), default=min(created.values(), default=now))
    times = sorted({time for time in created.values() if begin < time < now} | {begin, now})
    records: list[Record] = []
    for first, last in itertools.pairwise(times):
        existing = [node for node in nodes if created[str(node["metadata"].get("uid"))] <= first]
        records.append(Capacity(**asdict(supply_of(existing, queues)), begin=first, end=last))
    return records


def _changes(jobset: Obj, workload: Obj | None) -> list[_Change]:
    """Return the known changes of a workload's present stay in its queue or on its chips, in order."""
    if workload is None:
        return _changes_without_queue(jobset)
    created = microseconds_of(workload["metadata"].get("creationTimestamp"))
    reserved, evicted = condition(workload, "QuotaReserved"), condition(workload, "Evicted")
    ready, finished = condition(workload, "PodsReady"), condition(workload, "Finished")
    reason = _reason(workload)
    changes = []
    if reserved.get("status") == "True":
        begin = _time_of(reserved)
        changes += [_Change(created, State.QUEUED)] if not evicted else []
        changes.append(_Change(begin, State.START, reason))
        if ready.get("status") == "True":
            changes.append(_Change(max(begin, _time_of(ready)), State.RUNNING))
        elif ready.get("reason") == "WaitForRecovery":
            changes += [_Change(begin, State.RUNNING), _Change(max(begin, _time_of(ready)), State.DOWN)]
        elif not ready and is_true(workload, "Admitted"):  # Kueue does not wait for pods
            changes.append(_Change(max(begin, _time_of(condition(workload, "Admitted"))), State.RUNNING))
        if evicted.get("status") == "True":
            changes.append(_Change(max(begin, _time_of(evicted)), State.STOP, reason))
    else:
        waits = workload["spec"].get("active", True)
        since = _time_of(reserved) if evicted and reserved else created
        if evicted.get("status") == "True" and _time_of(evicted) < since:
            changes.append(_Change(_time_of(evicted), State.STOP, reason))
        changes.append(_Change(since, State.QUEUED if waits else None, reason))
    if finished.get("status") == "True":
        changes = [change for change in changes if change.time < _time_of(finished)]
        changes.append(_Change(_time_of(finished), None))
    return changes


def _reason(workload: Obj) -> str:
    """Return why a workload stopped last, "" if it never did. Once it is admitted again, the conditions are False."""
    evicted, preempted = condition(workload, "Evicted"), condition(workload, "Preempted")
    if not evicted:
        return ""
    if evicted.get("status") == "True":
        return stop_reason(str(evicted.get("reason")))
    was_preempted = preempted and preempted.get("lastTransitionTime") == evicted.get("lastTransitionTime")
    return PREEMPTED if was_preempted else EVICTED


def _changes_without_queue(jobset: Obj) -> list[_Change]:
    """Return the changes of a JobSet that Kueue does not manage."""
    if jobset["spec"].get("suspend"):
        return []
    changes = [_Change(microseconds_of(jobset["metadata"].get("creationTimestamp")), State.RUNNING)]
    for kind in ("Completed", "Failed"):
        if is_true(jobset, kind):
            changes.append(_Change(_time_of(condition(jobset, kind)), None))
    return changes


def _continued(
    holding: Holding, known: Sequence[Hold], changes: Sequence[_Change], evictions: Iterable[int], now: int
) -> list[Hold]:
    """Return the holds from the last known one to `now`."""
    last = known[-1] if known else None
    changes = [*_before(last, changes, evictions), *changes]
    begin = last.end if last else 0
    holds = []
    for index, change in enumerate(changes):
        first = max(change.time, begin)
        end = min(changes[index + 1].time if index + 1 < len(changes) else now, now)
        if change.state is not None and first < end:
            fields = asdict(holding) | {"state": change.state, "reason": change.reason}
            holds.append(Hold(**fields, begin=first, end=end))
    return holds


def _before(last: Hold | None, changes: Sequence[_Change], evictions: Iterable[int]) -> list[_Change]:
    """Return the changes between the last known hold and those that the conditions show."""
    if last is None or not changes or changes[0].time <= last.end:
        return []
    if last.state is State.QUEUED or changes[0].state in (State.STOP, None):
        return [_Change(last.end, last.state, last.reason)]
    ends = [time for time in evictions if last.end < time <= changes[0].time]
    if not ends:  # it ended at an unknown time
        return [_Change(last.end, None)]
    return [_Change(last.end, last.state, last.reason), _Change(min(ends), State.QUEUED, changes[0].reason)]


def _evictions(events: Iterable[Obj]) -> dict[str, list[int]]:
    """Return the times of evictions by the UID of Kueue's workload."""
    times: dict[str, list[int]] = {}
    for event in events:
        about = event.get("involvedObject") or {}
        if about.get("kind") == "Workload" and str(event.get("reason", "")).startswith(_EVICTIONS):
            first, latest, _ = event_times(event)
            times.setdefault(str(about.get("uid")), []).extend([microseconds_of(first), microseconds_of(latest)])
    return times


def _lost(ledger: Ledger, holds: Mapping[str, Sequence[Hold]], present: Collection[str]) -> list[Hold]:
    """Return the last holds of workloads that held chips at the last reading of the cluster and no longer exist."""
    latest = max((capacity.end for capacity in ledger.capacities), default=0)
    lasts = [known[-1] for uid, known in holds.items() if uid not in present and known[-1].end == latest]
    return [hold for hold in lasts if hold.state is not State.QUEUED]


def _of_kueue(api: ObjectApi, kind: str, namespace: str | None) -> Objs:
    """Return the objects of a kind, none without Kueue.

    Raises AuthorizationError: without them, workloads that wait would be recorded as running, and teams as unknown.
    """
    try:
        return api.list(kind, namespace)
    except MissingToolError:
        return []


def _events(api: ObjectApi, namespace: str | None) -> Objs:
    """Return the events of Kueue's workloads, none without permission; some preemptions are not recorded then."""
    try:
        return api.list("Event", namespace, fields={"involvedObject.kind": "Workload"})
    except AuthorizationError:
        return []


def _time_of(item: Mapping[str, Any]) -> int:
    return microseconds_of(item.get("lastTransitionTime"))
