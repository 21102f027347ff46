"""Cordons on nodes that are about to be deleted; an annotation marks those that xpk has set."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

from xpk.api.base import Obj, ObjectApi, Objs
from xpk.capacity.nodes.inventory import in_use, live_workloads, pool_of, pool_order, slice_nodes, some_of
from xpk.capacity.plan.executor import Step
from xpk.model.errors import NotFoundError, XpkError

MARK = "xpk.dev/cordoned"  # annotation of nodes whose slice is about to be deleted
OPEN = "open"  # key of the step that removes the annotation
_AT_ONCE = 16  # parallel requests; a slice may have thousands of nodes


def is_marked(node: Obj) -> bool:
    """Return whether xpk has cordoned a node, and has not uncordoned it."""
    return MARK in (node["metadata"].get("annotations") or {})


def cordon(api: ObjectApi, nodes: Objs) -> None:
    """Cordon nodes and mark them. Nodes that are already cordoned are left unchanged."""
    closing = [node for node in nodes if not node["spec"].get("unschedulable")]
    _patch(api, closing, {"metadata": {"annotations": {MARK: "true"}}, "spec": {"unschedulable": True}})


def uncordon(api: ObjectApi, nodes: Objs) -> None:
    """Uncordon the nodes that `cordon` has cordoned."""
    marked = [node for node in nodes if is_marked(node)]
    _patch(api, marked, {"metadata": {"annotations": {MARK: None}}, "spec": {"unschedulable": None}})


def close_unused(read: Callable[[], Objs], api: ObjectApi, check: Callable[[], None]) -> None:
    """Cordon the nodes that `read` returns, then `check` that they are unused; uncordon them if that raises."""
    try:
        cordon(api, read())
        check()
    except XpkError:
        with suppress(XpkError):  # the next resize uncordons nodes that stay marked
            uncordon(api, read())
        raise


def check_deletable(api: ObjectApi, name: str) -> None:
    """Raise ConflictError if workloads are on a cluster."""
    if running := live_workloads(api, name):
        error = in_use(name, running, "end them")
        if any(map(is_marked, slice_nodes(api))):
            error.hint += f"; `xpk cluster resize {name}` to its present size uncordons its slices"
        raise error


def closing_step(api: ObjectApi, name: str, *, key: str = "") -> Step:
    """Return the step that cordons the slices of a cluster before its deletion, unless new workloads run there."""
    act = partial(close_unused, partial(slice_nodes, api), api, partial(check_deletable, api, name))
    return Step(f"cordon the slices of '{name}' and check that no workload was started on it", act, key)


def opening_steps(api: ObjectApi, nodes: Objs) -> list[Step]:
    """Return the steps that uncordon nodes of an interrupted command; none if there are no such nodes."""
    marked = [node for node in nodes if is_marked(node)]
    if not marked:
        return []
    pools = some_of(sorted({pool_of(node) for node in marked}, key=pool_order))
    return [Step(f"uncordon {pools}: an interrupted command has cordoned it", partial(uncordon, api, marked), OPEN)]


def _patch(api: ObjectApi, nodes: Iterable[Obj], patch: Obj) -> None:
    def one(node: Obj) -> None:
        with suppress(NotFoundError):  # the node was deleted
            api.patch("Node", node["metadata"]["name"], patch)

    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="xpk-cordon") as executor:
        for _ in executor.map(one, list(nodes)):
            pass
