"""What slices a cluster of GKE has, by its node pools, and may have where node autoprovisioning makes more. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from xpk.capacity.gke.observed import capacity_of, is_autoprovisioned, shape_of_pool
from xpk.capacity.gke.queued import is_queued
from xpk.model import sub_slices
from xpk.model.accelerators import SliceShape, find_shape
from xpk.model.specs import ClusterSpec

Pools = Mapping[str, Mapping[str, Any]]


def specs_of_pools(name: str, pools: Pools) -> list[ClusterSpec]:
    """Return what the node pools of a cluster that came up hold, by type; not those that GKE made by itself."""
    shared = {shape_of_pool(pool) for pool in pools.values() if is_shared(pool)}
    queued = {shape_of_pool(pool) for pool in pools.values() if is_queued(pool)}
    there = slices_of_pools(pools)
    bought = {
        shape: sorted({capacity_of(pools[key]) for key in there if there[key] == shape}) for shape in there.values()
    }
    ordered = sorted(Counter(there.values()).items(), key=lambda item: item[0].name)
    return [
        ClusterSpec(
            name=name,
            shape=shape,
            num_slices=count,
            sub_slicing=shape in shared,
            queued=shape in queued,
            capacities=tuple(bought[shape]),
        )
        for shape, count in ordered
    ]


def slices_of_pools(pools: Pools, *, with_nodes: bool = False, every: bool = False) -> dict[str, SliceShape]:
    """Return the types of the slices that came up, by node pool; those whose nodes are to come later if asked for.

    Node pools that GKE made by itself are left out unless `every` one is meant: it removes them when nobody uses them.
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
    """Tell whether a node pool's slice is shared by parts."""
    return sub_slices.LABEL in pool.get("config", {}).get("labels", {})


def specs_of_cluster(
    name: str, cluster: Mapping[str, Any], autoprovisioned: Mapping[str, str], resized: ClusterSpec | None = None
) -> list[ClusterSpec]:
    """Return what a cluster has of each type, and may have of those that GKE makes more of.

    `autoprovisioned`: these types, with the capacity that is asked for if a workload does not say. `resized`: what
    there is to be of one type.
    """
    specs = specs_of_pools(name, {pool["name"]: pool for pool in cluster.get("node_pools", [])})
    if resized:
        bought = next((each.capacities for each in specs if each.shape == resized.shape), ())
        own = replace(resized, max_slices=None, capacities=bought if resized.num_slices else ())
        specs = [*(each for each in specs if each.shape != resized.shape), own]
    return with_limits(name, specs, cluster.get("autoscaling"), autoprovisioned)


def with_limits(
    name: str, specs: Sequence[ClusterSpec], autoscaling: Mapping[str, Any] | None, autoprovisioned: Mapping[str, str]
) -> list[ClusterSpec]:
    """Return specs with the slices that there may be: no more than the limits on chips of their accelerators.

    A limit counts all node pools. What is left of it is parted evenly among the types that share it: nothing is
    promised twice.
    """
    limits = limits_of(autoscaling)
    there = {spec.shape: spec for spec in specs}
    made = {
        shape: capacity
        for kind, capacity in sorted(autoprovisioned.items())
        if (shape := find_shape(kind)).accelerator in limits
    }
    for shape in made:
        there.setdefault(shape, ClusterSpec(name=name, shape=shape, num_slices=0))
    found = []
    for shape, spec in there.items():
        if shape in made:
            accelerator = shape.accelerator
            taken = sum(each.num_chips for key, each in there.items() if key.accelerator == accelerator)
            left = max(0, limits[accelerator] - taken) // sum(each.accelerator == accelerator for each in made)
            most = spec.num_slices + left // shape.chips
            spec = replace(spec, max_slices=most, provisions=made[shape])
        found.append(spec)
    return sorted(found, key=lambda each: each.shape.name)


def limits_of(autoscaling: Mapping[str, Any] | None) -> dict[str, int]:
    """Return node autoprovisioning's limits on chips, by accelerator; nothing where it is off."""
    if not (autoscaling or {}).get("enable_node_autoprovisioning"):
        return {}
    return {
        str(limit["resource_type"]): int(limit.get("maximum", 0))
        for limit in (autoscaling or {}).get("resource_limits", [])
        if limit.get("resource_type") not in ("cpu", "memory")
    }


def guessed(cluster: Mapping[str, Any]) -> dict[str, str]:
    """Return which types GKE makes more of where nobody wrote it down: those of the slices there are."""
    limits = limits_of(cluster.get("autoscaling"))
    specs = specs_of_pools("any", {pool["name"]: pool for pool in cluster.get("node_pools", [])})
    return {spec.shape.name: spec.capacities[0] for spec in specs if spec.shape.accelerator in limits}
