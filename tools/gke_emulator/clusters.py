"""Clusters: their calls and operations."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from google.cloud import container_v1
from google.cloud.container_v1 import Cluster, NodePool, Operation, ReleaseChannel

from tools.gke_emulator import defaults
from tools.gke_emulator.changes import change_cluster
from tools.gke_emulator.names import Target, check_name, is_zone, region_of, target_of
from tools.gke_emulator.operations import OperationError
from tools.gke_emulator.options import VERSIONS
from tools.gke_emulator.plane import Plane
from tools.gke_emulator.pools import Pools
from tools.gke_emulator.refusal import Refusal, condition
from tools.gke_emulator.store import ClusterPb, Work

Status = Cluster.Status
Type = Operation.Type
ServerConfigPb: Any = container_v1.ServerConfig.pb()


class Clusters:
    """The calls of ClusterManager for clusters."""

    def __init__(self, plane: Plane, pools: Pools) -> None:
        self._plane, self._pools = plane, pools
        plane.operations.effects |= {
            Type.CREATE_CLUSTER: self._created, Type.DELETE_CLUSTER: self._deleted, Type.UPDATE_CLUSTER: self._updated,
            Type.UPGRADE_MASTER: self._updated,
        }  # fmt: skip
        plane.operations.failures |= dict.fromkeys((Type.CREATE_CLUSTER, Type.DELETE_CLUSTER), self._failed)

    def server_config(self, request: Any) -> Any:
        """Return the available versions."""
        self._check_location(target_of(request, "project", "location"))
        config = ServerConfigPb(default_cluster_version=VERSIONS["REGULAR"][0], default_image_type="COS_CONTAINERD")
        every = dict.fromkeys(version for versions in VERSIONS.values() for version in versions)
        newest_first = sorted(
            every, key=lambda version: [int(part) for part in version.replace("-gke.", ".").split(".")], reverse=True
        )
        config.valid_master_versions.extend(newest_first)
        config.valid_node_versions.extend(newest_first)
        config.valid_image_types.extend(["COS_CONTAINERD", "UBUNTU_CONTAINERD", "WINDOWS_LTSC_CONTAINERD"])
        for name, versions in VERSIONS.items():
            config.channels.add(
                channel=getattr(ReleaseChannel.Channel, name), default_version=versions[0], valid_versions=versions,
                upgrade_target_version=versions[0],
            )  # fmt: skip
        return config

    def list(self, request: Any) -> list[Any]:
        """Return the clusters of a location, or all for `-`."""
        target = target_of(request, "project", "location")
        if target.location != "-":
            self._check_location(target)
        before = f"projects/{target.project}/locations/" + ("" if target.location == "-" else f"{target.location}/")
        return [self._shown(path) for path in self._plane.store.clusters if path.startswith(before)]

    def get(self, request: Any) -> Any:
        """Return a cluster with its node pools."""
        target = target_of(request, "project", "location", "cluster")
        self._plane.cluster(target)
        return self._shown(target.path)

    def create(self, request: Any) -> Any:
        """Start to create a cluster with the node pools of the request."""
        target = target_of(request, "project", "location")
        body = request.cluster
        if not body.name:
            raise Refusal.invalid("Cluster.name must be specified.")
        if body.autopilot.enabled:
            raise Refusal("UNIMPLEMENTED", "the emulator has no Autopilot")
        check_name("cluster", body.name)
        self._check_location(target)
        target = replace(target, cluster=body.name)
        if target.path in self._plane.store.clusters:
            raise Refusal.exists(target.path)
        message = ClusterPb()
        message.CopyFrom(body)
        pools = _pools_of(message)
        del message.node_pools[:]
        defaults.fill_cluster(message, target, self._plane.options, self._plane.clock.now())
        self._check_network(target, message)
        self._plane.operations.check(Type.CREATE_CLUSTER, target)
        prepared = []
        for pool in pools:
            place = replace(target, pool=pool.name)
            prepared.append((place, self._pools.prepare(place, pool, message)))
        self._make_subnetwork(target, message)
        for place, item in prepared:
            self._plane.store.put_pool(place.path, item)
        self._keep(target.path, message)
        return self._plane.operations.begin(Type.CREATE_CLUSTER, target, sum(pool.size for _, pool in prepared))

    def update(self, request: Any) -> Any:
        """Start one change of a cluster."""
        target = target_of(request, "project", "location", "cluster")
        message = self._plane.cluster(target)
        if request.update.etag and request.update.etag != message.etag:
            raise Refusal("ABORTED", "The etag of the cluster does not match the one in the request.")
        kind = Type.UPGRADE_MASTER if request.update.desired_master_version else Type.UPDATE_CLUSTER
        self._plane.operations.check(kind, target)
        changed = ClusterPb()
        changed.CopyFrom(message)
        change_cluster(changed, request.update)
        changed.status = Status.RECONCILING
        self._keep(target.path, changed)
        return self._plane.operations.begin(kind, target)

    def delete(self, request: Any) -> Any:
        """Start to delete a cluster and its node pools."""
        target = target_of(request, "project", "location", "cluster")
        message = self._plane.cluster(target)
        self._plane.operations.check(Type.DELETE_CLUSTER, target)
        nodes = 0
        for path, pool in self._plane.store.pools_of(target.path).items():
            nodes += len(pool.nodes)
            pool.message.status = NodePool.Status.STOPPING
            self._plane.store.put_pool(path, pool)
        message.status = Status.STOPPING
        self._keep(target.path, message)
        return self._plane.operations.begin(Type.DELETE_CLUSTER, target, nodes)

    def _shown(self, path: str) -> Any:
        message = ClusterPb()
        message.CopyFrom(self._plane.store.clusters[path])
        for pool in self._plane.store.pools_of(path).values():
            message.node_pools.add().CopyFrom(pool.message)
            message.instance_group_urls.extend(pool.message.instance_group_urls)
            message.current_node_count += len(pool.nodes)
        if message.status == Status.RUNNING and self._plane.operations.running_on(path):
            message.status = Status.RECONCILING
        if message.node_pools:
            message.node_config.CopyFrom(message.node_pools[0].config)
        return message

    def _keep(self, path: str, message: Any) -> None:
        message.etag = defaults.etag(message)
        self._plane.store.put_cluster(path, message)

    def _created(self, work: Work) -> None:
        path = work.args["path"]
        for pool in list(self._plane.store.pools_of(path)):
            try:
                self._pools.make(pool, {})
            except OperationError as error:
                self._pools.finish(pool, error)
                raise
            self._pools.finish(pool)
        with self._plane.store.lock:
            message = self._plane.store.clusters[path]
            defaults.give_endpoint(message, self._plane.nodes.server, self._plane.nodes.authority)
            message.status = Status.RUNNING
            self._keep(path, message)

    def _updated(self, work: Work) -> None:
        with self._plane.store.lock:
            message = self._plane.store.clusters[work.args["path"]]
            message.status = Status.RUNNING
            self._keep(work.args["path"], message)

    def _deleted(self, work: Work) -> None:
        path = work.args["path"]
        for pool in list(self._plane.store.pools_of(path)):
            self._pools.remove(pool)
        with self._plane.store.lock:
            for pool in list(self._plane.store.pools_of(path)):
                self._plane.store.drop("pool", pool)
            message = self._plane.store.clusters.get(path)  # None: already deleted before the emulator was killed
            if message is not None and message.ip_allocation_policy.create_subnetwork:
                self._plane.store.drop("compute", message.network_config.subnetwork)
            self._plane.store.drop("cluster", path)

    def _failed(self, work: Work, error: OperationError) -> None:
        message = self._plane.store.clusters[work.args["path"]]
        message.status, message.status_message = Status.ERROR, error.message
        message.conditions.extend(condition(code, name, error.message) for code, name in error.conditions)
        self._keep(work.args["path"], message)

    def _check_location(self, target: Target) -> None:
        zones = self._plane.options.zones(region_of(target.location))
        if target.location not in zones and (is_zone(target.location) or not zones):
            raise Refusal.invalid(f'Location "{target.location}" does not exist.')

    def _check_network(self, target: Target, message: Any) -> None:
        compute, policy = self._plane.compute, message.ip_allocation_policy
        compute.network(target.project, message.network_config.network)
        if policy.create_subnetwork:
            name = policy.subnetwork_name or f"gke-{message.name[:20]}-subnet-{message.id[:8]}"
            path = f"projects/{target.project}/regions/{region_of(target.location)}/subnetworks/{name}"
            message.subnetwork, message.network_config.subnetwork = name, path
        elif compute.subnetwork(target.project, message.network_config.subnetwork) is None:
            where = region_of(target.location)
            raise Refusal.invalid(f'Subnetwork "{message.subnetwork}" not found in region "{where}".')

    def _make_subnetwork(self, target: Target, message: Any) -> None:
        policy, network = message.ip_allocation_policy, message.network_config.network
        if policy.create_subnetwork:
            block = policy.node_ipv4_cidr_block or "/20"
            region = region_of(target.location)
            self._plane.compute.add_subnetwork(target.project, region, message.subnetwork, network, block)


def _pools_of(message: Any) -> list[Any]:
    """Return the pools of a request to create a cluster; the deprecated fields define one called default-pool."""
    pools = [pool for pool in message.node_pools]
    if pools and (message.initial_node_count or message.HasField("node_config")):
        raise Refusal.invalid(
            "Cluster.initial_node_count and Cluster.node_config must not be set with Cluster.node_pools."
        )
    if not pools:
        if message.initial_node_count <= 0:
            raise Refusal.invalid("Cluster.initial_node_count must be greater than zero.")
        pool = NodePool.pb()(name="default-pool", initial_node_count=message.initial_node_count)
        pool.config.CopyFrom(message.node_config)
        pools = [pool]
    names = [pool.name for pool in pools]
    if len(set(names)) != len(names):
        raise Refusal.invalid("Node pool names must be unique.")
    return pools
