"""Effects of capacity changes on others' work and objects, on a real API server: evictions, and queues of kubectl."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.api_server import BINARIES, api_server, missing
from tests.capacity.machine import CONTROLLER
from xpk.api.base import Obj
from xpk.api.kubernetes import KubernetesApi
from xpk.capacity.adapted.options import AdaptedOptions
from xpk.capacity.adapted.provider import AdaptedProvider
from xpk.capacity.gke.steps.shrinking import Pods, drain
from xpk.capacity.nodes.cordon import MARK, cordon, uncordon
from xpk.capacity.nodes.emulated import Adaptation
from xpk.capacity.plan.plan import Plan
from xpk.model.accelerators import NODEPOOL_LABEL, find_shape
from xpk.model.errors import AuthorizationError, ConflictError, ProtectedError, TimedOutError

KUEUE = BINARIES.parent / "kueue.yaml"
DOCS = Path(__file__).parents[1] / "docs" / "permissions.md"
SHAPE = find_shape("v5litepod-8")
pytestmark = pytest.mark.skipif(
    bool(why := missing("kube-apiserver", "etcd", "kubectl")) or not KUEUE.exists(),
    reason=why or "no manifest of Kueue: run e2e/environment/up first",
)


class Server:
    """A server with Kueue's kinds and the nodes of two slices, and the actions of its administrator."""

    def __init__(self, folder: Path, kubeconfig: Path) -> None:
        self.folder, self.kubeconfig, self.api = folder, kubeconfig, KubernetesApi(kubeconfig=kubeconfig)
        self.manifests: dict[str, str] = {}
        for name, version in (("jobset", "v0.12.0"), ("kueue", "v0.19.2")):
            file = folder / f"{name}.yaml"
            file.write_text(CONTROLLER.format(name=name, version=version))
            self.manifests[f"{name}_manifest"] = str(file)

    def kubectl(self, *arguments: str, objects: Any = None) -> str:
        """Run kubectl: objects are applied by the client, as Google's xpk applies its own."""
        argv = [str(BINARIES / "kubectl"), f"--kubeconfig={self.kubeconfig}", *arguments]
        text = yaml.safe_dump_all(objects) if objects else ""
        return subprocess.run(argv, input=text, capture_output=True, text=True, check=True).stdout

    def plan(self, *, take_over: bool = False) -> Plan:
        """Return the plan of an adapt."""
        provider = AdaptedProvider(
            self.folder / "state",
            options=AdaptedOptions(**self.manifests),
            user_kubeconfig=self.kubeconfig,
            connect=lambda *_: self.api,
        )
        return provider.plan_adapt(Adaptation(name="c", output_root="gs://b/x", take_over=take_over))

    def adapt(self, *, take_over: bool = False) -> None:
        """Execute the steps that need no controllers, because a bare server runs none."""
        plan = self.plan(take_over=take_over)
        if plan.refusal:
            raise plan.refusal
        for step in plan.steps:
            if not step.title.startswith(("install", "wait until")):
                step.act()

    def queues(self) -> dict[str, Any]:
        """Return the cluster's queues, without fields that change by themselves."""
        kinds = "clusterqueues,localqueues,resourceflavors,workloadpriorityclasses"
        items = json.loads(self.kubectl("get", kinds, "-A", "-o", "json"))["items"]
        return {f"{item['kind']}/{item['metadata']['name']}": item.get("spec", item.get("value")) for item in items}

    def quota(self) -> dict[str, str]:
        """Return the quota of each flavor."""
        (group,) = self.api.get("ClusterQueue", "cluster-queue")["spec"]["resourceGroups"]
        return {item["name"]: str(item["resources"][0]["nominalQuota"]) for item in group["flavors"]}

    def use(self, chips: int) -> None:
        """Report this usage, as Kueue does."""
        used = {
            "name": "2xv5litepod-8",
            "resources": [{"name": "google.com/tpu", "total": str(chips), "borrowed": "0"}],
        }
        status = {"status": {"flavorsReservation": [used]}}
        self.kubectl(
            "patch", "clusterqueue", "cluster-queue", "--subresource=status", "--type=merge", "-p", json.dumps(status)
        )


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with api_server(tmp_path_factory.mktemp("server"), BINARIES, ["evicts", "lacks"]) as kubeconfig:
        server = Server(tmp_path_factory.mktemp("state"), kubeconfig)
        objects = [obj for obj in yaml.safe_load_all(KUEUE.read_text()) if obj]
        kinds = [obj for obj in objects if obj["kind"] == "CustomResourceDefinition"]
        for kind in kinds:
            kind["spec"].pop("conversion", None)  # no controller is running that could
        server.kubectl("apply", "--server-side", "-f", "-", objects=kinds)
        server.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=240s")
        yield server


@pytest.fixture
def server(made: Server) -> Server:
    """Return the server with only two slices."""
    made.kubectl("delete", "pods,pdb", "--all", "--force", "--grace-period=0")
    made.kubectl("delete", "nodes", "--all")
    made.kubectl("delete", "clusterqueues,resourceflavors,workloadpriorityclasses", "--all")
    made.kubectl("delete", "localqueues", "--all", "-n", "default")
    made.kubectl("delete", "configmap", "xpk-cluster", "--ignore-not-found")
    for index in range(2):
        add_slice(made, index)
    return made


def add_slice(server: Server, index: int) -> None:
    """Add the nodes of a slice."""
    for host in range(SHAPE.hosts):
        name = f"c-np-{index}-{host}"
        labels = {NODEPOOL_LABEL: f"c-np-{index}", **SHAPE.node_labels}
        server.api.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}})
        has = {"google.com/tpu": str(SHAPE.resource_per_host)}
        server.api.patch("Node", f"{name}/status", {"status": {"capacity": has, "allocatable": has}})


def theirs() -> list[Obj]:
    """Return the objects that Google's xpk applies for two slices."""
    kueue, flavor = "kueue.x-k8s.io/v1beta2", f"2x{SHAPE.name}"
    entry = {"name": flavor, "resources": [{"name": "google.com/tpu", "nominalQuota": 2 * SHAPE.units}]}
    return [
        {"apiVersion": kueue, "kind": "ResourceFlavor", "metadata": {"name": flavor},
         "spec": {"nodeLabels": dict(SHAPE.node_labels)}},
        {"apiVersion": kueue, "kind": "ClusterQueue", "metadata": {"name": "cluster-queue"},
         "spec": {
             "preemption": {"reclaimWithinCohort": "Never", "withinClusterQueue": "LowerPriority"},
             "namespaceSelector": {},
             "resourceGroups": [{"coveredResources": ["google.com/tpu"], "flavors": [entry]}]}},
        {"apiVersion": kueue, "kind": "LocalQueue", "metadata": {"name": "multislice-queue", "namespace": "default"},
         "spec": {"clusterQueue": "cluster-queue"}},
    ]  # fmt: skip


def test_matching_queues_are_not_changed(server: Server) -> None:
    server.kubectl("apply", "-f", "-", objects=theirs())
    before = server.queues()
    server.adapt()
    after = server.queues()
    assert {key: after[key] for key in before} == before
    assert set(after) - set(before) == {
        f"WorkloadPriorityClass/{name}" for name in ("very-low", "low", "medium", "high", "very-high")
    }
    assert [step for step in server.plan().steps if "queue" in step.title] == []


def test_a_quota_managed_by_kubectl_changes_only_with_take_over(server: Server) -> None:
    server.kubectl("apply", "-f", "-", objects=theirs())
    add_slice(server, 2)
    before, plan = server.queues(), server.plan()
    line = "quota of flavor '2xv5litepod-8' in 'cluster-queue': 16 -> 24 google.com/tpu (2 -> 3 slices of v5litepod-8)"
    assert plan.notes[-1] == f"{line}, 0 in use"
    with pytest.raises(
        ConflictError, match=r"has fields that another manager owns: \.spec\.resourceGroups; "
    ) as refused:
        plan.carry_out(lambda title: None)
    assert "--take-over" in refused.value.hint and "\n" not in refused.value.message
    assert server.queues() == before, "nothing is changed, not even partially"
    server.adapt(take_over=True)
    assert server.quota() == {"2xv5litepod-8": "24"}
    queue = server.api.get("ClusterQueue", "cluster-queue")
    assert "app.kubernetes.io/managed-by" not in queue["metadata"].get("labels", {}), "its owner can still remove it"
    assert queue["spec"]["preemption"]["withinClusterQueue"] == "LowerPriority"
    assert [name for name in server.queues() if name.startswith("ResourceFlavor")] == ["ResourceFlavor/2xv5litepod-8"]
    add_slice(server, 3)
    server.adapt()
    assert server.quota() == {"2xv5litepod-8": "32"}, "the option was given once"


def test_a_quota_is_not_reduced_below_its_usage(server: Server) -> None:
    server.kubectl("apply", "-f", "-", objects=theirs())
    server.use(16)
    server.kubectl("delete", "node", "--selector", f"{NODEPOOL_LABEL}=c-np-1")
    before = server.queues()
    for take_over in (False, True):
        plan = server.plan(take_over=take_over)
        with pytest.raises(ConflictError, match=r"16 -> 8 google.com/tpu .*, 16 in use: it would be less than"):
            plan.carry_out(lambda title: None)
    assert server.queues() == before
    server.use(8)
    server.adapt(take_over=True)
    assert server.quota() == {"2xv5litepod-8": "8"}


def test_a_flavor_with_our_name_but_other_nodes_is_not_changed_without_take_over(server: Server) -> None:
    flavor = theirs()[0] | {"metadata": {"name": SHAPE.name}, "spec": {"nodeLabels": {"pool": "theirs"}}}
    server.kubectl("apply", "-f", "-", objects=[flavor])
    before = server.queues()
    with pytest.raises(ConflictError, match="ResourceFlavor 'v5litepod-8' has fields that another manager owns"):
        server.plan().carry_out(lambda title: None)
    assert server.queues() == before


def pod(name: str) -> Obj:
    """Create a pod on a slice, which waits for its end like pods whose node has a kubelet."""
    meta = {"name": name, "namespace": "default", "labels": {"app": "web"}}
    containers = [{"name": "host", "image": "none"}]
    spec = {"nodeName": "c-np-0-0", "terminationGracePeriodSeconds": 0, "containers": containers}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


def protect(server: Server, allowed: int) -> None:
    """Let a disruption budget allow this number of evictions; no controller is running that counts them."""
    budget = {
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "web", "namespace": "default"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}},
    }  # fmt: skip
    server.kubectl("apply", "-f", "-", objects=[budget])
    generation = json.loads(server.kubectl("get", "pdb", "web", "-o", "json"))["metadata"]["generation"]
    status = {
        "observedGeneration": generation, "disruptionsAllowed": allowed, "currentHealthy": 1, "desiredHealthy": 1,
        "expectedPods": 1,
    }  # fmt: skip
    patch = json.dumps({"status": status})
    server.kubectl("patch", "pdb", "web", "--subresource=status", "--type=merge", "-p", patch)


def run(server: Server, name: str) -> None:
    """Start a pod, as reported by its kubelet."""
    server.api.create(pod(name))
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    server.api.patch("Pod", f"{name}/status", {"status": status})


def test_a_disruption_budget_delays_an_eviction_until_it_allows_it(server: Server) -> None:
    run(server, "a")
    protect(server, 0)
    with pytest.raises(ProtectedError, match="Pod 'a' cannot be evicted now: The disruption budget web needs 1"):
        server.api.evict("a")
    with pytest.raises(
        TimedOutError, match=r"c-np-0 was not drained within 600 s: .*The disruption budget web needs 1"
    ):
        drain(Pods(server.api, 0.0, itertools.count(0.0, 100.0).__next__), "c-np-0", lambda seconds: None)
    drain(Pods(server.api, 0.0), "c-np-0", lambda seconds: protect(server, 1))
    assert server.api.list("Pod") == []


def test_a_missing_permission_to_evict_is_named(server: Server) -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    documented = [role for block in blocks for role in yaml.safe_load_all(block)]
    (role,) = [item for item in documented if item["metadata"]["name"] == "xpk-clusters"]
    lacking = role | {"metadata": {"name": "lacking"}}
    lacking["rules"] = [rule for rule in role["rules"] if "pods/eviction" not in rule["resources"]]
    server.kubectl("apply", "-f", "-", objects=[role, lacking])
    for user, name in (("evicts", "xpk-clusters"), ("lacks", "lacking")):
        server.kubectl("create", "clusterrolebinding", user, f"--clusterrole={name}", f"--user={user}")
    run(server, "a")
    api = KubernetesApi(kubeconfig=server.kubeconfig, context="lacks")
    with pytest.raises(
        AuthorizationError, match="user 'lacks' cannot create pods/eviction in namespace 'default'"
    ) as no:
        drain(Pods(api, 0.0), "c-np-0", lambda seconds: None)
    assert "`xpk docs permissions`" in no.value.hint
    api = KubernetesApi(kubeconfig=server.kubeconfig, context="evicts")
    cordon(api, api.list("Node"))
    assert all(node["spec"]["unschedulable"] for node in api.list("Node"))
    uncordon(api, api.list("Node"))
    left = api.list("Node")
    assert not any("unschedulable" in node["spec"] or MARK in str(node["metadata"]) for node in left)
    drain(Pods(api, 0.0), "c-np-0", lambda seconds: None)


def test_a_pod_without_a_node_has_an_empty_log(server: Server) -> None:
    waiting = pod("a")
    del waiting["spec"]["nodeName"]
    assert list(server.api.logs(server.api.create(waiting))) == []
