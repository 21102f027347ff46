"""Plan of a queue: the request, checked against the present state, and the steps.

Quota is transferred, not created: a queue's quota is taken from the cluster's own queue, which shrinks before the
other grows, so that their sum never exceeds the capacity.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial

from xpk.api.base import Obj, ObjectApi, Objs
from xpk.capacity.apply import apply_all
from xpk.capacity.plan.plan import Plan, Step
from xpk.capacity.queues import priority_limit
from xpk.capacity.queues.reading import QueueInfo, Queues, check_passed_on, maker_of, quotas_of, specs_of
from xpk.capacity.queues.request import RECLAIM, QueueRequest, as_spec, over, problems_of_own, refuse, spec_of
from xpk.model import names
from xpk.model.errors import ConflictError, MissingToolError, NotFoundError
from xpk.model.specs import QueueSpec
from xpk.render import render_local_queue, render_queue, render_queues


def plan_create(api: ObjectApi, request: QueueRequest) -> Plan:
    """Plan the creation or change of a queue; no steps if it is up to date.

    Raises UsageError with all problems, CapacityError if there are too few slices, NotFoundError without its
    namespace, ConflictError if another tool made the existing object.
    """
    queues = Queues.read(api)
    total = queues.total()
    problems = [
        *names.queue_name_problems(request.name),
        *(problem for namespace in request.namespaces for problem in names.namespace_problems(namespace)),
    ]
    new = [] if problems else [namespace for namespace in request.namespaces if _is_missing(api, namespace)]
    _check_foreign_objects(queues, request)
    if request.name == names.QUEUE:
        refuse(request, [*problems, *problems_of_own(request)], {}, new)
        return _plan_own(api, queues, request, new)
    check_passed_on(queues)
    have = queues.find(request.name)
    info = queues.info(have) if have else None
    spec, before = spec_of(request, info, total, problems, queues), as_spec(info) if info else None
    refuse(request, problems, over(queues, spec, before), new)
    remaining = _left(queues, spec, total)
    steps = [*_namespace_steps(api, new), *priority_limit.lifting(api, spec, before)]
    if (
        before is None
        or (before.quotas, before.reclaim, before.max_priority) != (spec.quotas, spec.reclaim, spec.max_priority)
        or remaining != quotas_of(queues.own)
    ):
        for obj in [*_own(queues, {spec.name: _quotas(spec)}), *_of_kind("ClusterQueue", render_queue(spec))]:
            api.apply(obj, dry_run=True)  # checks permissions and field ownership
        title = f"{_change(spec, before)}; '{names.QUEUE}' keeps {_words(remaining)}"
        steps.append(Step(title, partial(_pass_on, api, spec, before, force=request.force)))
    limit_steps, limit_notes = priority_limit.enforcing(api, spec)
    steps += limit_steps
    current = before.namespaces if before else ()
    for obj in _of_kind("LocalQueue", render_queue(spec)):
        if (namespace := obj["metadata"]["namespace"]) not in current:
            if namespace not in new:
                api.apply(obj, dry_run=True)  # before the first change
            steps.append(_local_queue_step(api, obj))
    notes = _below(*([(info, _quotas(spec))] if info else []), (queues.info(queues.own), remaining))
    question = f"{notes[0]}. Continue?" if notes and steps else ""
    return Plan(_summary(spec, total), steps, notes=(*notes, *limit_notes), question=question)


def settle(api: ObjectApi, coming: Mapping[str, Mapping[str, float]] | None = None) -> None:
    """Give unallotted quota to the cluster's own queue; `coming`: quotas that queues are about to get."""
    apply_all(api, _own(Queues.read(api), coming or {}))


def _own(queues: Queues, coming: Mapping[str, Mapping[str, float]]) -> Objs:
    """Return the new state of the cluster's own queue."""
    promised = _promised(queues, coming) if coming or queues.promised() else None
    specs = specs_of(queues.total(), queues.queued, queues.cubes)
    return _of_kind("ClusterQueue", render_queues(*specs, promised=promised))


def _of_kind(kind: str, objects: Objs) -> Objs:
    return [obj for obj in objects if obj["kind"] == kind]


def _promised(queues: Queues, coming: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Return the slices of each type that are allotted to queues, or are about to be."""
    allotted = {kind: sum(shares.values()) for kind, shares in queues.promised(without=coming).items()}
    for quotas in coming.values():
        for kind, number in quotas.items():
            allotted[kind] = allotted.get(kind, 0) + number
    return allotted


def _is_missing(api: ObjectApi, namespace: str) -> bool:
    try:
        return not api.get("Namespace", namespace)
    except NotFoundError:
        return True
    except MissingToolError:  # the local control plane has no Namespace objects: every name is valid
        return False


def _check_foreign_objects(queues: Queues, request: QueueRequest) -> None:
    """Raise ConflictError if another tool made the object of this name, or if it is being deleted."""
    if request.name in queues.going:
        raise ConflictError(
            f"queue '{request.name}' is being deleted: its last workloads are still ending",
            hint="run the same command again later",
        )
    have = queues.find(request.name)
    if have and maker_of(have) != "xpk":
        raise ConflictError(
            f"ClusterQueue '{request.name}' already exists, created by {maker_of(have)}, not xpk",
            hint="choose another name",
        )
    target = names.CLUSTER_QUEUE if request.name == names.QUEUE else request.name
    for local_queue in queues.local_queues:
        meta, leads_to = local_queue["metadata"], local_queue["spec"].get("clusterQueue")
        if meta["name"] == request.name and meta["namespace"] in request.namespaces and leads_to != target:
            raise ConflictError(
                f"queue '{request.name}' of namespace '{meta['namespace']}' points to ClusterQueue '{leads_to}'",
                hint="choose another name",
            )


def _plan_own(api: ObjectApi, queues: Queues, request: QueueRequest, new: Sequence[str]) -> Plan:
    """Return the plan that opens the cluster's own queue to namespaces."""
    current = queues.info(queues.own).namespaces
    steps = _namespace_steps(api, new)
    joining = [namespace for namespace in request.namespaces if namespace not in current]
    steps += [_local_queue_step(api, render_local_queue(namespace)) for namespace in joining]
    return Plan(f"queue '{names.QUEUE}' for {_listed('namespace', [*current, *request.namespaces])}", steps)


def _change(spec: QueueSpec, before: QueueSpec | None) -> str:
    if before is None:
        return f"set up queue '{spec.name}' with {_described(spec)}"
    return f"change queue '{spec.name}' from {_described(before)} to {_described(spec)}"


def _pass_on(api: ObjectApi, spec: QueueSpec, before: QueueSpec | None, *, force: bool) -> None:
    """Change a queue's quota; the cluster's own queue shrinks before it, or grows after it.

    Raises ConflictError if the same slices were allotted to another queue since the plan was made; the queue is then
    as before.
    """
    if not force:
        _check_unallotted(api, spec, before)
    have = _quotas(before) if before else {}
    settle(api, {spec.name: have | {kind: max(number, have.get(kind, 0)) for kind, number in _quotas(spec).items()}})
    apply_all(api, _of_kind("ClusterQueue", render_queue(spec)))
    settle(api)
    try:
        if not force:  # another client may have changed its queue at the same time
            _check_unallotted(api, spec, before)
    except ConflictError:
        if before:
            apply_all(api, _of_kind("ClusterQueue", render_queue(before)))
        else:
            with suppress(NotFoundError):
                api.delete("ClusterQueue", spec.name)
        settle(api)
        raise


def _check_unallotted(api: ObjectApi, spec: QueueSpec, before: QueueSpec | None) -> None:
    if too_much := over(Queues.read(api), spec, before):
        fitting = " ".join(f"--quota {amount}" for amount in too_much)
        raise ConflictError(
            f"slices were allotted to other queues concurrently: {'; '.join(too_much.values())}",
            hint=f"run the command again with {fitting}",
        )


def _left(queues: Queues, spec: QueueSpec, total: Mapping[str, float]) -> dict[str, float]:
    """Return the slices that remain in the cluster's own queue."""
    promised = _promised(queues, {spec.name: _quotas(spec)})
    return {kind: max(0, number - promised.get(kind, 0)) for kind, number in total.items()}


def _namespace_steps(api: ObjectApi, missing: Sequence[str]) -> list[Step]:
    def step(namespace: str) -> Step:
        labels = {"app.kubernetes.io/managed-by": "xpk"}
        obj = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": labels}}
        return Step(f"create namespace '{namespace}'", partial(apply_all, api, [obj]))

    return [step(namespace) for namespace in missing]


def _local_queue_step(api: ObjectApi, obj: Obj) -> Step:
    return Step(f"create a LocalQueue in namespace '{obj['metadata']['namespace']}'", partial(apply_all, api, [obj]))


def _below(*quotas: tuple[QueueInfo, Mapping[str, float]]) -> tuple[str, ...]:
    """Return the queues that use more than their new quota, one line each."""
    return tuple(
        f"queue '{info.name}' uses {share.used:g} slices of {share.type}, and would have {becomes[share.type]:g}: "
        "the others keep running until their owners reclaim them"
        for info, becomes in quotas
        for share in info.shares
        if becomes.get(share.type, share.used) < min(share.used, share.quota)
    )


def _quotas(spec: QueueSpec) -> dict[str, float]:
    return {quota.shape.name: quota.num_slices for quota in spec.quotas}


def _described(spec: QueueSpec) -> str:
    """Return a queue's quota as text."""
    text = f"a quota of {_words(_quotas(spec))}"
    borrows = {quota.shape.name: quota.borrowing_limit for quota in spec.quotas if quota.borrowing_limit is not None}
    lends = {quota.shape.name: quota.lending_limit for quota in spec.quotas if quota.lending_limit is not None}
    text += f", borrowing at most {_words(borrows)}" if borrows else ""
    text += f", lending at most {_words(lends)}" if lends else ""
    reclaim = next(word for word, policy in RECLAIM.items() if policy == spec.reclaim)
    text += f", reclaiming from {reclaim}" if spec.reclaim != "Any" else ""
    return text + (f", priorities up to {spec.max_priority}" if spec.max_priority else "")


def _summary(spec: QueueSpec, total: Mapping[str, float]) -> str:
    whom = _listed("namespace", spec.namespaces) if spec.namespaces else "no namespace"
    return f"queue '{spec.name}' for {whom}: {_described(spec)}; the cluster has {_words(total)}"


def _words(amounts: Mapping[str, float]) -> str:
    return ", ".join(f"{number:g} x {kind}" for kind, number in amounts.items())


def _listed(what: str, items: Sequence[str]) -> str:
    each = dict.fromkeys(items)
    return f"{what}{'s' if len(each) > 1 else ''} {', '.join(each)}"
