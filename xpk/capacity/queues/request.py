"""Requests for queues, validated: one spec, or all problems."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from xpk.capacity.queues.amounts import parse_amounts
from xpk.capacity.queues.reading import QueueInfo, Queues
from xpk.model import names
from xpk.model.accelerators import find_shape
from xpk.model.errors import CapacityError, NotFoundError, UsageError
from xpk.model.specs import QueueSpec, SliceQuota

RECLAIM = {"any": "Any", "lower-priority": "LowerPriority", "never": "Never"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
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
    wanted: Wanted,
    have: QueueInfo | None,
    total: Mapping[str, float],
    problems: list[str],
    queued: Collection[str] = (),
) -> QueueSpec:
    """Return the requested queue; problems are added to `problems`.

    `queued`: the types whose nodes are created on request.
    """
    quota = parse_amounts("--quota", wanted.quota, total, problems)
    borrowing = parse_amounts("--borrowing-limit", wanted.borrowing_limit, total, problems, limit=True)
    lending = parse_amounts("--lending-limit", wanted.lending_limit, total, problems, limit=True)
    shares = {each.type: each for each in have.shares} if have else {}
    numbers = {kind: each.quota for kind, each in shares.items()} | quota
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
    namespaces = [each for each in (have.namespaces if have else ()) if "/" not in each] + [*wanted.namespaces]
    return QueueSpec(
        name=wanted.name,
        namespaces=tuple(dict.fromkeys(namespaces or ["default"])),
        quotas=tuple(
            SliceQuota(
                shape=find_shape(kind),
                num_slices=number or 0,
                borrowing_limit=borrows,
                lending_limit=lends,
                queued=kind in queued,
            )
            for kind, number in numbers.items()
            for borrows, lends in [limits_of[kind]]
        ),
        reclaim=RECLAIM[wanted.reclaim] if wanted.reclaim else have.reclaim if have else "Any",
        max_priority=_limit(wanted.max_priority or (have.max_priority if have else None)),
    )


def _limit(priority: str | None) -> str | None:
    """Return a priority limit; the highest priority is no limit."""
    return None if priority == max(names.PRIORITIES, key=lambda name: names.PRIORITIES[name]) else priority


def over(queues: Queues, spec: QueueSpec, before: QueueSpec | None) -> dict[str, str]:
    """Return the types whose allotments would exceed the capacity, one line each, with the maximum.

    `before`: the queue's present state, if it exists.
    """
    total, problems = queues.total(), {}
    have = {each.shape: each.num_slices for each in before.quotas} if before else {}
    for each in spec.quotas:
        kind, there = each.shape.name, total.get(each.shape.name, 0)
        others = queues.promised(without=[spec.name]).get(kind, {})
        left = max(0, there - sum(others.values()))
        if each.num_slices > max(left, have.get(each.shape, 0)):  # it may keep its present quota
            whose = ", ".join(f"{name} {number:g}" for name, number in others.items() if number)
            problems[f"{kind}={left:g}"] = (
                f"queue '{spec.name}' cannot have {each.num_slices:g} slices of {kind}: the cluster has {there:g}"
                + (f", other queues have {sum(others.values()):g} ({whose}), {left:g} are left" if whose else "")
            )
    return problems


def refuse(wanted: Wanted, problems: Sequence[str], too_much: Mapping[str, str], missing: Sequence[str]) -> None:
    """Raise all problems at once; if they are of one kind, with its exit code."""
    too_much = {} if wanted.force else too_much
    absent = [] if wanted.create_namespace else [f"namespace '{each}' not found" for each in missing]
    lines = [*problems, *too_much.values(), *absent]
    if not lines:
        return
    if len(lines) == len(absent):
        raise NotFoundError("; ".join(absent), hint="--create-namespace creates it")
    if len(lines) == len(too_much):
        fitting = " ".join(f"--quota {each}" for each in too_much)
        raise CapacityError(
            "; ".join(too_much.values()), hint=f"{fitting}, or --force to exceed the cluster's capacity"
        )
    raise UsageError(f"queue '{wanted.name}' cannot be created", problems=lines, hint="see `xpk queue create --help`")


def problems_of_own(wanted: Wanted) -> list[str]:
    """Return options that the cluster's own queue does not support."""
    given = {
        "--quota": wanted.quota,
        "--borrowing-limit": wanted.borrowing_limit,
        "--lending-limit": wanted.lending_limit,
        "--reclaim": wanted.reclaim,
        "--max-priority": wanted.max_priority,
    }
    why = f"'{names.QUEUE}' is the cluster's own queue: it has the rest of the quota"
    found = [f"{flag} does not apply to it: {why}" for flag, value in given.items() if value]
    return (
        found
        if wanted.namespaces
        else [*found, f"'{names.QUEUE}' already exists: pass -n NAMESPACE to let a namespace use it"]
    )


def as_spec(have: QueueInfo) -> QueueSpec:
    """Return an existing queue as a spec."""
    return QueueSpec(
        name=have.name,
        namespaces=have.namespaces,
        quotas=tuple(
            SliceQuota(
                shape=find_shape(each.type),
                num_slices=each.quota,
                borrowing_limit=each.borrowing_limit,
                lending_limit=each.lending_limit,
                queued=each.queued,
            )
            for each in have.shares
        ),
        reclaim=have.reclaim,
        max_priority=have.max_priority,
    )
