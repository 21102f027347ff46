"""The GKE emulator with a real API server: node pools are Nodes there, whose pods KWOK runs."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from e2e.api_server import BINARIES, api_server, missing
from e2e.control_plane import kwok
from tests.gke_emulator.cloud import PARENT, Cloud
from tests.waiting import until
from tools.gke_emulator import GkeEmulator, PoolFault
from xpk.api.base import Obj, ObjectApi

RED = f"{PARENT}/clusters/red"
_SECONDS = 240.0
pytestmark = pytest.mark.skipif(bool(why := missing("kube-apiserver", "etcd", "kwok")), reason=why)


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A bare API server, reached by a kubeconfig."""
    with api_server(tmp_path_factory.mktemp("server"), BINARIES) as made:
        yield made


def connect(cloud: Cloud, folder: Path) -> ObjectApi:
    """Connect to a cluster as a client does: with GKE's information, and a bearer token."""
    from xpk.api.kubernetes import KubernetesApi

    cluster = cloud.client.get_cluster(name=RED)
    assert b"BEGIN CERTIFICATE" in base64.b64decode(cluster.master_auth.cluster_ca_certificate)
    file = folder / "kubeconfig"
    authority = cluster.master_auth.cluster_ca_certificate
    entry = {"server": f"https://{cluster.endpoint}", "certificate-authority-data": authority}
    file.write_text(yaml.safe_dump({
        "apiVersion": "v1", "kind": "Config", "current-context": "red",
        "clusters": [{"name": "red", "cluster": entry}], "users": [{"name": "red", "user": {"token": cloud.gke.token}}],
        "contexts": [{"name": "red", "context": {"cluster": "red", "user": "red"}}],
    }))  # fmt: skip
    return KubernetesApi(kubeconfig=file)


def await_pod(ready: Callable[[Obj], bool], api: ObjectApi, pod: str) -> None:
    """Wait until a pod is in the expected state."""
    until(lambda: ready(api.get("Pod", pod)), seconds=_SECONDS, every=0.2, report=lambda: api.get("Pod", pod))


def slices(api: ObjectApi) -> list[Obj]:
    """Return the hosts of slices."""
    return [node for node in api.list("Node") if "cloud.google.com/gke-tpu-topology" in node["metadata"]["labels"]]


def test_nodes_of_a_pool_run_pods_and_are_removed_with_the_pool(server: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    with GkeEmulator(speed=1000.0, state=state, api_server=server, faults=(PoolFault("stockout", "red-np-1"),)) as gke:
        cloud = Cloud(gke)
        cloud.running_cluster()
        ended = [cloud.done(item) for item in [cloud.create_slice(number) for number in (0, 1)]]
        assert [bool(item.error.code) for item in ended] == [False, True], ended
        api = connect(cloud, tmp_path)
        hosts = slices(api)
        assert [node["metadata"]["labels"]["cloud.google.com/gke-nodepool"] for node in hosts] == ["red-np-0"] * 4
        assert all(node["status"]["allocatable"]["google.com/tpu"] == "4" for node in hosts)
        with kwok(server, tmp_path / "kwok.log"):
            run_a_pod(api, hosts[0]["metadata"]["name"])
        cloud.close()
    with GkeEmulator(speed=1000.0, state=state, api_server=server) as gke:
        cloud = Cloud(gke)
        assert len(slices(api)) == 4  # an emulator that stops keeps its nodes
        cloud.done(cloud.client.delete_node_pool(name=f"{RED}/nodePools/red-np-0"))
        assert not slices(api) and len(api.list("Node")) == 1
        cloud.done(cloud.client.delete_cluster(name=RED))
        assert not api.list("Node")
        cloud.close()


def run_a_pod(api: ObjectApi, host: str) -> None:
    """Run a pod that requests the chips of a host; it names its node, because there is no scheduler here."""
    chips = {"google.com/tpu": "4"}
    container = {"name": "host", "image": "none", "resources": {"limits": chips, "requests": chips}}
    tolerations = [{"key": "google.com/tpu", "operator": "Exists"}]
    api.create({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "host", "namespace": "default"},
                "spec": {"nodeName": host, "tolerations": tolerations, "containers": [container]}})  # fmt: skip
    await_pod(lambda pod: pod.get("status", {}).get("phase") == "Running", api, "host")
    ready = {"type": "Ready", "status": "True"}
    conditions = next(node for node in slices(api) if node["metadata"]["name"] == host)["status"]["conditions"]
    assert any(ready.items() <= item.items() for item in conditions)
    # KWOK keeps the node's properties from GKE.
    assert all(node["status"]["capacity"]["google.com/tpu"] == "4" for node in slices(api))


@pytest.mark.extended
def test_a_server_without_tokens_gets_a_service_account(server: Path, tmp_path: Path) -> None:
    """Like kind, whose kubeconfig has a client certificate and no token."""
    config = yaml.safe_load(server.read_text())
    (tmp_path / "token").write_text(config["users"][0]["user"].pop("token"))
    config["users"][0]["user"]["tokenFile"] = str(tmp_path / "token")
    kubeconfig = tmp_path / "without-token"
    kubeconfig.write_text(yaml.safe_dump(config))
    for _ in range(2):  # after a restart the account exists
        with GkeEmulator(speed=1000.0, api_server=kubeconfig, state=tmp_path / "state") as gke:
            assert gke.token.count(".") == 2  # a JSON web token
            cloud = Cloud(gke)
            if not cloud.client.list_clusters(parent=PARENT).clusters:
                cloud.running_cluster()
            assert len(connect(cloud, tmp_path).list("Node")) == 1
            cloud.close()
    with GkeEmulator(speed=1000.0, api_server=kubeconfig, state=tmp_path / "state") as gke:
        cloud = Cloud(gke)
        cloud.done(cloud.client.delete_cluster(name=RED))
        cloud.close()
