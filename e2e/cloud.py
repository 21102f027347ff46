"""A project of GKE's emulator with a real API server, scheduler, JobSet and Kueue behind it, used by xpk's commands.

KWOK plays the nodes.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.cloud.container_v1 import NodePool

from e2e import bucket
from e2e.api_server import missing
from e2e.control_plane import PROGRAMS, control_plane
from e2e.controllers import controllers
from tests.waiting import until
from tools.gke_emulator import GkeEmulator
from xpk.api.kubernetes import KubernetesApi

WHERE = ("--provider", "gke", "--project", "p", "--zone", "us-central1-a")
DELETE = ("cluster", "delete", "c", "--yes", "--ignore-not-found")
QUOTAS = {"CPUS": 1000, "TPU_LITE_PODSLICE_V5": 1000}
MISSING = missing(*PROGRAMS, "jobset", "kueue", "kubectl") or bucket.missing()
_SECONDS = 240.0


@dataclass(frozen=True)
class Cloud:
    """A project, what is behind it, and who works in it."""

    gke: GkeEmulator
    kubeconfig: Path
    api: KubernetesApi
    environ: dict[str, str]

    def xpk(self, *arguments: str, code: int = 0) -> str:
        """Run a command, check its exit code, and return what it prints on stdout."""
        done = subprocess.run(_argv(arguments), env=self.environ, capture_output=True, text=True, check=False)
        assert done.returncode == code, f"{arguments}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def json(self, *arguments: str) -> Any:
        """Return what a command prints as JSON."""
        return json.loads(self.xpk(*arguments, "-o", "json"))

    def killed_after_a_step(self, *arguments: str, known: Sequence[str] = ()) -> str:
        """Run a command and kill it once it says that a step is done that is not `known`; return which.

        If none is, it ends: "". A run looks again at what is to go, whatever an earlier one has seen.
        """
        with subprocess.Popen(_argv(arguments), env=self.environ, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr
            output = []
            for line in process.stderr:
                output.append(line)
                step = line.partition("✓")[2].strip()
                if step and step not in known:
                    process.send_signal(signal.SIGKILL)
                    return step
            assert process.wait() == 0, "".join(output)
            return ""

    def made(self) -> Counter[tuple[str, str]]:
        """Return the calls to GKE that succeeded, with their numbers, by method and name."""
        asked = [call for call in self.gke.calls if call.code == "OK" and call.method.startswith(("Create", "Delete"))]
        return Counter((call.method, _subject(call.request)) for call in asked)

    def pools(self) -> dict[str, str]:
        """Return the status of each node pool in GKE."""
        kept = [pool.message for pool in self.gke.plane.store.pools.values()]
        return {item.name: NodePool.Status(item.status).name for item in kept}

    def slices(self) -> Counter[str]:
        """Return the number of registered hosts by node pool."""
        label = "cloud.google.com/gke-nodepool"
        hosts = [item for item in self.api.list("Node") if "google.com/tpu" in item["status"]["allocatable"]]
        return Counter(item["metadata"]["labels"][label] for item in hosts)

    def until(self, what: Callable[[], Any]) -> Any:
        """Wait until a condition is true, and return its value."""
        return until(what, seconds=_SECONDS, every=0.3)

    def check_nothing_is_left(self) -> None:
        """Check that GKE, the API server and this machine have nothing of the cluster."""
        assert not self.gke.plane.store.clusters and not self.pools() and not self.gke.plane.operations.running()
        assert self.json("cluster", "list") == []
        assert not self.api.list("Node")
        self.until(lambda: not self.api.list("Pod", None))
        assert not list(Path(self.environ["XPK_STATE_DIR"], "gke").glob("*/*"))  # no file; an empty folder may remain

    def run(self, workload: str) -> dict[str, Any]:
        """Return the description of a workload."""
        status: dict[str, Any] = self.json("workload", "describe", workload, "--cluster", "c")
        return status

    def running(self, workload: str) -> dict[tuple[int, int], dict[str, Any]]:
        """Wait until a workload runs, and return its hosts by slice and index."""
        run = self.until(lambda: (status := self.run(workload))["phase"] == "Running" and status)
        return {(host["slice"], host["host"]): host for host in run["hosts"]}

    def check_each_slice_has_a_pool(self, hosts: Mapping[tuple[int, int], dict[str, Any]]) -> None:
        """Check that two slices of four hosts are on a node pool each, with one host per node."""
        nodes = {node["metadata"]["name"]: node["metadata"]["labels"] for node in self.api.list("Node")}
        pools = [
            {nodes[hosts[item, host]["node"]]["cloud.google.com/gke-nodepool"] for host in range(4)} for item in (0, 1)
        ]
        assert sorted(map(sorted, pools)) == [["c-np-0"], ["c-np-1"]]
        assert len({host["node"] for host in hosts.values()}) == 8


@contextmanager
def empty_project(folder: Path, quotas: Mapping[str, int]) -> Iterator[Cloud]:
    """Serve a project without clusters, an empty API server, and a bucket `runs`."""
    server = folder / "server"
    server.mkdir()
    kept = {name: value for name, value in os.environ.items() if not name.startswith("XPK_")}
    with (
        control_plane(server) as kubeconfig,
        controllers(folder / "controllers", kubeconfig) as manifests,
        GkeEmulator(speed=1000, api_server=kubeconfig, quotas=dict(quotas)) as gke,
        bucket.bucket_server() as storage,
    ):
        storage.create_bucket("runs")
        ours = {
            "XPK_STATE_DIR": str(folder / "state"),
            "XPK_CONFIG_DIR": str(folder / "config"),
            "XPK_GKE_ENDPOINT": gke.grpc_target,
            "XPK_COMPUTE_ENDPOINT": gke.http_url,
            "XPK_GKE_TOKEN": gke.token,
            "XPK_GKE_POLL_SECONDS": "0.1",
            "STORAGE_EMULATOR_HOST": storage.url,
        }
        yield Cloud(gke, kubeconfig, KubernetesApi(kubeconfig=kubeconfig), kept | ours | manifests)


def _argv(arguments: tuple[str, ...]) -> list[str]:
    return [sys.executable, "-m", "xpk", *arguments]


def _subject(request: dict[str, Any]) -> str:
    made = request.get("cluster") or request.get("node_pool") or request
    return str(made["name"]).rpartition("/")[2]
