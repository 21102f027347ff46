"""Clusters are created, grown, shrunk, adopted and deleted, against an emulated control plane."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.capacity.gke.pools import add_pool
from tests.capacity.gke.site import Site
from xpk.capacity.gke.cloud.configuration import Endpoints
from xpk.capacity.gke.provider import GkeProvider
from xpk.capacity.provider import count_existing_slices
from xpk.model.accelerators import find_shape
from xpk.model.errors import AuthorizationError, ConflictError, NotFoundError, UsageError


def test_a_cluster_with_its_slices_and_queues(site: Site) -> None:
    done = site.create(2)
    assert done[:2] == [
        "save the location of 'c'",
        "create cluster 'c' in us-central1: control plane, 6 x e2-standard-16 in us-central1-a",
    ]
    assert set(done[2:-2]) == {
        "create node pool c-np-0: 4 x ct5lp-hightpu-4t",
        "create node pool c-np-1: 4 x ct5lp-hightpu-4t",
        "install JobSet 0.12.0",
        "install Kueue 0.19.2",
    }
    assert done[-2:] == [
        "set up queue 'multislice-queue' with a quota of 32 google.com/tpu (v5litepod-16)",
        "wait until all hosts are ready and offer their chips",
    ]
    assert site.pools() == {"default-pool": "RUNNING", "c-np-0": "RUNNING", "c-np-1": "RUNNING"}
    assert site.quotas() == {"v5litepod-16": 32}
    assert site.plan(2).steps == [], "the second plan has nothing to do"
    target = site.provider().target("c")
    assert (target.emulated, target.sets_slice_environment) == (False, False)
    assert site.provider().names() == ["c"]


def test_create_waits_for_hosts_that_register_late(site: Site) -> None:
    site.api.late, message = {"c-np-1-2", "c-np-1-3"}, list[str]()

    def live(states: Mapping[str, str]) -> None:
        message.extend(state for what, state in states.items() if what.startswith("wait until all hosts"))
        if message:
            site.api.late = set()

    site.plan(2).carry_out(lambda title: None, live)
    assert message[0].startswith("1 of 2 slices") and message[0].endswith("c-np-1: Missing 2 hosts have not come up")
    assert site.plan(2).steps == []
    site.api.late = {"c-np-0-0"}
    (step,) = site.plan(2).steps
    assert step.key == "hosts", "a host that has disappeared since then is also awaited"


def test_more_slices_and_slices_of_another_type_are_added(site: Site) -> None:
    site.create(1)
    done = site.create(2)
    assert done[0] == "create node pool c-np-1: 4 x ct5lp-hightpu-4t" and len(done) == 3
    done = site.create(1, "v5litepod-32")
    assert done[0] == "create node pool c-np-2: 8 x ct5lp-hightpu-4t"
    assert site.quotas() == {"v5litepod-16": 32, "v5litepod-32": 32}
    assert site.plan(2).steps == site.plan(1, "v5litepod-32").steps == []
    info = site.provider().describe("c")
    assert (info.accelerator_type, info.num_slices, info.chips) == ("v5litepod-16,v5litepod-32", 3, 64)
    assert info.state == "Ready" and [len(item.hosts) for item in info.slices] == [4, 4, 8]
    with pytest.raises(ConflictError, match=r"it is in us-central1 \(requested us-east1-b\)"):
        site.plan(2, zone="us-east1-b")
    assert site.plan(1, "v5litepod-8", zone="us-central1-b").facts["changes"][0]["body"]["locations"] == [
        "us-central1-b"
    ]
    with pytest.raises(ConflictError, match="has 2 slices of v5litepod-16"):
        site.plan(1)


def test_the_default_number_of_slices_is_the_existing_one(site: Site) -> None:
    shape = find_shape("v5litepod-16")
    assert count_existing_slices(site.provider(), "c", shape) is None
    site.create(2)
    add_pool(site, "nap-1", "4x4")
    assert count_existing_slices(site.provider(), "c", shape) == 2
    assert count_existing_slices(site.provider(), "c", find_shape("v5litepod-32")) == 0
    with pytest.raises(ConflictError, match="has 2 slices of v5litepod-16") as caught:
        site.plan(1)
    assert caught.value.hint.startswith("--num-slices 2 keeps them")
    site.environ |= {"XPK_GKE_ENDPOINT": "127.0.0.1:1"}
    assert count_existing_slices(site.provider(), "c", shape) is None, "the plan explains why the value is unknown"


def test_resizing_adds_equal_slices_and_removes_busy_ones_last(site: Site) -> None:
    site.create(2, spot=True)
    site.create(1, "v5litepod-32")
    with pytest.raises(UsageError, match="no slice type given"):
        site.provider().plan_resize("c", 3, force=False)
    resize = site.provider(tpu_type="v5litepod-16").plan_resize
    plan = resize("c", 3, force=False)
    plan.carry_out(lambda title: None)
    pools = {pool["name"]: pool for pool in site.cluster["node_pools"]}
    assert (
        pools["c-np-3"]["config"]["spot"] and pools["c-np-3"]["placement_policy"] == pools["c-np-0"]["placement_policy"]
    )
    assert resize("c", 3, force=False).steps == []
    site.run_workload("train", "c-np-3")
    plan = resize("c", 2, force=False)
    assert [step.title for step in plan.steps][-1] == "delete node pool c-np-1", "a free slice is removed"
    with pytest.raises(ConflictError, match="2 slices would be removed, but train is running on them"):
        site.run_workload("other", "c-np-0")
        resize("c", 1, force=False)
    done: list[str] = []
    resize("c", 1, force=True).carry_out(done.append)
    assert done[0].startswith("cordon c-np-") and done[1].startswith("set up queue") and "drain c-np-3" in done
    assert done.index("drain c-np-3") < done.index("delete node pool c-np-3")
    assert set(site.pools()) == {"default-pool", "c-np-0", "c-np-2"}, "the other type stays"
    assert site.quotas() == {"v5litepod-16": 16, "v5litepod-32": 32}


def test_periodic_host_maintenance_is_kept_for_later_slices(site: Site) -> None:
    site.create(1, host_maintenance_interval="PERIODIC")
    site.create(1, "v5litepod-32", host_maintenance_interval="AS_NEEDED")
    site.provider(tpu_type="v5litepod-16").plan_resize("c", 2, force=False).carry_out(lambda title: None)
    site.provider(tpu_type="v5litepod-32").plan_resize("c", 2, force=False).carry_out(lambda title: None)
    read = site.provider()._pool_of
    policies = [read("c", site.place, f"c-np-{index}")["config"].get("host_maintenance_policy") for index in range(4)]
    assert policies == [{"maintenance_interval": "PERIODIC"}, None, {"maintenance_interval": "PERIODIC"}, None]
    assert site.plan(2, host_maintenance_interval="PERIODIC").steps == []


def test_deleting(site: Site) -> None:
    site.create(1)
    meta = {"name": "train", "namespace": "default"}
    site.api.create({"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": meta})
    with pytest.raises(ConflictError, match="workloads are on cluster 'c': train"):
        site.provider().plan_delete("c", force=False)
    site.provider().plan_delete("c", force=True).carry_out(lambda title: None)
    assert site.provider().names() == []
    with pytest.raises(NotFoundError, match="cluster 'c' not found in project p"):
        site.provider().plan_delete("c", force=False)


def test_an_existing_cluster_can_be_adapted(site: Site) -> None:
    google = site.provider()._google
    pool = {"name": "theirs", "initial_node_count": 4, "config": {"machine_type": "ct5lp-hightpu-4t"},
            "placement_policy": {"type": "COMPACT", "tpu_topology": "4x4"}, "locations": ["us-central1-a"]}  # fmt: skip
    cluster = {"name": "old", "node_pools": [{"name": "default-pool", "initial_node_count": 1}, pool]}
    google.call("create_cluster", {"parent": "projects/p/locations/us-central1", "cluster": cluster})
    while not all(item["status"] == "RUNNING" for item in google.call(
        "list_clusters", {"parent": "projects/p/locations/-"})["clusters"]):  # fmt: skip
        site.gke.plane.operations.running()
    plan = site.provider(output_root="gs://bucket/runs").plan_adapt("old")
    plan.carry_out(lambda title: None)
    assert site.quotas() == {"v5litepod-16": 16}
    assert site.provider().target("old").output_root == "gs://bucket/runs"
    assert site.provider().plan_adapt("old").steps == []


def test_the_fenced_option_is_remembered(site: Site) -> None:
    site.create(1)
    assert not site.provider().target("c").fenced
    site.provider().plan_adapt("c", fenced=True).carry_out(lambda title: None)
    assert site.provider().target("c").fenced
    site.create(2)
    site.provider().plan_resize("c", 3, force=False).carry_out(lambda title: None)
    assert site.provider().plan_adapt("c").steps == [] and site.provider().target("c").fenced
    site.provider().plan_adapt("c", fenced=False).carry_out(lambda title: None)
    assert not site.provider().target("c").fenced


def test_another_tools_kueue_without_the_feature_gate_is_reported_first(site: Site) -> None:
    site.create(1)
    theirs = site.api.objects["Deployment", "kueue-system", "kueue-controller-manager"]
    theirs["metadata"]["managedFields"] = [{"manager": "helm", "operation": "Update"}]
    meta = {"name": "kueue-manager-config", "namespace": "kueue-system"}
    config = "integrations: {frameworks: [jobset.x-k8s.io/jobset]}"
    site.api.create({"kind": "ConfigMap", "metadata": meta, "data": {"controller_manager_config.yaml": config}})
    with pytest.raises(ConflictError, match="Kueue was not installed by this xpk and lacks feature gate"):
        site.provider().plan_adapt("c", fenced=True)
    assert not site.provider().target("c").fenced
    for plan in (site.provider().plan_adapt("c"), site.provider().plan_resize("c", 2, force=False)):
        assert "lacks feature gate FailureRecoveryPolicy; set it in" in plan.notes[-1]


def test_controllers_of_a_growing_gke_cluster_get_more_resources(site: Site) -> None:
    site.create(1)
    pod = site.api.objects["Deployment", "kueue-system", "kueue-controller-manager"]["spec"]["template"]["spec"]
    pod["containers"][0]["resources"] = {"limits": {"memory": "512Mi"}}
    titles = [step.title for step in site.provider().plan_resize("c", 200, force=False).steps]
    assert "allow Kueue 1536Mi of memory, for 800 hosts" in titles


def test_a_registered_cluster_is_adapted_at_its_location(site: Site) -> None:
    site.create(1)
    provider = GkeProvider(site.folder / "state", endpoints=Endpoints.read(site.environ), connect=site._connect)
    assert provider.plan_adapt("c").steps == [], "without its project and zone"
    with pytest.raises(UsageError, match=r"cluster 'c' is in project p \(requested other\)"):
        site.provider(project="other").plan_adapt("c")


def test_without_credentials_the_plan_is_for_an_empty_project(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(site.folder / "no-key.json"))
    site.environ |= {"XPK_GKE_ENDPOINT": "", "XPK_COMPUTE_ENDPOINT": ""}
    plan = site.plan(2)
    assert "this plan assumes an empty project" in plan.notes[0] and plan.facts["guess"]
    assert [change["kind"] for change in plan.facts["changes"]] == ["create-cluster", "create-pool", "create-pool"]
    with pytest.raises(AuthorizationError, match="no credentials found"):
        plan.carry_out(lambda title: None)
    assert site.gke.calls == []


def test_an_existing_cluster_keeps_its_workload_identity(site: Site) -> None:
    """Changing it would recreate node pools host by host, which was not requested."""
    site.create(1, disable_workload_identity=True)
    more = {change["key"]: change["body"] for change in site.plan(2).facts["changes"]}
    assert (
        set(more) == {"create-pool:c-np-1"} and "workload_metadata_config" not in more["create-pool:c-np-1"]["config"]
    )
    asked = site.plan(1, enable_workload_identity=True).facts["changes"]
    assert {item["key"] for item in asked} == {"update-cluster:workload_identity_config", "update-pool:c-np-0"}


def test_new_slices_of_a_cluster_with_workload_identity_use_it(site: Site) -> None:
    site.create(1)
    (change,) = site.plan(2).facts["changes"]
    assert change["body"]["config"]["workload_metadata_config"] == {"mode": "GKE_METADATA"}
