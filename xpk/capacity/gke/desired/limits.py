"""Limits and usage of a cluster: IP ranges, nodes, quota, reservations, names. Pure.

docs/scale.md gives the source of each number.
"""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from xpk.api.text import counted
from xpk.capacity.gke.request.options import GkeOptions
from xpk.model.accelerators import SliceShape

Dict = Mapping[str, Any]

DEFAULT_POD_RANGE = 14  # GKE's choice without --cluster-ipv4-cidr
DEFAULT_NODE_RANGE = 20  # of a subnetwork in an auto-mode network
RESERVED_ADDRESSES = 4  # of every subnetwork, by Google Cloud
NODES, NODES_ASKED, NODES_MOST = 5_000, 15_000, 65_000  # the default, on request, and from version 1.31 on
MULTI_NETWORK_NODES = 5_000  # larger clusters have neither multi-networking nor the cluster autoscaler
NODES_PER_POOL = 1_000  # in one zone
PODS_PER_CLUSTER = 200_000
KUBE_DNS_ENDPOINTS = 1_000  # of one headless service
NAME_LENGTH = 40  # of clusters and of node pools
WIDEST_POD_RANGE = 9
_REGION_TPUS = {"v5litepod": "TPU_LITE_PODSLICE_V5"}  # in regions.get, as are the older GPUs
_REGION_GPUS = {"l4": "NVIDIA_L4_GPUS", "a100-40gb": "NVIDIA_A100_GPUS", "a100-80gb": "NVIDIA_A100_80GB_GPUS"}
_TPUS = {"v5p": "TPU-V5P"}  # in the Cloud Quotas API, with a region alone
_SPOT_TPUS = {"v5p": "PREEMPTIBLE-TPU-V5P", "v6e": "PREEMPTIBLE-TPU-V6E"}
_TPU_FAMILIES = {"v6e": "CT6E", "tpu7": "TPU7", "tpu7x": "TPU7X"}  # there as well, with a region and a family
_PERSISTENT_DISK = ("v4", "v5litepod", "v5p", "l4", "a100-40gb", "a100-80gb")  # later ones boot from Hyperdisk
_BOOT_DISK_GB = 100
_GPU_FAMILIES = {
    "h100-80gb": "NVIDIA_H100", "h100-mega-80gb": "NVIDIA_H100_MEGA", "h200-141gb": "NVIDIA_H200",
    "b200": "NVIDIA_B200", "gb200": "NVIDIA_GB200",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sizing:
    """Number of nodes of the whole cluster, and the prefix lengths to request where GKE's defaults are too small."""

    nodes: int
    pod_addresses: int
    pod_range: int | None = None
    node_range: int | None = None


@dataclass(frozen=True, slots=True)
class Limit:
    """One limit of a cloud: the amounts needed and available.

    Limits that are not firm may have been raised for this project, which no API reports.
    """

    name: str  # name of the limit
    need: int  # amount needed
    have: int | None  # amount available; null if unknown
    advice: str = ""  # way to raise or avoid it; may be empty
    firm: bool = True  # whether nothing can be created beyond it

    @property
    def fits(self) -> bool | None:
        """Return whether the amount is available; None if unknown."""
        return None if self.have is None else self.need <= self.have

    def line(self) -> str:
        """Return the limit as a line of text."""
        if self.have is None:
            return f"{self.name}: needs {self.need:,}, available: unknown"
        mark = "ok" if self.fits else "too little"
        advice = f" ({self.advice})" if self.advice and not self.fits else ""
        return f"{self.name}: needs {self.need:,} of {self.have:,}: {mark}{advice}"


def lines_of(limits: Sequence[Limit]) -> list[str]:
    """Return limits as text: satisfied ones in one line, each of the others in a line of its own."""
    holding = sum(limit.fits is True for limit in limits)
    return [
        *([f"{counted(holding, 'limit')} checked: ok"] if holding else []),
        *(limit.line() for limit in limits if not limit.fits),
    ]


def pod_prefix(pods: int) -> int:
    """Return the prefix length of a node's pod range: twice its pods, rounded up to a power of two."""
    return 32 - math.ceil(math.log2(2 * pods))


def size_of(
    groups: Sequence[tuple[int, int]], *, given_pods: bool, subnetwork: Dict | None, has_own_subnetwork: bool
) -> Sizing:
    """Return the sizing for nodes: `groups` are pairs of nodes and pods per node.

    `given_pods`: the user names a pod range; `has_own_subnetwork`: the user names the subnetwork.
    """
    nodes = sum(count for count, _ in groups)
    addresses = sum(count << (32 - pod_prefix(pods)) for count, pods in groups)
    pod_range = None if given_pods else 32 - math.ceil(math.log2(max(addresses, 1)))
    if pod_range is not None and pod_range >= DEFAULT_POD_RANGE:
        pod_range = None
    have = node_addresses(subnetwork)
    node_range = None
    if not has_own_subnetwork and nodes > have:
        node_range = 32 - math.ceil(math.log2(nodes + RESERVED_ADDRESSES))
    return Sizing(nodes, addresses, pod_range and max(pod_range, WIDEST_POD_RANGE), node_range)


def node_addresses(subnetwork: Dict | None) -> int:
    """Return how many nodes fit into a subnetwork; an auto-mode network's size is assumed if it is unknown."""
    block = str((subnetwork or {}).get("ipCidrRange") or f"10.0.0.0/{DEFAULT_NODE_RANGE}")
    return ipaddress.ip_network(block, strict=False).num_addresses - RESERVED_ADDRESSES


def range_limits(
    sizing: Sizing, pod_block: str | None, subnetwork: Dict | None, *, is_known: bool = True
) -> list[Limit]:
    """Return the limits of addresses and nodes. `pod_block`: the cluster's existing or requested pod range.

    `is_known`: without `subnetwork`, it is the one of an auto-mode network.
    """
    prefix = int(pod_block.rpartition("/")[2]) if pod_block else sizing.pod_range or DEFAULT_POD_RANGE
    nodes = 2 ** (32 - sizing.node_range) - RESERVED_ADDRESSES if sizing.node_range else node_addresses(subnetwork)
    room = nodes if is_known else None
    return [
        Limit(
            f"pod addresses (a /{prefix})",
            sizing.pod_addresses,
            2 ** (32 - prefix),
            "--max-pods-per-node N, or --custom-cluster-arguments='--cluster-ipv4-cidr=/N'",
        ),
        Limit("node addresses in the subnetwork", sizing.nodes, room, "pass a --subnetwork with a larger range"),
        Limit(
            "nodes of the cluster",
            sizing.nodes,
            NODES,
            f"ask Cloud Customer Care for up to {NODES_ASKED:,}, or {NODES_MOST:,} from version 1.31 on",
            firm=False,
        ),
    ]


def size_limits(longest: int, shape: SliceShape, total_pods: int, hosts: int, request: GkeOptions) -> list[Limit]:
    """Return the limits of pools, pods, names and DNS.

    `longest`: length of the longest node pool name; `hosts`: the maximum of one workload.
    """
    found_limits = [
        Limit("nodes of one node pool", shape.hosts, NODES_PER_POOL),
        Limit("pods of the cluster", total_pods, PODS_PER_CLUSTER),
        Limit("characters of a node pool's name", longest, NAME_LENGTH, "choose a shorter cluster name"),
    ]
    if any("kube-dns" in argument.lower() for argument in request.custom_cluster_arguments):
        found_limits.append(
            Limit("endpoints of a headless service, kube-dns", hosts, KUBE_DNS_ENDPOINTS, "use Cloud DNS")
        )
    return found_limits


def chips_limit(shape: SliceShape, chips: int, request: GkeOptions, region: Dict | None, info: Dict | None) -> Limit:
    """Return the quota of chips: from a region's quotas, or from the Cloud Quotas API if it has dimensions."""
    spot = request.capacity in ("spot", "flex")
    name, quota = quota_of(shape, spot=spot)
    have = free_quota(region, name) if quota is None else _in_info(info, shape, request.region)
    advice = "request more at https://console.cloud.google.com/iam-admin/quotas"
    return Limit(f"quota {name}", chips, have, advice)


def quota_of(shape: SliceShape, *, spot: bool) -> tuple[str, str | None]:
    """Return a quota's name, and its id if the Cloud Quotas API reports it.

    A name in words is all that Google publishes of some quotas; these are not queried.
    """
    before, family = "PREEMPTIBLE_" if spot else "", shape.family
    if metric := _REGION_TPUS.get(family) or _REGION_GPUS.get(family):
        return before + metric, None
    if shape.kind == "cpu":
        return "CPUS", None
    if shape.kind == "gpu":
        if spot:
            return f"PREEMPTIBLE_{_GPU_FAMILIES[family]}_GPUS", None
        return f"GPUS_PER_GPU_FAMILY {_GPU_FAMILIES[family]}", "GPUS-PER-GPU-FAMILY-per-project-region"
    if quota := (_SPOT_TPUS if spot else _TPUS).get(family):
        return quota.replace("-", "_"), f"{quota}-per-project-region"
    if family == "v4":
        return "Preemptible TPU v4 PodSlice chips" if spot else "TPU v4 PodSlice chips", None
    if spot:
        return f"Preemptible TPU slices {family}", None
    return f"TPUS_PER_TPU_FAMILY {_TPU_FAMILIES[family]}", "TPUS-PER-TPU-FAMILY-per-project-region"


def default_pool_limit(vcpus: int, region: Dict | None) -> Limit:
    """Return the quota of the default pool's CPUs."""
    return Limit("quota CPUS (default pool)", vcpus, free_quota(region, "CPUS"), "--default-pool-cpu-num-nodes N")


def nodes_limits(nodes: int, shape: SliceShape, region: Dict | None, *, private: bool, own_disks: bool) -> list[Limit]:
    """Return the region's quotas for `nodes` more nodes: machines, external addresses, and boot disks.

    `own_disks`: the user configures disks. By default GKE gives 100 GB of pd-balanced to machines that support it.
    """
    needs = {"INSTANCES": nodes}
    if not private:
        needs["IN_USE_ADDRESSES"] = nodes
    if shape.family in _PERSISTENT_DISK and not own_disks:
        needs["SSD_TOTAL_GB"] = nodes * _BOOT_DISK_GB
    advice = "request more at https://console.cloud.google.com/iam-admin/quotas"
    hints = {"IN_USE_ADDRESSES": f"pass --private, which needs none; or {advice}"}
    return [
        Limit(f"quota {name}", need, free_quota(region, name), hints.get(name, advice)) for name, need in needs.items()
    ]


def free_hosts(reservation: Dict | None) -> int | None:
    """Return the number of free machines in a reservation, a block or a sub-block; None if unknown."""
    if reservation is None:
        return None
    resource = reservation.get("resource", reservation)
    if specific := resource.get("specificReservation"):
        return int(specific.get("count", 0)) - int(specific.get("inUseCount", 0))
    if aggregate := resource.get("aggregateReservation"):
        reserved = _accelerators(aggregate.get("reservedResources", ())) - _accelerators(
            aggregate.get("inUseResources", ())
        )
        return reserved // 4  # chips of a machine
    if "count" in resource:
        return int(resource["count"]) - int(resource.get("inUseCount", 0))
    return None


def reservation_limit(path: str, hosts: int, free: int | None) -> Limit:
    """Return the headroom of a reservation, in machines."""
    return Limit(f"free machines of {path}", hosts, free, "pass several as --reservation A,B, or choose fewer slices")


def _accelerators(resources: Sequence[Dict]) -> int:
    return sum(int((resource.get("accelerator") or {}).get("acceleratorCount", 0)) for resource in resources)


def free_quota(place: Dict | None, metric: str) -> int | None:
    """Return the remaining quota of a region or a project, None if unknown."""
    for quota in (place or {}).get("quotas", ()):
        if quota.get("metric") == metric:
            return int(quota.get("limit", 0) - quota.get("usage", 0))
    return None


def _in_info(info: Dict | None, shape: SliceShape, region: str) -> int | None:
    """Return a region's entry of the Cloud Quotas API: the one with the most dimensions."""
    family = _TPU_FAMILIES.get(shape.family) or _GPU_FAMILIES.get(shape.family, "")
    values: list[tuple[int, int]] = []
    for entry in (info or {}).get("dimensionsInfos", ()):
        dimensions = entry.get("dimensions", {})
        is_in_region = dimensions.get("region", region) == region
        if is_in_region and "region" not in dimensions:
            is_in_region = region in entry.get("applicableLocations", ())
        if is_in_region and _is_family(dimensions, family):
            values.append((len(dimensions), int(entry.get("details", {}).get("value", 0))))
    return max(values)[1] if values else None


def _is_family(dimensions: Dict, family: str) -> bool:
    """Return whether a quota's dimensions match a family, or name none: TPU7x is spelt in both cases."""
    value = dimensions.get("tpu_family") or dimensions.get("gpu_family") or family
    return str(value).lower() == family.lower()
