"""The part of Compute Engine's REST API that clusters use."""

from __future__ import annotations

import ipaddress
import urllib.error
import urllib.request
from collections.abc import Callable

import pytest
from google.api_core import exceptions
from google.cloud.container_v1 import NodePool

from tests.gke_emulator.cloud import PARENT, PROJECT, REGION, ZONE, Cloud
from tests.waiting import until

Emulate = Callable[..., Cloud]


def test_regions_zones_and_machines(emulate: Emulate) -> None:
    cloud = emulate()
    region = cloud.rest("GET", f"regions/{REGION}")[1]
    assert region["name"] == REGION and region["zones"][1].endswith(f"/zones/{ZONE}")
    assert cloud.rest("GET", f"zones/{ZONE}")[1]["region"].endswith(f"/regions/{REGION}")
    assert {item["name"] for item in cloud.rest("GET", "zones")[1]["items"]} >= {ZONE, "us-central2-b"}
    machine = cloud.rest("GET", f"zones/{ZONE}/machineTypes/ct5lp-hightpu-4t")[1]
    assert (machine["guestCpus"], machine["memoryMb"]) == (112, 192 * 1024)
    assert machine["accelerators"][0]["guestAcceleratorCount"] == 4
    assert "a3-megagpu-8g" in {item["name"] for item in cloud.rest("GET", f"zones/{ZONE}/machineTypes")[1]["items"]}


@pytest.mark.parametrize(
    "path",
    ["regions/mars-north1", "zones/us-east5-z", f"zones/{ZONE}/machineTypes/ct9z", f"zones/{ZONE}/reservations/none",
     f"regions/{REGION}/resourcePolicies/none", f"zones/{ZONE}/instanceGroupManagers/none"],
)  # fmt: skip
def test_missing_resources_give_404_in_googles_format(emulate: Emulate, path: str) -> None:
    status, answer = emulate().rest("GET", path)
    assert status == 404 and answer["error"]["errors"][0]["reason"] == "notFound"
    assert answer["error"]["message"] == f"The resource 'projects/{PROJECT}/{path}' was not found"


def test_requests_that_are_not_emulated_are_rejected(emulate: Emulate) -> None:
    status, answer = emulate().rest("GET", "global/routes")
    assert status == 501 and "does not answer GET" in answer["error"]["message"]


def test_invalid_json_is_rejected(emulate: Emulate) -> None:
    url = f"{emulate().gke.http_url}/compute/v1/projects/{PROJECT}/regions/{REGION}/resourcePolicies"
    with pytest.raises(urllib.error.HTTPError, match="400") as raised:
        urllib.request.urlopen(url, data=b"{")
    raised.value.close()


def test_resource_policies_are_created_used_and_deleted(emulate: Emulate) -> None:
    cloud = emulate()
    where = f"regions/{REGION}/resourcePolicies"
    policy = {"name": "tpu7x-4x4x4", "workloadPolicy": {"type": "HIGH_THROUGHPUT", "acceleratorTopology": "4x4x4"}}
    status, operation = cloud.rest("POST", where, policy)
    assert status == 200 and operation["status"] == "DONE"
    assert cloud.rest("POST", where, policy)[0] == 409
    assert cloud.rest("GET", f"{where}/tpu7x-4x4x4")[1]["workloadPolicy"]["acceleratorTopology"] == "4x4x4"
    assert [item["name"] for item in cloud.rest("GET", where)[1]["items"]] == ["tpu7x-4x4x4"]
    cloud.running_cluster()
    pool = NodePool({"name": "cube", "initial_node_count": 16, "config": {"machine_type": "tpu7x-standard-4t"},
                     "placement_policy": {"policy_name": "tpu7x-4x4x4"}})  # fmt: skip
    cloud.done(cloud.client.create_node_pool(parent=f"{PARENT}/clusters/red", node_pool=pool))
    made = cloud.pool("cube")
    assert (made.status, made.placement_policy.tpu_topology) == (NodePool.Status.RUNNING, "4x4x4")
    assert made.config.disk_type == "hyperdisk-balanced"
    assert cloud.rest("DELETE", f"{where}/tpu7x-4x4x4")[0] == 200
    assert cloud.rest("GET", f"{where}/tpu7x-4x4x4")[0] == 404


def test_subnetworks_have_their_ranges_and_those_of_clusters(emulate: Emulate) -> None:
    cloud = emulate()
    default = cloud.rest("GET", f"regions/{REGION}/subnetworks/default")[1]
    assert ipaddress.ip_network(default["ipCidrRange"]).prefixlen == 20 and not default["secondaryIpRanges"]
    cloud.running_cluster(ip_allocation_policy={"cluster_ipv4_cidr_block": "/16"})
    ranges = cloud.rest("GET", f"regions/{REGION}/subnetworks/default")[1]["secondaryIpRanges"]
    assert [(item["rangeName"][:13], item["ipCidrRange"]) for item in ranges] == [("gke-red-pods-", "10.64.0.0/16")]
    wider = {"ipCidrRange": "10.160.0.0/16"}
    assert cloud.rest("POST", f"regions/{REGION}/subnetworks/default/expandIpCidrRange", wider)[0] == 200
    assert cloud.rest("GET", f"regions/{REGION}/subnetworks/default")[1]["ipCidrRange"] == "10.160.0.0/16"
    assert cloud.rest("GET", "global/networks/default")[1]["autoCreateSubnetworks"] is True


def test_reservations_show_blocks_and_sub_blocks(emulate: Emulate) -> None:
    cloud = emulate()
    cloud.gke.add_reservation("cubes", project=PROJECT, zone=ZONE, machine_type="tpu7x-standard-4t", count=32)
    block = f"projects/{PROJECT}/zones/{ZONE}/reservations/cubes/reservationBlocks/b1"
    cloud.gke.add_resource(block, "compute#reservationBlock", count=32, inUseCount=0, status="READY")
    cloud.gke.add_resource(f"{block}/reservationSubBlocks/s1", "compute#reservationSubBlock", count=16, inUseCount=0)
    where = f"zones/{ZONE}/reservations"
    assert [item["name"] for item in cloud.rest("GET", where)[1]["items"]] == ["cubes"]
    assert [item["name"] for item in cloud.rest("GET", f"{where}/cubes/reservationBlocks")[1]["items"]] == ["b1"]
    assert cloud.rest("GET", f"{where}/cubes/reservationBlocks/b1")[1]["resource"]["count"] == 32
    below = f"{where}/cubes/reservationBlocks/b1/reservationSubBlocks"
    assert cloud.rest("GET", below)[1]["items"][0]["name"] == "s1"
    assert cloud.rest("GET", f"{below}/s1")[1]["resource"]["count"] == 16


def test_an_aggregate_reservation_counts_chips(emulate: Emulate) -> None:
    cloud = emulate()
    chips = {"acceleratorCount": 256, "acceleratorType": f"projects/{PROJECT}/zones/{ZONE}/acceleratorTypes/ct5lp"}
    cloud.gke.add_resource(
        f"projects/{PROJECT}/zones/{ZONE}/reservations/pod", "compute#reservation", status="READY",
        aggregateReservation={"reservedResources": [{"accelerator": chips}]},
    )  # fmt: skip
    cloud.running_cluster()
    affinity = {"consume_reservation_type": 3, "key": "compute.googleapis.com/reservation-name", "values": ["pod"]}
    cloud.done(cloud.create_slice(config={"reservation_affinity": affinity}))
    shown = cloud.rest("GET", f"zones/{ZONE}/reservations/pod")[1]["aggregateReservation"]
    assert shown["inUseResources"][0]["accelerator"]["acceleratorCount"] == 16


def test_instances_of_pools_are_listed(emulate: Emulate) -> None:
    cloud = emulate()
    cloud.running_cluster()
    cloud.done(cloud.create_slice(config={"spot": True}))
    listed = cloud.rest("GET", f"zones/{ZONE}/instances")[1]["items"]
    assert [item["scheduling"]["provisioningModel"] for item in listed] == ["STANDARD"] + ["SPOT"] * 4
    assert all(item["status"] == "RUNNING" for item in listed)


def test_an_instance_is_stopped_started_and_gone_with_its_pool(emulate: Emulate) -> None:
    cloud = emulate()
    cluster = cloud.running_cluster()
    cloud.done(cloud.create_slice())
    name = cloud.rest("GET", f"zones/{ZONE}/instances")[1]["items"][-1]["name"]
    where = f"zones/{ZONE}/instances/{name}"
    before = cloud.rest("GET", where)[1]
    assert before["status"] == "RUNNING" and "lastStopTimestamp" not in before
    status, operation = cloud.rest("POST", f"{where}/stop")
    assert (status, operation["operationType"], operation["status"]) == (200, "stop", "DONE")
    after = cloud.rest("GET", where)[1]
    assert (after["status"], after["id"]) == ("TERMINATED", before["id"]) and after["lastStopTimestamp"]
    assert [item["status"] for item in cloud.rest("GET", f"zones/{ZONE}/instances")[1]["items"]][-1] == "TERMINATED"
    cloud.rest("POST", f"{where}/start")
    assert cloud.rest("GET", where)[1]["status"] == "RUNNING"
    cloud.rest("POST", f"{where}/stop")
    cloud.done(cloud.client.delete_node_pool(name=f"{cluster}/nodePools/red-np-0"))
    assert cloud.rest("GET", where)[0] == cloud.rest("POST", f"{where}/stop")[0] == 404
    cloud.done(cloud.create_slice())
    assert {item["status"] for item in cloud.rest("GET", f"zones/{ZONE}/instances")[1]["items"]} == {"RUNNING"}


def test_networks_are_created_in_order_and_deleted_in_reverse(emulate: Emulate) -> None:
    cloud = emulate(speed=15.0)  # a network takes most of a second
    where = f"projects/{PROJECT}/global/networks/n"
    subnetwork = {"name": "s", "network": where, "ipCidrRange": "192.168.1.0/24"}
    subnetworks = f"regions/{REGION}/subnetworks"
    assert cloud.rest("POST", subnetworks, subnetwork)[0] == 400, "there is no such network"
    status, operation = cloud.rest("POST", "global/networks", {"name": "n", "autoCreateSubnetworks": False})
    assert (status, operation["status"]) == (200, "RUNNING")
    assert "is not ready" in cloud.rest("POST", subnetworks, subnetwork)[1]["error"]["message"]
    path = operation["selfLink"].partition(f"{PROJECT}/")[2]
    until(lambda: cloud.rest("GET", path)[1]["status"] == "DONE")
    assert cloud.rest("POST", subnetworks, subnetwork)[0] == 200
    status, answer = cloud.rest("POST", subnetworks, {**subnetwork, "name": "t"})
    assert status == 400 and "conflicts with existing subnetwork 's'" in answer["error"]["message"]
    status, answer = cloud.rest("DELETE", "global/networks/n")
    assert status == 400 and "is already being used by" in answer["error"]["message"]
    assert cloud.rest("DELETE", f"{subnetworks}/s")[0] == cloud.rest("DELETE", "global/networks/n")[0] == 200
    listed = cloud.rest("GET", "global/networks?filter=name+eq+defau.t")[1]["items"]
    assert [item["name"] for item in listed] == ["default"]


@pytest.mark.parametrize(
    ("network", "cause"),
    [
        ({"additional_node_network_configs": [{"network": "none", "subnetwork": "none"}]}, "was not found"),
        ({"accelerator_network_profile": "auto"}, "is not supported for machine type ct5lp-hightpu-4t"),
    ],
)
def test_networks_of_node_pools_are_validated(emulate: Emulate, network: dict[str, object], cause: str) -> None:
    cloud = emulate()
    cloud.running_cluster(network_config={"enable_multi_networking": True})
    with pytest.raises(exceptions.InvalidArgument, match=cause):
        cloud.create_slice(config={"gvnic": {"enabled": True}}, network_config=network)
