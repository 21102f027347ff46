"""From `cluster create --provider gke` over running workloads to `cluster delete`, by the commands that a user types.

GKE is emulated; behind it are a real API server, scheduler, JobSet and Kueue. KWOK plays the nodes: no host writes.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from google.cloud.container_v1 import NodePool

from e2e import bucket
from e2e.api_server import missing
from e2e.control_plane import PROGRAMS, control_plane
from e2e.controllers import controllers
from e2e.gke import GkeEmulator
from xpk.api.kubernetes import KubernetesApi

WHERE = ("--provider", "gke", "--project", "p", "--zone", "us-central1-a")
CREATE = ("cluster", "create", "c", *WHERE, "--on-demand", "--tpu-type", "v5litepod-16", "--num-slices", "2")
DELETE = ("cluster", "delete", "c", "--yes", "--ignore-not-found")
_SECONDS = 240.0
pytestmark = pytest.mark.skipif(bool(why := missing(*PROGRAMS, "jobset", "kueue") or bucket.missing()), reason=why)


@dataclass(frozen=True)
class Cloud:
    """A project, what is behind it, and who works in it."""

    gke: GkeEmulator
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
            said = []
            for line in process.stderr:
                said.append(line)
                step = line.partition("✓")[2].strip()
                if step and step not in known:
                    process.send_signal(signal.SIGKILL)
                    return step
            assert process.wait() == 0, "".join(said)
            return ""

    def made(self) -> Counter[tuple[str, str]]:
        """Return what was asked of GKE with success, and how often, by method and name."""
        asked = [call for call in self.gke.calls if call.code == "OK" and call.method.startswith(("Create", "Delete"))]
        return Counter((call.method, _subject(call.request)) for call in asked)

    def pools(self) -> dict[str, str]:
        """Return the status of each node pool that GKE has."""
        kept = [pool.message for pool in self.gke.plane.store.pools.values()]
        return {each.name: NodePool.Status(each.status).name for each in kept}

    def slices(self) -> Counter[str]:
        """Return how many hosts have registered, by their node pool."""
        label = "cloud.google.com/gke-nodepool"
        hosts = [each for each in self.api.list("Node") if "google.com/tpu" in each["status"]["allocatable"]]
        return Counter(each["metadata"]["labels"][label] for each in hosts)

    def until(self, what: Callable[[], Any]) -> Any:
        """Wait until something is true, and return it."""
        deadline = time.monotonic() + _SECONDS
        while not (found := what()):
            assert time.monotonic() < deadline, f"not within {_SECONDS:g} s"
            time.sleep(0.3)
        return found

    def check_nothing_is_left(self) -> None:
        """Check that neither GKE nor the API server nor this machine has anything of the cluster."""
        assert not self.gke.plane.store.clusters and not self.pools() and not self.gke.plane.operations.running()
        assert self.json("cluster", "list") == []
        assert not self.api.list("Node")
        self.until(lambda: not self.api.list("Pod", None))
        assert not list(Path(self.environ["XPK_STATE_DIR"], "gke").glob("*/*"))  # no file; a folder may be empty


def _argv(arguments: tuple[str, ...]) -> list[str]:
    return [sys.executable, "-m", "xpk", *arguments]


def _subject(request: dict[str, Any]) -> str:
    made = request.get("cluster") or request.get("node_pool") or request
    return str(made["name"]).rpartition("/")[2]


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[Cloud]:
    """A project without clusters, on an API server that is as empty."""
    server = tmp_path / "server"
    server.mkdir()
    kept = {name: value for name, value in os.environ.items() if not name.startswith("XPK_")}
    with (
        control_plane(server) as kubeconfig,
        controllers(tmp_path / "controllers", kubeconfig) as manifests,
        GkeEmulator(speed=1000, api_server=kubeconfig, quotas={"CPUS": 1000, "TPU_LITE_PODSLICE_V5": 1000}) as gke,
        bucket.bucket_server() as storage,
    ):
        storage.create_bucket("runs")
        ours = {
            "XPK_STATE_DIR": str(tmp_path / "state"),
            "XPK_CONFIG_DIR": str(tmp_path / "config"),
            "XPK_GKE_ENDPOINT": gke.grpc_target,
            "XPK_COMPUTE_ENDPOINT": gke.http_url,
            "XPK_GKE_TOKEN": gke.token,
            "XPK_GKE_POLL_SECONDS": "0.1",
            "STORAGE_EMULATOR_HOST": storage.url,
        }
        yield Cloud(gke, KubernetesApi(kubeconfig=kubeconfig), kept | ours | manifests)


def test_from_create_to_delete(cloud: Cloud) -> None:
    cloud.xpk(*CREATE)
    assert cloud.json("cluster", "list")[0]["state"] == "Ready"
    described = cloud.json("cluster", "describe", "c")
    assert (described["num_slices"], described["hosts_per_slice"], described["chips"]) == (2, 4, 32)
    assert cloud.slices() == {"c-np-0": 4, "c-np-1": 4}

    what = ("--num-slices", "2", "--image", "none", "--command", "sleep inf", "--output-root", "gs://runs/here")
    cloud.xpk("workload", "create", "train", "--cluster", "c", *what)
    running = cloud.until(lambda: (found := runs(cloud, "train"))["phase"] == "Running" and found)
    hosts = {(host["slice"], host["host"]): host for host in running["hosts"]}
    assert len(hosts) == 8 and {host["phase"] for host in hosts.values()} == {"Running"}
    assert running["output_dir"] == "gs://runs/here/train"
    check_each_slice_has_a_pool(cloud, hosts)
    (listed,) = cloud.json("workload", "list", "--cluster", "c")
    assert (listed["name"], listed["phase"]) == ("train", "Running")
    assert [each["workload"] for each in cloud.json("cluster", "describe", "c")["slices"]] == ["train", "train"]
    cloud.xpk(*DELETE, code=4)

    cloud.xpk("workload", "delete", "train", "--cluster", "c", "--yes")
    cloud.until(lambda: not cloud.api.list("Pod"))
    assert cloud.json("workload", "list", "--cluster", "c") == []
    cloud.xpk("cluster", "resize", "c", "--num-slices", "3")
    assert cloud.json("cluster", "describe", "c")["num_slices"] == 3 and len(cloud.slices()) == 3
    cloud.xpk("workload", "create", "larger", "--cluster", "c", "--num-slices", "3", *what[2:])
    cloud.until(lambda: runs(cloud, "larger")["phase"] == "Running")
    cloud.xpk("workload", "delete", "larger", "--cluster", "c", "--yes")
    cloud.until(lambda: not cloud.api.list("Pod"))

    cloud.xpk(*DELETE)
    cloud.check_nothing_is_left()


def runs(cloud: Cloud, workload: str) -> dict[str, Any]:
    """Return what is told of a workload."""
    found: dict[str, Any] = cloud.json("workload", "describe", workload, "--cluster", "c")
    return found


def check_each_slice_has_a_pool(cloud: Cloud, hosts: dict[tuple[int, int], dict[str, Any]]) -> None:
    nodes = {node["metadata"]["name"]: node["metadata"]["labels"] for node in cloud.api.list("Node")}
    pools = [
        {nodes[hosts[each, host]["node"]]["cloud.google.com/gke-nodepool"] for host in range(4)} for each in (0, 1)
    ]
    assert sorted(map(sorted, pools)) == [["c-np-0"], ["c-np-1"]]
    assert len({host["node"] for host in hosts.values()}) == 8


def test_killed_after_every_step_and_run_again(cloud: Cloud) -> None:
    created = until_done(cloud, *CREATE)
    assert len(created) >= 4, "steps that go on at once are taken on by the next life"
    assert cloud.pools() == {"default-pool": "RUNNING", "c-np-0": "RUNNING", "c-np-1": "RUNNING"}
    assert cloud.json("cluster", "describe", "c")["state"] == "Ready"
    until_done(cloud, "cluster", "resize", "c", "--num-slices", "3")
    until_done(cloud, "cluster", "resize", "c", "--num-slices", "2", "--yes")
    assert cloud.slices() == {"c-np-0": 4, "c-np-1": 4}
    assert cloud.json("cluster", "describe", "c")["state"] == "Ready"
    until_done(cloud, *DELETE)
    cloud.check_nothing_is_left()
    pools = {("CreateNodePool", f"c-np-{number}"): 1 for number in range(3)}
    whole = {("CreateCluster", "c"): 1, ("DeleteCluster", "c"): 1, ("DeleteNodePool", "c-np-2"): 1}
    assert cloud.made() == pools | whole, "nothing was made twice"


def until_done(cloud: Cloud, *arguments: str) -> list[str]:
    """Run a command until nothing is left to do, killing it after each step; return the steps."""
    steps: list[str] = []
    while step := cloud.killed_after_a_step(*arguments, known=steps):
        steps.append(step)
        assert len(steps) < 20, steps
    return steps
