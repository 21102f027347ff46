"""Compute Engine's resources in a region, stored as the JSON of the REST API."""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Iterable
from typing import Any

from google.cloud.container_v1 import NodePool

from tools.gke_emulator import defaults
from tools.gke_emulator.capacity import Capacity, reservation_of
from tools.gke_emulator.clock import rfc3339
from tools.gke_emulator.machines import Machine, find_machine, known_machines
from tools.gke_emulator.names import COMPUTE, Target, region_of
from tools.gke_emulator.options import Options
from tools.gke_emulator.refusal import Refusal
from tools.gke_emulator.store import Pool, Store

Resource = dict[str, Any]
_METRICS = ("CPUS", "PREEMPTIBLE_CPUS", "N2_CPUS", "DISKS_TOTAL_GB", "SSD_TOTAL_GB", "IN_USE_ADDRESSES", "INSTANCES",
            "STATIC_ADDRESSES", "NVIDIA_L4_GPUS", "NVIDIA_A100_GPUS", "NVIDIA_A100_80GB_GPUS",
            "PREEMPTIBLE_NVIDIA_L4_GPUS", "PREEMPTIBLE_NVIDIA_A100_GPUS", "TPU_LITE_DEVICE_V5",
            "PREEMPTIBLE_TPU_LITE_DEVICE_V5", "TPU_LITE_PODSLICE_V5", "PREEMPTIBLE_TPU_LITE_PODSLICE_V5")  # fmt: skip


_PROJECT_METRICS = {"NETWORKS": "networks", "SUBNETWORKS": "subnetworks", "FIREWALLS": "firewalls"}


class Compute:
    """The resources of Compute Engine that node pools use."""

    def __init__(self, options: Options, store: Store, capacity: Capacity) -> None:
        self._options, self._store, self._capacity = options, store, capacity

    def region(self, project: str, name: str) -> Resource:
        """Return a region with its quotas."""
        if not self._options.zones(name):
            raise _missing(f"projects/{project}/regions/{name}")
        used = self._capacity.usage(project, name)
        own = {*_METRICS, *_PROJECT_METRICS}
        more = (item for item in self._options.quotas if ":" not in item and item not in own)
        metrics = [*_METRICS, *(item for item in more if not item.removeprefix("PREEMPTIBLE_").startswith("TPU_V"))]
        return _shown("compute#region", f"projects/{project}/regions/{name}") | {
            "name": name, "status": "UP",
            "zones": [f"{COMPUTE}/projects/{project}/zones/{zone}" for zone in self._options.zones(name)],
            "quotas": [{"metric": metric, "limit": self._capacity.limit(metric), "usage": float(used[metric])}
                       for metric in metrics],
        }  # fmt: skip

    def project(self, project: str) -> Resource:
        """Return a project with its quotas."""
        quotas = []
        for metric, kind in _PROJECT_METRICS.items():
            used = sum(f"/{kind}/" in path for path in self._store.compute if path.startswith(f"projects/{project}/"))
            quotas.append({"metric": metric, "limit": self._capacity.limit(metric), "usage": float(used)})
        return {"kind": "compute#project", "name": project, "quotas": quotas}

    def check_quota(self, project: str, collection: str) -> None:
        """Reject a network, subnetwork or firewall rule beyond a project's quota."""
        for quota in self.project(project)["quotas"]:
            if _PROJECT_METRICS[quota["metric"]] == collection and quota["usage"] >= quota["limit"]:
                text = f"Quota '{quota['metric']}' exceeded.  Limit: {quota['limit']:.1f} globally."
                raise Refusal("PERMISSION_DENIED", text)

    def quota_info(self, project: str, name: str) -> Resource:
        """Return a quota of the Cloud Quotas API, which has the quotas with dimensions."""
        metric = name.removesuffix("-per-project-region").replace("-", "_")
        dimensions_infos = []
        for region in self._options.locations:
            for key in self._options.quotas:
                plain, _, family = key.partition(":")
                if plain == metric:
                    word = "gpu_family" if metric.startswith("GPUS") else "tpu_family"
                    dimensions = {"region": region} | ({word: family} if family else {})
                    limit = self._capacity.limit(key)
                    dimensions_infos.append({"dimensions": dimensions, "details": {"value": str(int(limit))},
                                  "applicableLocations": [region]})  # fmt: skip
        return {
            "name": f"projects/{project}/locations/global/services/compute.googleapis.com/quotaInfos/{name}",
            "quotaId": name, "metric": f"compute.googleapis.com/{metric.lower()}", "service": "compute.googleapis.com",
            "isPrecise": True, "containerType": "PROJECT", "dimensionsInfos": dimensions_infos,
        }  # fmt: skip

    def zone(self, project: str, name: str) -> Resource:
        """Return a zone."""
        if name not in self._options.zones(region_of(name)):
            raise _missing(f"projects/{project}/zones/{name}")
        return _shown("compute#zone", f"projects/{project}/zones/{name}") | {
            "name": name, "status": "UP", "region": f"{COMPUTE}/projects/{project}/regions/{region_of(name)}",
        }  # fmt: skip

    def machine_type(self, project: str, zone: str, name: str) -> Resource:
        """Return a machine type."""
        machine = find_machine(name)
        if machine is None:
            raise _missing(f"projects/{project}/zones/{zone}/machineTypes/{name}")
        return _machine_type(project, zone, machine)

    def machine_types(self, project: str, zone: str) -> list[Resource]:
        """Return the machine types of a zone."""
        return [_machine_type(project, zone, machine) for machine in known_machines()]

    def reservation(self, path: str) -> Resource:
        """Return a reservation with its usage."""
        value: Resource = {**self.stored(path)}
        used = self._capacity.reserved_use(value["name"])
        if "specificReservation" in value:
            specific = value["specificReservation"]
            value["specificReservation"] = {**specific, "inUseCount": str(used), "assuredCount": specific["count"]}
        elif "aggregateReservation" in value:
            aggregate = value["aggregateReservation"]
            in_use = [{"accelerator": {**item["accelerator"], "acceleratorCount": 4 * used}}
                      for item in aggregate["reservedResources"] if "accelerator" in item]  # fmt: skip
            value["aggregateReservation"] = {**aggregate, "inUseResources": in_use}
        return value

    def stored(self, path: str) -> Resource:
        """Return a stored resource; reject a missing one."""
        if path not in self._store.compute:
            raise _missing(path)
        return self._store.compute[path]

    def under(self, path: str) -> list[str]:
        """Return the paths of the resources of a collection."""
        return [item for item in self._store.compute if item.rpartition("/")[0] == path]

    def put(self, path: str, kind: str, value: Resource) -> Resource:
        """Store a resource; its link, id and time are filled in."""
        whole = _shown(kind, path) | {"name": path.rpartition("/")[2]} | value
        self._store.put_compute(path, whole)
        return whole

    def drop(self, path: str) -> None:
        """Remove a resource."""
        self.stored(path)
        self._store.drop("compute", path)

    def network(self, project: str, path: str) -> str:
        """Return the path of a network; `default` and its auto-mode subnetworks are created on first use."""
        default = f"projects/{project}/global/networks/default"
        if default not in self._store.compute:
            self.put(default, "compute#network", {"autoCreateSubnetworks": True, "mtu": 1460,
                                                  "routingConfig": {"routingMode": "REGIONAL"}})  # fmt: skip
            for index, region in enumerate(self._options.locations):
                self.add_subnetwork(project, region, "default", default, f"10.{128 + 4 * index}.0.0/20")
        if path not in self._store.compute:
            raise Refusal.invalid(f'Network "{path.rpartition("/")[2]}" does not exist in project "{project}".')
        return path

    def subnetwork(self, project: str, path: str) -> Resource | None:
        """Return a subnetwork, or None if it does not exist."""
        self.network(project, f"projects/{project}/global/networks/default")
        return self._store.compute.get(path)

    def add_subnetwork(self, project: str, region: str, name: str, network: str, block: str) -> str:
        """Create a subnetwork; a block with only a size (/18) gets a free range. Return its path."""
        path = f"projects/{project}/regions/{region}/subnetworks/{name}"
        if block.startswith("/"):
            block = self._free_block(int(block[1:]))
        hosts = ipaddress.ip_network(block)
        self.put(path, "compute#subnetwork", {
            "network": f"{COMPUTE}/{network}", "region": f"{COMPUTE}/projects/{project}/regions/{region}",
            "ipCidrRange": str(hosts), "gatewayAddress": str(hosts[1]), "privateIpGoogleAccess": True,
            "secondaryIpRanges": [], "purpose": "PRIVATE", "stackType": "IPV4_ONLY",
        })  # fmt: skip
        return path

    def subnetwork_shown(self, path: str) -> Resource:
        """Return a subnetwork with the secondary ranges that GKE created in it."""
        value = {**self.stored(path)}
        ranges = list(value.get("secondaryIpRanges", []))
        for cluster in self._store.clusters.values():
            policy = cluster.ip_allocation_policy
            if cluster.network_config.subnetwork == path and policy.cluster_secondary_range_name:
                ranges.append(
                    {"rangeName": policy.cluster_secondary_range_name, "ipCidrRange": policy.cluster_ipv4_cidr_block}
                )
        return value | {"secondaryIpRanges": ranges}

    def group(self, project: str, zone: str, name: str) -> Resource:
        """Return the instances of a group, and the errors of those that are not created."""
        target, pool = self._pool_of(project, zone, name)
        running, size = len(pool.nodes), pool.size // max(1, len(pool.message.locations))
        failed = pool.message.status in (NodePool.Status.ERROR, NodePool.Status.RUNNING_WITH_ERROR)
        actions = dict.fromkeys(("abandoning", "deleting", "recreating", "refreshing", "restarting", "verifying"), 0)
        path = f"projects/{project}/zones/{zone}/instanceGroupManagers/{name}"
        return _shown("compute#instanceGroupManager", path) | {
            "name": name, "zone": f"{COMPUTE}/projects/{project}/zones/{zone}", "targetSize": size,
            "baseInstanceName": defaults.group_name(target).removesuffix("-grp"),
            "instanceGroup": f"{COMPUTE}/projects/{project}/zones/{zone}/instanceGroups/{name}",
            "status": {"isStable": running == size, "versionTarget": {"isReached": running == size}},
            "currentActions": actions | {"none": running, "creating": 0 if failed else max(0, size - running)},
        }  # fmt: skip

    def managed_instances(self, project: str, zone: str, name: str) -> list[Resource]:
        """Return the instances of a group, and what goes wrong with those that do not come up."""
        _, pool = self._pool_of(project, zone, name)
        base = f"{COMPUTE}/projects/{project}/zones/{zone}/instances"
        shown: list[Resource] = [
            {"instance": f"{base}/{item}", "name": item, "instanceStatus": "RUNNING", "currentAction": "NONE"}
            for item in pool.nodes
        ]
        for number in range(pool.size // max(1, len(pool.message.locations)) - len(pool.nodes)):
            errors = [
                {"code": "ZONE_RESOURCE_POOL_EXHAUSTED", "message": item.message} for item in pool.message.conditions
            ]
            attempt = {"lastAttempt": {"errors": {"errors": errors}}} if errors else {}
            shown.append({"instance": f"{base}/{name}-{number}", "currentAction": "CREATING"} | attempt)
        return shown

    def instances(self, project: str, zone: str) -> Iterable[Resource]:
        """Return the instances of the node pools of a zone."""
        for path, pool in self._store.pools.items():
            if path.startswith(f"projects/{project}/") and zone in pool.message.locations:
                for name in pool.nodes:
                    machine = (
                        f"{COMPUTE}/projects/{project}/zones/{zone}/machineTypes/{pool.message.config.machine_type}"
                    )
                    place = f"projects/{project}/zones/{zone}/instances/{name}"
                    yield _shown("compute#instance", place) | {
                        "name": name, "status": "RUNNING", "machineType": machine, "labels": {"goog-gke-node": ""},
                        "scheduling": {"provisioningModel": "SPOT" if pool.message.config.spot else "STANDARD"},
                        "reservationAffinity": {"values": reservation_of(pool.message.config)},
                    } | self._store.compute.get(place, {})  # fmt: skip

    def instance(self, project: str, zone: str, name: str) -> Resource:
        """Return an instance of a node pool."""
        instance = next((item for item in self.instances(project, zone) if item["name"] == name), None)
        if instance is None:
            raise _missing(f"projects/{project}/zones/{zone}/instances/{name}")
        return instance

    def set_instance(self, project: str, zone: str, name: str, **fields: str) -> str:
        """Change fields of an instance, such as its status; return its path."""
        self.instance(project, zone, name)
        path = f"projects/{project}/zones/{zone}/instances/{name}"
        self._store.put_compute(path, self._store.compute.get(path, {}) | fields)
        return path

    def forget_instances(self, project: str, zones: Iterable[str], names: Iterable[str]) -> None:
        """Discard changes of instances; later ones with these names are new."""
        paths = {f"projects/{project}/zones/{zone}/instances/{name}" for name in names for zone in zones}
        for path in paths & self._store.compute.keys():
            self._store.drop("compute", path)

    def _pool_of(self, project: str, zone: str, group: str) -> tuple[Target, Pool]:
        for path, pool in self._store.pools.items():
            words = path.split("/")
            target = Target(words[1], words[3], words[5], words[7])
            if words[1] == project and defaults.group_name(target) == group and zone in pool.message.locations:
                return target, pool
        raise _missing(f"projects/{project}/zones/{zone}/instanceGroupManagers/{group}")

    def _free_block(self, size: int) -> str:
        taken = [
            ipaddress.ip_network(item["ipCidrRange"]) for item in self._store.compute.values() if "ipCidrRange" in item
        ]
        for block in ipaddress.ip_network("10.0.0.0/10").subnets(new_prefix=size):
            if not any(block.overlaps(item) for item in taken):
                return str(block)
        raise Refusal.invalid(
            f"The network does not have available private IP space in 10.0.0.0/8 to reserve a /{size} block."
        )


def _shown(kind: str, path: str) -> Resource:
    return {"kind": kind, "id": defaults.number(path), "selfLink": f"{COMPUTE}/{path}",
            "creationTimestamp": rfc3339(time.time())}  # fmt: skip


def _missing(path: str) -> Refusal:
    return Refusal("NOT_FOUND", f"The resource '{path}' was not found")


def _machine_type(project: str, zone: str, machine: Machine) -> Resource:
    chips = {"accelerators": [{"guestAcceleratorCount": machine.chips, "guestAcceleratorType": machine.accelerator}]}
    path = f"projects/{project}/zones/{zone}/machineTypes/{machine.name}"
    return _shown("compute#machineType", path) | {
        "name": machine.name, "zone": zone, "guestCpus": machine.vcpus, "memoryMb": int(machine.memory_gib * 1024),
        "description": f"{machine.vcpus} vCPUs, {machine.memory_gib:g} GB RAM",
    } | (chips if machine.chips else {})  # fmt: skip
