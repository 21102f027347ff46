"""Node pools: their calls and operations."""

from __future__ import annotations

import random
import string
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from google.cloud.container_v1 import Cluster, NodePool, Operation

from tools.gke_emulator import defaults
from tools.gke_emulator.capacity import hosts_of
from tools.gke_emulator.checks import check_pool, complete_topology, is_provision_only
from tools.gke_emulator.names import Target, check_name, region_of, target_of
from tools.gke_emulator.operations import OperationError
from tools.gke_emulator.plane import Plane
from tools.gke_emulator.refusal import Refusal, condition
from tools.gke_emulator.store import Pool, PoolPb, Work

Status = NodePool.Status
Type = Operation.Type
_UPDATES = ("workload_metadata_config", "upgrade_settings", "tags", "taints", "labels", "image_type",
            "linux_node_config", "kubelet_config", "gcfs_config", "gvnic", "fast_socket", "logging_config", "disk_type",
            "resource_labels", "machine_type", "disk_size_gb", "accelerators", "queued_provisioning", "flex_start",
            "max_run_duration", "node_drain_config", "boot_disk", "containerd_config")  # fmt: skip
_NAMES = ("name", "project_id", "zone", "cluster_id", "node_pool_id", "etag", "node_version")
_RANDOM = random.Random()
_OF_POOL = ("upgrade_settings", "queued_provisioning", "node_drain_config")


class Pools:
    """The calls of ClusterManager for node pools."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane
        plane.operations.effects |= {
            Type.CREATE_NODE_POOL: self._create_nodes, Type.DELETE_NODE_POOL: self._delete_nodes,
            Type.SET_NODE_POOL_SIZE: self._resize_nodes, Type.UPGRADE_NODES: self._settle,
            Type.SET_NODE_POOL_MANAGEMENT: self._settle,
        }  # fmt: skip
        plane.operations.failures |= {
            Type.CREATE_NODE_POOL: self._failed, Type.SET_NODE_POOL_SIZE: self._failed,
            Type.DELETE_NODE_POOL: self._failed, Type.UPGRADE_NODES: self._failed,
        }  # fmt: skip

    def list(self, request: Any) -> list[Any]:
        """Return the node pools of a cluster."""
        target = target_of(request, "project", "location", "cluster")
        self._plane.cluster(target)
        return [pool.message for pool in self._plane.store.pools_of(target.path).values()]

    def get(self, request: Any) -> Any:
        """Return a node pool."""
        return self._pool(target_of(request, "project", "location", "cluster", "pool")).message

    def create(self, request: Any) -> Any:
        """Start to create a node pool."""
        target = target_of(request, "project", "location", "cluster")
        if not request.node_pool.name:
            raise Refusal.invalid("NodePool.name must be specified.")
        target = replace(target, pool=request.node_pool.name)
        cluster = self._plane.cluster(target)
        if target.path in self._plane.store.pools:
            raise Refusal.exists(target.path)
        self._plane.operations.check(Type.CREATE_NODE_POOL, target)
        if cluster.status not in (Cluster.Status.RUNNING, Cluster.Status.DEGRADED):
            raise Refusal.precondition(f"Cluster {target.cluster} is in state {Cluster.Status(cluster.status).name}.")
        pool = self.prepare(target, request.node_pool, cluster)
        return self.begin(target, pool)

    def prepare(self, target: Target, body: Any, cluster: Any) -> Pool:
        """Check and complete a requested node pool without storing it."""
        check_name("node_pool", target.pool)
        message = PoolPb()
        message.CopyFrom(body)
        defaults.fill_pool(message, target, cluster)
        pool = Pool(message, size=message.initial_node_count * len(message.locations))
        complete_topology(self._plane, target, message)
        check_pool(self._plane, target, message)
        self._plane.capacity.check_now(target, message, pool.size)
        return pool

    def begin(self, target: Target, pool: Pool) -> Any:
        """Store a prepared node pool and start the operation that creates its nodes."""
        self._plane.store.put_pool(target.path, pool)
        fault = self._plane.faults.pool(target.pool)
        args = {"fault": fault.outcome, "come_up": fault.nodes} if fault else {}
        never = fault is not None and fault.outcome == "never"
        return self._plane.operations.begin(Type.CREATE_NODE_POOL, target, pool.size, never=never, **args)

    def delete(self, request: Any) -> Any:
        """Start to delete a node pool."""
        target = target_of(request, "project", "location", "cluster", "pool")
        pool = self._pool(target)
        self._plane.operations.check(Type.DELETE_NODE_POOL, target)
        self._set(target.path, pool, Status.STOPPING)
        return self._plane.operations.begin(Type.DELETE_NODE_POOL, target, len(pool.nodes))

    def update(self, request: Any) -> Any:
        """Start to change a node pool; its nodes are recreated, which GKE calls an upgrade."""
        target = target_of(request, "project", "location", "cluster", "pool")
        pool = self._pool(target)
        if request.etag and request.etag != pool.message.etag:
            raise Refusal("ABORTED", "The etag of the node pool does not match the one in the request.")
        self._plane.operations.check(Type.UPGRADE_NODES, target)
        changed = PoolPb()
        changed.CopyFrom(pool.message)
        self._change(changed, request)
        check_pool(self._plane, target, changed)
        pool.message.CopyFrom(changed)
        self._set(target.path, pool, Status.RECONCILING)
        return self._plane.operations.begin(Type.UPGRADE_NODES, target, len(pool.nodes))

    def set_size(self, request: Any) -> Any:
        """Start to change the number of nodes of a pool in each zone."""
        target = target_of(request, "project", "location", "cluster", "pool")
        pool = self._pool(target)
        self._plane.operations.check(Type.SET_NODE_POOL_SIZE, target)
        size = request.node_count * len(pool.message.locations)
        if request.node_count < 0:
            raise Refusal.invalid("node_count must be zero or greater.")
        if (hosts := hosts_of(pool.message)) > 1 and size not in (0, hosts):
            raise Refusal.invalid("A multi-host TPU slice node pool can only be resized to zero or to its full size.")
        self._plane.capacity.check_now(target, pool.message, max(0, size - len(pool.nodes)))
        change = abs(size - len(pool.nodes))
        pool.size = size
        self._set(target.path, pool, Status.RECONCILING)
        fault = self._plane.faults.pool(target.pool) if size > len(pool.nodes) else None
        args = {"fault": fault.outcome, "come_up": fault.nodes} if fault else {}
        never = fault is not None and fault.outcome == "never"
        return self._plane.operations.begin(Type.SET_NODE_POOL_SIZE, target, change, never=never, **args)

    def set_autoscaling(self, request: Any) -> Any:
        """Start to change a node pool's autoscaling."""
        return self._copy(request, "autoscaling")

    def set_management(self, request: Any) -> Any:
        """Start to change a node pool's automatic repairs and upgrades."""
        return self._copy(request, "management")

    def _copy(self, request: Any, field: str) -> Any:
        target = target_of(request, "project", "location", "cluster", "pool")
        pool = self._pool(target)
        self._plane.operations.check(Type.SET_NODE_POOL_MANAGEMENT, target)
        getattr(pool.message, field).CopyFrom(getattr(request, field))
        self._set(target.path, pool, pool.message.status)
        return self._plane.operations.begin(Type.SET_NODE_POOL_MANAGEMENT, target)

    def make(self, path: str, args: dict[str, Any]) -> None:
        """Create a pool's missing nodes. Raises OperationError if not all are created; existing ones stay."""
        plane = self._plane
        with plane.store.lock:
            pool = plane.store.pools[path]
            missing = pool.size - len(pool.nodes)
            target = _target(path)
            able, error = (
                _faulty(plane, target, pool, args) if "fault" in args else plane.capacity.take(path, pool, missing)
            )
            pool.nodes.extend(new_node_names(target, pool.message, min(able, missing), pool.nodes))
            plane.store.put_pool(path, pool)
            everyone = list(pool.nodes)
        # Includes existing nodes, because an interrupted operation is repeated from the start.
        self._register(target, pool.message, everyone)
        if error is not None:
            raise error

    def remove(self, path: str, keep: int = 0) -> None:
        """Delete nodes of a pool except the first `keep`. A missing pool is not an error: see `make`."""
        if (pool := self._plane.store.pools.get(path)) is None:
            return
        self._plane.nodes.remove(_target(path), pool.nodes[keep:])
        with self._plane.store.lock:
            self._plane.compute.forget_instances(_target(path).project, pool.message.locations, pool.nodes[keep:])
            del pool.nodes[keep:]
            self._plane.store.put_pool(path, pool)

    def finish(self, path: str, error: OperationError | None = None) -> None:
        """Set the status of a pool after its nodes are created, or have failed."""
        with self._plane.store.lock:
            if (pool := self._plane.store.pools.get(path)) is None:
                return
            message = pool.message
            del message.conditions[:]
            message.status_message = error.message if error else ""
            if error:
                message.conditions.extend(condition(code, name, error.message) for code, name in error.conditions)
            was_made = message.status not in (Status.PROVISIONING, Status.STOPPING)
            failed = Status.RUNNING_WITH_ERROR if was_made else Status.ERROR
            self._set(path, pool, failed if error else Status.RUNNING)

    def _create_nodes(self, work: Work) -> None:
        self.make(work.args["path"], work.args)
        self.finish(work.args["path"])

    def _delete_nodes(self, work: Work) -> None:
        self.remove(work.args["path"])
        with self._plane.store.lock:
            self._plane.store.drop("pool", work.args["path"])

    def _resize_nodes(self, work: Work) -> None:
        path = work.args["path"]
        pool = self._plane.store.pools[path]
        if pool.size < len(pool.nodes):
            self.remove(path, pool.size)
        else:
            self.make(path, work.args)
        self.finish(path)

    def _settle(self, work: Work) -> None:
        pool = self._plane.store.pools[work.args["path"]]
        if work.message.operation_type == Type.UPGRADE_NODES:
            self._register(_target(work.args["path"]), pool.message, list(pool.nodes))
            self.finish(work.args["path"])

    def _register(self, target: Target, message: Any, nodes: Sequence[str]) -> None:
        """Ensure that a pool's nodes exist in the API server of its cluster."""
        cluster = self._plane.store.clusters[target.of_cluster.path]
        cubes = is_provision_only(self._plane, target, message)
        self._plane.nodes.add(cluster, target, message, [*nodes], provision_only=cubes)

    def _failed(self, work: Work, error: OperationError) -> None:
        self.finish(work.args["path"], error)

    def _pool(self, target: Target) -> Pool:
        self._plane.cluster(target)
        pool = self._plane.store.pools.get(target.path)
        if pool is None:
            raise Refusal.not_found(target.path)
        return pool

    def _set(self, path: str, pool: Pool, status: int) -> None:
        pool.message.status = status
        pool.message.etag = defaults.etag(pool.message)
        self._plane.store.put_pool(path, pool)

    def _change(self, message: Any, request: Any) -> None:
        for field, _ in request.ListFields():
            if field.name not in (*_UPDATES, *_NAMES):
                raise Refusal("UNIMPLEMENTED", f"the emulator cannot change {field.name} of a node pool")
        for name in _UPDATES:
            value = getattr(request, name)
            into = message if name in _OF_POOL else message.config
            if name in ("taints", "labels", "tags", "resource_labels"):
                if request.HasField(name):  # these are wrapped, so that they can be cleared
                    inner = value.ListFields()
                    into.ClearField(name)
                    for _, content in inner:
                        _put(into, name, content)
            elif name == "accelerators":
                if len(value):
                    into.ClearField(name)
                    getattr(into, name).extend(value)
            elif isinstance(value, str | int | bool):
                if value:
                    setattr(into, name, value)
            elif request.HasField(name):
                getattr(into, name).CopyFrom(value)
        if request.node_version not in ("", "-"):
            defaults.check_node_version(request.node_version)
            message.version = request.node_version


def _faulty(plane: Plane, target: Target, pool: Pool, args: dict[str, Any]) -> tuple[int, OperationError | None]:
    outcome, zone = args["fault"], pool.message.locations[0]
    if outcome == "partial":
        return args["come_up"], plane.capacity.stockout(target, zone, pool.size, args["come_up"])
    if outcome == "quota":
        return 0, plane.capacity.exceeded(
            f"Quota 'TPUS_PER_TPU_FAMILY' exceeded.  Limit: 0.0 in region {region_of(zone)}."
        )
    if outcome == "internal":
        return 0, OperationError("INTERNAL", "Internal error.", [("UNKNOWN", "INTERNAL")])
    return 0, plane.capacity.stockout(target, zone, pool.size)


def _put(into: Any, name: str, content: Any) -> None:
    if name in ("labels", "resource_labels"):
        getattr(into, name).update(content)
    else:
        getattr(into, name).extend(content)


def new_node_names(target: Target, message: Any, count: int, taken: Collection[str]) -> list[str]:
    """Return the names of new instances, none of them `taken`; those of TPU slices have a different format."""
    start = defaults.group_name(target).removesuffix("-grp")
    if message.placement_policy.tpu_topology:
        start = f"gke-tpu-{defaults.digest(target.path)}"
    names: dict[str, None] = {}
    while len(names) < count:
        name = f"{start}-{''.join(_RANDOM.choices(string.ascii_lowercase + string.digits, k=4))}"
        if name not in taken:
            names[name] = None
    return list(names)


def _target(path: str) -> Target:
    words = path.split("/")
    return Target(words[1], words[3], words[5], words[7])
