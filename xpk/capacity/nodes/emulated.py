"""Emulated slices: nodes without accelerators, labeled as GKE labels them, that advertise chips."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from xpk.api.base import Obj, ObjectApi, Objs
from xpk.capacity.nodes.change import change_node
from xpk.capacity.nodes.inventory import advertises, in_slices, is_ready, pool_of
from xpk.capacity.plan.plan import Step
from xpk.model import names
from xpk.model.accelerators import CHIP_RESOURCES, NODEPOOL_LABEL, SliceShape, find_shape
from xpk.model.errors import CapacityError, ConflictError, NotFoundError, TimedOutError
from xpk.model.specs import ClusterSpec

_NODES_SECONDS, _POLL_SECONDS = 120.0, 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Adaptation:
    """Options of `cluster adapt`: how workloads run on an existing cluster.

    `shape`: the type of its slices to use, if it has several.
    `emulated`: its nodes have no accelerators; `num_slices` of them stand in for slices.
    `output_root`: a bucket, or a folder that all nodes share.
    `fenced`: a node that has not answered for a minute is certainly dead, so its hosts may be given up.
    `take_over`: change the quota of queues that another tool manages.
    """

    name: str
    context: str | None = None
    shape: SliceShape | None = None
    num_slices: int | None = None
    emulated: bool = False
    output_root: str | None = None
    trainer_image: str | None = None
    fenced: bool | None = None
    take_over: bool = False


def with_recorded_values(adaptation: Adaptation, recorded: Mapping[str, str] | None, nodes: Objs) -> Adaptation:
    """Return the options for a cluster, with recorded values for those about emulation that are not given."""
    ours = len(_ours(nodes))
    if adaptation.emulated or not ours or (recorded or {}).get("emulated") != "true":
        return adaptation
    shape = adaptation.shape or find_shape((recorded or {})["accelerator-type"])
    return replace(adaptation, emulated=True, shape=shape, num_slices=ours)


def plan(api: ObjectApi, nodes: Objs, adaptation: Adaptation) -> tuple[ClusterSpec, list[Step]]:
    """Return the emulated slices, one node each, and the steps that set them up.

    Raises CapacityError if there are too few nodes, ConflictError if they emulate other slices.
    """
    assert adaptation.shape and adaptation.num_slices
    spec = ClusterSpec(name=adaptation.name, shape=adaptation.shape, num_slices=adaptation.num_slices)
    units = spec.shape.units
    ours = _ours(nodes)
    wrong = {node["metadata"]["labels"][names.TYPE_ANNOTATION] for node in ours} - {spec.shape.name}
    if wrong or len(ours) > spec.num_slices:
        raise ConflictError(
            f"{len(ours)} nodes already emulate slices of {', '.join(sorted(wrong)) or spec.shape.name}",
            hint=f"`xpk cluster delete {adaptation.name}` removes the emulation; everything else stays",
        )
    free = [node for node in nodes if node not in ours and _is_free(node)]
    missing = spec.num_slices - len(ours)
    if missing > len(free):
        raise CapacityError(
            f"{spec.num_slices} slices require as many nodes; the cluster has {len(ours) + len(free)} suitable ones",
            hint=f"--num-slices {len(ours) + len(free)}, or add nodes",
        )
    pools = {names.node_pool_name(spec.name, index) for index in range(spec.num_slices)} - set(map(pool_of, ours))
    steps = []
    if missing:
        chosen = list(zip(free, sorted(pools), strict=False))
        title = f"label {missing} nodes as slices: {', '.join(node['metadata']['name'] for node, _ in chosen)}"
        steps.append(Step(title, partial(_label, api, chosen, spec.shape)))
    if missing or not all(advertises(node, spec.shape.resource, units) for node in ours):
        steps.append(advertise_step(lambda: api, spec, units))
    return spec, steps


def advertise_step(
    connect: Callable[[], ObjectApi],
    spec: ClusterSpec,
    units: int,
    pause: Callable[[float], None] = time.sleep,
) -> Step:
    """Return the step that makes every slice's node advertise `units` accelerators that it does not have."""

    def act() -> None:
        api, waited = connect(), 0.0
        while not _advertise(api, spec.shape.resource, units):
            if waited >= _NODES_SECONDS:
                raise TimedOutError(
                    f"the nodes of '{spec.name}' are not ready after {_NODES_SECONDS:.0f} s",
                    hint="`kubectl describe nodes` shows why; run the same command again to continue",
                )
            pause(_POLL_SECONDS)
            waited += _POLL_SECONDS

    return Step(f"advertise {units} {spec.shape.resource} on every slice's node", act)


def undo(api: ObjectApi, nodes: Objs) -> None:
    """Remove the labels and resources by which nodes emulate slices."""
    for node in _ours(nodes):
        name = node["metadata"]["name"]
        # The labels last: an interrupted removal finds the node by them.
        removed = dict.fromkeys(key for key in node["status"].get("capacity", {}) if key in CHIP_RESOURCES)
        with suppress(NotFoundError):  # the node was deleted
            api.patch("Node", f"{name}/status", {"status": {"capacity": removed, "allocatable": removed}})
        change_node(api, name, _without_slice)


def _advertise(api: ObjectApi, resource: str, units: int) -> bool:
    """Add the accelerators to the nodes' status; the kubelet makes them allocatable within seconds."""
    nodes = _ours(api.list("Node"))
    for node in nodes:
        if node["status"].get("capacity", {}).get(resource) != str(units):
            name = node["metadata"]["name"]
            api.patch("Node", f"{name}/status", {"status": {"capacity": {resource: str(units)}}})
    return all(advertises(node, resource, units) and is_ready(node) for node in nodes)


def _label(api: ObjectApi, chosen: list[tuple[Obj, str]], shape: SliceShape) -> None:
    # As on GKE: only pods that request the accelerator run here.
    taint = {"key": shape.resource, "value": "present", "effect": "NoSchedule"}

    def as_slice(pool: str, node: Obj) -> Obj:
        labels = {NODEPOOL_LABEL: pool, names.TYPE_ANNOTATION: shape.name, **shape.node_labels}
        others = [item for item in node["spec"].get("taints") or [] if item["key"] != shape.resource]
        return {"metadata": {"labels": labels}, "spec": {"taints": [*others, taint]}}

    for node, pool in chosen:
        change_node(api, node["metadata"]["name"], partial(as_slice, pool))


def _without_slice(node: Obj) -> Obj:
    """Return the change that removes a slice's labels and taint from a node."""
    taints = [taint for taint in node["spec"].get("taints") or [] if not _is_ours(taint)]
    labels = dict.fromkeys((NODEPOOL_LABEL, names.TYPE_ANNOTATION, *_shape_labels(node["metadata"].get("labels", {}))))
    return {"metadata": {"labels": labels}, "spec": {"taints": taints or None}}


def _ours(nodes: Objs) -> Objs:
    """Return the nodes that xpk has labeled as slices: the cluster may have others, with accelerators."""
    return [node for node in in_slices(nodes) if names.TYPE_ANNOTATION in node["metadata"]["labels"]]


def _is_free(node: Obj) -> bool:
    """Return whether ordinary pods can run here and the node is not part of a slice."""
    closed = any(taint["effect"] in ("NoSchedule", "NoExecute") for taint in node["spec"].get("taints", []))
    return is_ready(node) and not closed and NODEPOOL_LABEL not in node["metadata"].get("labels", {})


def _is_ours(taint: Obj) -> bool:
    return taint["key"] in CHIP_RESOURCES and taint.get("value") == "present"


def _shape_labels(labels: dict[str, str]) -> list[str]:
    return [key for key in labels if key.startswith(("cloud.google.com/gke-tpu-", "cloud.google.com/gke-accelerator"))]
