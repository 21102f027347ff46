"""Adapting existing clusters and restoring them. The drill on a real cluster is e2e/test_kind_adapt.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.capacity.adapted.nodes import node
from tests.capacity.adapted.site import Site, gke
from xpk.api.base import Obj, ObjectApi
from xpk.capacity.adapted.provider import AdaptedProvider
from xpk.capacity.nodes.emulated import Adaptation
from xpk.jobs.create.create import read_queue
from xpk.model import names
from xpk.model.accelerators import NODEPOOL_LABEL, find_shape
from xpk.model.errors import AuthorizationError, CapacityError, ConflictError, NotFoundError, UsageError, XpkError
from xpk.model.specs import ClusterSpec
from xpk.render import render_queues
from xpk.testing import FakeApi

V5E_8 = find_shape("v5litepod-8")


def test_existing_slices_are_counted_and_become_quota(tmp_path: Path) -> None:
    site = Site(tmp_path, gke())
    before = site.user.read_text()
    assert site.adapt(output_root="gs://bucket/runs/", trainer_image="r/trainer:1", fenced=True) == [
        "install JobSet 0.12.0",
        "install Kueue 0.19.2",
        "set up queue 'multislice-queue' with a quota of 16 google.com/tpu",
        "record how workloads run on it",
        "save the connection to 'mine'",
    ]
    assert site.plan(output_root="gs://bucket/runs").steps == [], "the second plan has nothing to do"
    info = site.provider.describe("mine")
    assert (info.state, info.accelerator_type, info.location) == ("Ready", "v5litepod-8", "context:theirs")
    assert "default-pool" not in [item.node_pool for item in info.slices]
    target = site.provider.target("mine")
    assert (target.emulated, target.output_root, target.shared_folder) == (False, "gs://bucket/runs", None)
    assert target.trainer_image == "r/trainer:1" and target.fenced
    assert not target.sets_slice_environment, "GKE's webhook sets it"
    assert site.provider.target("context:theirs") == target
    assert site.user.read_text() == before
    assert (site.state / "adapted" / "mine" / "kubeconfig").stat().st_mode & 0o777 == 0o600
    assert yaml.safe_load(site.provider.kubeconfig("mine"))["current-context"] == "theirs"


def test_options_that_are_not_repeated_are_kept(tmp_path: Path) -> None:
    site = Site(tmp_path, gke())
    site.adapt(output_root="/mnt/nfs", trainer_image="r/trainer:1")
    assert site.adapt(trainer_image="r/trainer:2") == ["record how workloads run on it"]
    target = site.provider.target("mine")
    assert (target.shared_folder, target.trainer_image) == ("/mnt/nfs", "r/trainer:2")


def test_priority_classes_of_other_tools_are_created(tmp_path: Path) -> None:
    theirs = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "high"}, "value": 9}
    site = Site(tmp_path, [*gke(), theirs])

    def values() -> dict[str, int]:
        return {item["metadata"]["name"]: item["value"] for item in site.api.list("PriorityClass")}

    site.adapt(output_root="gs://b/x")
    assert values() == {**names.PRIORITIES, "high": 9}, "objects of other tools are not changed"
    site.api.delete("PriorityClass", "medium")
    assert site.provider.describe("mine").state == "Ready", "our workloads do not need it"
    again = site.adapt(output_root="gs://b/x")
    assert again == ["set up queue 'multislice-queue' with a quota of 16 google.com/tpu"]
    assert values()["medium"] == 500
    site.provider.plan_delete("mine", force=False).carry_out(lambda title: None)
    assert values() == {"high": 9}


def test_a_queue_of_another_tool_with_the_same_quota_is_kept(tmp_path: Path) -> None:
    site, objects = Site(tmp_path, gke()), render_queues(ClusterSpec(name="mine", shape=V5E_8, num_slices=2))
    for obj in objects:
        if obj["kind"] in ("ResourceFlavor", "ClusterQueue", "LocalQueue"):
            del obj["metadata"]["labels"]
            if obj["kind"] == "ResourceFlavor":
                obj["metadata"]["name"] = "2xv5litepod-8"
            if obj["kind"] == "ClusterQueue":
                obj["spec"]["resourceGroups"][0]["flavors"][0]["name"] = "2xv5litepod-8"
            site.api.create(obj)
    before = site.api.get("ClusterQueue", "cluster-queue")["spec"]
    assert "set up queue 'multislice-queue' with a quota of 16 google.com/tpu" in site.adapt(output_root="gs://b/x")
    assert site.api.get("ClusterQueue", "cluster-queue")["spec"] == before
    assert [item["metadata"]["name"] for item in site.api.list("ResourceFlavor", None)] == ["2xv5litepod-8"]
    assert site.plan(output_root="gs://b/x").steps == []
    assert site.provider.describe("mine").state == "Ready"
    site.provider.plan_delete("mine", force=False).carry_out(lambda title: None)
    for kind in ("ResourceFlavor", "ClusterQueue", "LocalQueue"):
        assert len(site.api.list(kind, None)) == 1, "it existed before"
    assert site.api.list("WorkloadPriorityClass", None) == []


def test_missing_quota_is_added_to_a_queue_of_another_tool_under_its_names(tmp_path: Path) -> None:
    site = Site(tmp_path, gke())
    entries = [{"name": "google.com/tpu", "nominalQuota": "8"}, {"name": "cpu", "nominalQuota": "480"}]
    flavor = {"name": "1xv5litepod-8", "resources": entries}
    group = {"coveredResources": ["google.com/tpu", "cpu"], "flavors": [flavor]}
    meta, kueue = {"name": "cluster-queue"}, "kueue.x-k8s.io/v1beta2"
    used = [{"name": "1xv5litepod-8", "resources": [{"name": "google.com/tpu", "total": "8"}]}]
    site.api.create(
        {"apiVersion": kueue, "kind": "ClusterQueue", "metadata": meta, "spec": {"resourceGroups": [group]},
         "status": {"flavorsReservation": used}}
    )  # fmt: skip
    plan = site.plan(output_root="gs://b/x")
    assert plan.notes[-1] == (
        "quota of flavor '1xv5litepod-8' in 'cluster-queue': 8 -> 16 google.com/tpu (1 -> 2 slices of v5litepod-8), "
        "8 in use"
    )
    plan.carry_out(lambda title: None)
    (after,) = site.api.get("ClusterQueue", "cluster-queue")["spec"]["resourceGroups"]
    assert [item["name"] for item in after["flavors"]] == ["1xv5litepod-8"]
    assert [str(item["nominalQuota"]) for item in after["flavors"][0]["resources"]] == ["16", "480"]
    assert site.api.list("ResourceFlavor", None) == []
    assert site.plan(output_root="gs://b/x").steps == [] and site.provider.describe("mine").state == "Ready"
    site.provider.plan_delete("mine", force=False).carry_out(lambda title: None)
    assert len(site.api.list("ClusterQueue", None)) == 1, "it existed before"


def gclusters() -> list[Obj]:
    """Return two slices of v6e-16 and the queues of gcluster's blueprint for them: a flavor without a topology."""
    labels = {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v6e-slice",
        "cloud.google.com/gke-tpu-topology": "4x4",
    }
    nodes = [node(f"{pool}-{host}", pool, 4, providerID="gce://p/z/i") for pool in ("p0", "p1") for host in range(4)]
    for item in nodes:
        item["metadata"]["labels"] |= labels
    quota = {"name": "google.com/tpu", "nominalQuota": 32}
    group = {"coveredResources": ["google.com/tpu"], "flavors": [{"name": "tpuv6e-flavor", "resources": [quota]}]}
    del labels["cloud.google.com/gke-tpu-topology"]
    queues: list[tuple[str, Obj, Obj]] = [
        ("ResourceFlavor", {"name": "tpuv6e-flavor"}, {"nodeLabels": labels}),
        ("ClusterQueue", {"name": "cluster-queue"}, {"namespaceSelector": {}, "resourceGroups": [group]}),
        ("LocalQueue", {"name": "user-queue", "namespace": "default"}, {"clusterQueue": "cluster-queue"}),
    ]
    version = "kueue.x-k8s.io/v1beta2"
    return [*nodes, *({"apiVersion": version, "kind": kind, "metadata": m, "spec": s} for kind, m, s in queues)]


def test_the_queue_of_a_cluster_of_gcluster_is_kept_and_used(tmp_path: Path) -> None:
    site = Site(tmp_path, gclusters())
    before = site.api.get("ClusterQueue", "cluster-queue")["spec"]
    site.adapt(output_root="gs://b/x")
    assert site.api.get("ClusterQueue", "cluster-queue")["spec"] == before, (
        "the quota of its flavor is that of the slices"
    )
    assert [item["metadata"]["name"] for item in site.api.list("ResourceFlavor", None)] == ["tpuv6e-flavor"]
    assert {item["metadata"]["name"] for item in site.api.list("LocalQueue", None)} == {
        "user-queue",
        "multislice-queue",
    }
    assert site.plan(output_root="gs://b/x").steps == []
    assert site.provider.describe("mine").state == "Ready"
    for queue in ("user-queue", "multislice-queue"):
        assert list(read_queue(site.api, queue, "default", cluster="mine").most) == ["v6e-16"]


def test_a_flavor_of_several_topologies_has_no_type(tmp_path: Path) -> None:
    objects = gclusters()
    objects[0]["metadata"]["labels"]["cloud.google.com/gke-tpu-topology"] = "2x4"
    queue = read_queue(Site(tmp_path, objects).api, "user-queue", "default", cluster="mine")
    assert list(queue.most) == ["tpuv6e-flavor"]


def test_permission_to_take_over_quotas_is_remembered(tmp_path: Path) -> None:
    site = Site(tmp_path, gke())
    site.adapt(output_root="gs://b/x", take_over=True)
    site.adapt(trainer_image="r/trainer:2")
    assert site.api.get("ConfigMap", "xpk-cluster")["data"]["take-over"] == "true"


def test_nodes_emulate_slices_and_are_restored(tmp_path: Path) -> None:
    workers = [node(f"worker-{index}") for index in range(3)]
    taint = {"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}
    site = Site(tmp_path, [node("cp", taints=[taint]), *workers])
    wanted = {"emulated": True, "shape": V5E_8, "num_slices": 2, "output_root": "/shared"}
    done = site.adapt(**wanted)  # type: ignore[arg-type]
    assert done[:2] == [
        "label 2 nodes as slices: worker-0, worker-1",
        "advertise 8 google.com/tpu on every slice's node",
    ]
    assert site.plan(**wanted).steps == []
    info = site.provider.describe("mine")
    assert (info.state, info.num_slices, info.chips) == ("Ready", 2, 16)
    assert site.provider.target("mine").emulated
    with pytest.raises(ConflictError, match="2 nodes already emulate slices"):
        site.plan(emulated=True, shape=V5E_8, num_slices=1)
    site.provider.plan_delete("mine", force=False).carry_out(lambda title: None)
    assert site.provider.names() == []
    assert site.api.list("ClusterQueue") == site.api.list("ConfigMap") == []
    for item in site.api.list("Node"):
        assert NODEPOOL_LABEL not in item["metadata"]["labels"]
        assert names.TYPE_ANNOTATION not in item["metadata"]["labels"]
        assert item["status"]["capacity"] == {"cpu": "2"} or not item["status"]["capacity"].get("google.com/tpu")
    assert len(site.api.list("Deployment", None)) == 2, "JobSet and Kueue may serve other workloads"


def test_nodes_keep_emulating_slices_without_repeating_the_option(tmp_path: Path) -> None:
    site = Site(tmp_path, [node(f"worker-{index}") for index in range(3)])
    site.adapt(emulated=True, shape=V5E_8, num_slices=2, output_root="/shared")
    site.api.patch("Node", "worker-1/status", {"status": {"capacity": {"google.com/tpu": None}}})
    assert site.adapt(trainer_image="r/trainer:2") == [
        "advertise 8 google.com/tpu on every slice's node",
        "record how workloads run on it",
    ]
    assert site.provider.target("mine").emulated
    site.provider.plan_delete("mine", force=False).carry_out(lambda title: None)
    assert not any(NODEPOOL_LABEL in item["metadata"]["labels"] for item in site.api.list("Node"))


def test_emulation_leaves_nodes_with_accelerators_alone(tmp_path: Path) -> None:
    taint = {"key": "google.com/tpu", "value": "present", "effect": "NoSchedule"}
    real = node("tpu-0", "tpu-np-0", 4, "v6e-4", taints=[taint])
    site = Site(tmp_path, [node("worker-0"), real])
    before = site.api.get("Node", "tpu-0")
    site.adapt(emulated=True, shape=V5E_8, num_slices=1, output_root="/shared")
    assert site.api.get("Node", "tpu-0") == before
    site.provider.plan_delete("mine", force=False).carry_out(lambda title: None)
    assert site.api.get("Node", "tpu-0") == before
    assert NODEPOOL_LABEL not in site.api.get("Node", "worker-0")["metadata"]["labels"]


def test_taints_that_others_add_while_slices_are_emulated_are_kept(tmp_path: Path) -> None:
    site, theirs = Site(tmp_path, [node("worker-0")]), {"key": "theirs", "effect": "NoSchedule"}
    plan = site.plan(emulated=True, shape=V5E_8, num_slices=1, output_root="/shared")
    site.api.patch("Node", "worker-0", {"spec": {"taints": [theirs]}})
    plan.carry_out(lambda title: None)
    assert theirs in site.api.get("Node", "worker-0")["spec"]["taints"]
    removal = site.provider.plan_delete("mine", force=False)
    later = {"key": "later", "effect": "NoSchedule"}
    site.api.patch("Node", "worker-0", {"spec": {"taints": [theirs, later]}})
    removal.carry_out(lambda title: None)
    assert site.api.get("Node", "worker-0")["spec"]["taints"] == [theirs, later]


@pytest.mark.parametrize("later", ["another type", "none left"])
def test_delete_removes_all_our_objects_for_any_slices(later: str, tmp_path: Path) -> None:
    site = Site(tmp_path, gke())
    site.adapt()
    if later == "another type":
        site.api.create(node("other", "other-np", 4, "v6e-4"))
    else:
        for item in site.api.list("Node"):
            site.api.delete("Node", item["metadata"]["name"])
    site.provider.plan_delete("mine", force=False).carry_out(lambda title: None)
    for kind in ("ClusterQueue", "ResourceFlavor", "LocalQueue", "WorkloadPriorityClass", "PriorityClass"):
        assert site.api.list(kind, None) == [], kind


def test_too_few_nodes(tmp_path: Path) -> None:
    with pytest.raises(CapacityError, match="has 1 suitable") as caught:
        Site(tmp_path, [node("worker-0")]).plan(emulated=True, shape=V5E_8, num_slices=2)
    assert "--num-slices 1" in caught.value.hint


def test_several_types_require_an_explicit_choice(tmp_path: Path) -> None:
    site = Site(tmp_path, [*gke(), node("other", "other-np", 4, "v6e-4")])
    with pytest.raises(UsageError, match="types: 2 x v5litepod-8, 1 x v6e-4"):
        site.plan()
    assert "1 x v6e-4" in site.plan(shape=find_shape("v6e-4")).summary


def test_a_cluster_without_slices_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no whole slice") as caught:
        Site(tmp_path, [node("worker-0")]).plan()
    assert "--emulated" in caught.value.hint


def test_all_problems_are_reported_together(tmp_path: Path) -> None:
    provider = Site(tmp_path, []).provider
    with pytest.raises(UsageError) as caught:
        provider.plan_adapt(Adaptation(name="Mine", emulated=True, output_root="relative"))
    assert len(caught.value.problems) == 3


def test_a_context_that_was_not_adapted_is_reported(tmp_path: Path) -> None:
    site = Site(tmp_path, gke())
    with pytest.raises(NotFoundError, match="was not adapted") as caught:
        site.provider.target("context:theirs")
    assert "xpk cluster adapt NAME --context theirs" in caught.value.hint


def test_a_deleted_cluster_can_be_unregistered(tmp_path: Path) -> None:
    site = Site(tmp_path, gke())
    site.adapt(output_root="gs://b/x")

    def gone(kubeconfig: Path | None, context: str | None = None) -> ObjectApi:
        raise XpkError("connection refused")

    provider = AdaptedProvider(site.state, user_kubeconfig=site.user, connect=gone)
    with pytest.raises(ConflictError, match="connection refused"):
        provider.plan_delete("mine", force=False)
    provider.plan_delete("mine", force=True).carry_out(lambda title: None)
    assert provider.names() == []


def test_a_workload_that_came_while_the_prompt_waited_keeps_its_queue(tmp_path: Path) -> None:
    site = Site(tmp_path, gke())
    site.adapt(output_root="gs://b/x")
    plan = site.provider.plan_delete("mine", force=False)
    site.api.create({"kind": "JobSet", "metadata": {"name": "late", "namespace": "default"}})
    with pytest.raises(ConflictError, match="workloads are on cluster 'mine': late"):
        plan.carry_out(lambda title: None)
    assert site.api.list("ClusterQueue") and site.provider.names() == ["mine"]


def test_force_needs_no_permission_to_list_workloads(tmp_path: Path) -> None:
    class Limited(FakeApi):
        def list(self, kind: str, *args: Any, **more: Any) -> list[Obj]:
            if kind == "JobSet":
                raise AuthorizationError("jobsets is forbidden")
            return super().list(kind, *args, **more)

    site = Site(tmp_path, gke())
    site.adapt(output_root="gs://b/x")
    limited = Limited()
    limited.objects = site.api.objects
    site.api = limited
    with pytest.raises(ConflictError, match="cannot check for workloads") as caught:
        site.provider.plan_delete("mine", force=False)
    assert "xpk cluster delete mine --force" in caught.value.hint
    site.provider.plan_delete("mine", force=True).carry_out(lambda title: None)
    assert site.api.list("ClusterQueue") == []


def test_nodes_cannot_be_added(tmp_path: Path) -> None:
    site = Site(tmp_path, gke())
    site.adapt(output_root="gs://b/x")
    with pytest.raises(UsageError, match="cannot add or remove"):
        site.provider.plan_resize("mine", 4, force=False)
