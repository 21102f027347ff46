"""Specs of clusters, queues and workloads. Each is checked as a whole; all problems are reported together."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from xpk.model import names, sub_slices, super_slices
from xpk.model.accelerators import SliceShape
from xpk.model.errors import UsageError
from xpk.model.mounts import Mount, mount_problems
from xpk.model.options import field_problems
from xpk.model.workload_options import WorkloadOptions

MAX_SLICES = 1024
_IMAGE_LENGTH = 512
_IMAGE = re.compile(
    r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?(?::\d+)?/)?"  # host
    r"[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*)*"
    r"(?::\w[\w.-]{0,127})?(?:@[a-z0-9]+:[0-9a-f]{32,})?",
    re.ASCII,
)


@dataclass(frozen=True, kw_only=True)  # without slots: a class has them from one of its bases only
class _Slices:
    """A number of slices of one shape."""

    shape: SliceShape
    num_slices: int

    @property
    def num_hosts(self) -> int:
        """Return the hosts of all slices."""
        return self.num_slices * self.shape.hosts

    @property
    def num_chips(self) -> int:
        """Return the chips of all slices."""
        return self.num_slices * self.shape.chips


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSpec(_Slices):
    """N slices of one accelerator type under a name."""

    name: str
    sub_slicing: bool = False  # workloads may use parts of a slice
    super_slicing: bool = False  # the slices are cubes, from which those of workloads are formed
    queued: bool = False  # nodes are created when a workload requests them
    max_slices: int | None = None  # limit of node autoprovisioning; None without it
    provisions: str = ""  # default capacity of autoprovisioned slices
    capacities: tuple[str, ...] = ()  # of the existing slices, written like their flags

    def problems(self) -> list[str]:
        """Return all problems of the spec, one line each."""
        problems = cluster_problems(self.name, self.num_slices if self.num_slices or not self.max_slices else 1)
        return [*problems, *self._slicing_problems()]

    def _slicing_problems(self) -> list[str]:
        cube, name = super_slices.CUBE, self.shape.name
        if self.super_slicing:
            right = name == cube
            return [] if right else [f"--super-slicing: workloads' slices are formed from {cube}, not from {name}"]
        if not self.sub_slicing or sub_slices.parts(self.shape):
            return []
        if name == cube:
            return [f"--sub-slicing: parts of {cube} are formed like larger slices: add --super-slicing"]
        families = " and ".join(sub_slices.FAMILIES)
        return [f"--sub-slicing: slices of {name} cannot be shared; use {families}-8 or larger"]

    @property
    def quota(self) -> int:
        """Return the quota of all slices, in units of `shape.resource`."""
        return self.quota_slices * self.shape.units

    @property
    def quota_slices(self) -> int:
        """Return the number of slices that workloads may use, including slices that GKE may add."""
        return self.num_slices if self.max_slices is None else self.max_slices

    @property
    def quota_hosts(self) -> int:
        """Return the hosts of `quota_slices`."""
        return self.quota_slices * self.shape.hosts


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceQuota:
    """A queue's quota of one type, in slices."""

    shape: SliceShape
    num_slices: float
    borrowing_limit: float | None = None  # None: unlimited
    lending_limit: float | None = None  # of its own slices; None: all
    queued: bool = False  # nodes are created when a workload requests them
    super_slicing: bool = False  # cubes, from which the slices of workloads are formed


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSpec:
    """A queue with its own quota, for the workloads of some namespaces."""

    name: str
    namespaces: tuple[str, ...]
    quotas: tuple[SliceQuota, ...]
    reclaim: str = "Any"  # whose loans it takes back, as in Kueue: `Any`, `LowerPriority` or `Never`
    max_priority: str | None = None  # of its workloads; None: any


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Properties of the cluster on which a workload's hosts run."""

    emulated: bool  # chips are virtual CPU devices
    sets_slice_environment: bool  # the manifest sets MEGASCALE_* and TPU_WORKER_*, since no webhook injects them
    output_root: str  # shared folder or bucket
    shared_folder: str | None = None  # folder of the nodes that pods mount at the same path
    exclusive: bool = False  # no other cluster uses that folder
    # Declare the hosts of a lost node dead, so that the workload restarts elsewhere. This is safe only if the
    # node no longer runs them, or if a second incarnation does no harm.
    fenced: bool = False
    trainer_image: str | None = None  # the bundled trainer's image, if the nodes have one
    region: str | None = None  # of a cloud that charges for the slices
    on_this_machine: bool = False  # hosts are local processes, which see all files and need no image
    sub_slicing: str | None = None  # type of the slices that are shared by parts
    super_slicing: str | None = None  # type of the cubes that slices are formed from
    capacities: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # of the slices, by type
    autoprovisioned: Mapping[str, str] = field(default_factory=dict)  # default capacity by autoprovisioned type


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """Code that is the working folder of every host. The name is derived from the content.

    `archive` is a .tar.gz that is stored with the workload as a ConfigMap. Without it, `source` is an archive in a
    shared folder or a bucket or, on a local cluster, the folder where it is unpacked.
    """

    name: str
    source: str = ""
    archive: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CopySpec:
    """A copy of a workload that may run on several clusters, of which one copy at a time runs."""

    run: str  # identifies the copies of one `workload create`
    cluster: str  # cluster of this copy
    clusters: tuple[str, ...]  # clusters of all copies, the preferred one first
    queue: str  # queue of this copy once it is released
    move_after_seconds: float  # time for which a released copy may wait before the next cluster is tried


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadSpec(WorkloadOptions, _Slices):
    """A job over `num_slices` slices that runs the same `command` on every host, as completed by its cluster."""

    command: tuple[str, ...]
    target: Target
    image: str
    queue: str = names.QUEUE
    env: Mapping[str, str] = field(default_factory=dict)
    working_dir: str | None = None
    non_root: bool = False  # refuse to run as root
    code: Code | None = None
    user: str = ""
    within: SliceShape | None = None  # with sub- or super-slicing: the type of the whole slices, or of the cubes
    peer_watch: bool = False  # a lost host ends the command on all others at once
    restart_in_place: bool = False  # a command that fails is started again on all hosts, without new pods
    replaces_slices: bool = False  # a disrupted host costs only its slice new pods
    ray: bool = False  # the command makes the hosts a Ray cluster
    mounts: tuple[Mount, ...] = ()
    capacity: str = ""  # requested capacity of the nodes; "": any
    requires_output: bool = True  # cannot run without an output root
    copy: CopySpec | None = None  # held until it is released; None: the workload has one cluster

    def problems(self) -> list[str]:
        """Return all problems of the spec, one line each."""
        problems = _slices_problems(self.num_slices)
        problems += names.workload_name_problems(
            self.name, num_slices=self.num_slices, hosts_per_slice=self.shape.hosts
        )
        problems += field_problems(self)
        for key, value in self.env.items():
            problems += names.env_problems(key, value)
            problems += [f"{key} is set by --env-from-secret and by --env"] if key in self.secret_env else []
        problems += self._unsupported() if self.target.on_this_machine else []
        if self.requires_output and not self.target.output_root:
            problems.append("the cluster has no output root: pass --output-root gs://BUCKET/PREFIX")
        if not self.command:
            problems.append("the command is empty")
        problems += [f"the command {problem}" for part in self.command for problem in names.text_problems(part)]
        if self.standby_imports and self.ray:
            problems.append("--standby-imports: Ray's driver replaces trainers by itself; omit it with --launcher ray")
        elif self.standby_imports and not self.restart_in_place:
            problems.append("--standby-imports requires --restart-in-place")
        problems += self._node_pools_problems()
        problems += self._min_slices_problems()
        if self.node_folder is not None:
            problems += names.node_folder_problems(self.node_folder, self.target.shared_folder)
        problems += mount_problems(self.mounts, filter(None, (self.target.shared_folder, self.node_folder)))
        return problems

    def _unsupported(self) -> list[str]:
        """Return a problem for each field that processes of this machine cannot have."""
        reasons = {
            "--env-from-secret: local clusters have no Secrets; use --env-file": self.secret_env,
            "--read-only-root requires a Kubernetes cluster: local hosts have no root filesystem": self.read_only_root,
            "--network-policy requires a Kubernetes cluster: local hosts share a network": self.network_policy,
            "local clusters cannot mount storage": self.mounts,
        }
        return [problem for problem, value in reasons.items() if value]

    def _node_pools_problems(self) -> list[str]:
        if not self.node_pools:
            return []
        if self.within:
            return [f"nodes cannot be chosen for {self.shape.name}: Kueue places it on {self.within.name} itself"]
        if self.num_slices > len(self.node_pools):
            pools = ", ".join(self.node_pools)
            return [f"--num-slices must be at most the number of node pools ({pools}), got {self.num_slices}"]
        return []

    def _min_slices_problems(self) -> list[str]:
        if self.min_slices is None:
            return []
        if self.num_slices < 2:
            return [f"--min-slices requires at least 2 slices, got --num-slices {self.num_slices}"]
        if not 1 <= self.min_slices <= self.num_slices:
            return [f"--min-slices must be between 1 and --num-slices ({self.num_slices}), got {self.min_slices}"]
        return []

    @property
    def output_dir(self) -> str:
        """Return the folder that all hosts share and that outlives restarts, "" if there is none."""
        root = self.target.output_root
        return f"{root}/{names.output_folder(self.name, self.namespace)}" if root else ""

    @property
    def total(self) -> int:
        """Return the units of `shape.resource` that the workload needs."""
        return self.num_slices * self.shape.units


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageCacheSpec:
    """Images to pull on the nodes of some node pools before workloads run there."""

    images: tuple[str, ...]
    pools: tuple[str, ...]
    taints: tuple[str, ...]  # keys of the taints of slices' nodes
    seconds: int  # time limit of the pulls
    architecture: str = "amd64"  # as in the nodes' label
    namespace: str = "default"
    image_pull_secret: str | None = None
    have_first: bool = False  # do not pull existing images, regardless of the tag

    @property
    def name(self) -> str:
        """Return the name of its objects; equal images for equal pools share one."""
        parts = "\n".join([*self.images, "", *sorted(self.pools), "", self.image_pull_secret or ""])
        return f"xpk-images-{hashlib.sha256(parts.encode()).hexdigest()[:10]}"


def image_problems(images: Sequence[str]) -> list[str]:
    """Return the problems of image names, one line each.

    The grammar is that of https://github.com/distribution/reference: [host[:port]/]path[:tag][@digest].
    """
    wrong = [image for image in images if not _IMAGE.fullmatch(image) or len(image) > _IMAGE_LENGTH]
    twice = sorted({image for image in images if images.count(image) > 1})
    return [f"'{image}' is not a valid image name" for image in wrong] + [
        f"'{image}' is named twice" for image in twice
    ]


def count_slices(num_slices: int | None, num_nodes: int | None, kind: str) -> int:
    """Return the number of requested slices: GPU and CPU hosts are slices of one host each. Raises UsageError."""
    if num_nodes is None:
        return 1 if num_slices is None else num_slices
    if kind == "tpu":
        raise UsageError("--num-nodes is for GPU and CPU types; TPU slices have a fixed size", hint="--num-slices N")
    if num_slices not in (None, num_nodes):
        raise UsageError("--num-nodes and --num-slices differ", hint="pass one of them")
    return num_nodes


def cluster_problems(name: str, num_slices: int) -> list[str]:
    """Return the problems of a cluster's name and size, regardless of its type, one line each."""
    return [*names.cluster_name_problems(name), *_slices_problems(num_slices)]


def _slices_problems(num_slices: int) -> list[str]:
    if 1 <= num_slices <= MAX_SLICES:
        return []
    return [f"--num-slices must be between 1 and {MAX_SLICES}, got {num_slices}"]
