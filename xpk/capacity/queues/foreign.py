"""Queues that another tool made, such as Google's xpk: their flavors stay, and quota changes are shown."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from xpk.api.base import Obj, ObjectApi, Objs
from xpk.api.cluster_queues import allotments, type_of
from xpk.api.quantities import quantity
from xpk.capacity.queues.reading import maker_of
from xpk.model.accelerators import find_shape
from xpk.model.errors import ConflictError, MissingToolError, NotFoundError, UnavailableError, XpkError

_QUEUES = ("ClusterQueue", "LocalQueue", "ResourceFlavor", "Topology")


@dataclass(frozen=True, slots=True)
class Judgment:
    """The changes that adapting makes to the quota of other tools, one line each, and the reasons for refusal."""

    notes: tuple[str, ...] = ()
    refusal: XpkError | None = None


def is_foreign(queue: Obj) -> bool:
    """Return whether a ClusterQueue's flavors have names that xpk does not use, such as `2xv5litepod-16`."""
    flavors = {flavor for flavor, _ in allotments(queue)}
    return bool(flavors) and flavors.isdisjoint(map(type_of, flavors))


def has_quota(have: Obj, desired: Obj, types: Mapping[str, str]) -> bool:
    """Return whether another tool's ClusterQueue has the desired quota for each type; `types`: of its flavors."""
    return all(
        _resource(have, kind, entry["name"], types) == quantity(entry["nominalQuota"])
        for kind, entry in _entries(desired)
    )


def with_quota(have: Obj, desired: Obj, types: Mapping[str, str]) -> Obj:
    """Return the change of quota of another tool's ClusterQueue, in its existing flavors of these types.

    Nothing else of it is taken over: neither labels, so that it stays when xpk is removed, nor its policies.
    """
    groups = copy.deepcopy(have["spec"].get("resourceGroups") or [])
    for kind, entry in _entries(desired):
        if existing := next(_matching(groups, kind, entry["name"], types), None):
            existing["nominalQuota"] = entry["nominalQuota"]
            continue
        flavor = {"name": kind, "resources": [entry]}
        group = next((candidate for candidate in groups if candidate["coveredResources"] == [entry["name"]]), None)
        if group is None:
            groups.append({"coveredResources": [entry["name"]], "flavors": [flavor]})
        else:
            group["flavors"].append(flavor)
    meta = {"name": have["metadata"]["name"]}
    return {**desired, "metadata": meta, "spec": {"resourceGroups": groups}}


def unlabeled(api: ObjectApi, objects: Objs) -> Objs:
    """Return queues without xpk's label where others made them: the label would let xpk delete them."""
    queues = []
    for obj in objects:
        have = _find(api, obj)
        if have is not None and maker_of(have) != "xpk":
            meta = {key: value for key, value in obj["metadata"].items() if key != "labels"}
            obj = {**obj, "metadata": meta}
        queues.append(obj)
    return queues


def judge(api: ObjectApi, objects: Objs, *, take_over: bool = False, ends: bool = False) -> Judgment:
    """Return how applying `objects` would change queues of other tools; nothing is changed.

    It is refused if a quota would be less than its use or, unless `take_over`, if another tool manages the fields.
    `ends`: workloads beyond the quota are about to be ended.
    """
    notes: list[str] = []
    managed: list[str] = []
    for obj in objects:
        have = _find(api, obj) if obj["kind"] in _QUEUES else None
        if have is None or maker_of(have) == "xpk":
            continue
        if obj["kind"] == "ClusterQueue":
            changes, short = _changes(have, obj)
            notes += changes
            if short and not ends:
                refusal = ConflictError(short, hint="wait until fewer run, or `xpk workload delete` some")
                return Judgment(tuple(notes), refusal)
        try:
            api.apply(obj, dry_run=True, force=take_over)
        except UnavailableError:  # Kueue's webhooks do not answer: it is installed first
            continue
        except ConflictError as error:
            managed.append(error.message.partition(" (")[0])
    if not managed:
        return Judgment(tuple(notes))
    what = "; ".join([*managed, *notes])
    return Judgment(
        tuple(notes),
        ConflictError(what, hint="`xpk cluster adapt CLUSTER --take-over` changes them anyway, from now on"),
    )


def _changes(have: Obj, desired: Obj) -> tuple[list[str], str]:
    """Return the change of a ClusterQueue's quota, and the use beyond it; "" if there is none."""
    name, short = have["metadata"]["name"], ""
    notes = []
    before = allotments(have)
    for (flavor, resource), after in allotments(desired).items():
        allotment = before.get((flavor, resource))
        old, used = (allotment.nominal, allotment.used) if allotment else (0.0, 0.0)
        if after.nominal == old:
            continue
        line = f"quota of flavor '{flavor}' in '{name}': {old:g} -> {after.nominal:g} {resource}"
        line += f"{_slices(flavor, resource, old, after.nominal)}, {used:g} in use"
        notes.append(line)
        if after.nominal < used:
            short = short or f"{line}: it would be less than what is in use"
    return notes, short


def _slices(flavor: str, resource: str, old: float, new: float) -> str:
    kind = type_of(flavor)
    if not kind or find_shape(kind).resource != resource:
        return ""
    units = find_shape(kind).units
    return f" ({old / units:g} -> {new / units:g} slices of {kind})"


def _entries(queue: Obj) -> Iterator[tuple[str, Obj]]:
    """Yield each type of slice in xpk's ClusterQueue, and its entry."""
    for group in queue["spec"].get("resourceGroups") or []:
        for flavor in group["flavors"]:
            for entry in flavor["resources"]:
                yield flavor["name"], entry


def _matching(groups: Sequence[Obj], kind: str, resource: str, types: Mapping[str, str]) -> Iterator[Obj]:
    for group in groups:
        for flavor in group["flavors"]:
            if types.get(flavor["name"]) == kind:
                yield from (entry for entry in flavor.get("resources") or [] if entry["name"] == resource)


def _resource(queue: Obj, kind: str, resource: str, types: Mapping[str, str]) -> float:
    entries = _matching(queue["spec"].get("resourceGroups") or [], kind, resource, types)
    return sum(quantity(entry.get("nominalQuota", 0)) for entry in entries)


def _find(api: ObjectApi, obj: Obj) -> Obj | None:
    try:
        return api.get(obj["kind"], obj["metadata"]["name"], obj["metadata"].get("namespace", "default"))
    except (NotFoundError, MissingToolError):
        return None
