"""VPC networks, subnetworks and firewall rules: Compute Engine's checks before it creates or deletes them."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from typing import Any

from tools.gke_emulator.capacity import RESERVED_ADDRESSES
from tools.gke_emulator.machines import find_machine
from tools.gke_emulator.names import Target, region_of
from tools.gke_emulator.plane import Plane
from tools.gke_emulator.refusal import Refusal

Resource = dict[str, Any]
COLLECTIONS = ("networks", "subnetworks", "firewalls")
SECONDS = {"networks": 12.0, "subnetworks": 15.0, "firewalls": 8.0}  # emulated seconds of an operation on one
_MTU = range(1300, 8897)
# cloud.google.com/kubernetes-engine/docs/how-to/config-auto-net-for-accelerators
_MANAGED = ("a3-megagpu-8g", "a3-ultragpu-8g", "a4-highgpu-8g", "a4x-highgpu-4g", "ct6e-")
_NICS = {"a3-highgpu-8g": 4, "a3-megagpu-8g": 8, "a3-ultragpu-8g": 9, "a4-highgpu-8g": 9, "a4x-highgpu-4g": 5}


def check_insert(plane: Plane, project: str, collection: str, body: Resource, ready: dict[str, float]) -> None:
    """Reject an invalid resource. `ready`: when resources that are being created will exist."""
    plane.compute.check_quota(project, collection)
    if collection == "networks":
        if "autoCreateSubnetworks" not in body:
            raise Refusal.invalid("Invalid value for field 'resource': legacy networks cannot be made.")
        if body.get("mtu", 1460) not in _MTU:
            raise Refusal.invalid(f"Invalid value for field 'resource.mtu': '{body['mtu']}'.")
        return
    network = _path(body.get("network", ""))
    if network not in plane.store.compute:
        raise Refusal.invalid(f"Invalid value for field 'resource.network': '{network}'. The resource was not found.")
    if ready.get(network, 0.0) > plane.clock.now():
        raise Refusal.invalid(f"The resource '{network}' is not ready")
    if collection == "firewalls" and not (body.get("allowed") or body.get("denied")):
        raise Refusal.invalid("Required field 'resource.allowed' not specified.")
    if collection == "subnetworks":
        _check_block(plane, network, body)


def check_delete(plane: Plane, path: str) -> None:
    """Reject the deletion of a resource that others use."""
    for user in _users(plane, path):
        raise Refusal.invalid(f"The resource '{path}' is already being used by '{user}'")


def check_pool_networks(plane: Plane, target: Target, message: Any) -> None:
    """Reject a node pool whose data NICs cannot use the networks that it names or that GKE creates."""
    config, machine = message.network_config, message.config.machine_type
    several = list(config.additional_node_network_configs)
    if config.accelerator_network_profile:
        if config.accelerator_network_profile != "auto" or not machine.startswith(_MANAGED):
            raise Refusal.invalid(f"Accelerator network profile is not supported for machine type {machine}.")
        if several:
            raise Refusal.invalid("Accelerator network profile cannot be used with additional node networks.")
    if not several:
        return
    if not plane.store.clusters[target.of_cluster.path].network_config.enable_multi_networking:
        raise Refusal.invalid("Additional node networks need a cluster with multi-networking enabled.")
    known = find_machine(machine)
    if not message.config.gvnic.enabled or len(several) > _NICS.get(machine, 7 if known else 0):
        raise Refusal.invalid(f"Machine type {machine} cannot have {len(several)} additional node networks.")
    if len({item.network for item in several}) < len(several) and not machine.startswith(("a3-ultra", "a4")):
        raise Refusal.invalid("Each additional node network must be of a VPC network of its own.")
    for item in several:
        path = f"projects/{target.project}/regions/{region_of(target.location)}/subnetworks/{item.subnetwork}"
        subnetwork = plane.store.compute.get(path)
        if subnetwork is None or _path(subnetwork["network"]).rpartition("/")[2] != item.network:
            raise Refusal.invalid(f"Subnetwork '{item.subnetwork}' of network '{item.network}' was not found.")
        hosts = ipaddress.ip_network(subnetwork["ipCidrRange"]).num_addresses - RESERVED_ADDRESSES
        others = [pool for _, pool in _pools_on(plane, path)]
        if message.initial_node_count + sum(pool.size for pool in others if pool.message is not message) > hosts:
            raise Refusal.invalid(f"IP space of '{item.subnetwork}' is exhausted.")


def _check_block(plane: Plane, network: str, body: Resource) -> None:
    try:
        block = ipaddress.ip_network(body.get("ipCidrRange", ""))
    except ValueError as error:
        raise Refusal.invalid(f"Invalid value for field 'resource.ipCidrRange': {error}.") from error
    for path, other in plane.store.compute.items():
        same = "/subnetworks/" in path and _path(other["network"]) == network
        if same and block.overlaps(ipaddress.ip_network(other["ipCidrRange"])):
            raise Refusal.invalid(f"Invalid IPCidrRange: {block} conflicts with existing subnetwork '{other['name']}'.")


def _users(plane: Plane, path: str) -> Iterator[str]:
    if "/networks/" in path:
        for other, value in plane.store.compute.items():
            if other != path and "/operations/" not in other and _path(str(value.get("network", ""))) == path:
                yield other
    if "/subnetworks/" in path:
        yield from (pool for pool, _ in _pools_on(plane, path))


def _pools_on(plane: Plane, subnetwork: str) -> Iterator[tuple[str, Any]]:
    """Yield the node pools that have a NIC in a subnetwork."""
    words = subnetwork.split("/")
    for path, pool in plane.store.pools.items():
        config = pool.message.network_config
        names = [item.subnetwork for item in config.additional_node_network_configs]
        if path.startswith(f"projects/{words[1]}/locations/{words[3]}") and words[-1] in names:
            yield path, pool


def _path(link: str) -> str:
    """Return the path of a resource from its link."""
    return f"projects/{link.partition('projects/')[2]}" if "projects/" in link else link
