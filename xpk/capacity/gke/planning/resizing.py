"""Plan of more slices, copied from existing ones."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from xpk.capacity.gke.desired.request_bodies import MAINTENANCE
from xpk.capacity.gke.observed.state import Observed, is_autoprovisioned, shape_of_pool
from xpk.capacity.gke.planning.difference import Change, missing_names, pool_changes
from xpk.capacity.gke.request.options import Capacity, GkeOptions
from xpk.model.accelerators import CHIP_RESOURCES, SliceShape, find_shape
from xpk.model.errors import ConflictError, UsageError

Dict = dict[str, Any]
Read = Callable[[str], Dict]

# Fields of a node pool that GKE sets, not the user.
_ANSWERS = (
    "self_link", "instance_group_urls", "status", "status_message", "conditions", "pod_ipv4_cidr_size", "update_info",
    "etag", "version", "kubelet_cert_info", "upgrade_settings", "best_effort_provisioning",
)  # fmt: skip
_NETWORK_ANSWERS = ("pod_range", "pod_ipv4_cidr_block", "pod_ipv4_range_utilization", "subnetwork")
_CONFIG_ANSWERS = ("effective_cgroup_mode", "resource_labels", "boot_disk")


def the_shape(name: str, pools: Mapping[str, Mapping[str, Any]], type_name: str | None) -> SliceShape:
    """Return the type of slice to resize. Raises UsageError if there are several, or none."""
    if type_name:
        return find_shape(type_name)
    shapes = {shape for pool in pools.values() if (shape := shape_of_pool(pool))}
    if len(shapes) == 1:
        return shapes.pop()
    types = ", ".join(sorted(shape.name for shape in shapes)) or "none"
    raise UsageError(
        f"no slice type given: cluster '{name}' has several: {types}",
        hint="choose one with --tpu-type TYPE"
        if shapes
        else f"`xpk cluster create {name} --provider gke ...` adds some",
    )


def request_like(request: GkeOptions, cluster: Mapping[str, Any], shape: SliceShape) -> GkeOptions:
    """Return a request for slices like existing ones, so that limits are computed as for a create."""
    pools = cluster.get("node_pools", [])
    others = sum(int(pool.get("initial_node_count", 0)) for pool in pools if shape_of_pool(pool) is None)
    request = replace(request, default_pool_cpu_num_nodes=others)
    like_these = (pool for pool in pools if shape_of_pool(pool) == shape and not is_autoprovisioned(pool))
    model = next((pool for pool in like_these if pool.get("status") != "STOPPING"), None)
    if model is None:
        return request
    config = model.get("config", {})
    reservations = tuple(config.get("reservation_affinity", {}).get("values", ()))
    capacity: Capacity = "on-demand"
    if config.get("spot"):
        capacity = "spot"
    elif config.get("flex_start") or model.get("queued_provisioning", {}).get("enabled"):
        capacity = "flex"
    elif reservations:
        capacity = "reservation"
    pods = int(model.get("max_pods_constraint", {}).get("max_pods_per_node", 0)) or None
    return replace(
        request,
        on_demand=capacity == "on-demand",
        spot=capacity == "spot",
        flex=capacity == "flex",
        reservation=reservations if capacity == "reservation" else (),
        max_pods_per_node=pods,
    )


def growing(have: Observed, name: str, shape: SliceShape, num_slices: int, read: Read) -> list[Change]:
    """Return the changes that add slices like existing ones. Raises ConflictError if there is none to copy.

    `read` returns a node pool by name from v1beta1 of GKE's API.
    """
    model = next((pool for pool in have.slices(shape).values() if pool.get("status") != "STOPPING"), None)
    missing = missing_names(have, name, shape, num_slices)
    if missing and model is None:
        raise ConflictError(
            f"cluster '{name}' has no slice of {shape.name} to copy",
            hint=f"`xpk cluster create {name} --provider gke --tpu-type {shape.name} --num-slices {num_slices} ...`",
        )
    bodies = _alike(model, read(model["name"]), missing) if model and missing else []
    return pool_changes(have, name, shape, bodies, after=())


def _alike(model: Dict, beta: Mapping[str, Any], missing: Sequence[str]) -> list[Dict]:
    policy = beta.get("config", {}).get(MAINTENANCE, {})
    if policy.get("maintenance_interval") == "PERIODIC":
        model = {**model, "config": {**model["config"], MAINTENANCE: policy}}
    return [like(model, name) for name in missing]


def like(pool: Mapping[str, Any], name: str) -> Dict:
    """Return the request for another node pool like an existing one."""
    body = {key: value for key, value in copy.deepcopy(dict(pool)).items() if key not in _ANSWERS}
    for part, answers in (("network_config", _NETWORK_ANSWERS), ("config", _CONFIG_ANSWERS)):
        body[part] = {key: value for key, value in body.get(part, {}).items() if key not in answers}
    config = body["config"]
    if config.get("taints"):  # GKE adds its own taints for accelerators
        config["taints"] = [taint for taint in config["taints"] if taint["key"] not in CHIP_RESOURCES]
    return {**body, "name": name}
