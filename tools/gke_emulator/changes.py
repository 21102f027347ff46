"""Changes by UpdateCluster: one `desired_*` field at a time, as GKE requires."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from google.cloud.container_v1 import ReleaseChannel

from tools.gke_emulator.options import VERSIONS
from tools.gke_emulator.refusal import Refusal

# A field of ClusterUpdate and the field of Cluster that it replaces.
_MERGED = {
    "desired_addons_config": "addons_config",
    "desired_workload_identity_config": "workload_identity_config",
    "desired_cluster_autoscaling": "autoscaling",
    "desired_logging_config": "logging_config",
    "desired_monitoring_config": "monitoring_config",
    "desired_private_cluster_config": "private_cluster_config",
    "desired_vertical_pod_autoscaling": "vertical_pod_autoscaling",
    "desired_notification_config": "notification_config",
    "desired_control_plane_endpoints_config": "control_plane_endpoints_config",
    "desired_shielded_nodes": "shielded_nodes",
    "desired_binary_authorization": "binary_authorization",
    "desired_resource_usage_export_config": "resource_usage_export_config",
    "desired_authenticator_groups_config": "authenticator_groups_config",
    "desired_security_posture_config": "security_posture_config",
    "desired_fleet": "fleet",
    "desired_secret_manager_config": "secret_manager_config",
    "desired_managed_machine_learning_diagnostics_config": "managed_machine_learning_diagnostics_config",
    "gke_auto_upgrade_config": "gke_auto_upgrade_config",
}
_OF_NETWORK = {
    "desired_datapath_provider": "datapath_provider",
    "desired_dns_config": "dns_config",
    "desired_gateway_api_config": "gateway_api_config",
    "desired_enable_multi_networking": "enable_multi_networking",
    "desired_default_enable_private_nodes": "default_enable_private_nodes",
}


def change_cluster(message: Any, update: Any) -> None:
    """Execute an update.

    Raises Refusal: INVALID_ARGUMENT if it requests no change, more than one, or one that is not emulated.
    """
    asked = [field for field, _ in update.ListFields() if field.name != "etag"]
    if not asked:
        raise Refusal.invalid("Must specify a field to update.")
    if len(asked) > 1:
        names = ", ".join(field.name for field in asked)
        raise Refusal.invalid(f"Exactly one field must be updated at a time, but these were: {names}.")
    name, value = asked[0].name, getattr(update, asked[0].name)
    if special := _SPECIAL.get(name):
        special(message, value)
    elif name in _MERGED:
        getattr(message, _MERGED[name]).MergeFrom(value)
    elif name in _OF_NETWORK:
        _put(message.network_config, _OF_NETWORK[name], value)
    else:
        raise Refusal("UNIMPLEMENTED", f"the emulator cannot change {name}")


def _put(into: Any, name: str, value: Any) -> None:
    if hasattr(value, "ListFields"):
        getattr(into, name).MergeFrom(value)
    else:
        setattr(into, name, value)


def _master_version(message: Any, value: str) -> None:
    every = sorted({item for versions in VERSIONS.values() for item in versions})
    if value not in ("-", "latest") and value not in every:
        raise Refusal.invalid(f'Master version "{value}" is unsupported.')
    message.current_master_version = value if value in every else VERSIONS["REGULAR"][0]


def _release_channel(message: Any, value: Any) -> None:
    message.release_channel.CopyFrom(value)
    if not value.channel:
        message.release_channel.channel = ReleaseChannel.Channel.UNSPECIFIED


def _locations(message: Any, value: Any) -> None:
    del message.locations[:]
    message.locations.extend(value)


_SPECIAL: dict[str, Callable[[Any, Any], None]] = {
    "desired_master_version": _master_version,
    "desired_release_channel": _release_channel,
    "desired_locations": _locations,
}
