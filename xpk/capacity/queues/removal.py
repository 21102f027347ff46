"""Deletion of a queue, which returns its quota to the cluster's own queue, or of one of its namespaces."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial

from xpk.api.base import Obj, ObjectApi, Objs
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
    own = info.cluster_queue == names.CLUSTER_QUEUE
    if own and namespace in (None, "default"):
        raise UsageError(
            f"'{name}' is the cluster's own queue: it is deleted with the cluster",
            hint="pass -n NAMESPACE to remove it from one namespace",
        )
    if not own and info.maker != "xpk":
        raise ConflictError(
            f"ClusterQueue '{name}' was made by {info.maker}, not xpk", hint=f"`kubectl delete clusterqueue {name}`"
        )
    there = queues.locals_of(info.cluster_queue)
    leaving = [each for each in there if not namespace or each["metadata"]["namespace"] == namespace]
    if namespace and not leaving:
        raise NotFoundError(
            f"namespace '{namespace}' has no queue '{name}'", hint=f"these have: {', '.join(info.namespaces) or 'none'}"
        )
    inside = workloads_in(api, leaving)
    if inside and not force:
        raise _in_use(inside, name, where)
    steps = [Step(f"end {_path(each)}", partial(_end, api, each)) for each in inside]
    steps += [
        Step(
            f"remove it from namespace '{each['namespace']}'",
            partial(_delete, api, "LocalQueue", each["name"], each["namespace"]),
        )
        for each in (obj["metadata"] for obj in leaving)
    ]
    if namespace:
        return Plan(f"namespace '{namespace}' leaves queue '{name}'", steps)
    title = f"remove queue '{name}', and give its quota back to '{names.QUEUE}'"
    return Plan(f"delete queue '{name}'", [*steps, Step(title, partial(_remove, api, info))])


def find(queues: Queues, name: str) -> QueueInfo:
    """Return the queue of a name. Raises NotFoundError that names the existing ones."""
    found = {each.name: each for each in queues.infos()}
    if name not in found:
        raise NotFoundError(
            f"queue '{name}' not found", hint=f"there are: {', '.join(found)}" if found else "`xpk cluster adapt`"
        )
    return found[name]


def team_objects(api: ObjectApi) -> Objs:
    """Return the objects made besides the cluster's own queue: ClusterQueues, and the LocalQueues of both."""
    try:
        queues = Queues.read(api)
    except MissingToolError:
        return []
    ours = [each for each in queues.cluster_queues if maker_of(each) == "xpk"]
    local = [each for queue in ours for each in queues.locals_of(queue["metadata"]["name"]) if maker_of(each) == "xpk"]
    return [each for each in ours if queue_name(each["metadata"]["name"]) != names.QUEUE] + local


def _in_use(inside: Objs, name: str, where: str) -> ConflictError:
    first = inside[0]["metadata"].get("namespace", "default")
    space = "" if first == "default" else f" -n {first}"
    return ConflictError(
        f"workloads are in queue '{name}': {', '.join(map(_path, inside))}",
        hint=f"`xpk workload delete {owner_of(inside[0])['name']}{where}{space}`, or --force to end them",
    )


def _path(workload: Obj) -> str:
    space, name = workload["metadata"].get("namespace", "default"), owner_of(workload)["name"]
    return str(name) if space == "default" else f"{space}/{name}"


def _end(api: ObjectApi, workload: Obj) -> None:
    """Delete a Workload's owner; if that is not a JobSet, remove it from its queue."""
    owner = owner_of(workload)
    if owner.get("kind") == "JobSet":
        _delete(api, "JobSet", owner["name"], workload["metadata"].get("namespace", "default"))


def _remove(api: ObjectApi, info: QueueInfo) -> None:
    """Remove a queue's quota before the queue: as long as the queue exists, the same command can be repeated."""
    have = as_spec(info)
    nothing = tuple(replace(each, num_slices=0, lending_limit=None) for each in have.quotas)
    apply_all(api, [obj for obj in render_queue(replace(have, quotas=nothing)) if obj["kind"] == "ClusterQueue"])
    settle(api)
    if info.max_priority:
        priority_limit.remove(api, info.name)
    _delete(api, "ClusterQueue", info.cluster_queue)
    settle(api)  # without other queues, no cohort is needed


def _delete(api: ObjectApi, kind: str, name: str, namespace: str = "default") -> None:
    with suppress(NotFoundError):
        api.delete(kind, name, namespace)
