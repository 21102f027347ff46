"""Deletion of a queue, which returns its quota to the cluster's own queue, or of one of its namespaces."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial

from xpk.api.base import Obj, ObjectApi, Objs
from xpk.api.cluster_queues import max_priority_of
from xpk.capacity.apply import apply_all
from xpk.capacity.plan.plan import Plan, Step
from xpk.capacity.queues import priority_limit
from xpk.capacity.queues.planning import settle
from xpk.capacity.queues.reading import QueueInfo, Queues, maker_of, queue_name
from xpk.capacity.queues.request import as_spec
from xpk.capacity.queues.workloads import owner_of, workloads_in
from xpk.model import names
from xpk.model.errors import ConflictError, MissingToolError, NotFoundError, UsageError
from xpk.render import render_queue


def plan_delete(api: ObjectApi, name: str, namespace: str | None, *, where: str, force: bool) -> Plan:
    """Plan the deletion of a queue or, with `namespace`, its removal from this one.

    `where` names the cluster in hints: ` --cluster C`. Raises NotFoundError, or ConflictError if workloads are in
    it, unless forced, or if another tool made it.
    """
    queues = Queues.read(api)
    info = find(queues, name)
    is_own = info.cluster_queue == names.CLUSTER_QUEUE
    if is_own and namespace in (None, "default"):
        raise UsageError(
            f"'{name}' is the cluster's own queue: it is deleted with the cluster",
            hint="pass -n NAMESPACE to remove it from one namespace",
        )
    if not is_own and info.maker != "xpk":
        raise ConflictError(
            f"ClusterQueue '{name}' was created by {info.maker}, not xpk", hint=f"`kubectl delete clusterqueue {name}`"
        )
    local_queues = queues.locals_of(info.cluster_queue)
    leaving = [
        local_queue
        for local_queue in local_queues
        if not namespace or local_queue["metadata"]["namespace"] == namespace
    ]
    if namespace and not leaving:
        raise NotFoundError(
            f"namespace '{namespace}' has no queue '{name}'", hint=f"choose from {', '.join(info.namespaces) or 'none'}"
        )
    inside = workloads_in(api, leaving)
    if inside and not force:
        raise _in_use(inside, name, where)
    steps = [
        Step(f"{'end' if _is_jobset(workload) else 'suspend'} {_path(workload)}", partial(_end, api, workload))
        for workload in inside
    ]
    steps += [
        Step(
            f"delete the LocalQueue in namespace '{meta['namespace']}'",
            partial(_delete, api, "LocalQueue", meta["name"], meta["namespace"]),
        )
        for meta in (obj["metadata"] for obj in leaving)
    ]
    if namespace:
        return Plan(f"remove queue '{name}' from namespace '{namespace}'", steps)
    title = f"delete the ClusterQueue, and return its quota to '{names.QUEUE}'"
    return Plan(f"delete queue '{name}'", [*steps, Step(title, partial(_remove, api, info))])


def find(queues: Queues, name: str) -> QueueInfo:
    """Return a queue by its name. Raises NotFoundError with the existing names."""
    info_of = {info.name: info for info in queues.infos()}
    if name not in info_of:
        raise NotFoundError(
            f"queue '{name}' not found",
            hint=f"choose from {', '.join(info_of)}" if info_of else "run `xpk cluster adapt`",
        )
    return info_of[name]


def team_objects(api: ObjectApi) -> Objs:
    """Return the objects made besides the cluster's own queue: ClusterQueues, and the LocalQueues of both."""
    try:
        queues = Queues.read(api)
    except MissingToolError:
        return []
    ours = [candidate for candidate in queues.cluster_queues if maker_of(candidate) == "xpk"]
    local = [
        local_queue
        for queue in ours
        for local_queue in queues.locals_of(queue["metadata"]["name"])
        if maker_of(local_queue) == "xpk"
    ]
    return [queue for queue in ours if queue_name(queue["metadata"]["name"]) != names.QUEUE] + local


def remove_limits(api: ObjectApi) -> None:
    """Delete the policies of all queues of xpk with a priority limit, which would outlive their queues."""
    for queue in team_objects(api):
        if queue["kind"] == "ClusterQueue" and max_priority_of(queue):
            priority_limit.remove(api, queue["metadata"]["name"])


def _in_use(inside: Objs, name: str, where: str) -> ConflictError:
    first, owner = inside[0]["metadata"].get("namespace", "default"), owner_of(inside[0])
    space = "" if first == "default" else f" -n {first}"
    command = f"xpk workload delete {owner['name']}{where}{space}"
    if not _is_jobset(inside[0]):
        command = f"kubectl delete {str(owner.get('kind', 'Workload')).lower()} {owner['name']}{space}"
    return ConflictError(
        f"workloads are in queue '{name}': {', '.join(map(_path, inside))}",
        hint=f"`{command}`, or --force to end them",
    )


def _is_jobset(workload: Obj) -> bool:
    return owner_of(workload).get("kind") == "JobSet"


def _path(workload: Obj) -> str:
    space, name = workload["metadata"].get("namespace", "default"), owner_of(workload)["name"]
    return str(name) if space == "default" else f"{space}/{name}"


def _end(api: ObjectApi, workload: Obj) -> None:
    """Delete a Workload's JobSet. Jobs of other kinds stay: Kueue suspends them, so that the queue can be deleted."""
    meta = workload["metadata"]
    space = meta.get("namespace", "default")
    if _is_jobset(workload):
        _delete(api, "JobSet", owner_of(workload)["name"], space)
        return
    with suppress(NotFoundError):
        api.patch("Workload", meta["name"], {"spec": {"active": False}}, space)


def _remove(api: ObjectApi, info: QueueInfo) -> None:
    """Remove a queue's quota before the queue: as long as the queue exists, the same command can be repeated."""
    have = as_spec(info)
    nothing = tuple(replace(quota, num_slices=0, lending_limit=None) for quota in have.quotas)
    apply_all(api, [obj for obj in render_queue(replace(have, quotas=nothing)) if obj["kind"] == "ClusterQueue"])
    settle(api)
    if info.max_priority:
        priority_limit.remove(api, info.name)
    _delete(api, "ClusterQueue", info.cluster_queue)
    settle(api)  # without other queues, no cohort is needed


def _delete(api: ObjectApi, kind: str, name: str, namespace: str = "default") -> None:
    with suppress(NotFoundError):
        api.delete(kind, name, namespace)
