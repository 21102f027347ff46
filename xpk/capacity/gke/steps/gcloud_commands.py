"""gcloud commands equivalent to changes, to paste. A comment names the fields for which gcloud has no flag."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

from xpk.capacity.gke.planning.difference import Change
from xpk.capacity.gke.request.options import DRIVERS, region_of

_ADDONS = {field: addon for field, addon in DRIVERS.values()}
_PLAIN = {  # fields of a cluster or pool that map to one flag
    "initial_cluster_version": "--cluster-version",
    "version": "--node-version",
    "network": "--network",
    "subnetwork": "--subnetwork",
    "release_channel.channel": "--release-channel",
    "ip_allocation_policy.cluster_ipv4_cidr_block": "--cluster-ipv4-cidr",
    "ip_allocation_policy.services_ipv4_cidr_block": "--services-ipv4-cidr",
    "ip_allocation_policy.cluster_secondary_range_name": "--cluster-secondary-range-name",
    "ip_allocation_policy.services_secondary_range_name": "--services-secondary-range-name",
    "workload_identity_config.workload_pool": "--workload-pool",
    "private_cluster_config.private_endpoint_subnetwork": "--private-endpoint-subnetwork",
    "private_cluster_config.master_ipv4_cidr_block": "--master-ipv4-cidr",
    "initial_node_count": "--num-nodes",
    "config.machine_type": "--machine-type",
    "config.host_maintenance_policy.maintenance_interval": "--host-maintenance-interval",
    "config.disk_size_gb": "--disk-size",
    "config.disk_type": "--disk-type",
    "config.image_type": "--image-type",
    "config.service_account": "--service-account",
    "config.workload_metadata_config.mode": "--workload-metadata",
    "autoscaling.location_policy": "--location-policy",
    "autoscaling.autoscaling_profile": "--autoscaling-profile",
    "autoscaling.total_min_node_count": "--total-min-nodes",
    "autoscaling.total_max_node_count": "--total-max-nodes",
    "autoscaling.max_node_count": "--max-nodes",
    "max_pods_constraint.max_pods_per_node": "--max-pods-per-node",
    "default_max_pods_constraint.max_pods_per_node": "--default-max-pods-per-node",
    "placement_policy.type": "--placement-type",
    "placement_policy.tpu_topology": "--tpu-topology",
    "placement_policy.policy_name": "--placement-policy",
    "network_config.accelerator_network_profile": "--accelerator-network-profile",
}
_SWITCHES = {
    "ip_allocation_policy.use_ip_aliases": "--enable-ip-alias",
    "network_config.enable_multi_networking": "--enable-multi-networking",
    "private_cluster_config.enable_private_nodes": "--enable-private-nodes",
    "private_cluster_config.enable_private_endpoint": "--enable-private-endpoint",
    "private_cluster_config.master_global_access_config.enabled": "--enable-master-global-access",
    "control_plane_endpoints_config.dns_endpoint_config.allow_external_traffic": "--enable-dns-access",
    "control_plane_endpoints_config.ip_endpoints_config.authorized_networks_config.enabled": (
        "--enable-master-authorized-networks"
    ),
    "addons_config.lustre_csi_driver_config.enable_legacy_lustre_port": "--enable-legacy-lustre-port",
    "addons_config.slice_controller_config.enabled": "--enable-slice-controller",
    "autoscaling.enabled": "--enable-autoscaling",
    "autoscaling.enable_node_autoprovisioning": "--enable-autoprovisioning",
    "config.spot": "--spot",
    "config.flex_start": "--flex-start",
    "config.gvnic.enabled": "--enable-gvnic",
    "config.gcfs_config.enabled": "--enable-image-streaming",
    "queued_provisioning.enabled": "--enable-queued-provisioning",
    "management.auto_upgrade": "--enable-autoupgrade",
    "management.auto_repair": "--enable-autorepair",
}
# Fields that other flags or the command itself imply.
_ELSEWHERE = ("name", "locations", "node_pools", "config.reservation_affinity.", "autoscaling.", "network_config.dns",
              "network_config.datapath_provider", "network_config.additional_node_network",
              "ip_allocation_policy.", "addons_config.", "resource_labels.",
              "config.labels.", "config.oauth_scopes", "config.accelerators", "control_plane_endpoints_config.",
              "config.taints", "config.tags")  # fmt: skip


def commands_of(change: Change, project: str, location: str, cluster: str) -> tuple[str, ...]:
    """Return the commands of a change, as lines for a shell."""
    place = [f"--project={project}", f"--location={location}"]
    container, pool = ["gcloud", "beta", "container"], change.subject
    body = dict(change.body)
    if change.kind == "create-cluster":
        default = body["node_pools"][0]
        flags = [*_flags(body, body), *_flags(default, {})]
        line = [*container, "clusters", "create", cluster, *place, f"--node-locations={body['locations'][0]}", *flags]
        return (shlex.join(line), *_fields_without_flags(body))
    if change.kind == "create-pool":
        where = [f"--cluster={cluster}", *place, f"--node-locations={body['locations'][0]}"]
        return (
            shlex.join([*container, "node-pools", "create", pool, *where, *_flags(body, body)]),
            *_fields_without_flags(body),
        )
    if change.kind == "update-cluster":
        flags = _flags(body, body)
        return (shlex.join([*container, "clusters", "update", cluster, *place, *flags]), *_fields_without_flags(body))
    if change.kind == "update-pool":
        mode = body.get("workload_metadata_config", {}).get("mode")
        flags = [f"--workload-metadata={mode}"] if mode else []
        return (shlex.join([*container, "node-pools", "update", pool, f"--cluster={cluster}", *place, *flags]),)
    if change.kind == "delete-pool":
        return (shlex.join([*container, "node-pools", "delete", pool, f"--cluster={cluster}", *place, "--quiet"]),)
    if change.kind == "delete-cluster":
        return (shlex.join([*container, "clusters", "delete", cluster, *place, "--quiet"]),)
    if change.kind in ("create-network", "delete-network"):
        return _network_commands(change, project, location)
    if change.kind == "create-policy":
        policy = body["workloadPolicy"]
        flags = [f"--accelerator-topology={policy['acceleratorTopology']}"]
        if mode := policy.get("acceleratorTopologyMode"):
            flags.append(f"--accelerator-topology-mode={mode.lower()}")
        words = ["gcloud", "compute", "resource-policies", "create", "workload-policy", pool]
        words += [f"--project={project}", f"--region={location}", "--type=HIGH_THROUGHPUT"]
        return (shlex.join([*words, *flags]),)
    operation = str(body.get("name", "OPERATION"))
    return (shlex.join([*container, "operations", "wait", operation, *place]),)


def _flags(body: Mapping[str, Any], whole: Mapping[str, Any]) -> list[str]:
    flags = []
    for path, value in _leaves(body):
        if path in _PLAIN:
            text = str(value).lower() if path.endswith((".channel", "_profile")) else str(value)
            flags.append(f"{_PLAIN[path]}={text.replace('_', '-') if path.endswith('autoscaling_profile') else text}")
        elif path in _SWITCHES:
            flags.append(_SWITCHES[path] if value else _SWITCHES[path].replace("--enable", "--no-enable"))
    flags += _network_flags(whole) + _config_flags(body.get("config", {}))
    addons = [_ADDONS[name] for name, value in body.get("addons_config", {}).items() if name in _ADDONS and value]
    if addons:
        flags.append(f"--addons={','.join(addons)}")
    if labels := body.get("resource_labels"):
        flags.append(f"--labels={_pairs(labels)}")
    return list(dict.fromkeys(flags))


def _network_commands(change: Change, project: str, location: str) -> tuple[str, ...]:
    """Return the commands for a data network; deletion begins with the resources inside it."""
    compute, where = ["gcloud", "compute"], [f"--project={project}"]
    network, subnetwork, firewall = (change.body[part] for part in ("network", "subnetwork", "firewall"))
    verb = change.kind.partition("-")[0]
    lines = [
        [*compute, "networks", verb, network["name"], *where],
        [*compute, "networks", "subnets", verb, subnetwork["name"], *where, f"--region={region_of(location)}"],
        [*compute, "firewall-rules", verb, firewall["name"], *where],
    ]
    if verb == "delete":
        return tuple(shlex.join([*line, "--quiet"]) for line in reversed(lines))
    flags = [f"--network={network['name']}", f"--description={network['description']}"]
    lines[0] += ["--subnet-mode=custom", f"--mtu={network['mtu']}", flags[1]]
    lines[1] += [f"--range={subnetwork['ipCidrRange']}", *flags]
    lines[2] += [f"--source-ranges={firewall['sourceRanges'][0]}", "--action=ALLOW"]
    lines[2] += ["--rules=tcp:0-65535,udp:0-65535,icmp", *flags]
    return tuple(map(shlex.join, lines))


def _network_flags(body: Mapping[str, Any]) -> list[str]:
    flags = []
    network, policy = body.get("network_config", {}), body.get("ip_allocation_policy", {})
    if network.get("datapath_provider") == "ADVANCED_DATAPATH":
        flags.append("--enable-dataplane-v2")
    for config in network.get("additional_node_network_configs", []):
        flags.append(f"--additional-node-network=network={config['network']},subnetwork={config['subnetwork']}")
    if network.get("dns_config"):
        flags += ["--cluster-dns=clouddns", "--cluster-dns-scope=cluster"]
    if policy.get("create_subnetwork"):
        flags.append(f"--create-subnetwork=range={policy.get('node_ipv4_cidr_block', '')}")
    endpoints = body.get("control_plane_endpoints_config", {}).get("ip_endpoints_config", {})
    blocks = [block["cidr_block"] for block in endpoints.get("authorized_networks_config", {}).get("cidr_blocks", [])]
    if blocks:
        flags.append(f"--master-authorized-networks={','.join(blocks)}")
    if limits := body.get("autoscaling", {}).get("resource_limits"):
        for limit in limits:
            kind, maximum, minimum = limit["resource_type"], limit["maximum"], limit["minimum"]
            if kind in ("cpu", "memory"):
                flags += [f"--max-{kind}={maximum}", f"--min-{kind}={minimum}"]
            else:
                flags += [
                    f"--max-accelerator=type={kind},count={maximum}",
                    f"--min-accelerator=type={kind},count={minimum}",
                ]
    return flags


def _config_flags(config: Mapping[str, Any]) -> list[str]:
    flags = []
    affinity = config.get("reservation_affinity", {})
    if affinity.get("consume_reservation_type") == "NO_RESERVATION":
        flags.append("--reservation-affinity=none")
    elif values := affinity.get("values"):
        flags += ["--reservation-affinity=specific", f"--reservation={values[0]}"]
    if config.get("oauth_scopes"):
        flags.append(f"--scopes={','.join(config['oauth_scopes'])}")
    for gpu in config.get("accelerators", []):
        version = gpu.get("gpu_driver_installation_config", {}).get("gpu_driver_version", "default").lower()
        kind, count = gpu["accelerator_type"], gpu["accelerator_count"]
        flags.append(f"--accelerator=type={kind},count={count},gpu-driver-version={version}")
    if labels := config.get("labels"):
        flags.append(f"--node-labels={_pairs(labels)}")
    if config.get("tags"):
        flags.append(f"--tags={','.join(config['tags'])}")
    taints = [f"{taint['key']}={taint['value']}:{_effect(taint['effect'])}" for taint in config.get("taints", [])]
    if taints:
        flags.append(f"--node-taints={','.join(taints)}")
    return flags


def _fields_without_flags(body: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a comment with the fields that no flag of the command sets."""
    unmapped = [
        f"{path}={json.dumps(value)}"
        for path, value in _leaves(body)
        if path not in _PLAIN and path not in _SWITCHES and not path.startswith(_ELSEWHERE)
    ]
    return (f"# no flag sets: {' '.join(unmapped)}",) if unmapped else ()


def _leaves(body: Mapping[str, Any], before: str = "") -> list[tuple[str, Any]]:
    leaves = []
    for key, value in body.items():
        path = f"{before}{key}"
        leaves += _leaves(value, f"{path}.") if isinstance(value, Mapping) else [(path, value)]
    return leaves


def _pairs(labels: Mapping[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in labels.items())


def _effect(effect: str) -> str:
    return "".join(word.title() for word in effect.split("_"))
