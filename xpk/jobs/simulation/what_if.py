"""Assumed changes of a cluster's queues: other quotas, more slices, more workloads."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, replace

from xpk.api.cluster_queues import Key
from xpk.jobs.simulation.scenario import Entry, Scenario, pools_name, resource_name
from xpk.local.ledger import Queue
from xpk.model import names
from xpk.model.accelerators import find_shape, units_of
from xpk.model.amounts import parse_amounts
from xpk.model.durations import parse_duration
from xpk.model.errors import UsageError

_FIELDS = ("name", "slices", "type", "queue", "priority", "duration")
_PRIORITY = "medium"


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """Assumed changes as texts: `QUEUE=[TYPE=]N`, and `name=N,slices=N,...` of workloads."""

    quota: tuple[str, ...] = ()
    add_slices: tuple[str, ...] = ()
    workloads: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        """Return whether there are any."""
        return bool(self.quota or self.add_slices or self.workloads)


NO_CHANGES = WhatIf()


@dataclass(frozen=True, slots=True, kw_only=True)
class NewWorkload:
    """An assumed workload. `queue`: as users name it; `type`: "" if the queue has only one."""

    name: str
    slices: int
    queue: str = names.QUEUE
    type: str = ""
    priority: int = names.PRIORITIES[_PRIORITY]
    arrival: float = 0.0
    namespace: str = ""


def apply(scenario: Scenario, changes: WhatIf) -> tuple[Scenario, dict[str, float]]:
    """Return the scenario with the changes, and the durations of added workloads in seconds, by name.

    Raises UsageError with all problems.
    """
    problems, lines = list[str](), list[str]()
    for flag, texts in (("--quota", changes.quota), ("--add-slices", changes.add_slices)):
        for text in texts:
            scenario = _with_quota(scenario, flag, text, problems, lines)
    durations = dict[str, float]()
    for text in changes.workloads:
        values = _values(text, problems)
        if values is None:
            continue
        entry = _new_entry(scenario, values, problems)
        if entry is None:
            continue
        if entry.label in durations:
            problems.append(f"--add-workload is given twice for '{entry.name}'")
        durations[entry.label] = -1.0
        try:
            durations[entry.label] = parse_duration(values.get("duration"), "--add-workload: duration") or -1.0
        except UsageError as error:
            problems.append(error.message)
        scenario = replace(scenario, entries=(*scenario.entries, entry))
        lines.append(f"workload {entry.name} is added to {values.get('queue', names.QUEUE)}")
    if problems:
        raise UsageError("the changes cannot be simulated", problems=problems, hint="see `xpk queue simulate --help`")
    return replace(scenario, changes=(*scenario.changes, *lines)), {
        label: seconds for label, seconds in durations.items() if seconds >= 0
    }


def entry_of(scenario: Scenario, workload: NewWorkload) -> Entry:
    """Return an assumed workload as an entry. Raises UsageError if its queue cannot be simulated or lacks its type."""
    place = place_of(scenario, workload)
    types: Mapping[str, Key] = scenario.types[place]
    if not workload.type and len(types) != 1:
        raise UsageError(f"workload '{workload.name}': no type given; queue '{workload.queue}' has {', '.join(types)}")
    kind = workload.type or next(iter(types))
    kind = kind if kind in types else find_shape(kind).name
    if kind not in types:
        raise UsageError(
            f"workload '{workload.name}': queue '{workload.queue}' has {', '.join(types) or 'no types'}, not {kind}"
        )
    flavor, resource = types[kind]
    needs = {resource_name((flavor, resource)): workload.slices * units_of(kind, resource)}
    if pools_name(flavor) in scenario.shared:
        needs[pools_name(flavor)] = workload.slices
    return Entry(
        uid=workload.name,
        turn=f"{scenario.time + workload.arrival:017.3f}/{workload.namespace}/{workload.name}",
        namespace=workload.namespace,
        name=workload.name,
        queue=place,
        priority=workload.priority,
        needs=needs,
        arrival=workload.arrival,
    )


def place_of(scenario: Scenario, workload: NewWorkload) -> str:
    """Return the ClusterQueue of an assumed workload. Raises UsageError if its queue is unknown or not simulated."""
    return scenario.places.get((workload.namespace, workload.queue)) or _place(scenario, workload.queue)


def priority_of(text: str) -> int:
    """Return the value of a priority by its name or as a number. Raises UsageError."""
    if text in names.PRIORITIES:
        return names.PRIORITIES[text]
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"'{text}' is not a priority; use {', '.join(names.PRIORITIES)} or a number") from None


def _place(scenario: Scenario, queue: str) -> str:
    """Return the ClusterQueue of a queue's name. Raises UsageError with the closest names."""
    place = names.CLUSTER_QUEUE if queue == names.QUEUE else queue
    if place in scenario.refused:
        raise UsageError(f"queue '{queue}' is not simulated: {scenario.refused[place]}")
    if place not in scenario.queues:
        known = [names.QUEUE if name == names.CLUSTER_QUEUE else name for name in scenario.queues]
        near = difflib.get_close_matches(queue, known, 3) or sorted(known)
        raise UsageError(f"queue '{queue}' not found; choose from {', '.join(near) or 'none'}")
    return place


def _with_quota(scenario: Scenario, flag: str, text: str, problems: list[str], lines: list[str]) -> Scenario:
    """Return the scenario with the quota of `QUEUE=[TYPE=]N`, or with more slices."""
    queue, separator, amount = text.partition("=")
    if not separator:
        problems.append(f"{flag} '{text}': expected QUEUE=N, such as red=4")
        return scenario
    try:
        place = _place(scenario, queue)
    except UsageError as error:
        problems.append(f"{flag}: {error.message}")
        return scenario
    totals = _slices(scenario, {place, *_teams(scenario), names.CLUSTER_QUEUE} & scenario.queues.keys())
    amounts = parse_amounts(flag, [amount], {kind: totals[kind] for kind in scenario.types[place]}, problems)
    for kind, number in amounts.items():
        before, slices = _slices(scenario, {place})[kind], int(number or 0)
        is_more = flag == "--add-slices"
        after = before + slices if is_more else slices
        scenario = _with(scenario, place, kind, after)
        lines.append(f"quota of {queue}: {before:g} -> {after:g} slices of {kind}")
        flavor, _ = scenario.types[place][kind]
        if is_more:
            pools = pools_name(flavor)
            more = {pools: scenario.shared[pools] + slices} if pools in scenario.shared else {}
            scenario = replace(scenario, shared={**scenario.shared, **more})
        elif place == names.CLUSTER_QUEUE:
            problems.append(f"{flag}: '{names.QUEUE}' has the rest of the quota; --add-slices {queue}=N adds to it")
        elif place in _teams(scenario):
            scenario = _taken(scenario, queue, kind, after - before, flag, problems, lines)
    return scenario


def _taken(
    scenario: Scenario, queue: str, kind: str, slices: float, flag: str, problems: list[str], lines: list[str]
) -> Scenario:
    """Return the scenario after the cluster's own queue has given slices, as in `xpk queue create`."""
    own = _slices(scenario, {names.CLUSTER_QUEUE} & scenario.queues.keys()).get(kind, 0)
    if slices > own:
        problems.append(
            f"{flag} {queue}: '{names.QUEUE}' has {own:g} slices of {kind} left, {slices:g} more are needed; "
            f"--add-slices {names.QUEUE}=N adds some"
        )
        return scenario
    lines.append(f"quota of {names.QUEUE}: {own:g} -> {own - slices:g} slices of {kind}")
    return _with(scenario, names.CLUSTER_QUEUE, kind, own - slices)


def _teams(scenario: Scenario) -> set[str]:
    """Return the queues that have a part of the quota of the cluster's own queue."""
    return {
        name
        for name, queue in scenario.queues.items()
        if queue.cohort == names.COHORT and name != names.CLUSTER_QUEUE and names.CLUSTER_QUEUE in scenario.queues
    }


def _slices(scenario: Scenario, places: set[str]) -> dict[str, float]:
    """Return the slices of each type that queues have together."""
    totals = dict[str, float]()
    for place in places:
        for kind, key in scenario.types[place].items():
            nominal = scenario.queues[place].allotments[resource_name(key)].nominal
            totals[kind] = totals.get(kind, 0) + nominal / units_of(kind, key[1])
    return totals


def _with(scenario: Scenario, place: str, kind: str, slices: float) -> Scenario:
    queue, key = scenario.queues[place], scenario.types[place][kind]
    name = resource_name(key)
    allotments = {
        **queue.allotments,
        name: replace(queue.allotments[name], nominal=slices * units_of(kind, key[1])),
    }
    changed: Mapping[str, Queue] = {**scenario.queues, place: replace(queue, allotments=allotments)}
    return replace(scenario, queues=changed)


def _values(text: str, problems: list[str]) -> dict[str, str] | None:
    """Return the fields of `name=big,slices=8`; None, with a problem, if they are invalid."""
    pairs = [part.partition("=") for part in text.split(",")]
    values = {key.strip(): value.strip() for key, _, value in pairs}
    unknown = [key for key in values if key not in _FIELDS]
    missing = [key for key in _FIELDS[:2] if not values.get(key)]
    if unknown or missing:
        what = f"unknown field '{unknown[0]}'" if unknown else f"{' and '.join(missing)} missing"
        problems.append(f"--add-workload '{text}': {what}; fields are {', '.join(_FIELDS)}")
        return None
    return values


def _new_entry(scenario: Scenario, values: Mapping[str, str], problems: list[str]) -> Entry | None:
    try:
        if not values["slices"].isdecimal() or int(values["slices"]) < 1:
            raise UsageError(f"slices must be a positive number, got '{values['slices']}'")
        workload = NewWorkload(
            name=values["name"],
            slices=int(values["slices"]),
            queue=values.get("queue", names.QUEUE),
            type=values.get("type", ""),
            priority=priority_of(values.get("priority", _PRIORITY)),
        )
        return entry_of(scenario, workload)
    except UsageError as error:
        problems.append(f"--add-workload: {error.message}")
        return None
