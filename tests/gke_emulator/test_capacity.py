"""Quotas, stock, reservations and addresses of a project, and their limits."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest
from google.api_core import exceptions
from google.cloud.container_v1 import NodePool, ReservationAffinity, StatusCondition

from tests.gke_emulator.cloud import PARENT, PROJECT, REGION, ZONE, Cloud
from tools.gke_emulator.machines import find_machine, quota_metric

Emulate = Callable[..., Cloud]
RED = f"{PARENT}/clusters/red"
TPUS = "TPU_LITE_PODSLICE_V5"


def quota(cloud: Cloud, metric: str) -> tuple[float, float]:
    """Return the limit and the usage of a quota."""
    result = {item["metric"]: item for item in cloud.rest("GET", f"regions/{REGION}")[1]["quotas"]}[metric]
    return result["limit"], result["usage"]


def test_chips_count_against_the_region_s_quota(emulate: Emulate) -> None:
    cloud = emulate(quotas={TPUS: 40})
    cloud.running_cluster()
    assert quota(cloud, TPUS) == (40, 0)
    ended = [cloud.done(cloud.create_slice(number)) for number in range(3)]
    assert [bool(item.error.code) for item in ended] == [False, False, True]
    assert f"Quota '{TPUS}' exceeded.  Limit: 40.0 in region us-east5." in ended[2].error.message
    assert ended[2].nodepool_conditions[0].code == StatusCondition.Code.GCE_QUOTA_EXCEEDED
    assert quota(cloud, TPUS) == (40, 32)
    cloud.done(cloud.client.delete_node_pool(name=f"{RED}/nodePools/red-np-0"))
    assert quota(cloud, TPUS) == (40, 16)


def test_spot_has_a_quota_of_its_own(emulate: Emulate) -> None:
    cloud = emulate(quotas={TPUS: 0, f"PREEMPTIBLE_{TPUS}": 16})
    cloud.running_cluster()
    assert not cloud.done(cloud.create_slice(0, config={"spot": True})).error.code
    assert cloud.done(cloud.create_slice(1)).error.code
    assert quota(cloud, f"PREEMPTIBLE_{TPUS}") == (16, 16)


def test_cpu_quota_is_checked_before_an_operation_begins(emulate: Emulate) -> None:
    cloud = emulate(quotas={"CPUS": 24})
    with pytest.raises(exceptions.Forbidden, match=r"resource \"CPUS\": request requires '32\.0' and is short '8\.0'"):
        cloud.create_cluster(nodes=2)
    assert not cloud.client.list_clusters(parent=PARENT).clusters
    cloud.done(cloud.create_cluster(nodes=1))
    with pytest.raises(exceptions.Forbidden, match=r"'24\.0' with '8\.0' available"):
        cloud.client.set_node_pool_size({"name": f"{RED}/nodePools/default-pool", "node_count": 3})


@pytest.mark.parametrize(
    ("machine", "preemptible", "metric"),
    [
        ("ct5lp-hightpu-4t", False, "TPU_LITE_PODSLICE_V5"),
        ("ct6e-standard-4t", False, "TPUS_PER_TPU_FAMILY:CT6E"),
        ("ct6e-standard-4t", True, "PREEMPTIBLE_TPU_V6E"),
        ("a2-highgpu-8g", True, "PREEMPTIBLE_NVIDIA_A100_GPUS"),
        ("ct5p-hightpu-4t", False, "TPU_V5P"),
        ("a3-megagpu-8g", False, "GPUS_PER_GPU_FAMILY:NVIDIA_H100_MEGA"),
        ("a3-megagpu-8g", True, "PREEMPTIBLE_NVIDIA_H100_MEGA_GPUS"),
    ],
)
def test_metrics(machine: str, preemptible: bool, metric: str) -> None:
    result = find_machine(machine)
    assert result and quota_metric(result, preemptible=preemptible) == metric


def test_quotas_with_dimensions_are_only_in_the_cloud_quotas_api(emulate: Emulate) -> None:
    cloud = emulate(quotas={"TPUS_PER_TPU_FAMILY:CT6E": 256})
    shown = {item["metric"] for item in cloud.rest("GET", f"regions/{REGION}")[1]["quotas"]}
    assert not any("FAMILY" in metric for metric in shown)
    where = f"v1/projects/{PROJECT}/locations/global/services/compute.googleapis.com/quotaInfos"
    with urllib.request.urlopen(f"{cloud.gke.http_url}/{where}/TPUS-PER-TPU-FAMILY-per-project-region") as answer:
        infos = json.load(answer)["dimensionsInfos"]
    dimensions = {"region": REGION, "tpu_family": "CT6E"}
    assert [item["details"]["value"] for item in infos if item["dimensions"] == dimensions] == ["256"]


def test_stock_is_limited_and_slices_are_atomic(emulate: Emulate) -> None:
    cloud = emulate(stock={"ct5lp-hightpu-4t": 6})
    cloud.running_cluster()
    assert not cloud.done(cloud.create_slice(0)).error.code
    assert cloud.done(cloud.create_slice(1)).nodepool_conditions[0].code == StatusCondition.Code.GCE_STOCKOUT
    assert cloud.client.get_cluster(name=RED).current_node_count == 1 + 4
    cloud.done(cloud.client.delete_node_pool(name=f"{RED}/nodePools/red-np-0"))
    cloud.done(cloud.client.set_node_pool_size({"name": f"{RED}/nodePools/red-np-1", "node_count": 4}))
    assert cloud.pool("red-np-1").status == NodePool.Status.RUNNING


def test_machines_outside_slices_are_created_as_far_as_stock_allows(emulate: Emulate) -> None:
    cloud = emulate(stock={"a3-highgpu-8g": 3})
    cloud.running_cluster()
    expected = NodePool({"name": "gpus", "initial_node_count": 4, "config": {"machine_type": "a3-highgpu-8g"}})
    ended = cloud.done(cloud.client.create_node_pool(parent=RED, node_pool=expected))
    assert ended.error.code and cloud.client.get_cluster(name=RED).current_node_count == 1 + 3


def affinity(value: str) -> dict[str, Any]:
    """Return a pool's configuration that uses the machines of a reservation."""
    kind = ReservationAffinity.Type.SPECIFIC_RESERVATION
    key = "compute.googleapis.com/reservation-name"
    return {"reservation_affinity": {"consume_reservation_type": kind, "key": key, "values": [value]}}


@pytest.mark.parametrize(
    "value",
    ["held", f"projects/{PROJECT}/reservations/held", f"projects/{PROJECT}/reservations/held/reservationBlocks/b1"],
)
def test_slices_use_machines_of_a_reservation(emulate: Emulate, value: str) -> None:
    cloud = emulate(quotas={TPUS: 0})  # reservations need none
    cloud.gke.add_reservation("held", project=PROJECT, zone=ZONE, machine_type="ct5lp-hightpu-4t", count=6)
    cloud.running_cluster()
    assert not cloud.done(cloud.create_slice(0, config=affinity(value))).error.code
    status, shown = cloud.rest("GET", f"zones/{ZONE}/reservations/held")
    assert status == 200 and shown["specificReservation"]["inUseCount"] == "4"
    ended = cloud.done(cloud.create_slice(1, config=affinity(value)))
    assert "Reservation" in ended.error.message and "does not have enough resources" in ended.error.message
    with pytest.raises(exceptions.InvalidArgument, match="'no-such' was not found"):
        cloud.create_slice(2, config=affinity("no-such"))
    with pytest.raises(exceptions.InvalidArgument, match="Spot VMs cannot"):
        cloud.create_slice(2, config=affinity(value) | {"spot": True})


def test_pods_of_a_cluster_run_out_of_addresses(emulate: Emulate) -> None:
    cloud = emulate()
    # 256 addresses: one node with 110 pods per node fits, eight with 15 pods do.
    cloud.running_cluster(ip_allocation_policy={"cluster_ipv4_cidr_block": "/23"})
    ended = cloud.done(cloud.create_slice(0))
    assert "IP_SPACE_EXHAUSTED" in ended.error.message and "-pods-" in ended.error.message
    assert not cloud.done(cloud.create_slice(1, max_pods_constraint={"max_pods_per_node": 15})).error.code


def test_nodes_of_a_subnetwork_run_out_of_addresses(emulate: Emulate) -> None:
    cloud = emulate()
    cloud.running_cluster(ip_allocation_policy={"create_subnetwork": True, "node_ipv4_cidr_block": "/29"})
    ended = cloud.done(cloud.create_slice())  # eight addresses, four of them Google's, one of the default pool
    assert "IP_SPACE_EXHAUSTED" in ended.error.message and "/subnetworks/gke-red-subnet-" in ended.error.message
