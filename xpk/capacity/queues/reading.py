"""State of a cluster's queues: quotas, use and allotments, read from their objects."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from xpk.api.base import Obj, ObjectApi, Objs
from xpk.api.cluster_queues import allotments, cohort_of, max_priority_of, members, queued_flavors, type_of, types_of
from xpk.model import names
from xpk.model.accelerators import SliceShape, find_shape
from xpk.model.errors import ConflictError, MissingToolError, NotFoundError, UsageError
from xpk.model.quotas import available, ceiling
from xpk.model.specs import ClusterSpec

_MANAGER = "app.kubernetes.io/managed-by"


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeShare:
    """A queue's share of one accelerator type, in slices.

    `most`: including everything that others lend; `free`: available now.
    `queued`: nodes are created when a workload requests them.
    """

    type: str  # accelerator type
    quota: float  # its own
    used: float  # in use
    free: float
    most: float
    borrowing_limit: float | None  # beyond its own; null without a limit
    lending_limit: float | None  # of its own; null without a limit
    queued: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueInfo:
    """An existing queue. `namespaces`: those that may use it; `maker`: `xpk`, or the tool that made it."""

    name: str  # unique in its namespaces
    cluster_queue: str  # its ClusterQueue in Kueue
    namespaces: tuple[str, ...]
    shares: tuple[TypeShare, ...]  # for each accelerator type
    pending: int  # number of waiting workloads
    admitted: int  # number of admitted workloads
    cohort: str  # group of queues that lend to each other
    reclaim: str  # whose loans it takes back: Any, LowerPriority or Never
    maker: str
    created: str  # time of the creation
    max_priority: str | None = None  # highest priority of its workloads; null without a limit


@dataclass(frozen=True, slots=True)
class Queues:
    """The queues of a cluster, read once.

    `going`: names of ClusterQueues that are being deleted; `types`: the accelerator type of each flavor.
    """

    cluster_queues: Objs
    local_queues: Objs
    going: tuple[str, ...] = ()
    types: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, api: ObjectApi) -> Queues:
        """Read the queues; those that are being deleted do not count."""
        there = api.list("ClusterQueue", None)
        going = tuple(each["metadata"]["name"] for each in there if _is_going(each))
        local_queues = [each for each in api.list("LocalQueue", None) if not _is_going(each)]
        return cls([each for each in there if not _is_going(each)], local_queues, going, types_of(api, there))

    @property
    def own(self) -> Obj:
        """Return the cluster's own queue. Raises NotFoundError without one."""
        found = self.find(names.CLUSTER_QUEUE)
        if found is None:
            raise NotFoundError(
                "the cluster has no queue of its own from which others could take quota",
                hint="`xpk cluster create` or `xpk cluster adapt` creates one",
            )
        return found

    @property
    def queued(self) -> frozenset[str]:
        """Return the types of slices whose nodes are created on request. Raises NotFoundError as `own`."""
        return frozenset(self.types.get(flavor, flavor) for flavor in queued_flavors(self.own))

    def find(self, name: str) -> Obj | None:
        """Return a ClusterQueue by its name."""
        return next((each for each in self.cluster_queues if each["metadata"]["name"] == name), None)

    def locals_of(self, cluster_queue: str) -> Objs:
        """Return the LocalQueues of a ClusterQueue."""
        return [each for each in self.local_queues if each["spec"].get("clusterQueue") == cluster_queue]

    def promised(self, *, without: Collection[str] = ()) -> dict[str, dict[str, float]]:
        """Return the slices of each type that are allotted to queues, by queue name."""
        found: dict[str, dict[str, float]] = {}
        for queue in self.teams():
            name = queue["metadata"]["name"]
            if name not in without:
                for kind, number in quotas_of(queue, self.types).items():
                    found.setdefault(kind, {})[name] = number
        return found

    def total(self) -> dict[str, float]:
        """Return the slices of each type that all queues share: as recorded, else the sum of their quotas."""
        try:
            told = json.loads(self.own["metadata"].get("annotations", {}).get(names.SLICES_ANNOTATION, "{}"))
        except ValueError:
            told = {}
        promised = self.promised()
        return {
            kind: told.get(kind, left + sum(promised.get(kind, {}).values()))
            for kind, left in quotas_of(self.own, self.types).items()
        }

    def infos(self) -> list[QueueInfo]:
        """Return all queues, the cluster's own first."""
        ordered = sorted(self.cluster_queues, key=lambda each: each["metadata"]["name"] != names.CLUSTER_QUEUE)
        return [self.info(each) for each in ordered]

    def info(self, queue: Obj) -> QueueInfo:
        """Return a ClusterQueue's description and state."""
        meta, status = queue["metadata"], queue.get("status", {})
        name = queue_name(meta["name"])
        where = [each["metadata"] for each in self.locals_of(meta["name"])]
        return QueueInfo(
            name=name,
            cluster_queue=meta["name"],
            namespaces=tuple(
                each["namespace"] if each["name"] == name else f"{each['namespace']}/{each['name']}" for each in where
            ),
            shares=tuple(self._shares(queue)),
            pending=int(status.get("pendingWorkloads", 0)),
            admitted=int(status.get("admittedWorkloads", 0)),
            cohort=cohort_of(queue),
            reclaim=queue["spec"].get("preemption", {}).get("reclaimWithinCohort", "Never"),
            maker=maker_of(queue),
            created=str(meta.get("creationTimestamp", "")),
            max_priority=max_priority_of(queue),
        )

    def teams(self) -> Objs:
        """Return the ClusterQueues that have a part of the cluster's quota."""
        return [
            each
            for each in self.cluster_queues
            if cohort_of(each) == names.COHORT and each["metadata"]["name"] != names.CLUSTER_QUEUE
        ]

    def _shares(self, queue: Obj) -> list[TypeShare]:
        cohort = [allotments(each) for each in members(queue, self.cluster_queues)]
        queued, found = queued_flavors(queue), []
        for (flavor, resource), mine in allotments(queue).items():
            kind = self.types.get(flavor, flavor)
            if not _counts(kind, resource):
                continue
            units = _units(kind, resource)
            everybody = [each[flavor, resource] for each in cohort if (flavor, resource) in each]

            def slices(amount: float | None, units: int = units) -> Any:
                return None if amount is None else _whole(amount / units)

            found.append(
                TypeShare(
                    type=kind,
                    quota=slices(mine.nominal),
                    used=slices(mine.used),
                    free=slices(max(0, available(mine, everybody))),
                    most=slices(ceiling(mine, everybody)),
                    borrowing_limit=slices(mine.borrowing_limit),
                    lending_limit=slices(mine.lending_limit),
                    queued=flavor in queued,
                )
            )
        return found


def promised(api: ObjectApi) -> Mapping[str, float] | None:
    """Return the slices of each type allotted to other queues than the cluster's own; None without any."""
    found = Queues.read(api).promised()
    return {kind: sum(numbers.values()) for kind, numbers in found.items()} or None


def check_promised(api: ObjectApi, shape: SliceShape, num_slices: int, *, cluster: str) -> None:
    """Raise ConflictError if this many slices are fewer than are allotted to queues."""
    try:
        numbers = Queues.read(api).promised().get(shape.name, {})
    except MissingToolError:  # without Kueue there are no queues
        return
    if sum(numbers.values()) > num_slices:
        whom = ", ".join(f"{name} {number:g}" for name, number in numbers.items() if number)
        most = max(numbers, key=lambda name: numbers[name])
        raise ConflictError(
            f"{num_slices} slices of {shape.name} would be left, but queues have been allotted more: {whom}",
            hint=f"`xpk queue create {most} --quota {shape.name}=N --cluster {cluster}` first",
        )


def quotas_of(queue: Obj, types: Mapping[str, str] | None = None) -> dict[str, float]:
    """Return a ClusterQueue's own slices of each type; `types`: those of its flavors."""
    found: dict[str, float] = {}
    for (flavor, resource), each in allotments(queue).items():
        kind = (types or {}).get(flavor) or type_of(flavor) or flavor
        if not _counts(kind, resource):
            continue
        found[kind] = _whole(found.get(kind, 0) + each.nominal / _units(kind, resource))
    return found


def check_passed_on(queues: Queues) -> None:
    """Raise ConflictError if the cluster's own queue has flavors that xpk would have to replace."""
    strange = [flavor for flavor, _ in allotments(queues.own) if queues.types.get(flavor, flavor) != flavor]
    if strange:
        raise ConflictError(
            f"'{names.CLUSTER_QUEUE}' was made by {maker_of(queues.own)}: its quota is of flavor '{strange[0]}', "
            f"not {queues.types[strange[0]]}",
            hint=f"`xpk queue create {names.QUEUE} -n NAMESPACE` lets a namespace use all of it",
        )


def specs_of(slices: Mapping[str, float], queued: Collection[str] = ()) -> list[ClusterSpec]:
    """Return a cluster's slices as specs, by type; `queued`: types whose nodes are created on request."""
    return [
        ClusterSpec(name="any", shape=find_shape(kind), num_slices=int(number), queued=kind in queued)
        for kind, number in slices.items()
    ]


def queue_name(cluster_queue: str) -> str:
    """Return the name by which workloads refer to a ClusterQueue."""
    return names.QUEUE if cluster_queue == names.CLUSTER_QUEUE else cluster_queue


def maker_of(obj: Obj) -> str:
    """Return the tool that made an object: `xpk`, or the one that its label names."""
    return str((obj["metadata"].get("labels") or {}).get(_MANAGER, "somebody else"))


def _is_going(obj: Obj) -> bool:
    return "deletionTimestamp" in obj["metadata"]


def _counts(kind: str, resource: str) -> bool:
    """Return whether slices of a type are counted by a resource rather than by their CPUs, as other flavors are."""
    try:
        return find_shape(kind).resource == resource
    except UsageError:
        return True


def _units(kind: str, resource: str) -> int:
    """Return the units of a resource per slice; 1 if a flavor is not an accelerator type."""
    try:
        shape = find_shape(kind)
    except UsageError:
        return 1
    return shape.units if shape.resource == resource else 1


def _whole(amount: float) -> float:
    return int(amount) if amount == int(amount) else amount
