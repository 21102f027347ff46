"""Inventory of a cluster: its slices, from its nodes and queues. Reads only."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence

from xpk.api.base import Obj, ObjectApi, Objs
from xpk.api.cluster_queues import queued_flavors, types_of
from xpk.api.quantities import requests
from xpk.capacity.provider import ClusterInfo, SliceInfo
from xpk.capacity.queues.foreign import has_quota, is_foreign, with_quota
from xpk.capacity.queues.reading import promised, quotas_of
from xpk.model import names, super_slices
from xpk.model.accelerators import CHIP_RESOURCES, NODEPOOL_LABEL, SliceShape, all_shapes, find_shape
from xpk.model.errors import AuthorizationError, ConflictError, MissingToolError, NotFoundError, XpkError
from xpk.model.specs import ClusterSpec
from xpk.render import render_queues

# Any of these labels marks a node with accelerators, or one that emulates them.
_OF_SLICES = frozenset(
    (names.TYPE_ANNOTATION, "cloud.google.com/gke-tpu-accelerator", "cloud.google.com/gke-accelerator")
)

_DIGITS = 20  # of numbers in names, which are compared as texts of this length
_SEVERAL = 3  # nodes to name out of those with the same problem


def slice_nodes(api: ObjectApi) -> Objs:
    """Return the nodes that belong to slices, spare ones included."""
    return in_slices(api.list("Node"))


def in_slices(nodes: Objs) -> Objs:
    """Return the nodes that belong to slices: on GKE, nodes without accelerators have a pool as well."""
    return [node for node in nodes if _is_in_slice(node["metadata"].get("labels", {}))]


def _is_in_slice(labels: Obj) -> bool:
    return NODEPOOL_LABEL in labels and not _OF_SLICES.isdisjoint(labels)


def pool_of(node: Obj) -> str:
    """Return a node's pool, that is, its slice."""
    return str(node["metadata"]["labels"][NODEPOOL_LABEL])


def pool_order(pool: str) -> list[str]:
    """Return the sort key of node pools: numbers in their names compare as numbers."""
    return [part.zfill(_DIGITS) if part.isdecimal() else part for part in re.split(r"(\d+)", pool)]


def shape_of(node: Obj) -> SliceShape | None:
    """Return a node's type of slice: as recorded by xpk, else from the cloud's labels."""
    labels = node["metadata"]["labels"]
    if names.TYPE_ANNOTATION in labels:
        return find_shape(labels[names.TYPE_ANNOTATION])
    if labels.get(super_slices.MODE_LABEL) == super_slices.MODE:  # its topology label is that of the formed slice
        return find_shape(super_slices.CUBE)
    for shape in all_shapes():
        if shape.kind != "cpu" and shape.node_labels.items() <= labels.items():
            has = node["status"].get("capacity", {}).get(shape.resource)
            if shape.kind == "tpu" or has == str(shape.resource_per_host):
                return shape
    return None


def pools_of(nodes: Objs, *, spare: bool = False) -> dict[str, Objs]:
    """Return the nodes of each slice by node pool, in order; spare slices only if requested."""
    pools: dict[str, Objs] = defaultdict(list)
    for node in nodes:
        if (names.SPARE_LABEL in node["metadata"]["labels"]) == spare:
            pools[pool_of(node)].append(node)
    return dict(sorted(pools.items(), key=lambda item: pool_order(item[0])))


def queued_types(nodes: Objs) -> set[SliceShape | None]:
    """Return the types of slices whose nodes GKE creates when a workload requests them."""
    return {shape_of(node) for node in nodes if node["metadata"]["labels"].get(names.QUEUED_LABEL) == "true"}


def spec_of(name: str, nodes: Objs) -> ClusterSpec | None:
    """Read a cluster's spec back from its nodes; None if they do not determine it, or differ."""
    pools = pools_of(nodes)
    shapes = {shape_of(node) for members in pools.values() for node in members}
    shape = shapes.pop() if len(shapes) == 1 else None
    if shape is None:
        return None
    return ClusterSpec(name=name, shape=shape, num_slices=len(pools), queued=shape in queued_types(nodes))


def cluster_info(
    api: ObjectApi, spec: ClusterSpec | None, nodes: Objs, *, brief: bool = False, **known: str
) -> ClusterInfo:
    """Return a Kubernetes cluster's slices. `known`: its name, provider and location.

    `brief`: see `Provider.describe`.
    """
    pools, spare = pools_of(nodes), pools_of(nodes, spare=True)
    workloads = holders(api) if nodes and not brief else {}
    num_slices, hosts = (spec.num_slices, spec.shape.hosts) if spec else (len(pools), 0)
    slices = [slice_info(pool, members, hosts, workloads) for pool, members in pools.items()]
    slices += [slice_info(pool, members, hosts, workloads, spare=True) for pool, members in spare.items()]
    return ClusterInfo(
        **known,
        accelerator_type=spec.shape.name if spec else "unknown",
        num_slices=num_slices,
        hosts_per_slice=hosts,
        chips=spec.num_chips if spec else 0,
        state="Ready" if spec and has_queues(api, spec) else "Incomplete",
        created=min((str(node["metadata"]["creationTimestamp"]) for node in nodes), default=""),
        slices=tuple(slices),
    )


def advertises(node: Obj, resource: str, units: int) -> bool:
    """Return whether a node advertises this many; the kubelet updates allocatable after capacity."""
    return str(node["status"].get("allocatable", {}).get(resource)) == str(units)


def is_ready(node: Obj) -> bool:
    """Return whether a node is ready for pods."""
    conditions = node["status"].get("conditions", [])
    return any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)


def has_queues(api: ObjectApi, *specs: ClusterSpec) -> bool:
    """Return whether every object of the cluster's queues exists, with the quotas of `specs`."""
    try:
        objects = own_objects(api, render_queues(*specs, promised=promised(api)))
    except MissingToolError:
        return False
    for obj in objects:
        try:
            have = api.get(obj["kind"], obj["metadata"]["name"], obj["metadata"].get("namespace", "default"))
        except (NotFoundError, MissingToolError):
            return False
        if obj["kind"] == "ClusterQueue" and (
            is_foreign(have) or quotas_of(have) != quotas_of(obj) or queued_flavors(have) != queued_flavors(obj)
        ):
            return False  # for another tool's queue, only changes count
        if obj["kind"] == "ProvisioningRequestConfig" and (
            have["spec"].get("managedResources") != obj["spec"]["managedResources"]
        ):
            return False
    return True


def own_objects(api: ObjectApi, objects: Objs) -> Objs:
    """Return the objects of a cluster's queues without those that another tool already made, in flavors of its own.

    If that tool's quota differs, its change is included, under the names of its flavors.
    """
    queue = next(obj for obj in objects if obj["kind"] == "ClusterQueue")
    try:
        have = api.get("ClusterQueue", queue["metadata"]["name"])
    except (NotFoundError, MissingToolError):
        return objects
    if not is_foreign(have):
        return objects
    types = types_of(api, [have])
    existing = {
        (local_queue["metadata"]["namespace"], local_queue["metadata"]["name"])
        for local_queue in api.list("LocalQueue", None)
    }
    remaining = [
        obj
        for obj in objects
        if obj["kind"] not in ("ClusterQueue", "AdmissionCheck", "ProvisioningRequestConfig")
        and not (obj["kind"] == "ResourceFlavor" and obj["metadata"]["name"] in types.values())
        and (obj["metadata"].get("namespace"), obj["metadata"]["name"]) not in existing
    ]
    flavors = [obj for obj in remaining if obj["kind"] in ("ResourceFlavor", "Topology")]
    changed = [] if has_quota(have, queue, types) else [with_quota(have, queue, types)]
    return [*flavors, *changed, *(obj for obj in remaining if obj not in flavors)]


def holders(api: ObjectApi) -> dict[str, str]:
    """Return the workload or pod on each node, by the node's name; "unknown" if this user may not list pods.

    A workload by its qualified name; a plain pod with chips as "Pod NAME", which `names.deletion_command` understands.
    """
    try:
        pods = api.list("Pod", None, keep=_placement)
    except AuthorizationError:
        return {node["metadata"]["name"]: "unknown" for node in slice_nodes(api)}
    return {
        pod["spec"]["nodeName"]: names.qualified(holder, pod["metadata"].get("namespace", "default"))
        for pod in pods
        if pod["spec"].get("nodeName")
        and (holder := _workload_of(pod) or _with_chips(pod))
        and pod.get("status", {}).get("phase", "Pending") in ("Pending", "Running")
    }


def _placement(pod: Obj) -> Obj:
    """Return a pod without the fields that `holders` does not read, which are most of it."""
    spec, meta = pod.get("spec"), pod.get("metadata")
    if not isinstance(spec, dict) or not isinstance(meta, dict):
        return pod
    return {
        "metadata": {key: meta[key] for key in ("name", "namespace", "labels") if key in meta},
        "spec": {key: spec[key] for key in ("nodeName", "containers") if key in spec},
        "status": pod.get("status") or {},
    }


def _workload_of(pod: Obj) -> str:
    """Return the workload of a pod, whichever tool made it; "" for a plain pod."""
    labels = pod["metadata"].get("labels") or {}
    return str(labels.get(names.WORKLOAD_LABEL) or labels.get("jobset.sigs.k8s.io/jobset-name") or "")


def _with_chips(pod: Obj) -> str:
    """Return the description of a pod that requests chips, such as one of a plain Job; "" for any other."""
    return f"{names.POD} {pod['metadata']['name']}" if set(CHIP_RESOURCES) & requests(pod["spec"]).keys() else ""


def slice_info(pool: str, nodes: Objs, hosts: int, workloads: dict[str, str], *, spare: bool = False) -> SliceInfo:
    """Return a slice; `hosts` are divided evenly among its nodes."""
    hosts_names = sorted((str(node["metadata"]["name"]) for node in nodes), key=lambda name: (len(name), name))
    each = max(1, hosts // len(hosts_names))
    return SliceInfo(
        node_pool=pool,
        hosts=tuple(name if each == 1 else f"{name}/{host}" for name in hosts_names for host in range(each)),
        workload=next((workloads[name] for name in hosts_names if name in workloads), None),
        spare=spare,
        accelerator_type=shape.name if (shape := shape_of(nodes[0])) else "",
    )


def in_use(name: str, running: Sequence[str], force: str) -> ConflictError:
    """Return the error for workloads on a cluster; `force`: what --force does to them."""
    return ConflictError(
        f"workloads are on cluster '{name}': {', '.join(running)}",
        hint=f"`xpk workload delete {names.name_and_flags(running[0], name)}`, or --force to {force}",
    )


def live_workloads(api: ObjectApi, name: str) -> list[str]:
    """Return the workloads that have not ended. Raises ConflictError if the cluster does not answer."""
    try:
        jobsets = api.list("JobSet", None)
    except MissingToolError:
        return []  # JobSet was never installed
    except XpkError as error:
        raise ConflictError(
            f"cannot check for workloads on cluster '{name}': {error.message}",
            hint=f"`xpk cluster delete {name} --force` removes it anyway",
        ) from error
    on = [obj["metadata"] for obj in jobsets if not obj.get("status", {}).get("terminalState")]
    return [names.qualified(meta["name"], meta["namespace"]) for meta in on]


def difference(have: ClusterSpec | None, want: ClusterSpec) -> str:
    """Return how an existing cluster differs from a requested one, as text."""
    if have is None:
        return "its nodes' labels do not identify them"
    parts = []
    if have.shape != want.shape:
        parts.append(f"type {have.shape.name} (requested {want.shape.name})")
    if have.num_slices != want.num_slices:
        parts.append(f"{have.num_slices} slices (requested {want.num_slices})")
    return ", ".join(parts)


def some_of(names: Sequence[str]) -> str:
    """Return the first of some names, and the number of the others."""
    more = f" and {len(names) - _SEVERAL} more" if len(names) > _SEVERAL else ""
    return f"{', '.join(names[:_SEVERAL])}{more}"
