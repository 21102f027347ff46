"""Capacity of a project: quotas, stock, reservations and addresses, all counted from its node pools."""

from __future__ import annotations

import ipaddress
import math
from collections import Counter
from typing import Any

from google.cloud.container_v1 import NodePool, ReservationAffinity

from tools.gke_emulator.machines import find_machine, quota_metric
from tools.gke_emulator.names import Target, region_of
from tools.gke_emulator.operations import OperationError
from tools.gke_emulator.options import Options
from tools.gke_emulator.refusal import Refusal
from tools.gke_emulator.store import Pool, Store

PLENTY = 1e9
RESERVED_ADDRESSES = 4  # of each subnetwork, by Google
_NOW = ("CPUS", "SSD_TOTAL_GB", "IN_USE_ADDRESSES", "INSTANCES")  # GKE immediately rejects requests beyond these


class Capacity:
    """The limits of every project."""

    def __init__(self, options: Options, store: Store) -> None:
        self._options, self._store = options, store

    def limit(self, metric: str) -> float:
        """Return a quota, the same in each region."""
        return float(self._options.quotas.get(metric, PLENTY))

    def usage(self, project: str, region: str) -> Counter[str]:
        """Return the usage of a region's nodes, by quota metric."""
        used: Counter[str] = Counter()
        for path, pool in self._store.pools.items():
            target = _target(path)
            if target.project == project and region_of(target.location) == region:
                used.update({metric: item * len(pool.nodes) for metric, item in _per_node(pool.message).items()})
        return used

    def check_now(self, target: Target, message: Any, nodes: int) -> None:
        """Reject nodes beyond the quotas that GKE checks before an operation begins."""
        region = region_of(target.location)
        used = self.usage(target.project, region)
        # Nodes that other operations are creating count as well.
        for path, pool in self._store.pools.items():
            other = _target(path)
            if other.project == target.project and region_of(other.location) == region and _coming(pool):
                used.update(
                    {name: item * (pool.size - len(pool.nodes)) for name, item in _per_node(pool.message).items()}
                )
        for metric, item in _per_node(message).items():
            free = max(0.0, self.limit(metric) - used[metric])
            if metric in _NOW and item * nodes > free:
                raise Refusal(
                    "PERMISSION_DENIED",
                    f'Insufficient regional quota to satisfy request: resource "{metric}": request requires '
                    f"'{item * nodes:.1f}' and is short '{item * nodes - free:.1f}'. project has a quota of "
                    f"'{self.limit(metric):.1f}' with '{free:.1f}' available. View and manage quotas at "
                    f"https://console.cloud.google.com/iam-admin/quotas?usage=USED&project={target.project}.",
                )

    def take(self, path: str, pool: Pool, nodes: int) -> tuple[int, OperationError | None]:
        """Return how many of `nodes` more nodes are created, and the error of the others."""
        target, config = _target(path), pool.message.config
        machine = find_machine(config.machine_type)
        offers = [self._addresses(target, pool), self._stock(target, pool), self._reserved(target, pool)]
        if machine and machine.chips and not reservation_of(config):
            metric = quota_metric(machine, preemptible=config.spot or config.preemptible or config.flex_start)
            free = self.limit(metric) - self.usage(target.project, region_of(target.location))[metric]
            region = region_of(target.location)
            text = f"Quota '{metric.partition(':')[0]}' exceeded.  Limit: {self.limit(metric):.1f} in region {region}."
            offers.append((max(0, int(free // machine.chips)), self.exceeded(text)))
        able, error = min(offers, key=lambda offer: offer[0])
        if able >= nodes:
            return nodes, None
        return 0 if hosts_of(pool.message) > 1 else able, error

    def _addresses(self, target: Target, pool: Pool) -> tuple[int, OperationError]:
        network = pool.message.network_config
        subnetwork = self._store.compute.get(network.subnetwork, {})
        hosts = ipaddress.ip_network(subnetwork.get("ipCidrRange", "10.0.0.0/8")).num_addresses - RESERVED_ADDRESSES
        pods = ipaddress.ip_network(network.pod_ipv4_cidr_block or "10.0.0.0/8").num_addresses
        for path, other in self._store.pools.items():
            theirs = other.message.network_config
            if theirs.subnetwork == network.subnetwork:
                hosts -= len(other.nodes)
            # Pod ranges belong to a cluster, unless two were given the same secondary range.
            if theirs.pod_range == network.pod_range and _target(path).project == target.project:
                pods -= len(other.nodes) << (32 - other.message.pod_ipv4_cidr_size)
        pods >>= 32 - pool.message.pod_ipv4_cidr_size
        full = network.subnetwork if hosts <= pods else f"{network.subnetwork}-{network.pod_range}"
        text = f"[IP_SPACE_EXHAUSTED]: Instance creation failed: IP space of '{full}' is exhausted."
        return max(0, min(hosts, pods)), OperationError("RESOURCE_EXHAUSTED", text, [("UNKNOWN", "RESOURCE_EXHAUSTED")])

    def _stock(self, target: Target, pool: Pool) -> tuple[int, OperationError]:
        machine, zone = pool.message.config.machine_type, pool.message.locations[0]
        used = sum(
            len(item.nodes) for item in self._store.pools.values() if item.message.config.machine_type == machine
        )
        stock = self._options.stock.get(machine, int(PLENTY))
        return max(0, stock - used), self.stockout(target, zone)

    def _reserved(self, target: Target, pool: Pool) -> tuple[int, OperationError]:
        names = reservation_of(pool.message.config)
        free = int(PLENTY)
        for value in names:
            reservation = self.reservation(value, target.project, pool.message.locations[0])
            if reservation is None:
                free = 0
                break
            free = min(free, reserved_count(reservation) - self.reserved_use(reservation["name"]))
        text = f"Reservation '{', '.join(names)}' does not have enough resources available to fulfill the request."
        return max(0, free), OperationError("RESOURCE_EXHAUSTED", text, [("GCE_STOCKOUT", "RESOURCE_EXHAUSTED")])

    def reservation(self, value: str, project: str, zone: str) -> dict[str, Any] | None:
        """Return the reservation that an affinity names: R, or projects/P/reservations/R with or without blocks."""
        words = value.split("/")
        owner = words[1] if words[0] == "projects" else project
        name = words[words.index("reservations") + 1] if "reservations" in words else words[0]
        return self._store.compute.get(f"projects/{owner}/zones/{zone}/reservations/{name}")

    def reserved_use(self, name: str) -> int:
        """Return the number of instances that run in a reservation."""
        return sum(
            len(pool.nodes) for pool in self._store.pools.values()
            if any(_reservation_name(value) == name for value in reservation_of(pool.message.config))
        )  # fmt: skip

    def stockout(self, target: Target, zone: str, count: int = 1, running: int = 0) -> OperationError:
        """Return the error of an operation for which Compute Engine has no machines."""
        pool = self._store.pools.get(target.path)
        atomic = "Atomic resize failed with [GCE_STOCKOUT]: " if pool and hosts_of(pool.message) > 1 else ""
        text = (
            f"Google Compute Engine: Not all instances running in IGM after 18.4s. Expected {count}, "
            f"running {running}, transitioning {count - running}. Current errors: [GCE_STOCKOUT]: "
            f"Instance 'gke-{target.cluster}-{target.pool}' creation failed: {atomic}[ZONE_RESOURCE_POOL_EXHAUSTED] "
            f"The zone 'projects/{target.project}/zones/{zone}' does not have enough resources available "
            "to fulfill the request.  Try a different zone, or try again later."
        )
        return OperationError("RESOURCE_EXHAUSTED", text, [("GCE_STOCKOUT", "RESOURCE_EXHAUSTED")])

    def exceeded(self, text: str) -> OperationError:
        """Return the error of an operation stopped by a quota of Compute Engine."""
        message = f"Google Compute Engine: Not all instances running in IGM. Current errors: [QUOTA_EXCEEDED]: {text}"
        return OperationError("RESOURCE_EXHAUSTED", message, [("GCE_QUOTA_EXCEEDED", "RESOURCE_EXHAUSTED")])


def hosts_of(message: Any) -> int:
    """Return the hosts of a TPU slice, which is created atomically if there are several; 1 for any other pool."""
    machine, topology = find_machine(message.config.machine_type), message.placement_policy.tpu_topology
    if machine is None or machine.kind != "tpu" or not topology:
        return 1
    return math.prod(map(int, topology.split("x"))) // machine.chips


def reservation_of(config: Any) -> list[str]:
    """Return the reservations whose machines a node pool must use."""
    affinity = config.reservation_affinity
    specific = affinity.consume_reservation_type == ReservationAffinity.Type.SPECIFIC_RESERVATION
    return list(affinity.values) if specific else []


def reserved_count(reservation: dict[str, Any]) -> int:
    """Return the number of instances in a reservation."""
    if "specificReservation" in reservation:
        return int(reservation["specificReservation"]["count"])
    resources = reservation["aggregateReservation"]["reservedResources"]
    chips = sum(int(item["accelerator"]["acceleratorCount"]) for item in resources if "accelerator" in item)
    return chips // 4  # aggregates count chips; the hosts of slices have four


def _reservation_name(value: str) -> str:
    words = value.split("/")
    return words[words.index("reservations") + 1] if "reservations" in words else words[0]


def _coming(pool: Pool) -> bool:
    return pool.message.status in (NodePool.Status.PROVISIONING, NodePool.Status.RECONCILING)


def _target(path: str) -> Target:
    words = path.split("/")
    return Target(words[1], words[3], words[5], words[7])


def _per_node(message: Any) -> dict[str, float]:
    """Return the usage of one node of a pool against each quota."""
    config = message.config
    machine = find_machine(config.machine_type)
    counts = {"INSTANCES": 1.0}
    if machine and machine.kind != "tpu":
        counts["CPUS"] = float(machine.vcpus)
    if config.disk_type in ("pd-balanced", "pd-ssd"):
        counts["SSD_TOTAL_GB"] = float(config.disk_size_gb)
    if not message.network_config.enable_private_nodes:
        counts["IN_USE_ADDRESSES"] = 1.0
    if machine and machine.chips and not reservation_of(config):
        preemptible = config.spot or config.preemptible or config.flex_start
        counts[quota_metric(machine, preemptible=preemptible)] = float(machine.chips)
    return counts
