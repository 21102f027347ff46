"""Growth of `cluster create` with the number of slices (calls, concurrent steps, time), up to 199 x v5litepod-256."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest

from tests.capacity.gke.conftest import MakeSite
from tests.capacity.gke.site import Site
from xpk.capacity.gke.desired.limits import Sizing, pod_prefix, range_limits
from xpk.cost import price
from xpk.model.accelerators import find_shape
from xpk.model.errors import CapacityError
from xpk.model.specs import WorkloadSpec


@pytest.mark.slow
def test_calls_and_parallel_steps_grow_with_the_slices(make_site: MakeSite) -> None:
    for num_slices in (2, 16, 199):
        site = make_site(speed=600, seconds_per_node=1.0)
        begun = time.monotonic()
        site.create(num_slices, "v5litepod-256")
        wall = time.monotonic() - begun
        calls = site.gke.calls
        assert site.asked("CreateNodePool") == num_slices and site.asked("CreateCluster") == 1
        polls = site.asked("ListOperations")
        # All waiters share one listing per poll: polls grow with time, not with slices. Pauses begin at a tenth of
        # the longest one and grow by a quarter: about 15 more polls for the cluster, and for the node pools.
        assert polls <= wall / 0.03 + 30
        assert len(calls) - polls <= num_slices + 15
        at_once = max(call.operations for call in calls)
        assert at_once >= min(num_slices, 100) * 0.5, "a slow machine starts them slowly, so the first may have ended"
        report = f"{len(calls)} calls, {polls} of them polls, {at_once} at once, {wall:.1f} s"
        print(f"{num_slices} slices: {report}")
        assert len(site.pools()) == num_slices + 1


def test_every_limit_of_a_large_job_is_shown_with_numbers(site: Site) -> None:
    plan = site.plan(199, "v5litepod-256", spot=True)
    limits = {limit["name"]: limit for limit in plan.facts["limits"]}
    assert {name: (limit["need"], limit["have"], limit["fits"]) for name, limit in limits.items()} == {
        # 12,736 nodes of 32 addresses (15 pods), 6 of 256: more than GKE's default /14
        "pod addresses (a /13)": (12_736 * 32 + 6 * 256, 2**19, True),
        "node addresses in the subnetwork": (12_742, 2**14 - 4, True),
        "nodes of the cluster": (12_742, 5_000, False),
        "nodes of one node pool": (64, 1_000, True),
        "pods of the cluster": (12_742 * 4 + 12_736, 200_000, True),
        "characters of a node pool's name": (8, 40, True),
        "quota PREEMPTIBLE_TPU_LITE_PODSLICE_V5": (50_944, 200_000, True),
        "quota INSTANCES": (12_742, 10**9, True),
        "quota IN_USE_ADDRESSES": (12_742, 10**9, True),
        "quota SSD_TOTAL_GB": (1_274_200, 10**9, True),
        "quota CPUS (default pool)": (96, 5_000, True),
    }
    assert plan.refusal is None, "the limit of 5,000 nodes may have been raised for this project"
    assert "ask Cloud Customer Care" in " ".join(plan.notes)
    cluster = plan.facts["changes"][0]["body"]
    assert cluster["ip_allocation_policy"] == {
        "use_ip_aliases": True,
        "cluster_ipv4_cidr_block": "/13",
        "create_subnetwork": True,
        "node_ipv4_cidr_block": "/18",
    }
    assert "enable_multi_networking" not in cluster["network_config"], "GKE has no nodes beyond 5,000"
    assert "autoscaling" not in cluster["node_pools"][0], "nor has its autoscaler"
    assert cluster["network_config"]["dns_config"]["cluster_dns"] == "CLOUD_DNS"


def test_an_impossible_size_is_rejected_before_anything_is_created(make_site: MakeSite) -> None:
    site = make_site(quotas={"TPU_LITE_PODSLICE_V5": 31, "CPUS": 5_000})
    plan = site.plan(2)
    with pytest.raises(CapacityError, match="quota TPU_LITE_PODSLICE_V5: needs 32 of 31: too little"):
        plan.carry_out(lambda title: None)
    assert plan.steps and site.asked("CreateCluster") == 0
    site.create(1)


def test_nodes_need_addresses_unless_they_are_private_and_disks_unless_told_otherwise(make_site: MakeSite) -> None:
    site = make_site(quotas={"CPUS": 5_000, "IN_USE_ADDRESSES": 8, "SSD_TOTAL_GB": 900, "INSTANCES": 10})
    plan = site.plan(1)
    assert plan.refusal and "quota IN_USE_ADDRESSES: needs 10 of 8" in plan.refusal.message
    report = {limit["name"]: limit for limit in site.plan(1, private=True).facts["limits"]}
    assert "quota IN_USE_ADDRESSES" not in report and report["quota INSTANCES"]["fits"] is True
    assert (report["quota SSD_TOTAL_GB"]["need"], report["quota SSD_TOTAL_GB"]["fits"]) == (1_000, False)
    small = ("config.disk_size_gb=50",)
    assert site.plan(1, private=True, custom_nodepool_arguments=small).refusal is None


def test_additional_slices_are_checked_like_the_first_ones(make_site: MakeSite) -> None:
    site = make_site(quotas={"PREEMPTIBLE_TPU_LITE_PODSLICE_V5": 63, "CPUS": 5_000})
    site.create(2, spot=True)
    plan = site.provider().plan_resize("c", 4, force=False)
    limits = {limit["name"]: (limit["need"], limit["have"], limit["fits"]) for limit in plan.facts["limits"]}
    assert limits["quota PREEMPTIBLE_TPU_LITE_PODSLICE_V5"] == (32, 31, False), "only of the additional slices"
    assert limits["nodes of the cluster"] == (22, 5_000, True)
    assert limits["pod addresses (a /14)"] == (16 * 32 + 6 * 256, 2**18, True)
    assert "64 chip-hours an hour, at most 76.80 US dollars" in plan.notes[-1]
    with pytest.raises(CapacityError, match="quota PREEMPTIBLE_TPU_LITE_PODSLICE_V5: needs 32 of 31"):
        plan.carry_out(lambda title: None)
    assert len(site.pools()) == 3, "nothing is created"
    dear = site.provider(max_cost=50).plan_resize("c", 3, force=False)
    assert dear.refusal and "57.60 US dollars an hour" in dear.refusal.message
    site.provider().plan_resize("c", 3, force=False).carry_out(lambda title: None)
    assert site.provider().plan_resize("c", 1, force=False).refusal is None


def test_additional_slices_must_be_free_in_the_reservation(site: Site) -> None:
    site.gke.add_reservation("r", project="p", zone="us-central1-a", machine_type="ct5lp-hightpu-4t", count=9)
    site.create(1, reservation=("r",))
    refusal = site.provider().plan_resize("c", 3, force=False).refusal
    assert refusal and "free machines of projects/p/reservations/r: needs 8 of 5: too little" in refusal.message
    site.provider().plan_resize("c", 2, force=False).carry_out(lambda title: None)


def test_limits_count_the_default_pools_nodes_of_custom_arguments(site: Site) -> None:
    own = site.plan(1, custom_cluster_arguments=("--num-nodes=5000",)).facts["limits"]
    assert own == site.plan(1, default_pool_cpu_num_nodes=5000).facts["limits"] != site.plan(1).facts["limits"]


def test_addresses_are_those_of_the_clusters_own_subnetwork(site: Site) -> None:
    own = ("ip_allocation_policy.create_subnetwork=true", "ip_allocation_policy.node_ipv4_cidr_block=/28")
    site.create(1, custom_cluster_arguments=own)
    for plan in (site.plan(2), site.provider().plan_resize("c", 2, force=False)):
        assert "node addresses in the subnetwork: needs 14 of 12: too little" in " ".join(plan.notes)
        assert plan.refusal and "node addresses" in plan.refusal.message
    limit = range_limits(Sizing(nodes=9_000, pod_addresses=1), "10.0.0.0/14", None, is_known=False)[1]
    assert limit.fits is None, "a hidden subnetwork is not a reason to reject the plan"


@pytest.mark.parametrize(
    ("quota", "tpu_type", "capacity", "name"),
    [
        ("TPUS_PER_TPU_FAMILY:CT6E", "v6e-16", "on_demand", "TPUS_PER_TPU_FAMILY CT6E"),
        ("PREEMPTIBLE_TPU_V6E", "v6e-16", "flex", "PREEMPTIBLE_TPU_V6E"),
        ("TPU_V5P", "v5p-32", "on_demand", "TPU_V5P"),
        ("GPUS_PER_GPU_FAMILY:NVIDIA_H200", "h200-141gb-8", "on_demand", "GPUS_PER_GPU_FAMILY NVIDIA_H200"),
        ("PREEMPTIBLE_NVIDIA_H100_MEGA_GPUS", "h100-mega-80gb-8", "spot", "PREEMPTIBLE_NVIDIA_H100_MEGA_GPUS"),
    ],
)
def test_quotas_are_read_from_their_location(
    make_site: MakeSite, quota: str, tpu_type: str, capacity: str, name: str
) -> None:
    other = "GPUS_PER_GPU_FAMILY:NVIDIA_B200"  # of another family: it does not count
    site = make_site(quotas={other: 1, quota: 23, "CPUS": 5_000})
    assert site.plan(1, tpu_type, **{capacity: "True"}).refusal is None
    refusal = site.plan(3, tpu_type, **{capacity: "True"}).refusal
    assert refusal and re.search(rf"quota {name}: needs \d+ of 23: too little", refusal.message)


@pytest.mark.parametrize(
    ("pods", "prefix"), [(8, 28), (15, 27), (16, 27), (17, 26), (32, 26), (64, 25), (110, 24), (256, 23)]
)
def test_a_node_reserves_twice_the_addresses_of_its_pods(pods: int, prefix: int) -> None:
    assert pod_prefix(pods) == prefix


def test_cost(site: Site) -> None:
    plan = site.plan(199, "v5litepod-256")
    cost = plan.facts["cost"]
    assert (cost["chips"], cost["dollars"]) == (50_944, pytest.approx(50_944 * 1.2))
    assert "50,944 chip-hours an hour, 61,132.80 US dollars" in plan.notes[-1]
    assert "(list price of 2026-09-17: https://cloud.google.com/tpu/pricing" in plan.notes[-1]
    assert "at most" in site.plan(1, spot=True).notes[-1]
    plan = site.plan(2, max_cost=38)
    assert plan.refusal and plan.refusal.exit_code == 5 and "38.40 US dollars an hour" in plan.refusal.message
    assert site.plan(2, max_cost=38.5).refusal is None
    table = site.folder / "prices.yaml"
    table.write_text("as_of: '2026-11-01'\nsources: {tpu: ours}\nchip_hour: {v5litepod: {us-central1: 0.5}}\n")
    assert site.plan(2, max_cost=38, prices=table).facts["cost"]["dollars"] == 16
    assert "(list price of 2026-11-01: ours)" in site.plan(2, prices=table).notes[-1]
    assert "(unconfirmed list price of 2025-12-31: " in site.plan(1, "v4-16", zone="us-central2-b").notes[-1]
    unknown = site.plan(1, "v4-16", zone="us-east1-b", max_cost=1000)
    assert unknown.refusal and "price is unknown" in unknown.refusal.message
    site.create(1)
    target = site.provider().target("c")
    work = WorkloadSpec(
        name="w", shape=find_shape("v5litepod-16"), num_slices=1, command=("true",), target=target, image="i"
    )
    report = price(work, None)
    assert report and "16 chip-hours an hour, at most 19.20 US dollars an hour" in report
    with pytest.raises(CapacityError, match="--max-cost is 19"):
        price(work, 19.0)


def test_the_cost_includes_nodes_that_gke_may_add(site: Site) -> None:
    limited: dict[str, Any] = {"spot": True, "enable_autoprovisioning": True, "autoprovisioning_max_chips": 1024}
    plan = site.plan(0, max_cost=1228.79, **limited)
    assert "0 chip-hours an hour, at most 0.00 US dollars an hour on demand" in plan.notes[-1]
    assert "with all that GKE may add: 1,024 chip-hours an hour, at most 1,228.80 US dollars" in plan.notes[-1]
    assert "slices only, no other machines" in plan.notes[-1], "the default pool is not free"
    assert (plan.facts["cost"]["most_chips"], plan.facts["cost"]["most_dollars"]) == (1024, pytest.approx(1228.8))
    assert plan.refusal and plan.refusal.exit_code == 5
    assert "with all that GKE may add it costs 1,228.80 US dollars an hour" in plan.refusal.message
    assert "--autoprovisioning-max-chips" in plan.refusal.hint
    site.plan(0, max_cost=1229, **limited).carry_out(lambda title: None)
    again = site.plan(1, spot=True, max_cost=100)
    assert again.refusal and "1,228.80" in again.refusal.message, "a limit that is not repeated is kept"
    assert "GKE may add" not in site.plan(1, name="d").notes[-1]
