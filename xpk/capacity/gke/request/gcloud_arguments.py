"""gcloud arguments that users pass through, translated to the fields of GKE's API that gcloud would set.

Besides the arguments in the table, `field.path=VALUE` sets any field of the API's Cluster or NodePool.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from xpk.model.errors import UsageError

Dict = dict[str, Any]
Convert = Callable[[str], Any]

SCOPES = {
    "storage-full": ["devstorage.full_control"],
    "gke-default": [
        "devstorage.read_only", "logging.write", "monitoring", "service.management.readonly", "servicecontrol",
        "trace.append",
    ],
}  # fmt: skip
_AUTH = "https://www.googleapis.com/auth/"
_FIELD = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)+=.*", re.DOTALL)


def scopes(text: str) -> list[str]:
    """Return OAuth scopes for gcloud's short names, without duplicates."""
    names = [name for short in text.split(",") for name in SCOPES.get(short, [short])]
    full = [name if name.startswith("https://") else f"{_AUTH}{name}" for name in names]
    return list(dict.fromkeys(full))


def apply_cluster(body: Dict, arguments: Sequence[str]) -> None:
    """Set the fields of `--custom-cluster-arguments`. Raises UsageError for malformed values.

    Arguments about nodes apply to the default pool, as in gcloud.
    """
    pool = body["node_pools"][0]
    body["node_pool"] = pool
    _apply(body, arguments, _CLUSTER, "--custom-cluster-arguments")
    del body["node_pool"]


def default_nodes(arguments: Sequence[str], otherwise: int) -> int:
    """Return the number of nodes of the default pool, as the arguments set it. Raises UsageError as above."""
    pool: Dict = {"initial_node_count": otherwise}
    apply_cluster({"node_pools": [pool]}, arguments)
    count = pool["initial_node_count"]
    return count if isinstance(count, int) else otherwise


def apply_pool(body: Dict, arguments: Sequence[str]) -> None:
    """Set the fields of `--custom-nodepool-arguments`. Raises UsageError as above."""
    _apply(body, arguments, _POOL, "--custom-nodepool-arguments")


def put(body: Dict, path: str, value: Any) -> None:
    """Set a field by its path; append to lists, merge mappings. Raises ValueError for malformed values."""
    *parents, last = path.split(".")
    for name in parents:
        body = body.setdefault(name, {})
        if not isinstance(body, dict):
            raise ValueError(f"{name} has no fields that can be set")
    have = body.get(last)
    if have is not None and any(isinstance(have, kind) != isinstance(value, kind) for kind in (list, dict)):
        raise ValueError(f"{last} is {json.dumps(have)}: the value must be of the same form")
    if isinstance(value, list):
        body[last] = [*body.get(last, []), *(item for item in value if item not in body.get(last, []))]
    elif isinstance(value, dict):
        body[last] = {**body.get(last, {}), **value}
    else:
        body[last] = value


def _apply(body: Dict, arguments: Sequence[str], table: dict[str, tuple[str, Convert]], flag: str) -> None:
    problems = []
    for name, value in _pairs(arguments):
        if name in _NOTHING:
            continue
        try:
            if name in table:
                path, convert = table[name]
                put(body, path, convert(value))
            elif _is_field(name, value):
                put(body, name, _value(value))
        except ValueError as error:
            problems.append(f"{flag}: {name}={value}: {error}")
    if problems:
        raise UsageError(problems[0], problems=problems, hint="see `gcloud container clusters create --help`")


def unknown_arguments(cluster: Sequence[str], pool: Sequence[str]) -> list[str]:
    """Return unsupported arguments, one line for each flag that has some."""
    problems = []
    flags = (("--custom-cluster-arguments", cluster, _CLUSTER), ("--custom-nodepool-arguments", pool, _POOL))
    for flag, arguments, table in flags:
        names = [
            name
            for name, value in _pairs(arguments)
            if name not in table and name not in _NOTHING and not _is_field(name, value)
        ]
        if names:
            problems.append(
                f"{flag}: {', '.join(names)} {'is' if len(names) == 1 else 'are'} not supported; "
                "field.path=VALUE sets any field of GKE's API"
            )
    return problems


def _is_field(name: str, value: str) -> bool:
    """Return whether an argument sets a field of the API by its path."""
    return _FIELD.fullmatch(f"{name}={value}") is not None


def _pairs(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield flags with their values: `--a=b`, `--a b` and `--a`."""
    rest = list(reversed(arguments))
    while rest:
        name, equals, value = rest.pop().partition("=")
        if not equals and rest and not rest[-1].startswith("--") and not _FIELD.fullmatch(rest[-1]):
            value = rest.pop()
        yield name, value


def _yes(value: str) -> bool:
    if value not in ("", "true"):
        raise ValueError("takes no value")
    return True


def _no(value: str) -> bool:
    return not _yes(value)


def _const(constant: Any) -> Convert:
    return lambda value: constant


def _list(value: str) -> list[str]:
    return [part for part in value.split(",") if part]


def _labels(value: str) -> dict[str, str]:
    pairs = [pair.partition("=") for pair in _list(value)]
    if not all(equals for _, equals, _ in pairs):
        raise ValueError("is not KEY=VALUE,...")
    return {key: text for key, _, text in pairs}


def _taints(value: str) -> list[Dict]:
    taints = []
    for taint in _list(value):
        match = re.fullmatch(r"([^=]+)=([^:]*):(NoSchedule|NoExecute|PreferNoSchedule)", taint)
        if not match:
            raise ValueError("is not KEY=VALUE:EFFECT,...")
        effect = re.sub(r"(?<!^)(?=[A-Z])", "_", match[3]).upper()
        taints.append({"key": match[1], "value": match[2], "effect": effect})
    return taints


def _networks(value: str) -> list[Dict]:
    return [_labels(value)]


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _components(value: str) -> list[str]:
    """Return logging or monitoring components with the API's names."""
    names = {"SYSTEM": "SYSTEM_COMPONENTS", "WORKLOAD": "WORKLOADS"}
    return (
        []
        if value.upper() == "NONE"
        else [names.get(component.upper(), component.upper()) for component in _list(value)]
    )


def _size(value: str) -> int:
    return int(value.removesuffix("GB"))


def _upper(value: str) -> str:
    return value.upper().replace("-", "_")


# xpk sets these anyway.
_NOTHING = {"--enable-ip-alias", "--quiet", "--async", "--no-async", "--enable-gvnic", "--enable-dns-access"}
_CLUSTER: dict[str, tuple[str, Convert]] = {
    "--network": ("network", str),
    "--subnetwork": ("subnetwork", str),
    "--cluster-ipv4-cidr": ("ip_allocation_policy.cluster_ipv4_cidr_block", str),
    "--services-ipv4-cidr": ("ip_allocation_policy.services_ipv4_cidr_block", str),
    "--cluster-secondary-range-name": ("ip_allocation_policy.cluster_secondary_range_name", str),
    "--services-secondary-range-name": ("ip_allocation_policy.services_secondary_range_name", str),
    "--create-subnetwork": ("ip_allocation_policy.create_subnetwork", _const(True)),
    "--default-max-pods-per-node": ("default_max_pods_constraint.max_pods_per_node", int),
    "--max-pods-per-node": ("default_max_pods_constraint.max_pods_per_node", int),
    "--labels": ("resource_labels", _labels),
    "--master-ipv4-cidr": ("private_cluster_config.master_ipv4_cidr_block", str),
    "--enable-private-nodes": ("private_cluster_config.enable_private_nodes", _yes),
    "--enable-private-endpoint": ("private_cluster_config.enable_private_endpoint", _yes),
    "--enable-master-authorized-networks": ("master_authorized_networks_config.enabled", _yes),
    "--enable-master-global-access": ("private_cluster_config.master_global_access_config.enabled", _yes),
    "--workload-pool": ("workload_identity_config.workload_pool", str),
    "--enable-dataplane-v2": ("network_config.datapath_provider", _const("ADVANCED_DATAPATH")),
    "--enable-multi-networking": ("network_config.enable_multi_networking", _yes),
    "--no-enable-multi-networking": ("network_config.enable_multi_networking", _no),
    "--enable-intra-node-visibility": ("network_config.enable_intra_node_visibility", _yes),
    "--enable-l4-ilb-subsetting": ("network_config.enable_l4ilb_subsetting", _yes),
    "--enable-shielded-nodes": ("shielded_nodes.enabled", _yes),
    "--enable-vertical-pod-autoscaling": ("vertical_pod_autoscaling.enabled", _yes),
    "--enable-cost-allocation": ("cost_management_config.enabled", _yes),
    "--security-group": ("authenticator_groups_config.security_group", str),
    "--database-encryption-key": ("database_encryption.key_name", str),
    "--autoscaling-profile": ("autoscaling.autoscaling_profile", _upper),
    "--release-channel": ("release_channel.channel", _upper),
    "--cluster-version": ("initial_cluster_version", str),
    "--cluster-dns": ("network_config.dns_config.cluster_dns", _const("CLOUD_DNS")),
    "--cluster-dns-scope": ("network_config.dns_config.cluster_dns_scope", lambda v: f"{v.upper()}_SCOPE"),
    "--description": ("description", str),
    "--no-enable-master-authorized-networks": ("master_authorized_networks_config.enabled", _no),
    "--logging": ("logging_config.component_config.enable_components", _components),
    "--monitoring": ("monitoring_config.component_config.enable_components", _components),
    "--enable-managed-prometheus": ("monitoring_config.managed_prometheus_config.enabled", _yes),
    "--scopes": ("node_pool.config.oauth_scopes", scopes),
    "--machine-type": ("node_pool.config.machine_type", str),
    "--num-nodes": ("node_pool.initial_node_count", int),
    "--disk-size": ("node_pool.config.disk_size_gb", _size),
    "--disk-type": ("node_pool.config.disk_type", str),
    "--image-type": ("node_pool.config.image_type", str),
    "--service-account": ("node_pool.config.service_account", str),
    "--tags": ("node_pool.config.tags", _list),
    "--node-labels": ("node_pool.config.labels", _labels),
    "--node-taints": ("node_pool.config.taints", _taints),
    "--metadata": ("node_pool.config.metadata", _labels),
    "--enable-image-streaming": ("node_pool.config.gcfs_config.enabled", _yes),
    "--enable-autorepair": ("node_pool.management.auto_repair", _yes),
    "--enable-autoupgrade": ("node_pool.management.auto_upgrade", _yes),
    "--no-enable-autoupgrade": ("node_pool.management.auto_upgrade", _no),
    "--min-nodes": ("node_pool.autoscaling.min_node_count", int),
    "--max-nodes": ("node_pool.autoscaling.max_node_count", int),
    "--total-min-nodes": ("node_pool.autoscaling.total_min_node_count", int),
    "--total-max-nodes": ("node_pool.autoscaling.total_max_node_count", int),
}
_POOL: dict[str, tuple[str, Convert]] = {
    "--disk-size": ("config.disk_size_gb", _size),
    "--disk-type": ("config.disk_type", str),
    "--image-type": ("config.image_type", str),
    "--service-account": ("config.service_account", str),
    "--scopes": ("config.oauth_scopes", scopes),
    "--node-labels": ("config.labels", _labels),
    "--node-taints": ("config.taints", _taints),
    "--tags": ("config.tags", _list),
    "--labels": ("config.resource_labels", _labels),
    "--metadata": ("config.metadata", _labels),
    "--min-cpu-platform": ("config.min_cpu_platform", str),
    "--boot-disk-kms-key": ("config.boot_disk_kms_key", str),
    "--local-ssd-count": ("config.local_ssd_count", int),
    "--shielded-secure-boot": ("config.shielded_instance_config.enable_secure_boot", _yes),
    "--shielded-integrity-monitoring": ("config.shielded_instance_config.enable_integrity_monitoring", _yes),
    "--enable-image-streaming": ("config.gcfs_config.enabled", _yes),
    "--workload-metadata": ("config.workload_metadata_config.mode", str),
    "--max-run-duration": ("config.max_run_duration", str),
    "--max-pods-per-node": ("max_pods_constraint.max_pods_per_node", int),
    "--node-version": ("version", str),
    "--enable-autoupgrade": ("management.auto_upgrade", _yes),
    "--no-enable-autoupgrade": ("management.auto_upgrade", _no),
    "--enable-autorepair": ("management.auto_repair", _yes),
    "--no-enable-autorepair": ("management.auto_repair", _no),
    "--max-surge-upgrade": ("upgrade_settings.max_surge", int),
    "--max-unavailable-upgrade": ("upgrade_settings.max_unavailable", int),
    "--placement-policy": ("placement_policy.policy_name", str),
    "--enable-private-nodes": ("network_config.enable_private_nodes", _yes),
    "--no-enable-private-nodes": ("network_config.enable_private_nodes", _no),
    "--pod-ipv4-range": ("network_config.pod_range", str),
    "--accelerator-network-profile": ("network_config.accelerator_network_profile", str),
    "--additional-node-network": ("network_config.additional_node_network_configs", _networks),
    "--additional-pod-network": ("network_config.additional_pod_network_configs", _networks),
}
