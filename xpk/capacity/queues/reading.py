"""State of a cluster's queues: quotas, use and allotments, read from their objects."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from xpk.api.base import Obj, ObjectApi, Objs
from xpk.api.cluster_queues import (
    allotments,
    cohort_of,
    cube_flavors,
    max_priority_of,
    members,
    queued_flavors,
    type_of,
    types_of,
)
from xpk.model import names
from xpk.model.accelerators import SliceShape, find_shape, units_of
from xpk.model.errors import ConflictError, MissingToolError, NotFoundError, UsageError
from xpk.model.quotas import available, ceiling
from xpk.model.specs import ClusterSpec

_MANAGER = "app.kubernetes.io/managed-by"


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeShare:
    """A queue's share of one accelerator type, in slices.

    `most`: including everything that others lend; `free`: available now.
    `queued`: nodes are created when a workload requests them; `super_slicing`: the slices are cubes.
    """

    type: str  # accelerator type
    quota: float  # quota of the queue
    used: float  # slices in use
    free: float  # slices available now
    most: float  # maximum, including all that others lend
    borrowing_limit: float | None  # limit beyond its own quota; null without one
    lending_limit: float | None  # limit for lending its own quota; null without one
    queued: bool = False  # whether nodes are created only when a workload requests them
    super_slicing: bool = False  # whether the slices of workloads are formed from these


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueInfo:
    """An existing queue. `namespaces`: those that may use it; `maker`: `xpk`, or the tool that made it."""

    name: str  # name, unique in its namespaces
    cluster_queue: str  # ClusterQueue of Kueue
    namespaces: tuple[str, ...]  # namespaces that may use it
    shares: tuple[TypeShare, ...]  # shares of each accelerator type
    pending: int  # number of waiting workloads
    admitted: int  # number of admitted workloads
    cohort: str  # group of queues that lend to each other
    reclaim: str  # queues whose loans it takes back: Any, LowerPriority or Never
    maker: str  # creating tool: `xpk` or another one
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
        queues = api.list("ClusterQueue", None)
        going = tuple(queue["metadata"]["name"] for queue in queues if _is_terminating(queue))
        local_queues = [local_queue for local_queue in api.list("LocalQueue", None) if not _is_terminating(local_queue)]
        return cls(
            [queue for queue in queues if not _is_terminating(queue)], local_queues, going, types_of(api, queues)
        )

    @property
    def own(self) -> Obj:
        """Return the cluster's own queue. Raises NotFoundError without one."""
        queue = self.find(names.CLUSTER_QUEUE)
        if queue is None:
            raise NotFoundError(
                "the cluster has no queue of its own from which others could take quota",
                hint="`xpk cluster create` or `xpk cluster adapt` creates one",
            )
        return queue

    @property
    def queued(self) -> frozenset[str]:
        """Return the types of slices whose nodes are created on request. Raises NotFoundError as `own`."""
        return frozenset(self.types.get(flavor, flavor) for flavor in queued_flavors(self.own))

    @property
    def cubes(self) -> frozenset[str]:
        """Return the types of slices from which those of workloads are formed. Raises NotFoundError as `own`."""
        return frozenset(self.types.get(flavor, flavor) for flavor in cube_flavors(self.own))

    def find(self, name: str) -> Obj | None:
        """Return a ClusterQueue by its name."""
        return next((queue for queue in self.cluster_queues if queue["metadata"]["name"] == name), None)

    def locals_of(self, cluster_queue: str) -> Objs:
        """Return the LocalQueues of a ClusterQueue."""
        return [queue for queue in self.local_queues if queue["spec"].get("clusterQueue") == cluster_queue]

    def promised(self, *, without: Collection[str] = ()) -> dict[str, dict[str, float]]:
        """Return the slices of each type that are allotted to queues, by queue name."""
        allotted: dict[str, dict[str, float]] = {}
        for queue in self.teams():
            name = queue["metadata"]["name"]
            if name not in without:
                for kind, number in quotas_of(queue, self.types).items():
                    allotted.setdefault(kind, {})[name] = number
        return allotted

    def total(self) -> dict[str, float]:
        """Return the slices of each type that all queues share: as recorded, else the sum of their quotas."""
        recorded, promised = _recorded_slices(self.own), self.promised()
        return {
            kind: recorded.get(kind, remaining + sum(promised.get(kind, {}).values()))
            for kind, remaining in quotas_of(self.own, self.types).items()
        }

    def infos(self) -> list[QueueInfo]:
        """Return all queues, the cluster's own first."""
        ordered = sorted(self.cluster_queues, key=lambda queue: queue["metadata"]["name"] != names.CLUSTER_QUEUE)
        return [self.info(queue) for queue in ordered]

    def info(self, queue: Obj) -> QueueInfo:
        """Return a ClusterQueue's description and state."""
        meta, status = queue["metadata"], queue.get("status", {})
        name = queue_name(meta["name"])
        where = [local_queue["metadata"] for local_queue in self.locals_of(meta["name"])]
        return QueueInfo(
            name=name,
            cluster_queue=meta["name"],
            namespaces=tuple(
                entry["namespace"] if entry["name"] == name else f"{entry['namespace']}/{entry['name']}"
                for entry in where
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
            queue
            for queue in self.cluster_queues
            if cohort_of(queue) == names.COHORT and queue["metadata"]["name"] != names.CLUSTER_QUEUE
        ]

    def _shares(self, queue: Obj) -> list[TypeShare]:
        cohort = [allotments(member) for member in members(queue, self.cluster_queues)]
        queued, cubes, shares = queued_flavors(queue), cube_flavors(queue), []
        for (flavor, resource), allotment in allotments(queue).items():
            kind = self.types.get(flavor, flavor)
            if not _counts(kind, resource):
                continue
            units = units_of(kind, resource)
            everybody = [quotas[flavor, resource] for quotas in cohort if (flavor, resource) in quotas]

            def slices(amount: float | None, units: int = units) -> Any:
                return None if amount is None else _whole(amount / units)

            shares.append(
                TypeShare(
                    type=kind,
                    quota=slices(allotment.nominal),
                    used=slices(allotment.used),
                    free=slices(max(0, available(allotment, everybody))),
                    most=slices(ceiling(allotment, everybody)),
                    borrowing_limit=slices(allotment.borrowing_limit),
                    lending_limit=slices(allotment.lending_limit),
                    queued=flavor in queued,
                    super_slicing=flavor in cubes,
                )
            )
        return shares


def _recorded_slices(queue: Obj) -> dict[str, float]:
    """Return the slices that a queue's annotation records, by type; without values that are not numbers."""
    text = (queue["metadata"].get("annotations") or {}).get(names.SLICES_ANNOTATION, "{}")
    try:
        recorded = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    items = recorded.items() if isinstance(recorded, dict) else ()
    return {kind: value for kind, value in items if isinstance(value, int | float) and 0 <= value < float("inf")}


def promised(api: ObjectApi) -> Mapping[str, float] | None:
    """Return the slices of each type allotted to other queues than the cluster's own; None without any."""
    slices = Queues.read(api).promised()
    return {kind: sum(numbers.values()) for kind, numbers in slices.items()} or None


def check_promised(api: ObjectApi, shape: SliceShape, num_slices: int, *, cluster: str) -> None:
    """Raise ConflictError if this many slices are fewer than are allotted to queues."""
    try:
        numbers = Queues.read(api).promised().get(shape.name, {})
    except MissingToolError:  # without Kueue there are no queues
        return
    if sum(numbers.values()) > num_slices:
        whom = ", ".join(f"{name} {number:g}" for name, number in numbers.items() if number)
        largest = max(numbers, key=lambda name: numbers[name])
        raise ConflictError(
            f"{num_slices} slices of {shape.name} would be left, but queues have been allotted more: {whom}",
            hint=f"`xpk queue create {largest} --quota {shape.name}=N --cluster {cluster}` first",
        )


def quotas_of(queue: Obj, types: Mapping[str, str] | None = None) -> dict[str, float]:
    """Return a ClusterQueue's own slices of each type; `types`: those of its flavors."""
    slices: dict[str, float] = {}
    for (flavor, resource), allotment in allotments(queue).items():
        kind = (types or {}).get(flavor) or type_of(flavor) or flavor
        if not _counts(kind, resource):
            continue
        slices[kind] = _whole(slices.get(kind, 0) + allotment.nominal / units_of(kind, resource))
    return slices


def check_passed_on(queues: Queues) -> None:
    """Raise ConflictError if the cluster's own queue has flavors that xpk would have to replace."""
    strange = [flavor for flavor, _ in allotments(queues.own) if queues.types.get(flavor, flavor) != flavor]
    if strange:
        raise ConflictError(
            f"'{names.CLUSTER_QUEUE}' was created by {maker_of(queues.own)}: its quota is of flavor '{strange[0]}', "
            f"not {queues.types[strange[0]]}",
            hint=f"`xpk queue create {names.QUEUE} -n NAMESPACE` lets a namespace use all of it",
        )


def specs_of(
    slices: Mapping[str, float], queued: Collection[str] = (), cubes: Collection[str] = ()
) -> list[ClusterSpec]:
    """Return a cluster's slices as specs, by type.

    `queued`: types whose nodes are created on request; `cubes`: types from which slices are formed.
    """
    return [
        ClusterSpec(
            name="any",
            shape=find_shape(kind),
            num_slices=int(number),
            queued=kind in queued,
            super_slicing=kind in cubes,
        )
        for kind, number in slices.items()
    ]


def queue_name(cluster_queue: str) -> str:
    """Return the name by which workloads refer to a ClusterQueue."""
    return names.QUEUE if cluster_queue == names.CLUSTER_QUEUE else cluster_queue


def maker_of(obj: Obj) -> str:
    """Return the tool that made an object: `xpk`, or the one that its label names."""
    return str((obj["metadata"].get("labels") or {}).get(_MANAGER, "another tool"))


def _is_terminating(obj: Obj) -> bool:
    return "deletionTimestamp" in obj["metadata"]


def _counts(kind: str, resource: str) -> bool:
    """Return whether slices of a type are counted by a resource rather than by their CPUs, as other flavors are."""
    try:
        return find_shape(kind).resource == resource
    except UsageError:
        return True


def _whole(amount: float) -> float:
    return int(amount) if amount == int(amount) else amount
