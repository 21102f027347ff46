"""A cluster of the emulated GKE, with a real API server, is reached like a user does, without gcloud."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import xpk
from e2e.api_server import BINARIES, api_server, missing
from tools.gke_emulator import GkeEmulator
from xpk.capacity.gke.provider import GkeProvider
from xpk.capacity.gke.request.options import GkeOptions
from xpk.capacity.plan.plan import Plan
from xpk.model.accelerators import find_shape
from xpk.model.specs import ClusterSpec

pytestmark = pytest.mark.skipif(bool(why := missing("kube-apiserver", "etcd", "kubectl")), reason=why)

OPTIONS = GkeOptions(project="p", zone="us-central1-a", on_demand=True)


@pytest.fixture
def gke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GkeEmulator]:
    (tmp_path / "server").mkdir()
    with (
        api_server(tmp_path / "server", BINARIES) as server,
        GkeEmulator(speed=1000, api_server=server, quotas={"CPUS": 1000, "TPU_LITE_PODSLICE_V5": 1000}) as emulator,
    ):
        for name, value in {
            "XPK_GKE_ENDPOINT": emulator.grpc_target,
            "XPK_COMPUTE_ENDPOINT": emulator.http_url,
            "XPK_GKE_TOKEN": emulator.token,
            "XPK_GKE_POLL_SECONDS": "0.1",
            "XPK_STATE_DIR": str(tmp_path / "state"),
        }.items():
            monkeypatch.setenv(name, value)
        yield emulator


def without_controllers(plan: Plan) -> None:
    """Execute the steps of GKE; a bare API server runs no controllers."""
    for step in plan.steps:
        if not step.key.startswith(("install:", "queues")):
            step.act()


def test_nodes_of_slices_are_listed_and_drained(
    gke: GkeEmulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = ClusterSpec(name="c", shape=find_shape("v5litepod-16"), num_slices=2)
    without_controllers(GkeProvider(options=OPTIONS).plan_create(spec))
    provider = GkeProvider(options=OPTIONS)
    info = provider.describe("c")
    assert (info.num_slices, info.hosts_per_slice, info.state) == (2, 4, "Incomplete"), "there are no queues yet"
    assert [len(entry.hosts) for entry in info.slices] == [4, 4]
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(provider.kubeconfig("c"))
    argv = [str(BINARIES / "kubectl"), f"--kubeconfig={kubeconfig}", "get", "nodes", "-o", "json"]
    seen = subprocess.run(argv, capture_output=True, text=True, check=True)
    nodes = [
        item["metadata"]["labels"].get("cloud.google.com/gke-nodepool") for item in json.loads(seen.stdout)["items"]
    ]
    assert nodes.count("c-np-0") == nodes.count("c-np-1") == 4
    api = provider.connect("c")
    host = next(entry.hosts[0] for entry in info.slices if entry.node_pool == "c-np-1")
    meta = {"name": "train-0", "namespace": "default", "labels": {"xpk.google.com/workload": "train"}}
    containers = [{"name": "host", "image": "none"}]
    pod = {"nodeName": host, "terminationGracePeriodSeconds": 0, "containers": containers}
    api.create({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": pod})
    plan = GkeProvider(options=OPTIONS).plan_resize("c", 1, force=False)
    assert [step.title for step in plan.steps][-1] == "delete node pool c-np-0", "the one without workloads"
    without_controllers(GkeProvider(options=OPTIONS).plan_resize("c", 1, force=True))
    assert [entry.node_pool for entry in GkeProvider(options=OPTIONS).describe("c").slices] == ["c-np-1"]
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("XPK_STATE_DIR", str(tmp_path / "elsewhere"))
        described = xpk.Cluster("c", options=xpk.GkeOptions(project="p")).describe()
        assert described == xpk.Cluster("c").describe() and described.num_slices == 1
    without_controllers(GkeProvider(options=OPTIONS).plan_delete("c", force=True))
    assert GkeProvider(options=OPTIONS).names() == []
