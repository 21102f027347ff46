"""Description of a GKE cluster: its node pools and, if it is reachable, the workloads on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from xpk.api.base import ObjectApi
from xpk.capacity.gke.observed.slices import slices_of_pools
from xpk.capacity.gke.observed.state import shape_of_pool, slice_of_pool
from xpk.capacity.gke.steps import shrinking
from xpk.capacity.nodes.inventory import cluster_info, has_queues, slice_nodes
from xpk.capacity.provider import ClusterInfo
from xpk.model.errors import XpkError
from xpk.model.specs import ClusterSpec


def describe(
    cluster: Mapping[str, Any],
    specs: Sequence[ClusterSpec],
    connect: Callable[[], ObjectApi],
    *,
    brief: bool = False,
    **known: str,
) -> ClusterInfo:
    """Return a cluster's description. `specs`: its slices by type; `known`: its name, provider and location.

    `brief`: see `Provider.describe`.
    """
    pools = {pool["name"]: pool for pool in cluster.get("node_pools", [])}
    types = slices_of_pools(pools, every=True)
    spec = specs[0] if len(specs) == 1 else None
    state = "Incomplete" if cluster.get("status") == "RUNNING" else str(cluster.get("status", "")).capitalize()
    with suppress(XpkError):  # the node pools are known even if the cluster does not answer yet
        api = connect()
        info = cluster_info(api, spec, slice_nodes(api), brief=brief, **known)
        if spec and len(info.slices) == spec.num_slices:
            return info
        if specs and has_queues(api, *specs):
            state = "Ready"
    occupied = {} if brief else shrinking.read_pool_state(known["name"], connect).occupied
    return ClusterInfo(
        **known,
        accelerator_type=",".join(kind.shape.name for kind in specs) or "unknown",
        num_slices=len(types),
        hosts_per_slice=spec.shape.hosts if spec else 0,
        chips=sum(shape.chips for shape in types.values()),
        state=state,
        created=str(cluster.get("create_time", "")),
        slices=tuple(slice_of_pool(pool, occupied) for pool in pools.values() if shape_of_pool(pool)),
    )
