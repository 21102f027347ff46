"""Create a workload: everything is checked before the one object is."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from xpk.api.base import Obj, ObjectApi, Objs
from xpk.api.cluster_queues import allotments, cohort_of, max_priority_of, members, queued_flavors, types_of
from xpk.jobs.code import upload
from xpk.jobs.status.fields import when
from xpk.jobs.status.reader import maker_of
from xpk.model import names, sub_slices
from xpk.model.accelerators import SliceShape, find_shape
from xpk.model.errors import (
    AuthorizationError,
    CapacityError,
    ConflictError,
    NameTaken,
    NotFoundError,
    QuotaExceeded,
    UnavailableError,
    UsageError,
    XpkError,
)
from xpk.model.quotas import ceiling
from xpk.model.specs import WorkloadSpec
from xpk.render import render_peer_secret, render_workload

_TRIES = 5
_CREATING_SECONDS = 60.0  # for which a JobSet without its Secret may be one that is being created right now
HELP = "see `xpk workload create --help`"


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue, and what it can ever give of each resource, by accelerator type, what others lend it included.

    `is_judged`: whether we know what that is; of cohorts that are not xpk's only Kueue does. `queued`: the types of
    slices whose nodes GKE makes when a workload asks for them. `max_priority`: the highest that it takes, None for any.
    """

    name: str
    most: Mapping[str, Mapping[str, float]]
    is_judged: bool = True
    queued: frozenset[str] = frozenset()
    max_priority: str | None = None

    def quota(self, spec: WorkloadSpec) -> float | None:
        """Return what it can ever give of what a workload needs; None if only Kueue knows."""
        kind, resource = (spec.within or spec.shape).name, spec.shape.resource
        return self.most.get(kind, {}).get(resource, 0) if self.is_judged else None


def read_queue(api: ObjectApi, name: str | None, namespace: str, *, cluster: str) -> Queue:
    """Return a queue of a namespace: without a name, the cluster's own or the only one. Raises NotFoundError."""
    try:
        return _read(api, api.get("LocalQueue", name or names.QUEUE, namespace))
    except NotFoundError:
        there = api.list("LocalQueue", namespace)
        if name is None and len(there) == 1:
            return _read(api, there[0])
        listed = ", ".join(queue["metadata"]["name"] for queue in there)
        raise NotFoundError(
            f"there is no queue '{name or names.QUEUE}' in namespace '{namespace}'",
            hint=f"there are: {listed}" if there else _where_queues_are(namespace, cluster),
        ) from None


def _where_queues_are(namespace: str, cluster: str) -> str:
    if namespace == "default":
        return f"`xpk cluster create {cluster}` made one"
    return f"`xpk queue create {names.QUEUE} --cluster {cluster} -n {namespace}` lets it use the cluster's"


def choose_shape(
    queue: Queue, asked: str | None, *, cluster: str, sub_slicing: str | None = None
) -> tuple[SliceShape, SliceShape | None]:
    """Return the slices that were asked for, or those that the queue has. Raises UsageError if it has no such.

    With them the slices that they are parts of, where those are shared: `sub_slicing` is their type.
    """
    have = list(queue.most)
    if asked is None and len(have) != 1:
        raise UsageError(
            f"which accelerator type? cluster '{cluster}' has {', '.join(have) or 'none'}", hint="--tpu-type TYPE"
        )
    shape = find_shape(asked or have[0])
    shared = find_shape(sub_slicing) if sub_slicing in have and sub_slicing else None
    if shared and shape in sub_slices.parts(shared):
        return shape, shared
    if shape.name not in have:
        raise UsageError(
            f"cluster '{cluster}' has slices of type {', '.join(have)}, not {shape.name}",
            hint=f"leave out --tpu-type, or `xpk cluster create NAME --tpu-type {shape.name}`",
        )
    return shape, None


def manifest(spec: WorkloadSpec) -> list[Obj]:
    """Return the objects of a workload as another tool may create them, with a secret of their own."""
    return [*render_peer_secret(spec), *render_workload(spec)]


def preview(api: ObjectApi, spec: WorkloadSpec) -> list[Obj]:
    """Return the objects of a workload as the API server would store them. Raises ConflictError."""
    *configmaps, jobset = render_workload(spec)
    code = [upload.find_configmap(api, obj) or api.create(obj, dry_run=True) for obj in configmaps]
    # A Secret of that name may be what is left of an earlier workload: the one that is printed takes its place.
    return [*render_peer_secret(spec), *code, api.create(jobset, dry_run=True)]


def create_workload(api: ObjectApi, spec: WorkloadSpec, *, cluster: str) -> bool:
    """Create what a checked `spec` says; return whether a ConfigMap of its code is new. Raises ConflictError.

    Its Secret comes last: where that is missing, an earlier call was cut off, and this one does the rest. What goes
    wrong takes a JobSet back that this call has made, no other.
    """
    *configmaps, jobset = render_workload(spec)
    # Read before anything is created: so it is known that we may.
    there = [upload.find_configmap(api, wanted) for wanted in configmaps]
    mine = True
    try:
        made = api.create(jobset)
    except ConflictError as error:
        made, mine = _cut_off(api, spec, cluster, error), False
    except UnavailableError as error:
        made = _made_all_the_same(api, jobset, error)
    try:
        for wanted, have in zip(configmaps, there, strict=True):
            upload.share_configmap(api, wanted, have, made)
        for secret in render_peer_secret(spec):
            _create_secret(api, secret, made)
    except BaseException:
        if mine:
            with suppress(XpkError):
                api.delete("JobSet", spec.name, spec.namespace)  # its hosts would wait for these objects for ever
        raise
    return None in there


def _cut_off(api: ObjectApi, spec: WorkloadSpec, cluster: str, error: ConflictError) -> Obj:
    """Return the JobSet of this very workload if its creation was cut off. Raises ConflictError if it was not."""
    have = api.get("JobSet", spec.name, spec.namespace)
    wanted, secrets = render_workload(spec)[-1], render_peer_secret(spec)
    if not secrets or maker_of(have) != "xpk" or different_fields(wanted["spec"], have["spec"]):
        raise _taken(have, spec, cluster) from error
    try:
        for secret in secrets:
            api.create(secret, dry_run=True)
    except ConflictError:
        raise _taken(have, spec, cluster) from error
    age = (datetime.now(UTC) - when(have["metadata"].get("creationTimestamp"))).total_seconds()
    if age < _CREATING_SECONDS:
        raise NameTaken(
            f"workload '{spec.name}' exists already, and has no Secret yet: somebody may be about to create it",
            hint="the same command again in a minute does the rest, if its creation was cut off",
            resource=f"JobSet '{spec.name}'",
        ) from error
    return have


def _create_secret(api: ObjectApi, secret: Obj, owner: Obj) -> None:
    """Create the Secret of a JobSet, which goes with it, in place of one that an earlier JobSet has left.

    Raises ConflictError where one of that name is not xpk's.
    """
    meta = {**secret["metadata"], "ownerReferences": [upload.owner_reference(owner)]}
    for _ in range(_TRIES):
        try:
            api.create({**secret, "metadata": meta})
            return
        except ConflictError:
            with suppress(NotFoundError):
                there = api.get("Secret", meta["name"], meta["namespace"])["metadata"]
                if meta["ownerReferences"][0] in (there.get("ownerReferences") or []):
                    return  # whoever created the JobSet was not cut off
                _check_replaceable(there, meta)
                api.delete("Secret", meta["name"], meta["namespace"])
    raise ConflictError(
        f"Secret '{meta['name']}' is created again and again by somebody else", hint="choose another name"
    )


def _check_replaceable(there: Obj, wanted: Obj) -> None:
    """Raise ConflictError for the metadata of a Secret that is not one of xpk's for a workload of this name."""
    labels = there.get("labels") or {}
    if any(labels.get(key) != value for key, value in wanted["labels"].items()):
        raise NameTaken(
            f"there is a Secret '{wanted['name']}' already in namespace '{wanted['namespace']}', not made by xpk",
            hint="choose another name",
            resource=f"Secret '{wanted['name']}'",
        )


def _made_all_the_same(api: ObjectApi, wanted: Obj, error: UnavailableError) -> Obj:
    """Return what a server has made whose answer was lost. Raises the error if it has not, or does not tell."""
    meta = wanted["metadata"]
    try:
        have = api.get("JobSet", meta["name"], meta["namespace"])
    except XpkError:
        raise error from None
    if different_fields(wanted["spec"], have["spec"]):
        raise error
    return have


def check_free(api: ObjectApi, spec: WorkloadSpec, *, cluster: str) -> None:
    """Raise ConflictError, saying what differs, if the name is taken."""
    try:
        have = api.get("JobSet", spec.name, spec.namespace)
    except NotFoundError:
        return
    raise _taken(have, spec, cluster)


def check_spec(spec: WorkloadSpec) -> None:
    """Raise UsageError with all that is wrong with a spec by itself."""
    problems = spec.problems()
    if problems:
        raise UsageError(f"workload '{spec.name}' cannot be created", problems=problems, hint=HELP)


def check_run_duration(queue: Queue, spec: WorkloadSpec, *, cluster: str) -> None:
    """Raise UsageError if nobody would keep to the time that a workload may take."""
    if spec.max_run_seconds is not None and spec.shape.name not in queue.queued:
        raise UsageError(
            f"--max-run-duration is for slices of queued provisioning: those of {spec.shape.name} on cluster "
            f"'{cluster}' are there already",
            hint="leave it out; `timeout 3600 COMMAND` as the --command ends hosts by themselves",
        )


def check_fits(api: ObjectApi, queue: Queue, spec: WorkloadSpec, *, cluster: str) -> None:
    """Raise CapacityError if its queue does not take its priority, or could not hold it.

    It is asked what the queue could hold if it were empty, and others lent it all they do.
    """
    limit = queue.max_priority
    if limit and names.PRIORITIES[spec.priority] > names.PRIORITIES[limit]:
        raise CapacityError(
            f"priority '{spec.priority}' is too high: {names.limit_message(queue.name, limit)}",
            hint=f"--priority {limit}, or another --queue",
        )
    quota = queue.quota(spec)
    if quota is not None and spec.total > quota:
        raise QuotaExceeded(
            f"{spec.num_slices} slices of {spec.shape.name} need {spec.total} {spec.shape.resource}; "
            f"queue '{spec.queue}' of cluster '{cluster}' has {int(quota)} in all",
            hint=_what_fits(api, spec, quota, cluster),
            resource=f"queue '{spec.queue}'",
        )


def _what_fits(api: ObjectApi, spec: WorkloadSpec, quota: float, cluster: str) -> str:
    """Return what to ask for instead: fewer slices, or a queue of the namespace that is large enough."""
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
        mine, there = _cluster_queues(api, local_queue["spec"]["clusterQueue"])
    except NotFoundError:
        return Queue(name, {})
    cohort = members(mine, there) if cohort_of(mine) == names.COHORT else [mine]
    everybody = [allotments(each) for each in cohort]
    types = types_of(api, [mine])
    most: dict[str, dict[str, float]] = {}
    for (flavor, resource), each in allotments(mine).items():
        lent = [other[flavor, resource] for other in everybody if (flavor, resource) in other]
        of_type = most.setdefault(types[flavor], {})
        of_type[resource] = max(of_type.get(resource, 0), ceiling(each, lent))  # a workload gets one of its flavors
    queued = frozenset(types[flavor] for flavor in queued_flavors(mine))
    judged = cohort_of(mine) in ("", names.COHORT)
    return Queue(name, most, is_judged=judged, queued=queued, max_priority=max_priority_of(mine))


def _cluster_queues(api: ObjectApi, name: str) -> tuple[Obj, Objs]:
    """Return a ClusterQueue and all there are, with one request if we may list them."""
    try:
        there = api.list("ClusterQueue", None)
    except AuthorizationError:
        mine = api.get("ClusterQueue", name)
        if cohort_of(mine) == names.COHORT:
            raise
        return mine, [mine]
    found = [each for each in there if each["metadata"]["name"] == name]
    if not found:
        raise NotFoundError(f"there is no ClusterQueue '{name}'")
    return found[0], there


def _taken(have: Obj, spec: WorkloadSpec, cluster: str) -> NameTaken:
    maker, resource = maker_of(have), f"JobSet '{spec.name}'"
    if maker != "xpk":
        return NameTaken(
            f"there is a JobSet '{spec.name}' already in namespace '{spec.namespace}', made by {maker}, not xpk",
            hint="choose another name",
            resource=resource,
        )
    wanted = render_workload(spec)[-1]
    changed = different_fields(wanted["spec"], have["spec"])
    what = f"with other settings ({', '.join(changed[:3])})" if changed else "with the same settings"
    it = spec.name + names.where(cluster, spec.namespace)
    return NameTaken(
        f"workload '{spec.name}' exists already, {what}",
        hint=f"`xpk workload status {it}`, another name, or `xpk workload delete {it}` first",
        resource=resource,
    )


def different_fields(wanted: Any, have: Any, path: str = "") -> list[str]:
    """Return the paths at which `have` lacks what `wanted` gives; fields only `have` has do not count."""
    if isinstance(wanted, dict) and isinstance(have, dict):
        return [
            found
            for key in wanted
            for found in different_fields(wanted[key], have.get(key), f"{path}.{key}".lstrip("."))
        ]
    if isinstance(wanted, list) and isinstance(have, list) and len(wanted) == len(have):
        return [
            found
            for index, (left, right) in enumerate(zip(wanted, have, strict=True))
            for found in different_fields(left, right, f"{path}[{names_of(left, index)}]")
        ]
    return [] if wanted == have else [path]


def names_of(item: Any, index: int) -> str:
    """Return how to call a list's item: by its name, else by its index."""
    return str(item["name"]) if isinstance(item, dict) and "name" in item else str(index)
