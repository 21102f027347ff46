"""Desired clusters and node pools, as request bodies of GKE's API. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from xpk.capacity.gke.desired.limits import MULTI_NETWORK_NODES, Sizing
from xpk.capacity.gke.desired.networks import DataNetwork
from xpk.capacity.gke.request.gcloud_arguments import apply_cluster, apply_pool, put, scopes
from xpk.capacity.gke.request.options import DRIVERS, GkeOptions
from xpk.model import names, sub_slices, super_slices
from xpk.model.accelerators import SliceShape
from xpk.model.specs import ClusterSpec

Dict = dict[str, Any]

DEFAULT_POOL = "default-pool"
LABEL = {"gke_product_type": "xpk"}  # as Google's xpk labels its clusters
MAINTENANCE = "host_maintenance_policy"  # a field that only v1beta1 of GKE's API has
MULTI_HOST_PODS = 15  # pods on a node of a multi-host slice: its /27 instead of the default's /24
_DEFAULT_PODS = 110  # GKE's own
_POLICY_FAMILIES = ("tpu7", "tpu7x")  # multi-host slices need a workload policy for their placement
_DOMAINS = {"gb200": "1x72"}  # GPUs that NVLink joins over hosts: a policy places all of a type's hosts
_NETWORK_PROFILE = ("v6e", "h200-141gb", "b200", "gb200")  # GKE makes the networks of their data NICs itself
_DATA_NETWORK_PODS = 32  # pods on a host of A3 Mega, as Google's xpk has it
_LARGE_AUTOSCALING = 1000  # maximum size of the default pool
_OF_PODS = {"mode": "GKE_METADATA"}  # pods do not get their node's credentials


def cluster_body(spec: ClusterSpec, request: GkeOptions, version: str | None, sizing: Sizing) -> Dict:
    """Return the requested cluster with only its default pool: the field `cluster` of CreateCluster.

    Raises UsageError for unsupported custom arguments.
    """
    channel = request.release_channel or ("REGULAR" if request.gke_version else "RAPID")
    large = sizing.nodes > MULTI_NETWORK_NODES
    default_pool: Dict = {
        "name": DEFAULT_POOL,
        "initial_node_count": request.default_pool_cpu_num_nodes,
        "config": {"machine_type": request.default_pool_cpu_machine_type, "oauth_scopes": _scopes(request)},
    }
    if request.workload_identity:
        default_pool["config"]["workload_metadata_config"] = dict(_OF_PODS)
    if not large:  # GKE's autoscaler does not work in larger clusters
        default_pool["autoscaling"] = {
            "enabled": True,
            "total_min_node_count": 1,
            "total_max_node_count": _LARGE_AUTOSCALING,
            "location_policy": "BALANCED",
        }
    body: Dict = {
        "name": spec.name,
        "resource_labels": dict(LABEL),
        "locations": [request.zone],
        "release_channel": {"channel": channel},
        "ip_allocation_policy": {"use_ip_aliases": True},
        "network_config": {
            "datapath_provider": "ADVANCED_DATAPATH",
            # kube-dns serves at most 1,000 endpoints of a headless service.
            "dns_config": {"cluster_dns": "CLOUD_DNS", "cluster_dns_scope": "CLUSTER_SCOPE"},
        },
        "autoscaling": {"autoscaling_profile": "OPTIMIZE_UTILIZATION"},
        "node_pools": [default_pool],
    }
    if not large:
        body["network_config"]["enable_multi_networking"] = True
    if version:
        body["initial_cluster_version"] = version
    if request.gke_version:
        default_pool["management"] = {"auto_upgrade": False, "auto_repair": True}
    _ranges(body, request, sizing)
    for field, value in changeable(request).items():
        put(body, field, value)
    _private(body, request)
    apply_cluster(body, request.custom_cluster_arguments)
    return body


def changeable(request: GkeOptions) -> dict[str, Dict]:
    """Return the parts of a cluster that can be changed later, by field name."""
    bodies: dict[str, Dict] = {}
    endpoints: Dict = {}
    if not request.enable_private_endpoint:
        endpoints["dns_endpoint_config"] = {"allow_external_traffic": True}
    if request.is_private or request.authorized_networks:
        networks = [{"cidr_block": block} for block in request.authorized_networks]
        blocks = {"cidr_blocks": networks} if networks else {}
        endpoints["ip_endpoints_config"] = {"authorized_networks_config": {"enabled": True, **blocks}}
    if endpoints:
        bodies["control_plane_endpoints_config"] = endpoints
    if request.workload_identity:
        bodies["workload_identity_config"] = {"workload_pool": f"{request.project}.svc.id.goog"}
    addons: Dict = {DRIVERS[flag][0]: {"enabled": True} for flag in request.drivers}
    if request.super_slicing:
        addons["slice_controller_config"] = {"enabled": True}
    if request.enable_legacy_lustre_port:
        addons["lustre_csi_driver_config"]["enable_legacy_lustre_port"] = True
    if addons:
        bodies["addons_config"] = addons
    return bodies


def autoprovisioning(shape: SliceShape, request: GkeOptions, chips: int) -> Dict | None:
    """Return the limits of node autoprovisioning, None if it is not requested."""
    if not request.enable_autoprovisioning:
        return None
    limits: list[Dict] = [
        {"resource_type": "cpu", "minimum": 1, "maximum": request.autoprovisioning_max_cpu},
        {"resource_type": "memory", "minimum": 1, "maximum": request.autoprovisioning_max_memory},
    ]
    if shape.kind != "cpu":
        max_chips = request.autoprovisioning_max_chips or max(chips, request.autoprovisioning_min_chips)
        limits.append(
            {"resource_type": shape.accelerator, "minimum": request.autoprovisioning_min_chips, "maximum": max_chips}
        )
    return {
        "enable_node_autoprovisioning": True,
        "autoprovisioning_locations": [request.zone],
        "resource_limits": limits,
        "autoprovisioning_node_pool_defaults": {"oauth_scopes": _scopes(request)},
    }


def pool_body(
    name: str,
    shape: SliceShape,
    request: GkeOptions,
    reservation: str | None,
    version: str | None,
    networks: Sequence[DataNetwork] = (),
) -> Dict:
    """Return one slice's node pool: the field `node_pool` of CreateNodePool. Raises UsageError as above.

    `networks`: those of its hosts' data NICs.
    """
    flex = request.capacity == "flex"
    config: Dict = {
        "machine_type": shape.machine_type,
        "oauth_scopes": _scopes(request),
        "gvnic": {"enabled": True},
        "labels": {names.TYPE_ANNOTATION: shape.name},
    }
    pool: Dict = {
        "name": name,
        "initial_node_count": 0 if flex else shape.hosts,
        "locations": [request.zone],
        "config": config,
    }
    if version:
        pool["version"] = version
    management = {"auto_upgrade": not request.gke_version, "auto_repair": not flex}
    if not all(management.values()):
        pool["management"] = management
    _capacity(pool, shape, request, reservation)
    _placement(pool, shape, request)
    if shape.kind == "gpu":
        config["accelerators"] = [_gpu(shape)]
    if shape.family in _NETWORK_PROFILE:
        pool["network_config"] = {"accelerator_network_profile": "auto"}
        config["labels"]["cloud.google.com/gke-networking-dra-driver"] = "true"
    if networks:
        pool["network_config"] = {"additional_node_network_configs": [network.config for network in networks]}
    if (pods := pods_per_node(shape, request)) != _DEFAULT_PODS or request.max_pods_per_node:
        pool["max_pods_constraint"] = {"max_pods_per_node": pods}
    if request.sub_slicing:
        config["labels"][sub_slices.LABEL] = "true"
    if request.super_slicing:
        config["labels"][super_slices.LABEL] = "true"
    if request.is_maintained_periodically:
        config[MAINTENANCE] = {"maintenance_interval": "PERIODIC"}
    if request.workload_identity:
        config["workload_metadata_config"] = dict(_OF_PODS)
    apply_pool(pool, request.custom_pool)
    return pool


def needs_beta(pool: Mapping[str, Any]) -> bool:
    """Return whether a node pool has fields that exist only in v1beta1 of GKE's API."""
    return MAINTENANCE in pool.get("config", {})


def policy_name(shape: SliceShape, *, super_slicing: bool = False) -> str | None:
    """Return the workload policy for the placement of a type's slices, None if they need none."""
    if domain := _DOMAINS.get(shape.family):
        return f"{shape.name}-{domain}-placement-policy"
    if shape.family in _POLICY_FAMILIES and shape.hosts > 1:
        return f"{shape.name}-{shape.topology}{'-ss' if super_slicing else ''}-placement-policy"
    return None


def policy_body(name: str, shape: SliceShape, *, super_slicing: bool = False) -> Dict:
    """Return a workload policy: the body of Compute Engine's resourcePolicies.insert.

    `super_slicing`: the chips of a slice's hosts are not connected before a Slice object asks for it.
    """
    policy = {"type": "HIGH_THROUGHPUT", "acceleratorTopology": _DOMAINS.get(shape.family, shape.topology)}
    mode = {"acceleratorTopologyMode": super_slices.MODE} if super_slicing else {}
    return {"name": name, "workloadPolicy": policy | mode}


def pods_per_node(shape: SliceShape, request: GkeOptions) -> int:
    """Return the maximum number of pods on a node of a slice."""
    if request.max_pods_per_node:
        return request.max_pods_per_node
    if shape.family == "h100-mega-80gb":
        return _DATA_NETWORK_PODS
    return MULTI_HOST_PODS if shape.kind == "tpu" and shape.hosts > 1 else _DEFAULT_PODS


def _scopes(request: GkeOptions) -> list[str]:
    return scopes(",".join(request.scopes))


def _capacity(pool: Dict, shape: SliceShape, request: GkeOptions, reservation: str | None) -> None:
    config = pool["config"]
    if request.capacity == "spot":
        config["spot"] = True
    elif request.capacity == "flex":
        config["flex_start"] = True
        config["reservation_affinity"] = {"consume_reservation_type": "NO_RESERVATION"}
        pool["autoscaling"] = {"enabled": True, "max_node_count": shape.hosts, "location_policy": "ANY"}
        if request.queued_provisioning:
            pool["queued_provisioning"] = {"enabled": True}
    elif reservation:
        config["reservation_affinity"] = {
            "consume_reservation_type": "SPECIFIC_RESERVATION",
            "key": "compute.googleapis.com/reservation-name",
            "values": [reservation.removeprefix(f"projects/{request.project}/reservations/")],
        }


def _placement(pool: Dict, shape: SliceShape, request: GkeOptions) -> None:
    policy = policy_name(shape, super_slicing=request.super_slicing)
    if policy is None and (shape.kind != "tpu" or shape.hosts == 1):  # one host is placed by its machine type
        return
    pool["placement_policy"] = (
        {"policy_name": policy} if policy else {"type": "COMPACT", "tpu_topology": shape.topology}
    )


def _gpu(shape: SliceShape) -> Dict:
    return {
        "accelerator_type": shape.node_labels["cloud.google.com/gke-accelerator"],
        "accelerator_count": shape.chips_per_host,
        "gpu_driver_installation_config": {"gpu_driver_version": "LATEST"},
    }


def _ranges(body: Dict, request: GkeOptions, sizing: Sizing) -> None:
    """Request IP ranges where GKE's defaults are too small for the nodes."""
    if request.network:
        body["network"] = request.network
    if request.subnetwork:
        body["subnetwork"] = request.subnetwork
    if sizing.pod_range:
        body["ip_allocation_policy"]["cluster_ipv4_cidr_block"] = f"/{sizing.pod_range}"
    if sizing.node_range:
        body["ip_allocation_policy"] |= {"create_subnetwork": True, "node_ipv4_cidr_block": f"/{sizing.node_range}"}


def _private(body: Dict, request: GkeOptions) -> None:
    if not request.is_private:
        return
    config: Dict = {"enable_private_nodes": True}
    if request.enable_private_endpoint:
        config["enable_private_endpoint"] = True
    if request.private_endpoint_subnetwork:
        config["private_endpoint_subnetwork"] = request.private_endpoint_subnetwork
    if request.enable_master_global_access:
        config["master_global_access_config"] = {"enabled": True}
    body["private_cluster_config"] = config
