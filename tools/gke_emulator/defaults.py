"""Defaults that the server fills in."""

from __future__ import annotations

import base64
import hashlib
import ipaddress
import math
import uuid
from typing import Any

from google.cloud.container_v1 import (
    Cluster,
    DatapathProvider,
    NodePool,
    NodePoolUpdateStrategy,
    NodeTaint,
    ReleaseChannel,
    ReservationAffinity,
    StackType,
    WorkloadMetadataConfig,
)

from tools.gke_emulator.clock import rfc3339
from tools.gke_emulator.machines import find_machine
from tools.gke_emulator.names import COMPUTE, Target, is_zone, region_of
from tools.gke_emulator.options import VERSIONS, Options
from tools.gke_emulator.refusal import Refusal

_SCOPES = [f"https://www.googleapis.com/auth/{name}" for name in (
    "devstorage.read_only", "logging.write", "monitoring", "service.management.readonly", "servicecontrol",
    "trace.append")]  # fmt: skip
_COMPONENTS = [1, 2]  # SYSTEM_COMPONENTS, WORKLOADS: of LoggingComponentConfig


def fill_cluster(message: Any, target: Target, options: Options, now: float) -> None:
    """Complete a cluster that is about to be created."""
    zones = [target.location] if is_zone(target.location) else options.zones(target.location)[:3]
    if not message.locations:
        message.locations.extend(zones)
    message.id = uuid.uuid4().hex
    message.status = Cluster.Status.PROVISIONING
    message.self_link = target.link
    message.location = message.zone = target.location
    message.create_time = rfc3339(now)
    version = _version(message)
    message.initial_cluster_version = message.current_master_version = message.current_node_version = version
    message.network = message.network or "default"
    message.subnetwork = message.subnetwork or "default"
    message.logging_service = message.logging_service or "logging.googleapis.com/kubernetes"
    message.monitoring_service = message.monitoring_service or "monitoring.googleapis.com/kubernetes"
    if not message.logging_config.component_config.enable_components:
        message.logging_config.component_config.enable_components.extend(_COMPONENTS)
    if not message.monitoring_config.component_config.enable_components:
        message.monitoring_config.component_config.enable_components.append(1)
    message.addons_config.network_policy_config.disabled = True
    message.addons_config.gce_persistent_disk_csi_driver_config.enabled = True
    message.shielded_nodes.enabled = True
    message.default_max_pods_constraint.max_pods_per_node = message.default_max_pods_constraint.max_pods_per_node or 110
    message.database_encryption.state = message.database_encryption.state or 2  # DECRYPTED
    labels = repr(sorted(message.resource_labels.items())).encode()
    message.label_fingerprint = hashlib.sha1(labels, usedforsecurity=False).hexdigest()[:8]
    message.maintenance_policy.resource_version = message.maintenance_policy.resource_version or "e3b0c442"
    _fill_network(message, target)


def _version(message: Any) -> str:
    version, channel = message.initial_cluster_version, message.release_channel.channel
    every = sorted({item for versions in VERSIONS.values() for item in versions}, key=_number, reverse=True)
    if version in ("", "-"):
        if not channel:  # unspecified: enrolled in REGULAR
            message.release_channel.channel = ReleaseChannel.Channel.REGULAR
        return VERSIONS[ReleaseChannel.Channel(message.release_channel.channel).name][0]
    fitting = [item for item in every if version in ("latest", item) or item.startswith((f"{version}.", f"{version}-"))]
    if channel:
        known = VERSIONS[ReleaseChannel.Channel(channel).name]
        fitting = [item for item in fitting if item in known]
    if not fitting:
        raise Refusal.invalid(f'Master version "{version}" is unsupported.')
    return fitting[0]


def _number(version: str) -> list[int]:
    return [int(part) for part in version.replace("-gke.", ".").split(".")]


def check_node_version(version: str) -> None:
    """Reject a node version that the server does not offer."""
    if not any(version in versions for versions in VERSIONS.values()):
        raise Refusal.invalid(f'Node version "{version}" is unsupported.')


def _fill_network(message: Any, target: Target) -> None:
    region, project = region_of(target.location), target.project
    network = message.network_config
    network.network = f"projects/{project}/global/networks/{message.network.rsplit('/', 1)[-1]}"
    network.subnetwork = f"projects/{project}/regions/{region}/subnetworks/{message.subnetwork.rsplit('/', 1)[-1]}"
    network.datapath_provider = network.datapath_provider or DatapathProvider.LEGACY_DATAPATH
    policy = message.ip_allocation_policy
    if not policy.use_routes:
        policy.use_ip_aliases = True
        policy.stack_type = policy.stack_type or StackType.IPV4
        policy.cluster_ipv4_cidr_block = policy.cluster_ipv4_cidr = _block(
            policy.cluster_ipv4_cidr_block, "10.64.0.0", 14
        )
        services = _block(policy.services_ipv4_cidr_block, "34.118.224.0", 20)
        policy.services_ipv4_cidr_block = policy.services_ipv4_cidr = services
        message.cluster_ipv4_cidr = policy.cluster_ipv4_cidr_block
        message.services_ipv4_cidr = services
        name = message.name[:20]
        policy.cluster_secondary_range_name = policy.cluster_secondary_range_name or f"gke-{name}-pods-{message.id[:8]}"
    endpoints = message.control_plane_endpoints_config
    if not endpoints.ip_endpoints_config.HasField("enabled"):
        endpoints.ip_endpoints_config.enabled = True


def _block(block: str, start: str, size: int) -> str:
    """Complete an IP range: `/12` and an empty one get a range of the server's choice."""
    text = f"{start}{block}" if block.startswith("/") else block or f"{start}/{size}"
    try:
        return str(ipaddress.ip_network(text, strict=False))
    except ValueError as error:
        raise Refusal.invalid(f'Invalid CIDR block "{block}": {error}.') from error


def give_endpoint(message: Any, server: str, authority: bytes) -> None:
    """Set a cluster's API server endpoint, host and port; the DNS endpoint is the same instead of Google's."""
    message.endpoint = server
    message.control_plane_endpoints_config.dns_endpoint_config.endpoint = server
    message.private_cluster_config.public_endpoint = server
    message.private_cluster_config.private_endpoint = server
    message.control_plane_endpoints_config.ip_endpoints_config.public_endpoint = server
    message.control_plane_endpoints_config.ip_endpoints_config.private_endpoint = server
    message.master_auth.cluster_ca_certificate = base64.b64encode(authority).decode()


def fill_pool(message: Any, target: Target, cluster: Any) -> None:
    """Complete a node pool that is about to be created."""
    message.status = NodePool.Status.PROVISIONING
    message.self_link = target.link
    message.version = message.version or cluster.current_master_version
    check_node_version(message.version)
    if not message.locations:
        message.locations.extend(cluster.locations)
    if not message.max_pods_constraint.max_pods_per_node:
        message.max_pods_constraint.max_pods_per_node = cluster.default_max_pods_constraint.max_pods_per_node
    message.pod_ipv4_cidr_size = pod_range_size(message.max_pods_constraint.max_pods_per_node)
    network = message.network_config
    network.pod_range = network.pod_range or cluster.ip_allocation_policy.cluster_secondary_range_name
    network.pod_ipv4_cidr_block = network.pod_ipv4_cidr_block or cluster.ip_allocation_policy.cluster_ipv4_cidr_block
    network.subnetwork = network.subnetwork or cluster.network_config.subnetwork
    if not message.HasField("management"):
        message.management.auto_repair = message.management.auto_upgrade = True
    if not message.HasField("upgrade_settings"):
        message.upgrade_settings.max_surge = 1
        message.upgrade_settings.strategy = NodePoolUpdateStrategy.SURGE
    _fill_config(message.config, of_pods=bool(cluster.workload_identity_config.workload_pool))
    if message.queued_provisioning.enabled:
        _taint(message.config, "cloud.google.com/gke-queued", "true")
    message.instance_group_urls.extend(instance_groups(message, target))
    message.etag = etag(message)


def _fill_config(config: Any, *, of_pods: bool) -> None:
    config.machine_type = config.machine_type or "e2-medium"
    config.image_type = config.image_type or "COS_CONTAINERD"
    machine = find_machine(config.machine_type)
    config.disk_type = config.disk_type or (machine.boot_disk if machine else "pd-balanced")
    config.disk_size_gb = config.disk_size_gb or 100
    config.service_account = config.service_account or "default"
    if not config.oauth_scopes:
        config.oauth_scopes.extend(_SCOPES)
    config.metadata["disable-legacy-endpoints"] = "true"
    config.shielded_instance_config.enable_integrity_monitoring = True
    config.effective_cgroup_mode = 2  # EFFECTIVE_CGROUP_MODE_V2
    if not config.reservation_affinity.consume_reservation_type:
        config.reservation_affinity.consume_reservation_type = ReservationAffinity.Type.NO_RESERVATION
    if not config.HasField("workload_metadata_config"):
        modes = WorkloadMetadataConfig.Mode
        config.workload_metadata_config.mode = modes.GKE_METADATA if of_pods else modes.GCE_METADATA
    if machine and machine.resource:
        _taint(config, machine.resource, "present")
    if machine and machine.kind == "gpu" and not config.accelerators:
        config.accelerators.add(accelerator_type=machine.accelerator, accelerator_count=machine.chips)


def _taint(config: Any, key: str, value: str) -> None:
    if all(item.key != key for item in config.taints):
        config.taints.add(key=key, value=value, effect=NodeTaint.Effect.NO_SCHEDULE)


def pod_range_size(max_pods: int) -> int:
    """Return the prefix length of a node's pod range: twice the pods, rounded up to a power of two."""
    return 32 - math.ceil(math.log2(2 * max_pods))


def instance_groups(message: Any, target: Target) -> list[str]:
    """Return the URLs of a pool's managed instance groups, one per zone."""
    base = group_name(target)
    return [
        f"{COMPUTE}/projects/{target.project}/zones/{zone}/instanceGroupManagers/{base}" for zone in message.locations
    ]


def group_name(target: Target) -> str:
    """Return the name of a pool's instance groups, which is also the prefix of its instances' names."""
    return f"gke-{target.cluster[:20]}-{target.pool[:20]}-{digest(target.path)}-grp"


def digest(text: str) -> str:
    """Return eight hexadecimal digits for a name."""
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def number(path: str) -> str:
    """Return the numeric ID of a resource of Compute Engine."""
    return str(int(digest(path), 16))


def etag(message: Any) -> str:
    """Return the checksum of a cluster or node pool."""
    copy = type(message)()
    copy.CopyFrom(message)
    copy.etag = ""
    return hashlib.sha256(copy.SerializeToString(deterministic=True)).hexdigest()[:32]
