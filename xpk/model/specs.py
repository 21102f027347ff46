"""What a user asks for: a cluster of slices, a workload on them. Checked whole, all problems at once."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from xpk.model import names, sub_slices
from xpk.model.accelerators import SliceShape
from xpk.model.errors import UsageError
from xpk.model.mounts import Mount, mount_problems

MOST_SLICES = 1024
_MOST_RUN_SECONDS = 7 * 24 * 3600  # that GKE leaves slices of queued provisioning for
_IMAGE_LENGTH = 512
_IMAGE = re.compile(
    r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?(?::\d+)?/)?"  # host
    r"[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*)*"
    r"(?::\w[\w.-]{0,127})?(?:@[a-z0-9]+:[0-9a-f]{32,})?",
    re.ASCII,
)
FATAL_EXIT_CODES = (42, 126, 127)  # ours; "not executable" and "not found", as shells report them


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSpec:
    """N slices of one accelerator type under a name.

    `sub_slicing`: workloads may share a slice by parts. `queued`: their nodes come when a workload asks for them.
    `max_slices`: how many there may be where GKE adds node pools by itself, of the capacity `provisions` if a workload
    does not say; None: it adds none. `capacities`: of the slices that are there, as their flags have it.
    """

    name: str
    shape: SliceShape
    num_slices: int
    sub_slicing: bool = False
    queued: bool = False
    max_slices: int | None = None
    provisions: str = ""
    capacities: tuple[str, ...] = ()

    def problems(self) -> list[str]:
        """Return everything that is wrong with it, one line each."""
        found = cluster_problems(self.name, self.num_slices if self.num_slices or not self.max_slices else 1)
        if self.sub_slicing and not sub_slices.parts(self.shape):
            families = " and ".join(sub_slices.FAMILIES)
            found.append(f"--sub-slicing: slices of {self.shape.name} cannot be shared; those of {families}-8 on can")
        return found

    @property
    def quota(self) -> int:
        """Return the units of `shape.resource` that all slices have."""
        return self.quota_slices * self.shape.units

    @property
    def quota_slices(self) -> int:
        """Return the slices that workloads may have: those that there are, or may be."""
        return self.num_slices if self.max_slices is None else self.max_slices

    @property
    def quota_hosts(self) -> int:
        """Return the hosts of `quota_slices`."""
        return self.quota_slices * self.shape.hosts

    @property
    def num_hosts(self) -> int:
        """Return the hosts of all slices."""
        return self.num_slices * self.shape.hosts

    @property
    def num_chips(self) -> int:
        """Return the chips of all slices."""
        return self.num_slices * self.shape.chips


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceQuota:
    """What a queue has of one type, how much more it may borrow, and how much of its own it lends; None is all.

    In slices. `queued`: their nodes come when a workload asks for them.
    """

    shape: SliceShape
    num_slices: float
    borrowing_limit: float | None = None
    lending_limit: float | None = None
    queued: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSpec:
    """A queue with a quota of its own, for workloads of some namespaces.

    `reclaim`: for whom it takes back what it lent, in Kueue's words: `Any`, `LowerPriority` or `Never`.
    `max_priority`: the highest that its workloads may have, None for any.
    """

    name: str
    namespaces: tuple[str, ...]
    quotas: tuple[SliceQuota, ...]
    reclaim: str = "Any"
    max_priority: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What differs between the places where a workload's hosts run.

    `emulated`: the chips are virtual CPU devices. `sets_slice_environment`: nobody else injects
    MEGASCALE_* and TPU_WORKER_*, so the manifest does. `output_root`: the shared folder or bucket.
    `shared_folder`: a folder of the nodes that pods mount at the same path; `exclusive`: of no other cluster.
    `fenced`: hosts of a node that is gone are declared dead, so that the workload goes on elsewhere; only where
    such a node is sure not to run them any more, or a second incarnation does no harm. `trainer_image`: the
    bundled trainer's image, where the nodes have one. `on_this_machine`: hosts are processes here, which see all
    files and need no image.
    `region`: of a cloud that charges for the slices. `sub_slicing`: the type of slices that are shared by parts.
    `capacities`: of the slices of each type. `autoprovisioned`: the types of which the cloud makes slices when
    workloads ask for them, and the capacity that these have if a workload does not say.
    """

    emulated: bool
    sets_slice_environment: bool
    output_root: str
    shared_folder: str | None = None
    exclusive: bool = False
    fenced: bool = False
    trainer_image: str | None = None
    region: str | None = None
    on_this_machine: bool = False
    sub_slicing: str | None = None
    capacities: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    autoprovisioned: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """Code that every host starts in. The name follows from the content.

    `archive` is a .tar.gz that travels with the workload as a ConfigMap. Without it hosts find the code at
    `source`: an archive in a shared folder or a bucket or, on this machine, the folder where it is unpacked.
    """

    name: str
    source: str = ""
    archive: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadSpec:
    """A job over `num_slices` slices: the same `command` on every host.

    `secret_env`: variables whose values are keys of Secrets, as (Secret, key).
    `within`: the type of the slices that these slices are parts of, where slices are shared. Times are in seconds.
    `fatal_exit_codes` fail the workload at once, any other restarts it, up to
    `max_restarts` times. With `peer_watch`, a host that is gone ends the command on all others at once.
    With `ray` the command makes the hosts a Ray cluster. `node_folder`: a folder of each node that hosts there see at
    the same path, which outlives them. `mounts`: claims and buckets that all hosts see. `max_run_seconds`: how long it
    may keep slices of queued provisioning. `capacity`: of the nodes that hosts ask for; "": they do not say.
    `scheduler`: places its pods; "": the cluster's default one. `labels`: of the JobSet and its pods, beside ours. What
    `requires_output` cannot run where there is no place for it.
    `run_as_user`: the UID of pods, their image's if None. `non_root`: their user must not be root.
    """

    name: str
    shape: SliceShape
    num_slices: int
    command: tuple[str, ...]
    target: Target
    image: str
    namespace: str = "default"
    queue: str = names.QUEUE
    priority: str = "medium"
    env: Mapping[str, str] = field(default_factory=dict)
    secret_env: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    max_restarts: int = 0
    fatal_exit_codes: tuple[int, ...] = FATAL_EXIT_CODES
    termination_grace_seconds: int = 30
    ttl_seconds: int = 12 * 3600
    working_dir: str | None = None
    image_pull_secret: str | None = None
    run_as_user: int | None = None
    non_root: bool = False
    code: Code | None = None
    user: str = ""
    within: SliceShape | None = None
    peer_watch: bool = False
    ray: bool = False
    node_folder: str | None = None
    mounts: tuple[Mount, ...] = ()
    max_run_seconds: int | None = None
    capacity: str = ""
    scheduler: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    requires_output: bool = True

    def problems(self) -> list[str]:
        """Return everything that is wrong with it, one line each."""
        found = _slices_problems(self.num_slices)
        found += names.workload_name_problems(self.name, num_slices=self.num_slices, hosts_per_slice=self.shape.hosts)
        for key, value in self.env.items():
            found += names.env_problems(key, value)
        for key, (secret, entry) in self.secret_env.items():
            found += names.env_problems(key, "")
            found += names.secret_problems(secret, entry)
            found += [f"{key} is set by --env-from-secret and by --env"] if key in self.env else []
        if self.secret_env and self.target.on_this_machine:
            found.append("--env-from-secret: hosts that are processes of this machine have no Secrets; use --env-file")
        if self.priority not in names.PRIORITIES:
            found.append(f"unknown priority '{self.priority}': choose from {', '.join(names.PRIORITIES)}")
        for key, value in self.labels.items():
            found += names.label_problems(key, value)
        if self.requires_output and not self.target.output_root:
            found.append("the cluster has no place for output: name one with --output-root gs://BUCKET/PREFIX")
        if self.max_run_seconds is not None and not 1 <= self.max_run_seconds <= _MOST_RUN_SECONDS:
            found.append(
                f"--max-run-duration is {self.max_run_seconds} s; it has to be more than 0, and at most 7 days"
            )
        if not self.command:
            found.append("the command is empty")
        found += [f"the command {problem}" for part in self.command for problem in names.text_problems(part)]
        if self.node_folder is not None:
            found += names.node_folder_problems(self.node_folder, self.target.shared_folder)
        if self.mounts and self.target.on_this_machine:
            found.append("nothing can be mounted for hosts that are processes of this machine")
        found += mount_problems(self.mounts, filter(None, (self.target.shared_folder, self.node_folder)))
        for code in self.fatal_exit_codes:
            if not 1 <= code <= 255 or code == 143:
                found.append(f"{code} cannot be a fatal exit code: 1 to 255, except 143 (ended by SIGTERM, saved)")
        for flag, number in (
            ("--max-restarts", self.max_restarts),
            ("--termination-grace-period-seconds", self.termination_grace_seconds),
            ("--ttl-seconds-after-finished", self.ttl_seconds),
        ):
            if not 0 <= number < 2**31:
                found.append(f"{flag} must be from 0 to {2**31 - 1}, got {number}")
        return found

    @property
    def output_dir(self) -> str:
        """Return the folder that all hosts share and that outlives restarts, "" where there is none."""
        root = self.target.output_root
        return f"{root}/{names.output_folder(self.name, self.namespace)}" if root else ""

    @property
    def total(self) -> int:
        """Return the units of `shape.resource` that it needs."""
        return self.num_slices * self.shape.units

    @property
    def num_hosts(self) -> int:
        """Return the hosts of all slices."""
        return self.num_slices * self.shape.hosts

    @property
    def num_chips(self) -> int:
        """Return the chips of all slices."""
        return self.num_slices * self.shape.chips


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageCacheSpec:
    """Images that the nodes of some node pools are to pull before anything runs there.

    `taints`: the keys of those that slices' nodes have; `architecture`: as their label says it. `seconds`: for how
    long it is tried at most. `have_first`: an image that a node has is not asked for again, whatever its tag.
    """

    images: tuple[str, ...]
    pools: tuple[str, ...]
    taints: tuple[str, ...]
    seconds: int
    architecture: str = "amd64"
    namespace: str = "default"
    image_pull_secret: str | None = None
    have_first: bool = False

    @property
    def name(self) -> str:
        """Return what its objects are called: the same images for the same pools are one thing."""
        parts = "\n".join([*self.images, "", *sorted(self.pools), "", self.image_pull_secret or ""])
        return f"xpk-images-{hashlib.sha256(parts.encode()).hexdigest()[:10]}"


def image_problems(images: Sequence[str]) -> list[str]:
    """Return what is wrong with names of images, one line each.

    The grammar is that of https://github.com/distribution/reference: [host[:port]/]path[:tag][@digest].
    """
    wrong = [image for image in images if not _IMAGE.fullmatch(image) or len(image) > _IMAGE_LENGTH]
    twice = sorted({image for image in images if images.count(image) > 1})
    return [f"'{image}' is not the name of an image" for image in wrong] + [
        f"'{each}' is named twice" for each in twice
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
    """Return what is wrong with a cluster's name and size whatever its type, one line each."""
    return [*names.cluster_name_problems(name), *_slices_problems(num_slices)]


def _slices_problems(num_slices: int) -> list[str]:
    if 1 <= num_slices <= MOST_SLICES:
        return []
    return [f"--num-slices must be between 1 and {MOST_SLICES}, got {num_slices}"]
