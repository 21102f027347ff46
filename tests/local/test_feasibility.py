"""Needs of workloads, the node pools that they fit on, and the reason if they fit nowhere."""

from __future__ import annotations

from typing import Any

import pytest

from tests.local.cases import ACCELERATOR, RESOURCE, jobset, node
from xpk.api.base import Obj
from xpk.local.feasibility import POOLS, fitting_pools, needs_of, never_fits, pools_of, waiting_message
from xpk.model import names

WORKLOAD = {"spec": {"podSets": [{"name": "slice-job"}]}}
PREFIX = "couldn't assign flavors to pod set slice-job: "


def pools(count: int, hosts: int = 2) -> dict[str, list[Obj]]:
    return {f"np-{pool}": [node(pool, host) for host in range(hosts)] for pool in range(count)}


def without_topology(obj: Obj) -> Obj:
    obj["metadata"]["annotations"] = {}
    return obj


def spec_of(obj: Obj) -> Any:
    return obj["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]


def verdict(obj: Obj, maximum: int, usable: dict[str, list[Obj]]) -> tuple[str, str]:
    return never_fits(WORKLOAD, obj, {RESOURCE: maximum}, usable, "flavor", {})


def test_a_workload_needs_the_chips_of_all_hosts_and_a_node_pool_for_each_slice() -> None:
    assert needs_of(jobset("a", "true", slices=3, hosts=2)) == {RESOURCE: 24, POOLS: 3}


def test_a_workload_without_exclusive_slices_needs_no_node_pool() -> None:
    assert needs_of(without_topology(jobset("a", "true"))) == {RESOURCE: 16}


def test_a_check_of_a_quarantined_slice_needs_no_other_node_pool() -> None:
    check = jobset("a", "true", slices=1)
    spec_of(check)["tolerations"].append({"key": names.QUARANTINE_TAINT, "operator": "Exists"})
    assert needs_of(check) == {RESOURCE: 8}


def test_only_ready_open_nodes_of_the_flavor_are_usable() -> None:
    flavor = {"spec": {"nodeLabels": ACCELERATOR}}
    usable, other, broken, closed = (node(pool, 0) for pool in range(4))
    other["metadata"]["labels"] |= dict.fromkeys(ACCELERATOR, "other")
    broken["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
    closed["spec"] = {"unschedulable": True}
    assert pools_of(flavor, [usable, other, broken, closed]) == {"c-np-0": [usable]}
    assert [*pools_of({"spec": {}}, [usable, other])] == ["c-np-0", "c-np-1"]


@pytest.mark.parametrize(("chips", "fitting"), [(4, 2), (2, 2), (8, 0), (0, 2)])
def test_a_node_pool_fits_if_its_empty_nodes_have_room_for_all_hosts(chips: int, fitting: int) -> None:
    asks = jobset("a", "true", slices=1, hosts=2)
    spec_of(asks)["containers"][0]["resources"]["limits"][RESOURCE] = chips
    assert fitting_pools(pools(2), asks, {}) == fitting


def test_a_node_without_chips_takes_no_room_from_its_node_pool() -> None:
    usable = pools(1)
    usable["np-0"][1]["status"]["allocatable"] = {}
    assert fitting_pools(usable, jobset("a", "true", slices=1, hosts=1), {}) == 1
    assert fitting_pools(usable, jobset("a", "true", slices=1, hosts=2), {}) == 0


def test_every_node_pool_fits_a_workload_without_exclusive_slices() -> None:
    assert fitting_pools(pools(3, hosts=1), without_topology(jobset("a", "true", hosts=9)), {}) == 3


def test_a_workload_that_fits_into_the_empty_cluster_has_no_reason() -> None:
    assert verdict(jobset("a", "true"), 16, pools(2)) == ("", "")
    assert verdict(without_topology(jobset("a", "true")), 16, {}) == ("", "")


def test_a_workload_beyond_the_quota_is_evicted_for_it_even_if_there_are_node_pools() -> None:
    reason, message = verdict(jobset("a", "true"), 15, pools(2))
    assert reason == "QuotaExceeded"
    assert message == (
        f"{PREFIX}insufficient quota for {RESOURCE} in flavor flavor, previously considered podsets requests (0) "
        "+ current podset request (16) > maximum capacity (15)"
    )


def test_a_workload_without_its_node_pools_is_evicted_for_them() -> None:
    assert verdict(jobset("a", "true"), 16, pools(1)) == (
        "NodeFailures",
        f"{PREFIX}insufficient free node pools in flavor flavor, 2 of 1 usable node pools requested, 1 more needed",
    )


def test_a_workload_that_waits_for_others_is_told_how_much_it_lacks() -> None:
    def message(maximums: dict[str, int], lacking: int) -> str:
        return waiting_message(WORKLOAD, {RESOURCE: 16, POOLS: 2}, {RESOURCE: lacking, POOLS: 1}, maximums, "f", 2)

    assert message({RESOURCE: 16}, 4) == f"{PREFIX}insufficient unused quota for {RESOURCE} in flavor f, 4 more needed"
    assert message({}, 4) == f"{PREFIX}resource {RESOURCE} unavailable in ClusterQueue"
    assert message({RESOURCE: 16}, 0).endswith("2 of 2 usable node pools requested, 1 more needed")
