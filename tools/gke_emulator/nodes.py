"""Node objects as GKE makes them: labels, taints, provider ID, and what a node offers.

Sources: "Plan GKE node sizes" (allocatable), "Deploy TPU workloads in GKE Standard" (TPU labels and taint), and for the
rest what users print with `kubectl describe node`.
"""

from __future__ import annotations

import hashlib
import ipaddress
import zlib
from typing import Any

from google.cloud.container_v1 import GPUDriverInstallationConfig, WorkloadMetadataConfig

from tools.gke_emulator import defaults
from tools.gke_emulator.capacity import reservation_of
from tools.gke_emulator.machines import Machine, machine_of
from tools.gke_emulator.names import Target, region_of

Node = dict[str, Any]
SYSTEM_POOL = "default-pool"
PARTITIONS = {"4x4x4": 16, "2x4x4": 8, "2x2x4": 4, "2x2x2": 2, "2x2x1": 1}  # of a cube: topology and hosts
_DISK_RESERVED = 0.1


def node_object(target: Target, pool: Any, name: str, zone: str, *, kwok: bool) -> Node:
    """Return the Node of one instance. `target` and `pool` are its node pool."""
    machine = machine_of(pool.config.machine_type, zone)
    offers, left = _offers(machine, pool)
    # KWOK would only emulate controllers, which need a real node.
    cordon = {"unschedulable": True} if kwok and target.pool == SYSTEM_POOL else {}
    instance = defaults.number(f"projects/{target.project}/zones/{zone}/instances/{name}")
    annotations = {"container.googleapis.com/instance_id": instance}
    annotations |= {"kwok.x-k8s.io/node": "fake"} if kwok else {}
    address = ipaddress.ip_address("10.0.0.0") + zlib.crc32(name.encode()) % (1 << 24)
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels(target, pool, machine, name, zone), "annotations": annotations},
        "spec": {"providerID": f"gce://{target.project}/{zone}/{name}", "taints": taints(pool)} | cordon,
        "status": {
            "capacity": offers,
            "allocatable": left,
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady",
                            "message": "kubelet is posting ready status"}],
            "addresses": [{"type": "InternalIP", "address": str(address)},
                          {"type": "Hostname", "address": name}],
            "nodeInfo": _node_info(pool, machine),
        },
    }  # fmt: skip


def labels(target: Target, pool: Any, machine: Machine, name: str, zone: str) -> dict[str, str]:
    """Return the labels of a node."""
    config, arm = pool.config, machine.family in ("a4x", "c4a", "t2a")
    own, region = "cloud.google.com", region_of(zone)
    labels_of_node = {
        "beta.kubernetes.io/arch": "arm64" if arm else "amd64", "kubernetes.io/arch": "arm64" if arm else "amd64",
        "beta.kubernetes.io/os": "linux", "kubernetes.io/os": "linux", "kubernetes.io/hostname": name,
        "beta.kubernetes.io/instance-type": machine.name, "node.kubernetes.io/instance-type": machine.name,
        "failure-domain.beta.kubernetes.io/region": region, "failure-domain.beta.kubernetes.io/zone": zone,
        "topology.kubernetes.io/region": region, "topology.kubernetes.io/zone": zone, "topology.gke.io/zone": zone,
        f"{own}/gke-nodepool": target.pool, f"{own}/gke-boot-disk": config.disk_type,
        f"{own}/gke-container-runtime": "containerd", f"{own}/gke-os-distribution": "cos",
        f"{own}/gke-stack-type": "IPV4", f"{own}/gke-cpu-scaling-level": str(machine.vcpus),
        f"{own}/gke-memory-gb-scaling-level": str(round(machine.memory_gib)), f"{own}/gke-logging-variant": "DEFAULT",
        f"{own}/gke-max-pods-per-node": str(pool.max_pods_constraint.max_pods_per_node),
        f"{own}/machine-family": machine.family, f"{own}/gke-provisioning": _provisioning(config),
        f"{own}/gke-netd-ready": "true",
        f"{own}/private-node": str(pool.network_config.enable_private_nodes).lower(),
    }  # fmt: skip
    if machine.kind == "tpu":
        labels_of_node[f"{own}/gke-tpu-accelerator"] = machine.accelerator
        labels_of_node[f"{own}/gke-tpu-topology"] = pool.placement_policy.tpu_topology or _alone(machine)
        labels_of_node[f"{own}/gke-accelerator-count"] = str(machine.chips)
    if machine.kind == "gpu":
        labels_of_node[f"{own}/gke-accelerator"] = machine.accelerator  # only Autopilot adds the number of GPUs
        labels_of_node[f"{own}/gke-gpu"] = "true"
        labels_of_node[f"{own}/gke-gpu-driver-version"] = _driver(config)
    if config.workload_metadata_config.mode == WorkloadMetadataConfig.Mode.GKE_METADATA:
        labels_of_node["iam.gke.io/gke-metadata-server-enabled"] = "true"
    if config.spot:
        labels_of_node[f"{own}/gke-spot"] = "true"
    if config.preemptible:
        labels_of_node[f"{own}/gke-preemptible"] = "true"
    if config.flex_start:
        labels_of_node[f"{own}/gke-flex-start"] = "true"
    if pool.queued_provisioning.enabled:
        labels_of_node[f"{own}/gke-queued"] = "true"
    if pool.placement_policy.policy_name:
        labels_of_node[f"{own}/placement-policy-name"] = pool.placement_policy.policy_name
    for value in reservation_of(config):
        words = value.split("/")
        labels_of_node[f"{own}/reservation-name"] = (
            words[words.index("reservations") + 1] if "reservations" in words else words[0]
        )
        labels_of_node[f"{own}/reservation-project"] = words[1] if words[0] == "projects" else target.project
        labels_of_node[f"{own}/reservation-affinity"] = "specific"
    return labels_of_node | dict(config.labels)


def as_cube(node: Node, pool: str, index: int) -> Node:
    """Return a node of a pool whose chips are connected only by Slice objects.

    It is labeled with its partitions and their states, and with no topology. `index`: of the node in the pool.
    """
    own, labels_of_node = "cloud.google.com", dict(node["metadata"]["labels"])
    labels_of_node.pop(f"{own}/gke-tpu-topology", None)
    reservation = labels_of_node.get(f"{own}/reservation-name", "")
    labels_of_node[f"{own}/gke-accelerator-topology-mode"] = "PROVISION_ONLY"
    labels_of_node[f"{own}/gce-topology-block"] = _hexadecimal(reservation)
    for topology, hosts in PARTITIONS.items():
        key = f"{own}/gke-tpu-partition-{topology}"
        labels_of_node[f"{key}-id"] = _hexadecimal(f"{pool}/{topology}/{index // hosts}")
        labels_of_node[f"{key}-state"] = "HEALTHY"
    return {**node, "metadata": {**node["metadata"], "labels": labels_of_node}}


def _hexadecimal(text: str) -> str:
    """Return an identifier of 32 digits, as GKE writes those of partitions."""
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()


def _provisioning(config: Any) -> str:
    return "spot" if config.spot else "preemptible" if config.preemptible else "standard"


def _driver(config: Any) -> str:
    versions = [item.gpu_driver_installation_config.gpu_driver_version for item in config.accelerators]
    latest = GPUDriverInstallationConfig.GPUDriverVersion.LATEST
    return "latest" if latest in versions else "default"


def taints(pool: Any) -> list[dict[str, str]]:
    """Return the taints of a node."""
    effects = {1: "NoSchedule", 2: "PreferNoSchedule", 3: "NoExecute"}
    return [{"key": item.key, "value": item.value, "effect": effects[item.effect]} for item in pool.config.taints]


def _alone(machine: Machine) -> str:
    """Return the topology of a single host."""
    sides = {1: "1x1", 2: "1x2", 4: "2x2", 8: "2x4"}[machine.chips]
    return f"{sides}x1" if machine.cuboid else sides


def _offers(machine: Machine, pool: Any) -> tuple[dict[str, str], dict[str, str]]:
    memory, disk = int(machine.memory_gib * 1024), pool.config.disk_size_gb * 1024
    pods = str(pool.max_pods_constraint.max_pods_per_node)
    capacity = {"cpu": str(machine.vcpus), "memory": f"{memory}Mi", "pods": pods, "ephemeral-storage": f"{disk}Mi"}
    allocatable = {
        "cpu": f"{machine.vcpus * 1000 - reserved_millicores(machine.vcpus)}m",
        "memory": f"{memory - reserved_memory(memory)}Mi", "pods": pods,
        "ephemeral-storage": f"{int(disk * (1 - _DISK_RESERVED))}Mi",
    }  # fmt: skip
    if machine.resource:
        capacity[machine.resource] = allocatable[machine.resource] = str(machine.chips)
    return capacity, allocatable


def reserved_millicores(vcpus: int) -> int:
    """Return the CPU that GKE reserves: 6 % of one CPU, 1 % of the next, 0.5 % of two more, 0.25 % of the rest."""
    return round(60 * min(vcpus, 1) + 10 * (vcpus > 1) + 5 * min(max(vcpus - 2, 0), 2) + 2.5 * max(vcpus - 4, 0))


def reserved_memory(mib: int) -> int:
    """Return the memory that GKE reserves in MiB: a decreasing share of each further part, and 100 for evictions."""
    kept, gib = 0.0, 1024
    for size, share in ((4 * gib, 0.25), (4 * gib, 0.2), (8 * gib, 0.1), (112 * gib, 0.06), (mib, 0.02)):
        part = min(mib, size)
        kept, mib = kept + part * share, mib - part
    return round(kept) + 100


def _node_info(pool: Any, machine: Machine) -> dict[str, str]:
    return {
        "architecture": "arm64" if machine.family == "a4x" else "amd64", "operatingSystem": "linux",
        "osImage": "Container-Optimized OS from Google", "kernelVersion": "6.12.0", "bootID": "", "machineID": "",
        "systemUUID": "", "containerRuntimeVersion": "containerd://2.0.0", "kubeProxyVersion": "",
        "kubeletVersion": f"v{pool.version}",
    }  # fmt: skip
