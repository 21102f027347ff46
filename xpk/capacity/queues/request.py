"""Requests for queues, validated: one spec, or all problems."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from xpk.capacity.queues.reading import QueueInfo, Queues
from xpk.model import names
from xpk.model.accelerators import find_shape
from xpk.model.amounts import parse_amounts
from xpk.model.errors import CapacityError, NotFoundError, UsageError
from xpk.model.specs import QueueSpec, SliceQuota

RECLAIM = {"any": "Any", "lower-priority": "LowerPriority", "never": "Never"}


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRequest:
    """A user's request; amounts are texts such as `v5litepod-16=4`. None keeps the present value.

    `force`: allow more quota than capacity.
    """

    name: str
    namespaces: tuple[str, ...]
    quota: tuple[str, ...] = ()
    borrowing_limit: tuple[str, ...] = ()
    lending_limit: tuple[str, ...] = ()
    reclaim: str | None = None
    max_priority: str | None = None
    create_namespace: bool = False
    force: bool = False


def spec_of(
    request: QueueRequest,
    have: QueueInfo | None,
    total: Mapping[str, float],
    problems: list[str],
    queues: Queues | None = None,
) -> QueueSpec:
    """Return the requested queue; problems are added to `problems`.

    `queues`: those of the cluster, whose own queue tells which slices are created or formed on request.
    """
    queued, cubes = (queues.queued, queues.cubes) if queues else ((), ())
    quota = parse_amounts("--quota", request.quota, total, problems)
    borrowing = parse_amounts("--borrowing-limit", request.borrowing_limit, total, problems, limit=True)
    lending = parse_amounts("--lending-limit", request.lending_limit, total, problems, limit=True)
    shares = {share.type: share for share in have.shares} if have else {}
    numbers = {kind: share.quota for kind, share in shares.items()} | quota
    if not numbers and not problems:
        problems.append("no quota given: pass --quota N, or --quota TYPE=N")
    for flag, limits in (("--borrowing-limit", borrowing), ("--lending-limit", lending)):
        without = [kind for kind in limits if kind not in numbers and not problems]
        problems += [f"{flag} {kind}: the queue has no quota of that type; --quota {kind}=0 is one" for kind in without]
    limits_of = {
        kind: (
            borrowing.get(kind, shares[kind].borrowing_limit if kind in shares else None),
            lending.get(kind, shares[kind].lending_limit if kind in shares else None),
        )
        for kind in numbers
    }
    problems += [
        f"--lending-limit {kind}={lends:g}: it cannot lend more than its quota, {numbers[kind]:g}"
        for kind, (_, lends) in limits_of.items()
        if lends is not None and lends > (numbers[kind] or 0)
    ]
    namespaces = [namespace for namespace in (have.namespaces if have else ()) if "/" not in namespace] + [
        *request.namespaces
    ]
    return QueueSpec(
        name=request.name,
        namespaces=tuple(dict.fromkeys(namespaces or ([] if have else ["default"]))),
        quotas=tuple(
            SliceQuota(
                shape=find_shape(kind),
                num_slices=number or 0,
                borrowing_limit=borrows,
                lending_limit=lends,
                queued=kind in queued,
                super_slicing=kind in cubes,
            )
            for kind, number in numbers.items()
            for borrows, lends in [limits_of[kind]]
        ),
        reclaim=RECLAIM[request.reclaim] if request.reclaim else have.reclaim if have else "Any",
        max_priority=_limit(request.max_priority or (have.max_priority if have else None)),
    )


def _limit(priority: str | None) -> str | None:
    """Return a priority limit; the highest priority is no limit."""
    return None if priority == max(names.PRIORITIES, key=lambda name: names.PRIORITIES[name]) else priority


def over(queues: Queues, spec: QueueSpec, before: QueueSpec | None) -> dict[str, str]:
    """Return the types whose allotments would exceed the capacity, one line each, with the maximum.

    `before`: the queue's present state, if it exists.
    """
    total, problems = queues.total(), {}
    have = {quota.shape: quota.num_slices for quota in before.quotas} if before else {}
    for quota in spec.quotas:
        kind, capacity = quota.shape.name, total.get(quota.shape.name, 0)
        others = queues.promised(without=[spec.name]).get(kind, {})
        remaining = max(0, capacity - sum(others.values()))
        if quota.num_slices > max(remaining, have.get(quota.shape, 0)):  # it may keep its present quota
            whose = ", ".join(f"{name} {number:g}" for name, number in others.items() if number)
            problems[f"{kind}={remaining:g}"] = (
                f"queue '{spec.name}' cannot have {quota.num_slices:g} slices of {kind}: the cluster has {capacity:g}"
                + (f", other queues have {sum(others.values()):g} ({whose}), {remaining:g} left" if whose else "")
            )
    return problems


def refuse(request: QueueRequest, problems: Sequence[str], too_much: Mapping[str, str], missing: Sequence[str]) -> None:
    """Raise all problems at once; if they are of one kind, with its exit code."""
    too_much = {} if request.force else too_much
    absent = [] if request.create_namespace else [f"namespace '{namespace}' not found" for namespace in missing]
    lines = [*problems, *too_much.values(), *absent]
    if not lines:
        return
    if len(lines) == len(absent):
        raise NotFoundError("; ".join(absent), hint="--create-namespace creates it")
    if len(lines) == len(too_much):
        fitting = " ".join(f"--quota {amount}" for amount in too_much)
        raise CapacityError(
            "; ".join(too_much.values()), hint=f"{fitting}, or --force to exceed the cluster's capacity"
        )
    raise UsageError(f"queue '{request.name}' cannot be created", problems=lines, hint="see `xpk queue create --help`")


def problems_of_own(request: QueueRequest) -> list[str]:
    """Return options that the cluster's own queue does not support."""
    values = {
        "--quota": request.quota,
        "--borrowing-limit": request.borrowing_limit,
        "--lending-limit": request.lending_limit,
        "--reclaim": request.reclaim,
        "--max-priority": request.max_priority,
    }
    why = f"'{names.QUEUE}' is the cluster's own queue: it has the rest of the quota"
    problems = [f"{flag} does not apply to it: {why}" for flag, value in values.items() if value]
    return (
        problems
        if request.namespaces
        else [*problems, f"'{names.QUEUE}' already exists: pass -n NAMESPACE to let a namespace use it"]
    )


def as_spec(have: QueueInfo) -> QueueSpec:
    """Return an existing queue as a spec."""
    return QueueSpec(
        name=have.name,
        namespaces=have.namespaces,
        quotas=tuple(
            SliceQuota(
                shape=find_shape(share.type),
                num_slices=share.quota,
                borrowing_limit=share.borrowing_limit,
                lending_limit=share.lending_limit,
                queued=share.queued,
                super_slicing=share.super_slicing,
            )
            for share in have.shares
        ),
        reclaim=have.reclaim,
        max_priority=have.max_priority,
    )
