"""Scale-down: choose, cordon, check, drain and delete node pools; free ones first."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

from xpk.api.base import Obj, ObjectApi, Objs
from xpk.api.cluster_queues import type_of
from xpk.api.quantities import quantity
from xpk.capacity.cluster_setup import set_up
from xpk.capacity.controllers.install import Pause
from xpk.capacity.nodes.cordon import OPEN, close_unused, cordon, is_marked, opening_steps, uncordon
from xpk.capacity.nodes.inventory import holders, pool_of, pool_order, slice_nodes, some_of
from xpk.capacity.plan.executor import Step
from xpk.capacity.queues.reading import check_promised
from xpk.model import names
from xpk.model.errors import (
    ConflictError,
    MissingToolError,
    NotFoundError,
    ProtectedError,
    TimedOutError,
    UnavailableError,
    XpkError,
)
from xpk.model.specs import ClusterSpec

_DRAIN_SECONDS = 600.0
_CORDON, _LOOK = "cordon", "look-again"


@dataclass(frozen=True, slots=True)
class PoolState:
    """A cluster's node pools as its API server reports them; None if it does not answer.

    `occupied`: the workload on each pool.
    `cordoned`: pools that an interrupted command has cordoned.
    `broken`: pools that never became ready.
    """

    api: ObjectApi | None = None
    occupied: Mapping[str, str] = field(default_factory=dict)
    cordoned: frozenset[str] = frozenset()
    broken: frozenset[str] = frozenset()


def read_pool_state(name: str, connect: Callable[[], ObjectApi], *, must: bool = False) -> PoolState:
    """Read the state of a cluster's node pools. Raises ConflictError if it `must` answer and does not."""
    try:
        api = connect()
        nodes = slice_nodes(api)
        return PoolState(api, occupied_pools(api, nodes), frozenset(pool_of(node) for node in nodes if is_marked(node)))
    except XpkError as error:
        if must:
            raise ConflictError(
                f"cannot check for workloads on cluster '{name}': {error.message}",
                hint="--force removes slices anyway",
            ) from error
        return PoolState()


def occupied_pools(api: ObjectApi, nodes: Objs) -> dict[str, str]:
    """Return the workload on each node pool, by the pool's name."""
    workloads = holders(api)
    return {pool_of(node): workloads[name] for node in nodes if (name := node["metadata"]["name"]) in workloads}


def pools_to_delete(pools: Sequence[str], state: PoolState, count: int) -> list[str]:
    """Return the pools to delete: free ones first, of them broken ones, then cordoned ones, then the highest number."""
    ordered = sorted(pools, key=pool_order, reverse=True)
    return sorted(
        ordered, key=lambda pool: (pool in state.occupied, pool not in state.broken, pool not in state.cordoned)
    )[:count]


def choose(state: PoolState, pools: Sequence[str], spec: ClusterSpec, *, force: bool) -> list[str]:
    """Return the pools to delete. Raises ConflictError if that would end or starve a workload, unless forced."""
    going = pools_to_delete(pools, state, len(pools) - spec.num_slices)
    busy = sorted({state.occupied[pool] for pool in going if pool in state.occupied})
    if busy and not force:
        raise ConflictError(
            f"{len(going)} slices would be removed, but {', '.join(busy)} is running on them",
            hint=f"`{names.deletion_command(busy[0], spec.name)}`, or --force to end it",
        )
    if state.api and not force:
        check_promised(state.api, spec.shape, spec.quota_slices, cluster=spec.name)
        _check_admitted(state.api, state.occupied, spec)
    return going


def uncordon_steps(state: PoolState, staying: Sequence[str]) -> list[Step]:
    """Return the steps that uncordon pools of an interrupted resize that stay."""
    return opening_steps(state.api, _nodes(state.api, staying)) if state.api and state.cordoned else []


def abort_steps(state: PoolState, staying: Sequence[str], error: ConflictError) -> list[Step]:
    """Return the steps that uncordon pools of an earlier resize and then fail with why none may be deleted.

    Raises the error if there is nothing to uncordon.
    """
    if not state.cordoned:
        raise error

    def say() -> None:
        raise error

    return [*uncordon_steps(state, staying), Step("remove slices", say, "give-up", (OPEN,))]


def steps_of(
    state: PoolState,
    spec: ClusterSpec,
    going: Sequence[str],
    lower: Sequence[Step],
    delete: Callable[[Mapping[str, tuple[str, ...]]], list[Step]],
    *,
    before: Sequence[ClusterSpec],
    force: bool,
    pause: Pause,
    poll: float,
) -> list[Step]:
    """Return the steps that remove slices: cordon and check, reduce the quota, drain, delete the pools.

    `lower`: the steps that reduce the quota; `before`: the slices of the quota before that.
    `delete`: returns the steps that delete pools, after the given keys.
    """
    lowered = tuple(step.key for step in lower)
    if state.api is None:  # forced, without an API server to check
        return [*lower, *delete(dict.fromkeys(going, lowered))]
    api, pools = state.api, some_of(list(going))
    first = Step(f"cordon {pools}", lambda: cordon(api, _nodes(api, going)), _CORDON)
    if not force:
        look = partial(_check_unused, api, spec, going)
        close = partial(close_unused, lambda: _nodes(api, going), api, look)
        first = replace(first, title=f"{first.title} and check that nothing runs there", act=close)
    steps = [first, *(replace(step, after=(*step.after, _CORDON)) for step in lower)]
    after = (_CORDON, *lowered)
    if not force:
        again = partial(_recheck, api, going, look, before)
        steps.append(Step(f"check again that nothing runs on {pools}", again, _LOOK, after))
        return [*steps, *delete(dict.fromkeys(going, (*after, _LOOK)))]
    pods = Pods(api, poll)
    for pool in going:
        steps.append(Step(f"drain {pool}", partial(drain, pods, pool, pause), f"drain:{pool}", after))
    return [*steps, *delete({pool: (*after, f"drain:{pool}") for pool in going})]


class Pods:
    """The pods of a cluster, listed at most every `poll` seconds for all pools that are drained in parallel."""

    def __init__(self, api: ObjectApi, poll: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.api, self.poll, self.clock = api, poll, clock
        self._listed, self._next, self._lock = list[Obj](), -math.inf, threading.Lock()

    def look(self) -> Objs:
        """Return the pods, at most `poll` seconds old."""
        with self._lock:
            if self.clock() >= self._next:
                self._listed = self.api.list("Pod", None)
                self._next = self.clock() + self.poll
            return self._listed


def drain(pods: Pods, pool: str, pause: Pause) -> None:
    """Evict the pods on a pool's nodes and wait until they are gone.

    Raises TimedOutError, which names the blocking PodDisruptionBudget.
    """
    api, ends = pods.api, pods.clock() + _DRAIN_SECONDS
    nodes = {node["metadata"]["name"] for node in _nodes(api, [pool])}
    evicted = set[tuple[str, str]]()
    while True:
        left, blocker = [pod for pod in pods.look() if _is_on(pod, nodes)], ""
        for pod in left:
            key = pod["metadata"]["name"], pod["metadata"].get("namespace", "default")
            if key not in evicted:
                try:
                    api.evict(*key)
                    evicted.add(key)
                except NotFoundError:
                    continue
                except (ProtectedError, UnavailableError) as error:
                    blocker = error.message
        if not left:
            return
        if pods.clock() >= ends:
            raise _still_running(pool, left, blocker)
        pause(pods.poll)


def _still_running(pool: str, left: Objs, blocker: str) -> TimedOutError:
    meta = left[0]["metadata"]
    pods = f"`kubectl get pods,pdb -n {meta.get('namespace', 'default')}`"
    again = f"run the same command again to continue; {pods} shows more"
    if blocker:
        return TimedOutError(f"{pool} was not drained within {_DRAIN_SECONDS:.0f} s: {blocker}", hint=again)
    return TimedOutError(
        f"{len(left)} pods on {pool} do not end within {_DRAIN_SECONDS:.0f} s, {meta['name']} is one of them",
        hint=again,
    )


def _check_unused(api: ObjectApi, spec: ClusterSpec, pools: Sequence[str]) -> None:
    """Raise ConflictError if a workload was placed on a pool, or admitted to its quota, since the plan was made."""
    occupied = occupied_pools(api, slice_nodes(api))
    for pool in pools:
        if pool in occupied:
            raise ConflictError(
                f"{occupied[pool]} runs on {pool} now, which was free when the plan was made; nothing was removed",
                hint="run the same command again to choose other free slices, or --force to end it",
            )
    _check_admitted(api, occupied, spec)


def _check_admitted(api: ObjectApi, occupied: Mapping[str, str], spec: ClusterSpec) -> None:
    """Raise ConflictError if workloads are admitted to more slices than remain, with or without pods."""
    slices = _admitted(api, spec)
    if sum(slices.values()) > spec.quota_slices:
        waiting = sorted(set(slices) - set(occupied.values())) or sorted(slices)
        raise ConflictError(
            f"{', '.join(waiting)} was admitted, and {sum(slices.values()):g} slices of {spec.shape.name} "
            f"are in use of the {spec.quota_slices} that would be left; nothing was removed",
            hint=f"`xpk workload delete {names.name_and_flags(waiting[0], spec.name)}`, or --force",
        )


def _admitted(api: ObjectApi, spec: ClusterSpec) -> dict[str, float]:
    """Return the slices of a type that workloads are admitted to, by workload name."""
    try:
        workloads = api.list("Workload", None)
    except MissingToolError:  # without Kueue no workload is admitted
        return {}
    slices: dict[str, float] = {}
    for workload in workloads:
        used = sum(
            _units(assignment, spec)
            for assignment in workload.get("status", {}).get("admission", {}).get("podSetAssignments", [])
        )
        if used and not _has_ended(workload):
            meta = workload["metadata"]
            owner = next(iter(meta.get("ownerReferences") or []), meta)
            name = names.qualified(str(owner["name"]), meta.get("namespace", "default"))
            slices[name] = slices.get(name, 0.0) + used / spec.shape.units
    return slices


def _units(assignment: Obj, spec: ClusterSpec) -> float:
    flavor = (assignment.get("flavors") or {}).get(spec.shape.resource, "")
    amount = (assignment.get("resourceUsage") or {}).get(spec.shape.resource, 0)
    return quantity(amount) if type_of(flavor) == spec.shape.name else 0.0


def _has_ended(workload: Obj) -> bool:
    conditions = workload.get("status", {}).get("conditions") or []
    return any(item["type"] == "Finished" and item["status"] == "True" for item in conditions)


def _recheck(api: ObjectApi, pools: Sequence[str], look: Callable[[], None], before: Sequence[ClusterSpec]) -> None:
    """Check once more after the quota was reduced: restore it for a workload that was admitted in between."""
    try:
        look()
    except XpkError:
        with suppress(XpkError):  # repeating the command, or restoring the old number, handles the rest
            set_up(api, before)
            _open(api, pools)
        raise


def _open(api: ObjectApi, pools: Sequence[str]) -> None:
    uncordon(api, _nodes(api, pools))


def _nodes(api: ObjectApi, pools: Sequence[str]) -> Objs:
    pool_names = set(pools)
    return [node for node in slice_nodes(api) if pool_of(node) in pool_names]


def _is_on(pod: Obj, nodes: set[str]) -> bool:
    """Return whether a pod is on one of these nodes and must be evicted; DaemonSet pods are deleted with the node."""
    owners = [owner.get("kind") for owner in pod["metadata"].get("ownerReferences", [])]
    phase = pod.get("status", {}).get("phase", "Pending")
    on_node = pod["spec"].get("nodeName") in nodes
    return on_node and phase in ("Pending", "Running") and "DaemonSet" not in owners and "Node" not in owners
