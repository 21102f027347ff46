"""Slices of a GKE cluster: existing ones from its node pools, and limits of autoprovisioned ones. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from xpk.capacity.gke.desired.queued_provisioning import is_queued
from xpk.capacity.gke.desired.request_bodies import policy_name
from xpk.capacity.gke.observed.state import capacity_of, is_autoprovisioned, shape_of_pool
from xpk.model import sub_slices, super_slices
from xpk.model.accelerators import SliceShape, find_shape
from xpk.model.specs import ClusterSpec

Pools = Mapping[str, Mapping[str, Any]]


def specs_of_pools(name: str, pools: Pools) -> list[ClusterSpec]:
    """Return the slices of a cluster's ready node pools, by type; without autoprovisioned ones."""
    types = slices_of_pools(pools)
    alike: dict[SliceShape | None, dict[str, Mapping[str, Any]]] = {}
    for key, pool in pools.items():
        alike.setdefault(shape_of_pool(pool), {})[key] = pool
    bought = {
        shape: sorted({capacity_of(pools[key]) for key in types if types[key] == shape}) for shape in types.values()
    }
    ordered = sorted(Counter(types.values()).items(), key=lambda item: item[0].name)
    return [
        replace(spec_like(name, shape, alike[shape], count), capacities=tuple(bought[shape]))
        for shape, count in ordered
    ]


def spec_like(name: str, shape: SliceShape, pools: Pools, num_slices: int) -> ClusterSpec:
    """Return a number of slices of a type that are used like existing ones, `pools`."""
    return ClusterSpec(
        name=name,
        shape=shape,
        num_slices=num_slices,
        sub_slicing=any(map(is_shared, pools.values())),
        super_slicing=any(map(is_cube, pools.values())),
        queued=any(map(is_queued, pools.values())),
    )


def slices_of_pools(pools: Pools, *, with_nodes: bool = False, every: bool = False) -> dict[str, SliceShape]:
    """Return the types of ready slices by node pool.

    `with_nodes`: leave out slices whose nodes are provisioned later.
    `every`: include autoprovisioned node pools, which GKE deletes when they are unused.
    """
    return {
        name: shape
        for name, pool in pools.items()
        if pool.get("status", "RUNNING") in ("RUNNING", "RECONCILING", "RUNNING_WITH_ERROR")
        and (not with_nodes or int(pool.get("initial_node_count", 0)))
        and (every or not is_autoprovisioned(pool))
        and (shape := shape_of_pool(pool))
    }


def is_shared(pool: Mapping[str, Any]) -> bool:
    """Return whether a node pool's slice is shared by parts."""
    return sub_slices.LABEL in pool.get("config", {}).get("labels", {})


def is_cube(pool: Mapping[str, Any]) -> bool:
    """Return whether a node pool is a cube, from which slices are formed; Google's xpk names the policy alike."""
    is_ours = super_slices.LABEL in pool.get("config", {}).get("labels", {})
    policy = pool.get("placement_policy", {}).get("policy_name")
    return is_ours or policy == policy_name(find_shape(super_slices.CUBE), super_slicing=True)


def specs_of_cluster(
    name: str, cluster: Mapping[str, Any], autoprovisioned: Mapping[str, str], resized: ClusterSpec | None = None
) -> list[ClusterSpec]:
    """Return a cluster's slices of each type, with limits for autoprovisioned types.

    `autoprovisioned`: these types, with the default capacity of a workload.
    `resized`: the new number of slices of one type.
    """
    specs = specs_of_pools(name, {pool["name"]: pool for pool in cluster.get("node_pools", [])})
    if resized:
        bought = next((spec.capacities for spec in specs if spec.shape == resized.shape), ())
        resized_spec = replace(resized, max_slices=None, capacities=bought if resized.num_slices else ())
        specs = [*(spec for spec in specs if spec.shape != resized.shape), resized_spec]
    return with_limits(name, specs, cluster.get("autoscaling"), autoprovisioned)


def with_limits(
    name: str, specs: Sequence[ClusterSpec], autoscaling: Mapping[str, Any] | None, autoprovisioned: Mapping[str, str]
) -> list[ClusterSpec]:
    """Return specs with the maximum number of slices, by the chip limits of their accelerators.

    A limit counts all node pools. The rest of a limit is divided evenly among the types that share it, so that
    nothing is allotted twice.
    """
    limits = limits_of(autoscaling)
    spec_of = {spec.shape: spec for spec in specs}
    made = {
        shape: capacity
        for kind, capacity in sorted(autoprovisioned.items())
        if (shape := find_shape(kind)).accelerator in limits
    }
    for shape in made:
        spec_of.setdefault(shape, ClusterSpec(name=name, shape=shape, num_slices=0))
    limited = []
    for shape, spec in spec_of.items():
        if shape in made:
            accelerator = shape.accelerator
            taken = sum(slices.num_chips for key, slices in spec_of.items() if key.accelerator == accelerator)
            chips = max(0, limits[accelerator] - taken) // sum(kind.accelerator == accelerator for kind in made)
            max_slices = spec.num_slices + chips // shape.chips
            spec = replace(spec, max_slices=max_slices, provisions=made[shape])
        limited.append(spec)
    return sorted(limited, key=lambda spec: spec.shape.name)


def limits_of(autoscaling: Mapping[str, Any] | None) -> dict[str, int]:
    """Return node autoprovisioning's limits on chips, by accelerator; empty if it is off."""
    if not (autoscaling or {}).get("enable_node_autoprovisioning"):
        return {}
    return {
        str(limit["resource_type"]): int(limit.get("maximum", 0))
        for limit in (autoscaling or {}).get("resource_limits", [])
        if limit.get("resource_type") not in ("cpu", "memory")
    }


def guessed(cluster: Mapping[str, Any]) -> dict[str, str]:
    """Return the types that GKE autoprovisions if none are recorded: those of the existing slices."""
    limits = limits_of(cluster.get("autoscaling"))
    specs = specs_of_pools("any", {pool["name"]: pool for pool in cluster.get("node_pools", [])})
    return {spec.shape.name: spec.capacities[0] for spec in specs if spec.shape.accelerator in limits}
