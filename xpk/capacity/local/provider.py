"""Provider of local clusters: a cluster is a folder, a host is a process, a chip is a virtual CPU device."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from xpk.api.base import Obj, ObjectApi
from xpk.api.text import counted
from xpk.capacity.cluster_lock import LOCK_SECONDS, locked
from xpk.capacity.cluster_setup import apply_queues
from xpk.capacity.nodes.cordon import check_deletable
from xpk.capacity.nodes.inventory import difference, holders, pools_of, slice_info
from xpk.capacity.options import ProviderOptions
from xpk.capacity.plan.plan import Plan, Step
from xpk.capacity.plan.summary import cluster_summary
from xpk.capacity.provider import ClusterInfo, no_cluster
from xpk.capacity.queues.reading import Queues, check_promised
from xpk.capacity.state import state_of
from xpk.local.cluster import create_cluster, delete_cluster, list_clusters, open_cluster
from xpk.model import names
from xpk.model.accelerators import NODEPOOL_LABEL, SliceShape, find_shape
from xpk.model.errors import ConflictError, NotFoundError, UsageError, XpkError
from xpk.model.specs import ClusterSpec, Target
from xpk.render.resources import workloads_dir

# Every host has its own loopback address, so that two workloads can listen on one port. A cluster's addresses begin
# at a block of 254 chosen by a hash of its folder's name: clusters in other state folders on this
# machine very likely use other blocks. 127.0 to 127.15 are left to other programs.
_FIRST_BLOCK, _BLOCKS, _BLOCK_HOSTS = 16 * 256, 224 * 256, 254
_MAX_SLICES, _MAX_HOSTS = 255, 254


@dataclass(frozen=True, slots=True)
class LocalOptions(ProviderOptions):
    """Options of local clusters: none."""

    provider: ClassVar[str] = "local"


class LocalProvider:
    """Clusters as folders below `root`, each with its own store and control plane."""

    name = "local"
    options_type: ClassVar[type[LocalOptions]] = LocalOptions

    def __init__(
        self, root: Path | None = None, *, options: LocalOptions | None = None, lock_seconds: float = LOCK_SECONDS
    ) -> None:
        self._lock_seconds = lock_seconds
        self._root = state_of("clusters", root)

    def check_create(self, spec: ClusterSpec | None, *, lenient: bool = False) -> None:
        """See `Checks.check_create`."""
        if spec:
            _check(spec, "create")

    def plan_create(self, spec: ClusterSpec) -> Plan:
        """See `Provider.plan_create`."""
        _check(spec, "create")
        exists = spec.name in self.names()
        have = self._spec(spec.name) if exists else None
        if have is None:  # it does not exist, or an earlier `create` was interrupted
            remains = self._remains_steps(spec) if exists else []
            made = Plan(_summary(spec), [*remains, *self._build_steps(spec)])
            return self._locked(made, spec.name, lambda: self.plan_create(spec))
        if (have.shape, have.num_slices) != (spec.shape, spec.num_slices):
            raise ConflictError(
                f"cluster '{spec.name}' exists with another shape: {difference(have, spec)}",
                hint=f"`xpk cluster resize {spec.name} --num-slices {spec.num_slices}` changes its slices"
                if have.shape == spec.shape
                else f"choose another name, or `xpk cluster delete {spec.name}` first",
            )
        return Plan(_summary(spec))

    def plan_resize(self, name: str, num_slices: int, *, force: bool) -> Plan:
        """See `Provider.plan_resize`."""
        have = self._known(name)
        spec = ClusterSpec(name=name, shape=have.shape, num_slices=num_slices)
        _check(spec, "resize")
        going = self.describe(name).slices[num_slices:]
        if num_slices == have.num_slices and not going:  # an interrupted shrink leaves slices behind
            return Plan(_summary(spec))
        busy = sorted({item.workload for item in going if item.workload})
        if busy and not force:
            raise ConflictError(
                f"{len(going)} slices would be removed, but {', '.join(busy)} is running on them",
                hint=f"`xpk workload delete {names.name_and_flags(busy[0], name)}`, or --force to end it",
            )
        api = self.connect(name)
        if not force:
            check_promised(api, have.shape, num_slices, cluster=name)
        # The quota never exceeds the capacity: it grows after the slices and shrinks before them.
        grow = [self._slice_step(spec, index) for index in range(have.num_slices, num_slices)]
        shrink = [
            Step(f"remove slice {item.node_pool}", partial(_delete_all, api, "Node", item.hosts))
            for item in reversed(going)
        ]
        steps = [*grow, self._queue_step(spec), *shrink]
        made = Plan(_summary(spec), steps)
        return self._locked(made, name, lambda: self.plan_resize(name, num_slices, force=force))

    def plan_delete(self, name: str, *, force: bool) -> Plan:
        """See `Provider.plan_delete`."""
        if name not in self.names():
            raise no_cluster(name)
        if not force:
            check_deletable(self.connect(name), name)

        def delete() -> None:
            if not force:  # a workload may have been started since the plan was made, while a prompt waited
                check_deletable(self.connect(name), name)
            delete_cluster(self._root / name, force=True)

        return Plan(
            f"delete cluster '{name}' and all output on it",
            [
                Step(f"stop the hosts and the control plane of '{name}' and remove its files", delete),
            ],
        )

    def names(self) -> list[str]:
        """See `Provider.names`."""
        return list_clusters(self._root)

    def describe(self, name: str, *, brief: bool = False) -> ClusterInfo:
        """See `Provider.describe`."""
        api = self.connect(name)
        pools = pools_of(api.list("Node"))
        workloads, spec = {} if brief else holders(api), self._spec(name)
        slices = tuple(slice_info(pool, members, len(members), workloads) for pool, members in pools.items())
        return ClusterInfo(
            name=name,
            provider=self.name,
            accelerator_type=spec.shape.name if spec else "unknown",
            num_slices=len(slices),
            hosts_per_slice=spec.shape.hosts if spec else 0,
            chips=len(slices) * spec.shape.chips if spec else 0,
            state="Ready" if spec else "Incomplete",
            created=_created(api),
            location=str(self._root / name),
            slices=slices,
        )

    def slices_of(self, name: str, shape: SliceShape) -> int:
        """See `Counts.slices_of`. An interrupted resize may have left some that were to be removed."""
        spec = self._spec(name)
        return spec.num_slices if spec and spec.shape == shape else 0

    def connect(self, name: str) -> ObjectApi:
        """See `Provider.connect`."""
        if name not in self.names():
            raise no_cluster(name)
        return open_cluster(self._root / name, workloads=str(workloads_dir()))

    def kubeconfig(self, name: str) -> str:
        """See `Provider.kubeconfig`. Local clusters have none."""
        self.connect(name)
        raise NotFoundError(
            f"cluster '{name}' has no kubeconfig: its hosts are processes of this machine",
            hint=f"`xpk cluster describe {name}`; `xpk cluster create NAME --provider kind` creates a Kubernetes "
            "cluster",
        )

    def target(self, name: str) -> Target:
        """See `Provider.target`."""
        output = self._root / name / "output"
        return Target(emulated=True, sets_slice_environment=True, output_root=str(output), on_this_machine=True)

    def _locked(self, made: Plan, name: str, plan: Callable[[], Plan]) -> Plan:
        """Return a plan that is carried out under the cluster's lock."""
        return locked(made, self._root, name, plan, seconds=self._lock_seconds)

    def _known(self, name: str) -> ClusterSpec:
        self.connect(name)
        spec = self._spec(name)
        if spec is None:
            raise XpkError(f"cluster '{name}' is incomplete", hint="run its `xpk cluster create` command again")
        return spec

    def _spec(self, name: str) -> ClusterSpec | None:
        """Read a cluster's spec back from its objects; None if some are missing."""
        api = open_cluster(self._root / name)
        try:
            ((kind, total),) = Queues.read(api).total().items()
        except NotFoundError:
            return None
        spec = ClusterSpec(name=name, shape=find_shape(kind), num_slices=int(total))
        complete = len(api.list("Node")) >= spec.num_hosts
        return spec if complete else None

    def _remains_steps(self, spec: ClusterSpec) -> list[Step]:
        """Return the step that removes slices of an interrupted `create` that had other ones; none after the queue."""
        api = open_cluster(self._root / spec.name)
        if Queues.read(api).find(names.CLUSTER_QUEUE):
            return []
        pools = {names.node_pool_name(spec.name, index) for index in range(spec.num_slices)}
        expected = {f"{pool}-{host}" for pool in pools for host in range(spec.shape.hosts)}
        others = tuple(name for node in api.list("Node") if (name := node["metadata"]["name"]) not in expected)
        title = f"remove {counted(len(others), 'host')} of an interrupted create of '{spec.name}'"
        return [Step(title, partial(_delete_all, api, "Node", others))] if others else []

    def _build_steps(self, spec: ClusterSpec) -> list[Step]:
        def make() -> None:
            create_cluster(self._root / spec.name)

        create = Step(f"create the store of '{spec.name}'", make)
        slices = [self._slice_step(spec, index) for index in range(spec.num_slices)]
        # The queue is created last: it marks the cluster as complete.
        return [create, *slices, self._queue_step(spec)]

    def _slice_step(self, spec: ClusterSpec, index: int) -> Step:
        def act() -> None:
            folder = self._root / spec.name
            api = open_cluster(folder)
            for host in range(spec.shape.hosts):
                api.apply(_node(spec, index, host, _address(folder, index * spec.shape.hosts + host)))

        pool = names.node_pool_name(spec.name, index)
        return Step(f"add slice {pool}: {spec.shape.hosts} x {spec.shape.machine_type}, {spec.shape.chips} chips", act)

    def _queue_step(self, spec: ClusterSpec) -> Step:
        def act() -> None:
            apply_queues(open_cluster(self._root / spec.name), [spec])

        return Step(f"set up queue '{names.QUEUE}' with a quota of {spec.quota} {spec.shape.resource}", act)


def _check(spec: ClusterSpec, command: str) -> None:
    problems = spec.problems()
    if spec.num_slices > _MAX_SLICES or spec.shape.hosts > _MAX_HOSTS:
        problems.append(f"one machine emulates at most {_MAX_SLICES} slices of {_MAX_HOSTS} hosts")
    if problems:
        raise UsageError(
            f"cluster '{spec.name}' cannot be {command}d", problems=problems, hint=f"see `xpk cluster {command} --help`"
        )


def _summary(spec: ClusterSpec) -> str:
    return f"{cluster_summary(spec)}, emulated on this machine's CPUs"


def _node(spec: ClusterSpec, slice_index: int, host: int, address: str) -> Obj:
    """Return a node with GKE's labels and a loopback address of its own."""
    pool = names.node_pool_name(spec.name, slice_index)
    resources = {spec.shape.resource: str(spec.shape.resource_per_host)}
    labels = {
        NODEPOOL_LABEL: pool,
        "kubernetes.io/hostname": f"{pool}-{host}",
        names.TYPE_ANNOTATION: spec.shape.name,
        **spec.shape.node_labels,
    }
    status: dict[str, Any] = {
        "capacity": resources,
        "allocatable": resources,
        "addresses": [{"type": "InternalIP", "address": address}],
        "conditions": [{"type": "Ready", "status": "True", "reason": "LocalProcess"}],
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": f"{pool}-{host}", "labels": labels},
        "spec": {},
        "status": status,
    }


def _address(folder: Path, index: int) -> str:
    """Return the loopback address of a cluster's host."""
    digest = hashlib.sha256(str(folder.absolute()).encode()).digest()
    start = int.from_bytes(digest[:8], "big") % _BLOCKS
    block = _FIRST_BLOCK + (start + index // _BLOCK_HOSTS) % _BLOCKS
    return f"127.{block // 256}.{block % 256}.{index % _BLOCK_HOSTS + 1}"


def _created(api: ObjectApi) -> str:
    times = [str(node["metadata"]["creationTimestamp"]) for node in api.list("Node")]
    return min(times, default="")


def _delete_all(api: ObjectApi, kind: str, objects: tuple[str, ...]) -> None:
    for name in objects:
        api.delete(kind, name)
