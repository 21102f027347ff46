"""GKE's checks before it creates a node pool."""

from __future__ import annotations

import math
from typing import Any

from tools.gke_emulator.capacity import reservation_of
from tools.gke_emulator.machines import Machine, check_topology, machine_of
from tools.gke_emulator.names import Target, region_of
from tools.gke_emulator.networks import check_pool_networks
from tools.gke_emulator.plane import Plane
from tools.gke_emulator.refusal import Refusal

_MOST_PODS = 256


def complete_topology(plane: Plane, target: Target, message: Any) -> None:
    """Set a slice's topology from its workload policy if the pool does not name it."""
    policy = message.placement_policy
    if policy.policy_name:
        resource = plane.store.compute.get(_policy_path(target, policy.policy_name), {})
        topology = resource.get("workloadPolicy", {}).get("acceleratorTopology", "")
        if topology and policy.tpu_topology not in ("", topology):
            raise Refusal.invalid(
                f'TPU topology "{policy.tpu_topology}" is not that of the workload policy, "{topology}".'
            )
        machine = machine_of(message.config.machine_type, message.locations[0])
        policy.tpu_topology = topology if machine.kind == "tpu" else policy.tpu_topology


def is_provision_only(plane: Plane, target: Target, message: Any) -> bool:
    """Return whether a pool's workload policy leaves the chips of its nodes unconnected."""
    path = _policy_path(target, message.placement_policy.policy_name)
    policy = plane.store.compute.get(path, {}).get("workloadPolicy", {})
    return str(policy.get("acceleratorTopologyMode", "")).upper() == "PROVISION_ONLY"


def check_pool(plane: Plane, target: Target, message: Any) -> None:
    """Reject an invalid node pool, new or changed. Raises Refusal: INVALID_ARGUMENT."""
    config, zones = message.config, plane.options.zones(region_of(target.location))
    for zone in message.locations:
        if zone not in zones:
            region = region_of(target.location)
            raise Refusal.invalid(f'Location "{zone}" does not exist or is not in region "{region}".')
    machine = machine_of(config.machine_type, message.locations[0])
    _check_size(plane, target, message)
    if not 8 <= message.max_pods_constraint.max_pods_per_node <= _MOST_PODS:
        raise Refusal.invalid(f"max_pods_per_node must be between 8 and {_MOST_PODS}.")
    if sum([config.spot, config.preemptible, config.flex_start]) > 1:
        raise Refusal.invalid("Only one of spot, preemptible and flex_start can be set.")
    if machine.policy and config.disk_type.startswith("pd-"):
        raise Refusal.invalid(f"{config.disk_type} disk type cannot be used by {machine.name} machine type.")
    _check_placement(plane, target, message, machine)
    _check_reservation(plane, target, message)
    check_pool_networks(plane, target, message)


def _check_size(plane: Plane, target: Target, message: Any) -> None:
    count, most = message.initial_node_count, plane.options.nodes_per_pool
    if count < 0:
        raise Refusal.invalid("NodePool.initial_node_count must be zero or greater.")
    if count > most:
        raise Refusal.invalid(f"A node pool cannot have more than {most} nodes in one zone.")
    others = plane.store.pools_of(target.of_cluster.path)
    nodes = count * len(message.locations) + sum(pool.size for path, pool in others.items() if path != target.path)
    if nodes > plane.options.nodes_per_cluster:
        raise Refusal.invalid(
            f'Cluster "{target.cluster}" cannot have more than {plane.options.nodes_per_cluster} nodes; '
            f"the request would give it {nodes}."
        )


def _check_placement(plane: Plane, target: Target, message: Any, machine: Machine) -> None:
    policy = message.placement_policy
    if policy.policy_name and _policy_path(target, policy.policy_name) not in plane.store.compute:
        path = _policy_path(target, policy.policy_name)
        raise Refusal.invalid(f"The resource policy '{path}' was not found.")
    if machine.kind != "tpu":
        if policy.tpu_topology:
            raise Refusal.invalid(f'TPU topology is not supported for machine type "{machine.name}".')
        return
    if len(message.locations) != 1:
        raise Refusal.invalid("TPU node pools must have exactly one location.")
    if not policy.tpu_topology:
        return
    check_topology(machine, policy.tpu_topology, message.initial_node_count)
    if is_provision_only(plane, target, message) and not reservation_of(message.config):
        raise Refusal.invalid("The accelerator topology mode PROVISION_ONLY requires a specific reservation.")
    several = math.prod(map(int, policy.tpu_topology.split("x"))) > machine.chips
    if machine.policy and several and not policy.policy_name:
        raise Refusal.invalid(
            f"Creation of a managed instance group with {machine.name} machine type with placement policy "
            "is not supported. Use workload policy instead."
        )


def _check_reservation(plane: Plane, target: Target, message: Any) -> None:
    values, zone = reservation_of(message.config), message.locations[0]
    if values and (message.config.spot or message.config.preemptible):
        raise Refusal.invalid("Spot VMs cannot consume reservations.")
    for value in values:
        if plane.capacity.reservation(value, target.project, zone) is None:
            raise Refusal.invalid(f"Reservation '{value}' was not found in zone '{zone}'.")


def _policy_path(target: Target, name: str) -> str:
    return f"projects/{target.project}/regions/{region_of(target.location)}/resourcePolicies/{name}"
