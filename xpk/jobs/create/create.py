"""Creation of workloads: queues, fit, and the objects. All checks come before the first object is created."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from xpk.api.base import Obj, ObjectApi, Objs
from xpk.api.cluster_queues import (
    allotments,
    cohort_of,
    foreign_checks,
    max_priority_of,
    members,
    queued_flavors,
    types_of,
)
from xpk.jobs.code import upload
from xpk.jobs.create.multikueue import check_not_dispatched
from xpk.jobs.status.fields import when
from xpk.jobs.status.jobset import maker_of
from xpk.model import names, sub_slices, super_slices
from xpk.model.accelerators import SliceShape, find_shape
from xpk.model.errors import (
    AuthorizationError,
    CapacityError,
    ConflictError,
    Modified,
    NameTaken,
    NotFoundError,
    QuotaExceeded,
    UnavailableError,
    UsageError,
    XpkError,
)
from xpk.model.quotas import ceiling
from xpk.model.specs import Target, WorkloadSpec
from xpk.render import render_network_policy, render_peer_secret, render_workload

_TRIES = 5
_CREATING_SECONDS = 60.0  # a younger JobSet without its Secret may still be in creation
HELP = "see `xpk workload create --help`"


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue and its maximum quota."""

    name: str
    most: Mapping[str, Mapping[str, float]]  # by accelerator type and resource, including loans of other queues
    is_judged: bool = True  # whether `most` is known: for cohorts that are not xpk's only Kueue knows
    queued: frozenset[str] = frozenset()  # accelerator types with queued provisioning
    max_priority: str | None = None  # of its workloads; None: any
    checks: tuple[str, ...] = ()  # its admission checks that are not xpk's

    def quota(self, spec: WorkloadSpec) -> float | None:
        """Return the maximum quota of the resource that a workload needs; None if only Kueue knows."""
        kind, resource = (spec.within or spec.shape).name, spec.shape.resource
        return self.most.get(kind, {}).get(resource, 0) if self.is_judged else None


def read_queue(api: ObjectApi, name: str | None, namespace: str, *, cluster: str) -> Queue:
    """Return a queue of a namespace; None selects the cluster's own, or the only one. Raises NotFoundError."""
    try:
        return _read(api, api.get("LocalQueue", name or names.QUEUE, namespace))
    except NotFoundError:
        queues = api.list("LocalQueue", namespace)
        if name is None and len(queues) == 1:
            return _read(api, queues[0])
        listed = ", ".join(queue["metadata"]["name"] for queue in queues)
        raise NotFoundError(
            f"queue '{name or names.QUEUE}' not found in namespace '{namespace}'",
            hint=f"choose from {listed}" if queues else _queue_hint(namespace, cluster),
            resource=f"queue '{name or names.QUEUE}'",
        ) from None


def _queue_hint(namespace: str, cluster: str) -> str:
    if namespace == "default":
        return f"`xpk cluster create {cluster}` creates one"
    return (
        f"`xpk queue create {names.QUEUE} --cluster {cluster} -n {namespace}` creates one that uses the cluster's quota"
    )


def choose_shape(
    queue: Queue, accelerator_type: str | None, target: Target | None = None, *, cluster: str
) -> tuple[SliceShape, SliceShape | None]:
    """Return the requested slice shape, or the only one of the queue. Raises UsageError if the queue lacks it.

    The second value is the shape of the whole slices if the requested ones are parts of them, or of the cubes that
    they are formed from. `target`: of the cluster; None if it does not matter.
    """
    have = list(queue.most)
    divided, formed = (target.sub_slicing, target.super_slicing) if target else (None, None)
    if accelerator_type is None and len(have) != 1:
        raise UsageError(
            f"no accelerator type given; cluster '{cluster}' has {', '.join(have) or 'none'}",
            hint="pass --tpu-type TYPE",
        )
    cubes = formed if formed in have else None
    if cubes and (problem := super_slices.topology_problem(accelerator_type or "")):
        raise UsageError(problem, hint="`xpk accelerator list` shows all types")
    shape = find_shape(accelerator_type or have[0])
    if cubes and super_slices.is_formable(shape, parts=divided == cubes):
        return shape, find_shape(cubes)
    shared = find_shape(divided) if divided in have and divided else None
    if shared and shape in sub_slices.parts(shared):
        return shape, shared
    if cubes and super_slices.is_formable(shape, parts=True):
        raise UsageError(
            f"slices of {shape.name} are parts of a cube, which workloads of cluster '{cluster}' cannot use",
            hint=f"use {cubes} or a larger type, or a cluster created with --super-slicing --sub-slicing",
        )
    if shape.name not in have:
        raise UsageError(
            f"cluster '{cluster}' has slices of type {', '.join(have)}, not {shape.name}",
            hint=f"omit --tpu-type, or run `xpk cluster create NAME --tpu-type {shape.name}`",
        )
    return shape, None


def manifest(spec: WorkloadSpec) -> list[Obj]:
    """Return the objects of a workload, with a new secret, for another tool to create."""
    return [*_protection(spec), *render_workload(spec)]


def _protection(spec: WorkloadSpec) -> list[Obj]:
    """Return the objects that protect a workload's hosts. Its pods start only once the last one, the Secret, exists."""
    return [*render_network_policy(spec), *render_peer_secret(spec)]


def preview(api: ObjectApi, spec: WorkloadSpec) -> list[Obj]:
    """Return the objects of a workload as the API server would store them. Raises ConflictError."""
    *configmaps, jobset = render_workload(spec)
    code = [upload.find_configmap(api, obj) or api.create(obj, dry_run=True) for obj in configmaps]
    # A Secret of that name may be left over from an earlier workload, and the printed one replaces it.
    return [*_protection(spec), *code, api.create(jobset, dry_run=True)]


def create_workload(
    api: ObjectApi, spec: WorkloadSpec, *, cluster: str, code_configmaps: Sequence[Obj] | None = None
) -> bool:
    """Create the objects of a checked `spec`; return whether a ConfigMap of its code is new. Raises ConflictError.

    `code_configmaps`: ConfigMaps of its code as they were read; None to read them.
    The Secret comes last: if it is missing, an earlier call was interrupted, and this one completes it. On failure, a
    JobSet that this call created is deleted.
    """
    *configmaps, jobset = render_workload(spec)
    # Before anything is created: this user may lack the permission to read.
    existing = [
        _find(code_configmaps, obj) if code_configmaps is not None else upload.find_configmap(api, obj)
        for obj in configmaps
    ]
    is_ours = True
    try:
        made = api.create(jobset)
    except NameTaken as error:
        made, is_ours = _interrupted(api, spec, cluster, error), False
    except UnavailableError as error:
        made = _created_despite(api, jobset, error)
    try:
        for configmap, have in zip(configmaps, existing, strict=True):
            upload.share_configmap(api, configmap, have, made)
        for obj in _protection(spec):
            _create_owned(api, obj, made)
    except BaseException:
        if is_ours:
            with suppress(XpkError):
                api.delete("JobSet", spec.name, spec.namespace)  # its hosts would wait forever for these objects
        raise
    return None in existing


def _find(code_configmaps: Sequence[Obj], configmap: Obj) -> Obj | None:
    name = configmap["metadata"]["name"]
    return next((obj for obj in code_configmaps if obj["metadata"]["name"] == name), None)


def _interrupted(api: ObjectApi, spec: WorkloadSpec, cluster: str, error: NameTaken) -> Obj:
    """Return the existing JobSet if it is equal and its creation was interrupted. Raises NameTaken otherwise."""
    try:
        have = api.get("JobSet", spec.name, spec.namespace)
    except NotFoundError:  # deleted meanwhile
        raise error from None
    rendered, secrets = render_workload(spec)[-1], render_peer_secret(spec)
    if not secrets or maker_of(have) != "xpk" or different_fields(rendered["spec"], have["spec"]):
        raise _taken(have, spec, cluster) from error
    try:
        for secret in secrets:
            api.create(secret, dry_run=True)
    except NameTaken:
        raise _taken(have, spec, cluster) from error
    age = (datetime.now(UTC) - when(have["metadata"].get("creationTimestamp"))).total_seconds()
    if age < _CREATING_SECONDS:
        raise NameTaken(
            f"workload '{spec.name}' already exists without its Secret: another client may be creating it",
            hint="run the same command in a minute to complete an interrupted creation",
            resource=f"JobSet '{spec.name}'",
        ) from error
    return have


def _create_owned(api: ObjectApi, obj: Obj, owner: Obj) -> None:
    """Create an object that a JobSet owns, replacing one left over from an earlier JobSet.

    Raises ConflictError if an object of that name is not xpk's.
    """
    kind, meta = obj["kind"], {**obj["metadata"], "ownerReferences": [upload.owner_reference(owner)]}
    for tries_left in reversed(range(_TRIES)):
        try:
            api.create({**obj, "metadata": meta})
            return
        except Modified:  # of a quota, say
            if not tries_left:
                raise
        except NameTaken:
            with suppress(NotFoundError):
                existing = api.get(kind, meta["name"], meta["namespace"])["metadata"]
                if meta["ownerReferences"][0] in (existing.get("ownerReferences") or []):
                    return  # the creator of the JobSet was not interrupted
                _check_replaceable(kind, existing, meta)
                api.delete(kind, meta["name"], meta["namespace"])
    raise ConflictError(
        f"{kind} '{meta['name']}' is recreated by another client every time", hint="choose another name"
    )


def _check_replaceable(kind: str, existing: Obj, meta: Obj) -> None:
    """Raise NameTaken for the metadata of an object that xpk did not create for a workload of this name."""
    labels = existing.get("labels") or {}
    if any(labels.get(key) != value for key, value in meta["labels"].items()):
        raise NameTaken(
            f"{kind} '{meta['name']}' already exists in namespace '{meta['namespace']}', not created by xpk",
            hint="choose another name",
            resource=f"{kind} '{meta['name']}'",
        )


def _created_despite(api: ObjectApi, obj: Obj, error: UnavailableError) -> Obj:
    """Return the JobSet that a server created although its answer was lost. Raises `error` if it did not."""
    meta = obj["metadata"]
    try:
        have = api.get("JobSet", meta["name"], meta["namespace"])
    except XpkError:
        raise error from None
    if different_fields(obj["spec"], have["spec"]):
        raise error
    return have


def check_free(api: ObjectApi, spec: WorkloadSpec, *, cluster: str) -> None:
    """Raise NameTaken, naming the differences, if the name is taken."""
    try:
        have = api.get("JobSet", spec.name, spec.namespace)
    except NotFoundError:
        return
    raise _taken(have, spec, cluster)


def check_spec(spec: WorkloadSpec) -> None:
    """Raise UsageError with all problems of a spec."""
    problems = spec.problems()
    if problems:
        raise UsageError(f"workload '{spec.name}' cannot be created", problems=problems, hint=HELP)


def check_run_duration(queue: Queue, spec: WorkloadSpec, *, cluster: str) -> None:
    """Raise UsageError for a maximum run duration on slices without queued provisioning."""
    if spec.max_run_seconds is not None and spec.shape.name not in queue.queued:
        raise UsageError(
            f"--max-run-duration is for slices of queued provisioning; those of {spec.shape.name} on cluster "
            f"'{cluster}' are not",
            hint="omit it; `timeout 3600 COMMAND` as the --command limits the time of each host",
        )


def check_fits(api: ObjectApi, queue: Queue, spec: WorkloadSpec, *, cluster: str) -> None:
    """Raise CapacityError if its queue does not accept its priority, or could not hold it even if empty.

    The maximum includes everything that other queues lend. Raises UsageError for a queue of MultiKueue.
    """
    check_not_dispatched(api, queue.name, queue.checks, cluster=cluster)
    limit = queue.max_priority
    if limit and names.PRIORITIES[spec.priority] > names.PRIORITIES[limit]:
        raise CapacityError(
            f"priority '{spec.priority}' is too high: {names.limit_message(queue.name, limit)}",
            hint=f"use --priority {limit}, or another --queue",
        )
    quota = queue.quota(spec)
    if quota is not None and spec.total > quota:
        raise QuotaExceeded(
            f"{spec.num_slices} slices of {spec.shape.name} need {spec.total} {spec.shape.resource}; "
            f"queue '{spec.queue}' of cluster '{cluster}' has {int(quota)} in all",
            hint=_fitting_hint(api, spec, quota, cluster),
            resource=f"queue '{spec.queue}'",
        )


def _fitting_hint(api: ObjectApi, spec: WorkloadSpec, quota: float, cluster: str) -> str:
    """Return the hint: fewer slices, or a queue of the namespace that is large enough."""
    fitting = int(quota // spec.shape.units)
    parts = [f"use --num-slices {fitting}"] if fitting else []
    for other in api.list("LocalQueue", spec.namespace):
        queue = _read(api, other)
        if queue.name != spec.queue and (queue.quota(spec) or 0) >= spec.total:
            parts.append(f"{'or ' if parts else 'use '}--queue {queue.name}")
            break
    return " ".join(parts) or f"`xpk cluster describe {cluster}` shows what it has"


def _read(api: ObjectApi, local_queue: Obj) -> Queue:
    name = local_queue["metadata"]["name"]
    try:
        cluster_queue, queues = _cluster_queues(api, local_queue["spec"]["clusterQueue"])
    except NotFoundError:
        return Queue(name, {})
    cohort = members(cluster_queue, queues) if cohort_of(cluster_queue) == names.COHORT else [cluster_queue]
    everybody = [allotments(queue) for queue in cohort]
    types = types_of(api, [cluster_queue])
    maximums: dict[str, dict[str, float]] = {}
    for (flavor, resource), allotment in allotments(cluster_queue).items():
        lent = [other[flavor, resource] for other in everybody if (flavor, resource) in other]
        of_type = maximums.setdefault(types[flavor], {})
        of_type[resource] = max(
            of_type.get(resource, 0), ceiling(allotment, lent)
        )  # a workload gets one of its flavors
    queued = frozenset(types[flavor] for flavor in queued_flavors(cluster_queue))
    judged = cohort_of(cluster_queue) in ("", names.COHORT)
    limit, checks = max_priority_of(cluster_queue), foreign_checks(cluster_queue)
    return Queue(name, maximums, is_judged=judged, queued=queued, max_priority=limit, checks=checks)


def _cluster_queues(api: ObjectApi, name: str) -> tuple[Obj, Objs]:
    """Return a ClusterQueue and all ClusterQueues, with one request if the user may list them."""
    try:
        queues = api.list("ClusterQueue", None)
    except AuthorizationError:
        own = api.get("ClusterQueue", name)
        if cohort_of(own) == names.COHORT:
            raise
        return own, [own]
    named = [queue for queue in queues if queue["metadata"]["name"] == name]
    if not named:
        raise NotFoundError(f"ClusterQueue '{name}' not found")
    return named[0], queues


def _taken(have: Obj, spec: WorkloadSpec, cluster: str) -> NameTaken:
    maker, resource = maker_of(have), f"JobSet '{spec.name}'"
    if maker != "xpk":
        return NameTaken(
            f"JobSet '{spec.name}' already exists in namespace '{spec.namespace}', created by {maker}, not xpk",
            hint="choose another name",
            resource=resource,
        )
    rendered = render_workload(spec)[-1]
    changed = different_fields(rendered["spec"], have["spec"])
    comparison = f"with other settings ({', '.join(changed[:3])})" if changed else "with the same settings"
    arguments = spec.name + names.location_flags(cluster, spec.namespace)
    return NameTaken(
        f"workload '{spec.name}' already exists {comparison}",
        hint=f"choose another name, or run `xpk workload delete {arguments}` first; "
        f"`xpk workload status {arguments}` shows it",
        resource=resource,
    )


def different_fields(new: Any, have: Any, path: str = "") -> list[str]:
    """Return the paths of `wanted` whose values `have` lacks; additional fields of `have` are ignored."""
    if isinstance(new, dict) and isinstance(have, dict):
        return [
            difference
            for key in new
            for difference in different_fields(new[key], have.get(key), f"{path}.{key}".lstrip("."))
        ]
    if isinstance(new, list) and isinstance(have, list) and len(new) == len(have):
        return [
            difference
            for index, (left, right) in enumerate(zip(new, have, strict=True))
            for difference in different_fields(left, right, f"{path}[{names_of(left, index)}]")
        ]
    return [] if new == have else [path]


def names_of(item: Any, index: int) -> str:
    """Return the name of a list item, its index if it has none."""
    return str(item["name"]) if isinstance(item, dict) and "name" in item else str(index)
