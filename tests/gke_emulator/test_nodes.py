"""The Node objects of instances: labels, taints and resources as GKE sets them."""

from __future__ import annotations

from typing import Any

import pytest
from google.cloud.container_v1 import NodePool, ReservationAffinity

from tests.gke_emulator.cloud import PROJECT, REGION, ZONE, slice_pool
from tools.gke_emulator import pools
from tools.gke_emulator.defaults import fill_pool
from tools.gke_emulator.machines import check_topology, machine_of
from tools.gke_emulator.names import Target
from tools.gke_emulator.nodes import Node, node_object, reserved_memory, reserved_millicores
from tools.gke_emulator.store import ClusterPb
from xpk.capacity.nodes.inventory import shape_of
from xpk.model.accelerators import all_shapes

GKE = "cloud.google.com"
INSTANCE_ID = "container.googleapis.com/instance_id"


def node(pool: NodePool, *, kwok: bool = True) -> Node:
    """Return the node of a requested pool."""
    cluster = ClusterPb(current_master_version="1.34.3-gke.1051000", locations=[ZONE])
    cluster.default_max_pods_constraint.max_pods_per_node = 110
    target = Target(PROJECT, REGION, "red", pool.name)
    message = NodePool.pb(pool)
    fill_pool(message, target, cluster)
    return node_object(target, message, "gke-tpu-1234-abcd", ZONE, kwok=kwok)


def labels_of(made_node: Node) -> dict[str, str]:
    """Return the labels of a node."""
    labels: dict[str, str] = made_node["metadata"]["labels"]
    return labels


def test_a_host_of_a_slice() -> None:
    made_node = node(slice_pool("red-np-0", max_pods_constraint={"max_pods_per_node": 15}))
    labels = labels_of(made_node)
    assert labels[f"{GKE}/gke-nodepool"] == "red-np-0"
    assert labels[f"{GKE}/gke-tpu-accelerator"] == "tpu-v5-lite-podslice"
    assert labels[f"{GKE}/gke-tpu-topology"] == "4x4"
    assert labels[f"{GKE}/gke-accelerator-count"] == "4"
    assert labels[f"{GKE}/gke-provisioning"] == "standard" and f"{GKE}/gke-spot" not in labels
    assert labels["topology.kubernetes.io/zone"] == ZONE and labels["topology.kubernetes.io/region"] == REGION
    assert labels["node.kubernetes.io/instance-type"] == "ct5lp-hightpu-4t"
    assert made_node["spec"]["providerID"] == f"gce://{PROJECT}/{ZONE}/gke-tpu-1234-abcd"
    assert made_node["spec"]["taints"] == [{"key": "google.com/tpu", "value": "present", "effect": "NoSchedule"}]
    for offers in (made_node["status"]["capacity"], made_node["status"]["allocatable"]):
        assert offers["google.com/tpu"] == "4" and offers["pods"] == "15"
    assert set(made_node["metadata"]["annotations"]) == {"kwok.x-k8s.io/node", INSTANCE_ID}
    assert made_node["metadata"]["annotations"][INSTANCE_ID].isdecimal()


# The labels of two nodes of GKE 1.33, as published by users from `kubectl describe node`.
PUBLISHED_TPU = """
beta.kubernetes.io/arch=amd64 beta.kubernetes.io/instance-type=ct6e-standard-1t beta.kubernetes.io/os=linux
cloud.google.com/gke-accelerator-count=1 cloud.google.com/gke-boot-disk=hyperdisk-balanced
cloud.google.com/gke-container-runtime=containerd cloud.google.com/gke-cpu-scaling-level=44
cloud.google.com/gke-logging-variant=DEFAULT cloud.google.com/gke-max-pods-per-node=110
cloud.google.com/gke-memory-gb-scaling-level=180 cloud.google.com/gke-netd-ready=true
cloud.google.com/gke-nodepool=v6e-1
cloud.google.com/gke-os-distribution=cos cloud.google.com/gke-provisioning=standard cloud.google.com/gke-stack-type=IPV4
cloud.google.com/gke-tpu-accelerator=tpu-v6e-slice cloud.google.com/gke-tpu-topology=1x1
cloud.google.com/machine-family=ct6e cloud.google.com/private-node=false
failure-domain.beta.kubernetes.io/region=us-east5 failure-domain.beta.kubernetes.io/zone=us-east5-b
iam.gke.io/gke-metadata-server-enabled=true kubernetes.io/arch=amd64 kubernetes.io/hostname=gke-tpu-1234-abcd
kubernetes.io/os=linux node.kubernetes.io/instance-type=ct6e-standard-1t topology.gke.io/zone=us-east5-b
topology.kubernetes.io/region=us-east5 topology.kubernetes.io/zone=us-east5-b
"""
PUBLISHED_GPU = """
beta.kubernetes.io/arch=amd64 beta.kubernetes.io/instance-type=g2-standard-4 beta.kubernetes.io/os=linux
cloud.google.com/gke-accelerator=nvidia-l4 cloud.google.com/gke-boot-disk=pd-balanced
cloud.google.com/gke-container-runtime=containerd cloud.google.com/gke-cpu-scaling-level=4 cloud.google.com/gke-gpu=true
cloud.google.com/gke-gpu-driver-version=latest cloud.google.com/gke-logging-variant=DEFAULT
cloud.google.com/gke-max-pods-per-node=110 cloud.google.com/gke-memory-gb-scaling-level=16
cloud.google.com/gke-netd-ready=true cloud.google.com/gke-nodepool=l4-spot cloud.google.com/gke-os-distribution=cos
cloud.google.com/gke-preemptible=true cloud.google.com/gke-provisioning=preemptible
cloud.google.com/gke-stack-type=IPV4 cloud.google.com/machine-family=g2 cloud.google.com/private-node=false
failure-domain.beta.kubernetes.io/region=us-east5 failure-domain.beta.kubernetes.io/zone=us-east5-b
iam.gke.io/gke-metadata-server-enabled=true kubernetes.io/arch=amd64 kubernetes.io/hostname=gke-tpu-1234-abcd
kubernetes.io/os=linux node.kubernetes.io/instance-type=g2-standard-4 topology.gke.io/zone=us-east5-b
topology.kubernetes.io/region=us-east5 topology.kubernetes.io/zone=us-east5-b
"""


@pytest.mark.parametrize(
    ("name", "config", "published"),
    [
        ("v6e-1", {"machine_type": "ct6e-standard-1t"}, PUBLISHED_TPU),
        ("l4-spot", {"machine_type": "g2-standard-4", "preemptible": True, "accelerators": [
            {"accelerator_type": "nvidia-l4", "accelerator_count": 1,
             "gpu_driver_installation_config": {"gpu_driver_version": "LATEST"}}]}, PUBLISHED_GPU),
    ],
)  # fmt: skip
def test_labels_are_those_of_published_nodes(name: str, config: dict[str, Any], published: str) -> None:
    config = {**config, "workload_metadata_config": {"mode": "GKE_METADATA"}}
    made_node = labels_of(node(NodePool({"name": name, "initial_node_count": 1, "config": config})))
    assert made_node == dict(pair.split("=") for pair in published.split())


def test_a_host_with_gpus() -> None:
    pool = NodePool({"name": "gpus", "initial_node_count": 1, "config": {"machine_type": "a3-megagpu-8g"}})
    made_node = node(pool, kwok=False)
    assert labels_of(made_node)[f"{GKE}/gke-accelerator"] == "nvidia-h100-mega-80gb"
    assert f"{GKE}/gke-tpu-topology" not in labels_of(made_node)
    assert made_node["spec"]["taints"] == [{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}]
    assert made_node["status"]["allocatable"]["nvidia.com/gpu"] == "8"
    assert list(made_node["metadata"]["annotations"]) == [INSTANCE_ID]


def test_nodes_of_queued_provisioning_are_kept_for_it() -> None:
    made_node = node(slice_pool("np", initial_node_count=0, queued_provisioning={"enabled": True}))
    assert {taint["key"] for taint in made_node["spec"]["taints"]} == {"google.com/tpu", "cloud.google.com/gke-queued"}


def test_a_host_of_the_default_pool_has_no_taint() -> None:
    pool = NodePool({"name": "default-pool", "initial_node_count": 1, "config": {"machine_type": "e2-standard-16"}})
    made_node = node(pool)
    assert made_node["spec"]["taints"] == []
    assert made_node["spec"]["unschedulable"] and "unschedulable" not in node(pool, kwok=False)["spec"]
    assert made_node["status"]["capacity"]["cpu"] == "16" and made_node["status"]["allocatable"]["cpu"] == "15890m"


@pytest.mark.parametrize(
    ("config", "labels"),
    [
        ({"spot": True}, {"gke-spot": "true", "gke-provisioning": "spot"}),
        ({"flex_start": True}, {"gke-flex-start": "true", "gke-provisioning": "standard"}),
        ({"labels": {f"{GKE}/gke-networking-dra-driver": "true"}}, {"gke-networking-dra-driver": "true"}),
        (
            {"reservation_affinity": {"consume_reservation_type": ReservationAffinity.Type.SPECIFIC_RESERVATION,
                                      "key": "compute.googleapis.com/reservation-name",
                                      "values": ["projects/blue/reservations/held/reservationBlocks/b1"]}},
            {"reservation-name": "held", "reservation-project": "blue", "reservation-affinity": "specific"},
        ),
    ],
)  # fmt: skip
def test_capacity_types_are_labels_of_nodes(config: dict[str, Any], labels: dict[str, str]) -> None:
    made_node = labels_of(node(slice_pool("np", config=config)))
    assert {f"{GKE}/{name}": value for name, value in labels.items()}.items() <= made_node.items()


def test_resources_reserved_by_gke() -> None:
    # The examples of "Plan GKE node sizes": 4 CPUs and 16 GiB; the eviction threshold of 100 MiB is added.
    assert reserved_millicores(1) == 60 and reserved_millicores(4) == 80
    assert reserved_memory(16 * 1024) == round(2.6 * 1024) + 100


def test_nodes_of_every_tpu_slice_are_known_to_xpk() -> None:
    shapes = [shape for shape in all_shapes() if shape.kind == "tpu"]
    assert len(shapes) > 1000
    for shape in shapes:
        assert shape.topology
        check_topology(machine_of(shape.machine_type, ZONE), shape.topology, shape.hosts)
        pool = slice_pool(
            "np", initial_node_count=shape.hosts, config={"machine_type": shape.machine_type},
            placement_policy={"tpu_topology": shape.topology},
        )  # fmt: skip
        assert shape_of(node(pool)) == shape


def test_names_of_a_pools_nodes_are_unique(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = iter(["aaaa", "aaaa", "bbbb", "bbbb", "cccc"])
    monkeypatch.setattr(pools._RANDOM, "choices", lambda *args, **options: next(ends))
    target, message = Target(PROJECT, REGION, "c", "p"), NodePool.pb(slice_pool("p"))
    (first,) = pools.new_node_names(target, message, 1, [])
    others = pools.new_node_names(target, message, 2, [first])
    assert [name[-4:] for name in (first, *others)] == ["aaaa", "bbbb", "cccc"]
