"""A cluster's queues and workloads as a simulation needs them, and what the cluster's objects have for it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from xpk.api.base import Obj, ObjectApi, Objs
from xpk.api.cluster_queues import Key, allotments, type_of
from xpk.api.quantities import quantity
from xpk.jobs.simulation.refusals import refusals
from xpk.jobs.status.fields import PREFIX, condition, is_true, jobs_in, owners_of, when
from xpk.jobs.status.queue_position import needs_of, rank
from xpk.local import feasibility
from xpk.local.ledger import Queue
from xpk.local.quota_model import model_of
from xpk.model import names
from xpk.model.accelerators import type_of_nodes
from xpk.model.errors import AuthorizationError, MissingToolError

_EXCLUSIVE = f"alpha.{PREFIX}/exclusive-topology"


@dataclass(frozen=True, slots=True, kw_only=True)
class Objects:
    """Objects of a cluster, of all namespaces. `nodes`: only of a local cluster, whose queue counts node pools."""

    cluster_queues: Objs
    local_queues: Objs
    workloads: Objs
    jobsets: Objs
    flavors: Objs = field(default_factory=list)
    cohorts: Objs = field(default_factory=list)
    nodes: Objs | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A workload that has not finished. Times are in seconds, `reserved` relative to now.

    `turn`: sorts by the order in its queue, within its priority. `reserved`: None while it waits. `leaves`: whether it
    was told to stop. `limit`: longest time that it may run.
    """

    uid: str
    turn: str
    namespace: str
    name: str
    queue: str  # the ClusterQueue
    priority: int
    needs: Mapping[str, int]
    reserved: float | None = None
    leaves: bool = False
    limit: float | None = None
    jobset: Obj | None = None
    arrival: float = 0.0

    @property
    def label(self) -> str:
        """Return the namespace and the name, as messages have them."""
        return f"{self.namespace}/{self.name}" if self.namespace else self.name

    @property
    def ran(self) -> float:
        """Return the seconds for which it has its quota."""
        return 0.0 if self.reserved is None else max(0.0, -self.reserved)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Queues and workloads at a time, in Unix seconds.

    `queues`: by the names of ClusterQueues, with resources named `flavor/resource`. `places`: the ClusterQueue of each
    namespace's queues. `types`: each queue's flavors and
    resources by accelerator type. `shared`: capacity that all queues share. `refused`: queues that cannot be
    simulated, with the reason.
    """

    time: float
    queues: Mapping[str, Queue]
    types: Mapping[str, Mapping[str, Key]]
    places: Mapping[tuple[str, str], str] = field(default_factory=dict)
    entries: tuple[Entry, ...] = ()
    shared: Mapping[str, int] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    changes: tuple[str, ...] = ()


def read_objects(api: ObjectApi, *, is_local: bool) -> Objects:
    """Read what a simulation needs. Raises AuthorizationError without permission to list it in all namespaces."""

    def optional(kind: str) -> Objs:
        with suppress(AuthorizationError, MissingToolError):
            return api.list(kind, None)
        return []

    return Objects(
        cluster_queues=api.list("ClusterQueue", None),
        local_queues=api.list("LocalQueue", None),
        workloads=api.list("Workload", None),
        jobsets=optional("JobSet"),
        flavors=optional("ResourceFlavor"),
        cohorts=[] if is_local else optional("Cohort"),
        nodes=api.list("Node", None) if is_local else None,
    )


def scenario_of(objects: Objects, now: float | None = None) -> Scenario:
    """Return the queues and workloads of a cluster; queues that cannot be simulated are listed with the reason."""
    now = time.time() if now is None else now
    places = {
        (local["metadata"].get("namespace", "default"), local["metadata"]["name"]): str(local["spec"]["clusterQueue"])
        for local in objects.local_queues
    }
    queues = {queue["metadata"]["name"]: queue for queue in objects.cluster_queues}
    open_workloads = [
        (workload, place)
        for workload in objects.workloads
        if not is_true(workload, "Finished") and workload["spec"].get("active", True)
        if (place := _place(workload, places)) in queues
    ]
    refused = refusals(objects.cluster_queues, objects.cohorts, objects.flavors, open_workloads)
    jobsets = {jobset["metadata"]["uid"]: jobset for jobset in objects.jobsets}
    pools = _pools(objects)
    kept = {name: queue for name, queue in queues.items() if name not in refused}
    return Scenario(
        time=now,
        queues={name: model_of(queue, resource_name) for name, queue in kept.items()},
        types={name: _types(queue) for name, queue in kept.items()},
        places=places,
        entries=tuple(
            _entry(workload, kept[place], jobsets, pools, now) for workload, place in open_workloads if place in kept
        ),
        shared=pools,
        refused=refused,
    )


def resource_name(key: Key) -> str:
    """Return the name of a flavor's resource in simulations."""
    return "/".join(key)


def pools_name(flavor: str) -> str:
    """Return the name of a flavor's node pools in simulations."""
    return f"{feasibility.POOLS} of {flavor}"


def flavor_of(workload: Obj, cluster_queue: Obj, resource: str) -> str | None:
    """Return the flavor whose resource a waiting workload would use; None if that is open."""
    flavors = [flavor for flavor, name in allotments(cluster_queue) if name == resource]
    if len(flavors) > 1:
        kinds = {_type(pod_set) for pod_set in workload["spec"].get("podSets") or []}
        flavors = [flavor for flavor in flavors if {type_of(flavor) or flavor} == kinds]
    return flavors[0] if len(flavors) == 1 else None


def _place(workload: Obj, places: Mapping[tuple[str, str], str]) -> str:
    admitted = str((workload.get("status", {}).get("admission") or {}).get("clusterQueue", ""))
    key = str(workload["metadata"].get("namespace", "default")), str(workload["spec"].get("queueName"))
    return admitted or places.get(key, "")


def _type(pod_set: Obj) -> str:
    return type_of_nodes(pod_set["template"]["spec"].get("nodeSelector") or {})


def _types(cluster_queue: Obj) -> dict[str, Key]:
    """Return the flavors and resources by accelerator type."""
    return {type_of(flavor) or flavor: (flavor, resource) for flavor, resource in allotments(cluster_queue)}


def _pools(objects: Objects) -> dict[str, int]:
    """Return the number of usable node pools of each flavor; none where only quota counts."""
    if objects.nodes is None:
        return {}
    return {
        pools_name(flavor["metadata"]["name"]): len(feasibility.pools_of(flavor, objects.nodes))
        for flavor in objects.flavors
    }


def _entry(
    workload: Obj, cluster_queue: Obj, jobsets: Mapping[str, Obj], pools: Mapping[str, int], now: float
) -> Entry:
    meta, spec = workload["metadata"], workload["spec"]
    owner = next(iter(meta.get("ownerReferences") or []), {"name": meta["name"]})
    jobset = next((jobsets[uid] for uid in owners_of(workload) if uid in jobsets), None)
    reserved = condition(workload, "QuotaReserved")
    holds = reserved.get("status") == "True"
    priority, since, uid = rank(workload)
    return Entry(
        uid=uid,
        turn=f"{since.timestamp():017.3f}/{uid}",
        namespace=meta.get("namespace", "default"),
        name=str(owner["name"]),
        queue=cluster_queue["metadata"]["name"],
        priority=-priority,
        needs=_amounts(workload, cluster_queue, jobset, pools),
        reserved=when(reserved.get("lastTransitionTime")).timestamp() - now if holds else None,
        leaves=holds and is_true(workload, "Evicted"),
        limit=_limit(spec, jobset),
        jobset=jobset,
    )


def _amounts(workload: Obj, cluster_queue: Obj, jobset: Obj | None, pools: Mapping[str, int]) -> dict[str, int]:
    """Return the amounts of a workload by `flavor/resource`: assigned ones, else requested ones."""
    assigned = (workload.get("status", {}).get("admission") or {}).get("podSetAssignments") or []
    amounts, flavors = dict[str, int](), set[str]()
    for pod_set in assigned:
        for resource, flavor in (pod_set.get("flavors") or {}).items():
            name, amount = resource_name((flavor, resource)), (pod_set.get("resourceUsage") or {}).get(resource, 0)
            amounts[name] = amounts.get(name, 0) + int(quantity(amount))
            flavors.add(flavor)
    for resource, total in {} if assigned else needs_of(workload).items():
        flavor = flavor_of(workload, cluster_queue, resource)
        amounts[resource_name((flavor, resource)) if flavor else resource] = int(total)
        flavors |= {flavor} if flavor else set()
    if jobset and _EXCLUSIVE in (jobset["metadata"].get("annotations") or {}):
        slices = sum(job.get("replicas", 1) for job in jobs_in(jobset["spec"]))
        amounts |= {pools_name(flavor): slices for flavor in flavors if pools_name(flavor) in pools}
    return amounts


def _limit(spec: Obj, jobset: Obj | None) -> float | None:
    """Return the seconds that a workload may run: the least of Kueue's, GKE's and its Jobs' limits."""
    limits = [spec.get("maximumExecutionTimeSeconds")]
    if jobset:
        limits.append((jobset["metadata"].get("annotations") or {}).get(names.RUN_SECONDS_ANNOTATION))
        limits += [job["template"]["spec"].get("activeDeadlineSeconds") for job in jobs_in(jobset["spec"])]
    return min((float(limit) for limit in limits if limit is not None), default=None)
