"""Options of Google's xpk for existing clusters and clusters without slices, on the emulator."""

from __future__ import annotations

from typing import Any

import pytest

from tests.capacity.gke.site import Site
from xpk.capacity.plan.plan import Plan
from xpk.model.accelerators import find_shape
from xpk.model.errors import AuthorizationError, NotFoundError, UsageError
from xpk.model.specs import ClusterSpec


def adapt(site: Site, tpu_type: str, num_slices: int, **options: Any) -> Plan:
    stated = ClusterSpec(name="c", shape=find_shape(tpu_type), num_slices=num_slices)
    return site.provider(**options).plan_adapt("c", stated=stated, counted=True)


def test_adapting_adds_drivers_and_reports_differences(site: Site) -> None:
    site.create(1)
    plan = adapt(site, "v5litepod-16", 3, enable_gcsfuse_csi_driver=True)
    assert "1 slice of v5litepod-16 was found; 3 were expected" in plan.notes
    plan.carry_out(lambda title: None)
    assert site.cluster["addons_config"]["gcs_fuse_csi_driver_config"]["enabled"]
    again = adapt(site, "v5litepod-16", 1, enable_gcsfuse_csi_driver=True)
    assert again.steps == [] and again.notes == ("add-ons: GcsFuseCsiDriver", "workload identity: p.svc.id.goog")
    with pytest.raises(UsageError, match="no slices of v4-8; it has: v5litepod-16"):
        adapt(site, "v4-8", 1)


def test_adapting_shows_the_requested_changes(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.create(1)
    options, line = (
        {"output_root": "gs://b/p", "trainer_image": "r/t:1"},
        "workloads: output in gs://b/p, trainer image r/t:1",
    )
    assert line in site.provider(**options).plan_adapt("c").notes
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(site.folder / "no-key.json"))
    site.environ |= {"XPK_GKE_ENDPOINT": "", "XPK_COMPUTE_ENDPOINT": ""}
    unseen = site.provider(**options).plan_adapt("c")
    assert line in unseen.notes
    assert any("with a quota of the slices that it has" in step.title for step in unseen.steps)


def test_a_cluster_without_slices_gets_them_later(site: Site) -> None:
    site.create(0, "n2-standard-64-1")
    assert site.pools() == {"default-pool": "RUNNING"}
    with pytest.raises(NotFoundError):
        site.api.get("ClusterQueue", "cluster-queue")
    assert site.plan(0, "n2-standard-64-1").steps == []
    site.create(2, "n2-standard-64-1")
    assert site.quotas() == {"n2-standard-64-1": 128}


def test_hosts_of_gb200_are_placed_by_one_policy(site: Site) -> None:
    changes = {change["key"]: change["body"] for change in site.plan(2, "gb200-4").facts["changes"]}
    name = "gb200-4-1x72-placement-policy"
    assert changes[f"create-policy:{name}"]["workloadPolicy"] == {
        "type": "HIGH_THROUGHPUT",
        "acceleratorTopology": "1x72",
    }
    assert [changes[f"create-pool:c-np-{index}"]["placement_policy"] for index in (0, 1)] == [{"policy_name": name}] * 2


def test_without_credentials_nothing_is_adapted_or_deleted(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(site.folder / "no-key.json"))
    site.environ |= {"XPK_GKE_ENDPOINT": "", "XPK_COMPUTE_ENDPOINT": ""}
    for plan in (adapt(site, "v5litepod-16", 2), site.provider().plan_delete("c", force=True)):
        assert plan.steps and "no Google Cloud credentials found" in plan.notes[0]
        with pytest.raises(AuthorizationError):
            plan.carry_out(lambda title: None)
    assert not (site.folder / "state" / "gke" / "c").exists(), "the cluster is not registered"


def test_an_incomplete_plan_is_rejected_when_it_is_executed(site: Site) -> None:
    spec = ClusterSpec(name="c", shape=find_shape("v5litepod-16"), num_slices=1)
    plan = site.provider(
        custom_cluster_arguments=(
            "--enable-magic",
            "--labels=a=b",
        )
    ).plan_create(spec)
    assert [change["kind"] for change in plan.facts["changes"]] == ["create-cluster", "create-pool"]
    with pytest.raises(UsageError) as caught:
        plan.carry_out(lambda title: None)
    capacity, unknown = caught.value.problems
    assert "no capacity given" in capacity and "--enable-magic is not supported" in unknown
    with pytest.raises(UsageError) as caught:
        site.provider(custom_cluster_arguments=("--enable-magic",)).check_create(spec)
    assert len(caught.value.problems) == 2 and site.asked("CreateCluster") == 0
