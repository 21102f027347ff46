"""Networks of GPU hosts: created once, used by node pools and pods, and deleted with the cluster."""

from __future__ import annotations

from typing import Any

import pytest

from tests.capacity.gke.conftest import MakeSite
from tests.capacity.gke.site import Site
from tools.gke_emulator.faults import CallFault
from xpk.capacity.gke.desired.networks import DATA_NICS, data_networks, network_limits
from xpk.model.accelerators import find_shape
from xpk.model.errors import AuthorizationError, ConflictError, UsageError, XpkError

MEGA, HIGH = "h100-mega-80gb-8", "h100-80gb-8"


def resources(site: Site) -> dict[str, dict[str, Any]]:
    """Return the resources in Compute Engine except the default network, by collection/name."""
    kept = site.gke.plane.store.compute.items()
    parts = ("networks", "subnetworks", "firewalls")
    return {
        "/".join(path.split("/")[-2:]): value
        for path, value in kept
        if path.split("/")[-2] in parts and value["name"] != "default"
    }


@pytest.mark.parametrize(("tpu_type", "nics", "pods"), [(HIGH, 4, "110"), (MEGA, 8, "32")])
def test_each_data_nic_has_a_network(site: Site, tpu_type: str, nics: int, pods: str) -> None:
    done = site.create(2, tpu_type)
    made = [title for title in done if title.startswith("create network ")]
    assert len(made) == nics
    assert "create network c-net-1 with subnetwork c-us-central1-sub-1, 192.168.1.0/24" in made
    network_objects = resources(site)
    assert len(network_objects) == 3 * nics
    assert (
        network_objects["networks/c-net-1"]["mtu"] == 8244
        and not network_objects["networks/c-net-1"]["autoCreateSubnetworks"]
    )
    rule = network_objects["firewalls/c-internal-1"]
    assert rule["sourceRanges"] == ["192.168.0.0/16"]
    assert [item["IPProtocol"] for item in rule["allowed"]] == ["tcp", "udp", "icmp"]
    for pool in site.cluster["node_pools"][1:]:
        config = pool["network_config"]
        assert config["additional_node_network_configs"] == [
            {"network": f"c-net-{number}", "subnetwork": f"c-us-central1-sub-{number}"} for number in range(1, nics + 1)
        ]
        assert "accelerator_network_profile" not in config and pool["max_pods_constraint"]["max_pods_per_node"] == pods
    sets = {item["metadata"]["name"]: item["spec"] for item in site.api.list("GKENetworkParamSet")}
    assert sets["vpc2"] == {"vpc": "c-net-2", "vpcSubnet": "c-us-central1-sub-2", "deviceMode": "NetDevice"}
    networks = {item["metadata"]["name"]: item["spec"] for item in site.api.list("Network")}
    assert len(networks) == len(sets) == nics and networks["vpc2"]["parametersRef"]["name"] == "vpc2"
    daemons = {item["metadata"]["name"] for item in site.api.list("DaemonSet", "kube-system")}
    assert daemons == {"device-injector", "nccl-tcpxo-installer" if tpu_type == MEGA else "nccl-tcpx-installer"}
    assert site.plan(2, tpu_type).steps == [], "the second plan has nothing to do"


def test_newer_gpus_use_networks_created_by_gke(site: Site) -> None:
    site.create(1, "h200-141gb-8")
    (_, pool) = site.cluster["node_pools"]
    assert pool["network_config"]["accelerator_network_profile"] == "auto" and resources(site) == {}
    assert [item["metadata"]["name"] for item in site.api.list("DaemonSet", "kube-system")] == ["nccl-rdma-installer"]
    assert site.plan(1, "h200-141gb-8").steps == []


def test_additional_hosts_use_existing_networks(site: Site) -> None:
    site.create(1, MEGA)
    site.provider().plan_resize("c", 2, force=False).carry_out(lambda title: None)
    used = [pool["network_config"]["additional_node_network_configs"] for pool in site.cluster["node_pools"][1:]]
    assert len(used) == 2 and used[0] == used[1] and len(resources(site)) == 24
    done = site.create(1, HIGH)
    assert not any(title.startswith(("create network", "let pods")) for title in done), (
        "its four networks are the first four"
    )


def test_deleting_a_cluster_deletes_its_created_networks(site: Site) -> None:
    site.create(1, HIGH)
    with site.gke.plane.store.lock:  # a network of another tool with that name
        site.gke.plane.compute.put("projects/p/global/networks/c-net-9", "compute#network", {"mtu": 1460})
    done: list[str] = []
    site.provider().plan_delete("c", force=True).carry_out(done.append)
    assert done[0].startswith("delete cluster") and done[-1] == "remove the connection to 'c'"
    assert set(done[1:-1]) == {f"delete network c-net-{number}" for number in range(1, 5)}
    assert list(resources(site)) == ["networks/c-net-9"]


def test_missing_parts_of_networks_are_created(site: Site) -> None:
    site.create(1, HIGH)
    site.gke.plane.compute.drop("projects/p/global/firewalls/c-internal-2")
    titles = [step.title for step in site.plan(2, HIGH).steps]
    assert titles[0] == "complete network c-net-2: c-internal-2 missing" and len(titles) == 4
    site.gke.add_fault(CallFault("CreateNodePool", "INVALID_ARGUMENT", probability=1.0, message="bad pool"))
    with pytest.raises(UsageError, match="bad pool"):
        site.create(2, HIGH, roll_back=True)
    assert len(resources(site)) == 12, "existing networks are not rolled back"


def test_pod_networks_of_other_tools_are_kept(site: Site) -> None:
    site.create(1, HIGH)
    for obj in [*site.api.list("Network"), *site.api.list("GKENetworkParamSet")]:
        site.api.delete(obj["kind"], obj["metadata"]["name"])
        if obj["kind"] == "GKENetworkParamSet":
            obj["metadata"] = {"name": f"gpu-{obj['metadata']['name']}"}
            site.api.create(obj)
    assert site.plan(1, HIGH).steps == []


class Interrupted(BaseException):
    """The exception of Ctrl-C."""


@pytest.mark.parametrize("after", [1, 3])
def test_an_interrupted_create_of_networks_continues(site: Site, after: int) -> None:
    def stopping(done: list[str]) -> Any:
        def stop(title: str) -> None:
            done.append(title)
            if len(done) == after:
                raise Interrupted

        return stop

    with pytest.raises(Interrupted):
        site.plan(1, HIGH).carry_out(stopping([]))
    site.create(1, HIGH)
    assert len(resources(site)) == 12 and site.plan(1, HIGH).steps == []
    with pytest.raises(Interrupted):
        site.provider().plan_delete("c", force=True).carry_out(stopping([]))
    site.provider().plan_delete("c", force=True).carry_out(lambda title: None)
    assert resources(site) == {} and site.provider().names() == []


def test_a_rollback_includes_networks(site: Site) -> None:
    site.gke.add_fault(CallFault("CreateNodePool", "INVALID_ARGUMENT", nth=(1,), message="bad pool"))
    with pytest.raises(UsageError, match="bad pool"):
        site.create(1, HIGH, roll_back=True)
    assert resources(site) == {}


def test_data_networks_are_rejected_where_unsupported(make_site: MakeSite) -> None:
    site = make_site()
    site.create(1, "v5litepod-8", custom_cluster_arguments=("--no-enable-multi-networking",))
    with pytest.raises(ConflictError, match="cluster 'c' has no multi-networking"):
        site.plan(1, MEGA)
    with pytest.raises(ConflictError, match="beyond 5,000 GKE has no multi-networking"):
        site.plan(1, MEGA, name="d", default_pool_cpu_num_nodes=5000)
    with pytest.raises(UsageError) as caught:
        site.plan(1, MEGA, name="a" * 34, zone="northamerica-northeast1-a")
    assert any("Compute Engine allows 63 characters" in problem for problem in caught.value.problems)


def test_the_missing_role_for_creating_networks_is_named(site: Site) -> None:
    site.gke.add_fault(CallFault("POST *networks", "PERMISSION_DENIED", probability=1.0, message="no networks"))
    with pytest.raises(AuthorizationError, match="no networks") as caught:
        site.create(1, HIGH)
    assert "roles/compute.networkAdmin" in caught.value.hint


def test_a_request_to_a_busy_server_is_repeated(site: Site) -> None:
    for path in ("POST *networks", "POST *subnetworks", "GET *operations*"):
        site.gke.add_fault(CallFault(path, "UNAVAILABLE", nth=(1, 2), applied=path.startswith("POST")))
    site.create(1, HIGH)
    assert len(resources(site)) == 12


def test_subnetworks_have_room_for_all_hosts(site: Site) -> None:
    plan = site.plan(300, HIGH)
    limit = next(item for item in plan.facts["limits"] if "data network" in item["name"])
    assert (limit["need"], limit["have"]) == (300, 508)
    bodies = [change["body"] for change in plan.facts["changes"] if change["kind"] == "create-network"]
    assert [body["subnetwork"]["ipCidrRange"] for body in bodies] == [f"192.168.{2 * n}.0/23" for n in range(1, 5)]
    site.create(1, HIGH)
    with pytest.raises(XpkError, match="addresses in each data network of the GPUs: needs 300 of 252"):
        site.create(300, HIGH)


def test_quotas_of_networks(make_site: MakeSite) -> None:
    site = make_site(quotas={"NETWORKS": 5, "SUBNETWORKS": 100, "CPUS": 5_000})
    limits = {item["name"]: (item["need"], item["have"]) for item in site.plan(1, HIGH).facts["limits"]}
    assert limits["quota NETWORKS"] == (4, 4), "without the default network"
    refusal = site.plan(1, MEGA).refusal
    assert refusal and "quota NETWORKS: needs 8 of 4: too little" in refusal.message
    site.create(1, HIGH)
    assert site.plan(2, HIGH).refusal is None, "existing networks are not created again"


def test_the_plan_is_printed_as_gcloud_commands(site: Site) -> None:
    lines = [line for step in site.plan(1, HIGH).steps for line in step.commands]
    assert sum(line.startswith("gcloud compute networks create c-net-") for line in lines) == DATA_NICS["h100-80gb"]
    assert any("--subnet-mode=custom --mtu=8244" in line for line in lines)
    assert any(
        "firewall-rules create c-internal-1" in line and "--source-ranges=192.168.0.0/16" in line for line in lines
    )
    pool = next(line for line in lines if "node-pools create c-np-0" in line)
    assert "--additional-node-network=network=c-net-4,subnetwork=c-us-central1-sub-4" in pool


def test_more_hosts_than_any_range_holds_are_rejected(site: Site) -> None:
    plan = site.plan(1024, "v5litepod-256")
    assert plan.refusal and "pods of the cluster: needs" in plan.refusal.message, (
        "hosts without data networks use none of them"
    )
    with pytest.raises(ConflictError, match="GKE has no multi-networking"):
        site.plan(1024, "h100-80gb-8", default_pool_cpu_num_nodes=4000)
    networks = data_networks("c", "us-central1", find_shape(MEGA), 5_000)
    *_, addresses = network_limits(networks, {}, 5_000, None)
    assert (addresses.need, addresses.have, addresses.fits) == (5_000, 4_092, False)
