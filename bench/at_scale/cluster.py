"""A cluster of emulated nodes with real etcd, API server, controllers, scheduler, JobSet and Kueue on this machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.at_scale.nodes import CLUSTER, create_nodes
from bench.at_scale.profiles import Profiler
from bench.at_scale.server import Server
from bench.commands.google_xpk import CACHE
from bench.upstream import Upstream
from e2e.api_server import missing
from e2e.control_plane import CONTROLLERS as BASIC
from e2e.control_plane import PROGRAMS, control_plane
from e2e.controllers import controllers
from xpk.api.kubernetes import KubernetesApi
from xpk.capacity.controllers.install import CONTROLLERS, install
from xpk.model.accelerators import SliceShape, find_shape
from xpk.model.specs import ClusterSpec
from xpk.render import render_priorities, render_queues

SHAPE = find_shape("v5litepod-256")  # 64 hosts
_ENDPOINTS = ("endpoints-controller", "endpointslice-controller")
# Limits that do not bind: all clients together reach less than a tenth of them on two cores.
_KWOK = Path(__file__).with_name("kwok.yaml")
_RATES = ("--kube-api-qps=1000", "--kube-api-burst=2000")
FLAGS: Mapping[str, Sequence[str]] = {
    "etcd": ("--quota-backend-bytes=8589934592",),
    # Nodes are ready when they are created, and need no taint until a controller sees it.
    # Hosts of Google's xpk are privileged.
    "kube-apiserver": (
        "--disable-admission-plugins=TaintNodesByCondition",
        "--event-ttl=10m",
        "--allow-privileged=true",
    ),
    "kube-controller-manager": (f"--controllers={','.join((*BASIC, *_ENDPOINTS))}", *_RATES),
    "kube-scheduler": _RATES,
    "kwok": ("--cidr=10.128.0.1/9", "--node-lease-duration-seconds=0", "-v=WARN", f"--config={_KWOK}"),
}


def missing_programs() -> str:
    """Return how to get the programs that the benchmarks need, "" if they exist."""
    lacking = missing(*PROGRAMS, "jobset", "kueue", "kubectl")
    return f'{lacking.partition(":")[0]}; get them with: eval "$(e2e/environment/up)"' if lacking else ""


@dataclass(slots=True)
class ScaleCluster:
    """A cluster, and the number of its slices so far."""

    api: KubernetesApi
    server: Server
    manifests: tuple[Path, ...]  # of JobSet's and Kueue's releases
    shape: SliceShape = SHAPE
    upstream: Upstream = field(default_factory=lambda: Upstream(CACHE))
    num_slices: int = 0
    profiler: Profiler | None = None
    node_seconds: dict[int, float] = field(default_factory=dict)

    def install_upstream(self) -> None:
        """Install Google's xpk, unless it is there. Raises CalledProcessError."""
        CACHE.mkdir(parents=True, exist_ok=True)
        self.upstream.install()

    def grow(self, num_slices: int) -> None:
        """Create nodes until there are this many slices."""
        if num_slices > self.num_slices:
            seconds = create_nodes(self.server, self.shape, range(self.num_slices, num_slices))
            self.num_slices = num_slices
            self.node_seconds[num_slices * self.shape.hosts] = round(seconds, 1)


@contextmanager
def scale_cluster(folder: Path, max_slices: int, profiler: Profiler | None = None) -> Iterator[ScaleCluster]:
    """Run a cluster without nodes, with JobSet, Kueue and a queue as `xpk cluster create` sets them up."""
    state = folder / "server"
    state.mkdir()
    flags = profiler.flags(FLAGS, folder / "serving") if profiler else FLAGS
    with (
        control_plane(state, flags) as kubeconfig,
        controllers(folder / "controllers", kubeconfig) as manifests,
    ):
        api = KubernetesApi(kubeconfig=kubeconfig)
        for controller in CONTROLLERS:
            source = manifests[f"XPK_{controller.name.upper()}_MANIFEST"]
            install(api, controller, pinned=True, hosts=max_slices * SHAPE.hosts, source=source)
        spec = ClusterSpec(name=CLUSTER, shape=SHAPE, num_slices=max_slices)
        for obj in (*render_priorities(), *render_queues(spec)):
            api.apply(obj)
        yield ScaleCluster(api, Server(kubeconfig), tuple(map(Path, manifests.values())), profiler=profiler)
