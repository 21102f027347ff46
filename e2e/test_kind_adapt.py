"""A cluster that somebody else made, here a plain kind cluster, is adapted, used by name and by context, and left.

In order, on one cluster of its own: that of the other tests may be there at the same time.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from e2e.kind_cluster import XPK, docker, why_not

pytestmark = [
    pytest.mark.skipif(bool(why_not()), reason=f'{why_not()}: `eval "$(e2e/environment/up)"` first'),
    pytest.mark.extended,  # a second cluster; the effects of adapt are also tested in tests/capacity
]
THEIRS = f"theirs-{os.getpid()}"
CONTEXT = f"kind-{THEIRS}"
EMULATED = ("--emulated", "--tpu-type", "v5litepod-8", "--num-slices", "2")


@dataclass(frozen=True, slots=True)
class Site:
    """A user's machine: the kubeconfig that kind wrote, and a folder that all nodes share."""

    folder: Path

    @property
    def kubeconfig(self) -> Path:
        """Return the user's kubeconfig."""
        return self.folder / "kubeconfig"

    @property
    def shared(self) -> Path:
        """Return the folder that all nodes see at this path."""
        return self.folder / "shared"

    def xpk(self, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        """Run a command and check its exit code."""
        ours = {
            "KUBECONFIG": str(self.kubeconfig),
            "XPK_STATE_DIR": str(self.folder / "state"),
            "XPK_CONFIG_DIR": str(self.folder / "config"),
        }
        argv, env = [*XPK, *arguments], {**os.environ, **ours}
        done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False, timeout=600)
        assert done.returncode == code, f"{argv}\n{done.stdout}\n{done.stderr}\n{self.kubectl('get', 'pods', '-A')}"
        return done

    def kubectl(self, *arguments: str) -> str:
        """Run kubectl."""
        argv = ["kubectl", f"--kubeconfig={self.kubeconfig}", f"--context={CONTEXT}", *arguments]
        return subprocess.run(argv, capture_output=True, text=True, check=False).stdout

    def plan(self, *arguments: str) -> list[str]:
        """Return the steps of an adapt."""
        asked = ("cluster", "adapt", "mine", *arguments, "--dry-run", "-o", "json")
        steps: list[str] = json.loads(self.xpk(*asked).stdout)["steps"]
        return steps


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Return its owner's cluster: two workers, and images as from their registry."""
    made = Site(tmp_path_factory.mktemp("site"))
    made.shared.mkdir()
    made.shared.chmod(0o777)
    mounts = [{"hostPath": str(made.shared), "containerPath": str(made.shared)}]
    nodes = [{"role": role, "extraMounts": mounts} for role in ("control-plane", "worker", "worker")]
    config = made.folder / "kind.yaml"
    config.write_text(yaml.safe_dump({"kind": "Cluster", "apiVersion": "kind.x-k8s.io/v1alpha4", "nodes": nodes}))
    network = {**os.environ, "KIND_EXPERIMENTAL_DOCKER_NETWORK": THEIRS}
    kind = ["kind", "create", "cluster", "--name", THEIRS, "--config", str(config), "--wait", "180s"]
    try:
        subprocess.run([*kind, "--kubeconfig", str(made.kubeconfig), "--image", os.environ["KIND_NODE_IMAGE"]],
                       env=network, check=True, capture_output=True)  # fmt: skip
        images = [os.environ[f"XPK_E2E_{name}_IMAGE"] for name in ("JOBSET", "KUEUE", "PYTHON")]
        old = "registry.k8s.io/jobset/jobset:v0.11.0"
        docker("tag", images[0], old)
        subprocess.run(
            ["kind", "load", "docker-image", "--name", THEIRS, *images, old], check=True, capture_output=True
        )
        yield made
    finally:
        remove = ["kind", "delete", "cluster", "--name", THEIRS, "--kubeconfig", str(made.kubeconfig)]
        subprocess.run(remove, check=False, capture_output=True)
        subprocess.run(["docker", "network", "rm", THEIRS], check=False, capture_output=True)


def test_without_slices_the_error_suggests_simulated_ones(site: Site) -> None:
    refused = site.xpk("cluster", "adapt", "mine", "--context", CONTEXT, code=2)
    assert "no whole slice" in refused.stderr and "--emulated" in refused.stderr


def test_upgrading_an_older_controller_keeps_queues(site: Site) -> None:
    before = site.kubeconfig.read_bytes()
    manifest = Path(os.environ["XPK_E2E_JOBSET_MANIFEST"]).read_text()
    older = site.folder / "older.yaml"
    older.write_text(manifest.replace("jobset:v0.12.0", "jobset:v0.11.0"))
    place = ("--context", CONTEXT, "--output-root", str(site.shared), "--fenced")
    site.xpk("cluster", "adapt", "mine", *place, *EMULATED, "--jobset-manifest", str(older))
    uid = ("get", "clusterqueue", "cluster-queue", "-o", "jsonpath={.metadata.uid}")
    queue = site.kubectl(*uid)
    assert site.plan(*EMULATED) == ["upgrade JobSet 0.11.0 to 0.12.0"]
    site.xpk("cluster", "adapt", "mine", *EMULATED)
    assert site.plan(*EMULATED) == []
    assert queue and site.kubectl(*uid) == queue
    image = ("get", "deployment", "-n", "jobset-system", "jobset-controller-manager", "-o", "yaml")
    assert "jobset:v0.12.0" in site.kubectl(*image)
    assert site.kubeconfig.read_bytes() == before


def test_an_adapted_cluster_is_listed_described_and_reached_by_its_own_kubeconfig(site: Site) -> None:
    (info,) = json.loads(site.xpk("cluster", "list", "-o", "json").stdout)
    assert (info["provider"], info["state"], info["num_slices"], info["chips"]) == ("adapted", "Ready", 2, 16)
    own = site.folder / "own"
    own.write_text(site.xpk("cluster", "kubeconfig", "mine").stdout)
    argv = ["kubectl", f"--kubeconfig={own}", "get", "nodes", "-o", "name"]
    assert len(subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()) == 3


def test_workloads_run_by_name_and_by_context(site: Site) -> None:
    image = ("--image", os.environ["XPK_E2E_PYTHON_IMAGE"], "--num-slices", "2")
    command = ("--command", 'mkdir -p "$XPK_OUTPUT_DIR" && touch "$XPK_OUTPUT_DIR/$HOSTNAME"')
    site.xpk("workload", "create", "by-name", "--cluster", "mine", *image, *command)
    site.xpk("workload", "create", "by-context", "--context", CONTEXT, *image, *command)
    for name in ("by-name", "by-context"):
        site.xpk("workload", "wait", name, "--context", CONTEXT, "--timeout", "3m")
        assert len(list((site.shared / name).iterdir())) == 4
    listed = json.loads(site.xpk("workload", "list", "--context", CONTEXT, "-o", "json").stdout)
    assert {item["name"]: item["phase"] for item in listed} == {"by-name": "Succeeded", "by-context": "Succeeded"}
    refused = site.xpk("workload", "list", "--context", CONTEXT, "--cluster", "mine", code=2)
    assert "exclude each other" in refused.stderr


def test_a_server_side_dry_run_stores_nothing(site: Site) -> None:
    asked = ("workload", "create", "dry", "--cluster", "mine", "--command", "true", "--dry-run=server")
    stored = {item["kind"]: item for item in yaml.safe_load_all(site.xpk(*asked).stdout)}
    assert stored["JobSet"]["spec"]["suspend"] is True, "Kueue's webhook was called"
    assert "by-name" in site.kubectl("get", "jobsets") and "dry" not in site.kubectl("get", "jobsets", "-o", "name")
    refused = site.xpk(*asked[:5], "--num-slices", "2000", *asked[5:], code=2)
    assert "2000 slices" in refused.stderr


def test_delete_keeps_the_cluster_of_its_owner(site: Site) -> None:
    site.xpk("cluster", "delete", "mine", "--yes")
    assert site.xpk("cluster", "list", "-o", "json").stdout.strip() == "[]"
    nodes = json.loads(site.kubectl("get", "nodes", "-o", "json"))["items"]
    assert len(nodes) == 3
    for node in nodes:
        assert not [key for key in node["metadata"]["labels"] if key.startswith(("cloud.google.com", "xpk.dev"))]
        assert "google.com/tpu" not in node["status"]["capacity"]
    assert site.kubectl("get", "clusterqueues,localqueues,resourceflavors", "-A", "-o", "name") == ""
    assert "jobset-controller-manager" in site.kubectl("get", "deployments", "-A")
