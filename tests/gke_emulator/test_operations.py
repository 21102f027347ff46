"""Clusters, node pools and their operations, with GKE's behavior."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from google.api_core import exceptions
from google.cloud.container_v1 import Cluster, ClusterUpdate, NodeConfig, NodeManagement, NodePool, Operation

from tests.gke_emulator.cloud import PARENT, ZONE, Cloud, slice_pool

Emulate = Callable[..., Cloud]
RED = f"{PARENT}/clusters/red"


def test_a_cluster_lives_from_create_to_delete(emulate: Emulate) -> None:
    cloud = emulate()
    begun = cloud.create_cluster(nodes=2)
    assert begun.operation_type == Operation.Type.CREATE_CLUSTER
    assert begun.status in (Operation.Status.PENDING, Operation.Status.RUNNING)
    assert begun.target_link.endswith("/locations/us-east5/clusters/red") and "123456789012" in begun.target_link
    ended = cloud.done(begun)
    assert ended.end_time > ended.start_time and not ended.error.code
    cluster = cloud.client.get_cluster(name=RED)
    assert cluster.status == Cluster.Status.RUNNING
    assert [pool.name for pool in cluster.node_pools] == ["default-pool"]
    assert cluster.current_node_count == 2 and cluster.locations == [ZONE]
    cloud.done(cloud.client.delete_cluster(name=RED))
    with pytest.raises(exceptions.NotFound, match=f"Not found: {RED}."):
        cloud.client.get_cluster(name=RED)
    assert not cloud.client.list_clusters(parent=PARENT).clusters


def test_a_slice_becomes_running_nodes(emulate: Emulate) -> None:
    cloud = emulate()
    cloud.running_cluster()
    cloud.done(cloud.create_slice(max_pods_constraint={"max_pods_per_node": 15}))
    pool = cloud.pool("red-np-0")
    assert pool.status == NodePool.Status.RUNNING and not pool.conditions
    assert pool.instance_group_urls[0].endswith("-grp") and f"/zones/{ZONE}/" in pool.instance_group_urls[0]
    assert pool.pod_ipv4_cidr_size == 27  # thirty addresses for fifteen pods
    assert [(taint.key, taint.value) for taint in pool.config.taints] == [("google.com/tpu", "present")]
    assert pool.config.disk_size_gb and pool.config.oauth_scopes and pool.version and pool.management.auto_repair


def test_nodes_are_counted_in_each_zone(emulate: Emulate) -> None:
    cloud = emulate()
    cloud.running_cluster(locations=["us-east5-a", "us-east5-b", "us-east5-c"])
    cluster = cloud.client.get_cluster(name=RED)
    assert cluster.current_node_count == 3 and len(cluster.node_pools[0].instance_group_urls) == 3


def test_operations_take_emulated_time_and_show_progress(emulate: Emulate) -> None:
    cloud = emulate(speed=100.0, seconds={"CREATE_NODE_POOL": 100.0}, seconds_per_node=0.0)
    cloud.done(cloud.create_cluster())
    begun, real = cloud.create_slice(), time.monotonic()
    seen: list[int] = []
    while (now := cloud.operation(begun)).status != Operation.Status.DONE:
        if metrics := {metric.name: metric.int_value for metric in now.progress.metrics}:
            assert metrics["nodes total"] == 4
            seen.append(metrics["nodes done"])
        time.sleep(0.05)
    assert 1.0 <= time.monotonic() - real < 20
    assert seen == sorted(seen) and seen[0] == 0 and seen[-1] >= 1


def test_node_pools_of_one_cluster_are_created_at_once(emulate: Emulate) -> None:
    cloud = emulate()
    cloud.running_cluster()
    begun = [cloud.create_slice(number) for number in range(8)]
    ended = [cloud.done(item) for item in begun]
    assert all(not item.error.code for item in ended)
    created = [call for call in cloud.gke.calls if call.method == "CreateNodePool"]
    assert max(call.operations for call in created) >= 2
    assert created[0].request["node_pool"]["name"] == "red-np-0"
    assert len(cloud.client.list_node_pools(parent=RED).node_pools) == 9


def test_a_limit_of_concurrent_operations_refuses_with_429(emulate: Emulate) -> None:
    cloud = emulate(concurrent_operations=2, seconds={"CREATE_CLUSTER": 0.0, "CREATE_NODE_POOL": 1e6})
    cloud.running_cluster()
    for number in range(2):
        cloud.create_slice(number)
    with pytest.raises(exceptions.ResourceExhausted, match='"red" hits the concurrent operations quota 2') as raised:
        cloud.create_slice(2)
    assert raised.value.reason == "CONCURRENT_OPERATIONS_QUOTA_EXCEEDED"


def test_without_parallel_pools_the_second_waits(emulate: Emulate) -> None:
    cloud = emulate(parallel_pools=False, seconds={"CREATE_NODE_POOL": 1e6})
    cloud.running_cluster()
    first = cloud.create_slice(0)
    with pytest.raises(exceptions.FailedPrecondition, match=f"incompatible operation {first.name}"):
        cloud.create_slice(1)


@pytest.mark.parametrize(
    "call",
    [
        lambda cloud: cloud.client.delete_cluster(name=RED),
        lambda cloud: cloud.client.delete_node_pool(name=f"{RED}/nodePools/red-np-0"),
        lambda cloud: cloud.client.set_node_pool_size({"name": f"{RED}/nodePools/red-np-0", "node_count": 0}),
        lambda cloud: cloud.client.update_cluster(
            name=RED, update=ClusterUpdate(desired_workload_identity_config={"workload_pool": "p.svc.id.goog"})
        ),
    ],
    ids=["delete cluster", "delete the pool", "resize the pool", "update cluster"],
)
def test_operations_that_conflict_with_the_creation_of_a_pool(emulate: Emulate, call: Callable[[Cloud], Any]) -> None:
    cloud = emulate(seconds={"CREATE_NODE_POOL": 1e6})
    cloud.running_cluster()
    begun = cloud.create_slice()
    with pytest.raises(exceptions.FailedPrecondition, match=f"Cluster is running incompatible operation {begun.name}"
                       ) as raised:  # fmt: skip
        call(cloud)
    assert raised.value.reason == "CLUSTER_ALREADY_HAS_OPERATION"


def test_no_operation_runs_during_the_creation_of_its_cluster(emulate: Emulate) -> None:
    cloud = emulate(seconds={"CREATE_CLUSTER": 1e6})
    begun = cloud.create_cluster()
    assert cloud.client.get_cluster(name=RED).status == Cluster.Status.PROVISIONING
    with pytest.raises(exceptions.FailedPrecondition, match=begun.name):
        cloud.create_slice()
    with pytest.raises(exceptions.AlreadyExists, match=f"Already exists: {RED}."):
        cloud.create_cluster()
    with pytest.raises(exceptions.InvalidArgument, match="CREATE_CLUSTER cannot be cancelled"):
        cloud.client.cancel_operation(name=f"{PARENT}/operations/{begun.name}")


def test_states_while_operations_run(emulate: Emulate) -> None:
    cloud = emulate(seconds={"CREATE_NODE_POOL": 1e6, "DELETE_NODE_POOL": 1e6})
    red, blue = cloud.running_cluster(), cloud.running_cluster("blue")
    cloud.create_slice()
    assert cloud.pool("red-np-0").status == NodePool.Status.PROVISIONING
    cloud.client.delete_node_pool(name=f"{blue}/nodePools/default-pool")
    assert cloud.pool("default-pool", "blue").status == NodePool.Status.STOPPING
    for cluster in (red, blue):
        assert cloud.client.get_cluster(name=cluster).status == Cluster.Status.RECONCILING


def test_an_upgrade_of_nodes_can_be_cancelled(emulate: Emulate) -> None:
    cloud = emulate(seconds={"UPGRADE_NODES": 1e7})
    cloud.running_cluster()
    begun = cloud.client.update_node_pool(
        {"name": f"{RED}/nodePools/default-pool", "labels": {"labels": {"team": "red"}}}
    )
    assert cloud.pool("default-pool").status == NodePool.Status.RECONCILING
    cloud.client.cancel_operation(name=f"{PARENT}/operations/{begun.name}")
    assert cloud.done(begun).error.code == 1  # CANCELLED


def test_pools_change_in_place(emulate: Emulate) -> None:
    cloud = emulate()
    cloud.running_cluster()
    name = f"{RED}/nodePools/default-pool"
    cloud.done(cloud.client.set_node_pool_size({"name": name, "node_count": 3}))
    assert cloud.client.get_cluster(name=RED).current_node_count == 3
    cloud.done(cloud.client.update_node_pool({"name": name, "labels": {"labels": {"team": "red"}}}))
    grown = {"enabled": True, "max_node_count": 9}
    cloud.done(cloud.client.set_node_pool_autoscaling({"name": name, "autoscaling": grown}))
    cloud.done(cloud.client.set_node_pool_management({"name": name, "management": NodeManagement(auto_repair=True)}))
    pool = cloud.pool("default-pool")
    assert dict(pool.config.labels) == {"team": "red"} and pool.autoscaling.max_node_count == 9
    assert not pool.management.auto_upgrade and pool.status == NodePool.Status.RUNNING


def test_clusters_change_one_field_at_a_time(emulate: Emulate) -> None:
    cloud = emulate()
    cloud.running_cluster()
    pool = {"workload_pool": "red-project.svc.id.goog"}
    cloud.done(cloud.client.update_cluster(name=RED, update=ClusterUpdate(desired_workload_identity_config=pool)))
    driver = {"gcs_fuse_csi_driver_config": {"enabled": True}}
    cloud.done(cloud.client.update_cluster(name=RED, update=ClusterUpdate(desired_addons_config=driver)))
    cluster = cloud.client.get_cluster(name=RED)
    assert cluster.workload_identity_config.workload_pool == pool["workload_pool"]
    assert cluster.addons_config.gcs_fuse_csi_driver_config.enabled
    assert cluster.addons_config.gce_persistent_disk_csi_driver_config.enabled  # as it was
    with pytest.raises(exceptions.InvalidArgument, match="one field"):
        cloud.client.update_cluster(name=RED, update=ClusterUpdate(
            desired_workload_identity_config=pool, desired_addons_config=driver))  # fmt: skip
    with pytest.raises(exceptions.InvalidArgument, match="Must specify a field"):
        cloud.client.update_cluster(name=RED, update=ClusterUpdate())


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (slice_pool("Red"), "Must be a match of regex"),
        (slice_pool("r" * 41), "Must be a match of regex"),
        (slice_pool("np", initial_node_count=3), "must have 4 nodes, but 3"),
        (slice_pool("np", placement_policy={"tpu_topology": "4x4x4"}), "Invalid TPU topology"),
        (slice_pool("np", config={"machine_type": "ct9z-hightpu-4t"}), "ct9z-hightpu-4t' does not exist in zone"),
        (slice_pool("np", locations=["us-east1-b"]), '"us-east1-b" does not exist or is not in region'),
        (slice_pool("np", version="1.2.3"), '"1.2.3" is unsupported'),
        (slice_pool("np", config={"spot": True, "flex_start": True}), "Only one of spot"),
        (slice_pool("np", max_pods_constraint={"max_pods_per_node": 300}), "between 8 and 256"),
        (slice_pool("np", placement_policy={"policy_name": "no-such"}), "resourcePolicies/no-such' was not found"),
        (slice_pool("np", config={"machine_type": "tpu7x-standard-4t"}, placement_policy={"tpu_topology": "2x2x4"}),
         "Use workload policy instead"),
        (slice_pool("np", config={"machine_type": "tpu7x-standard-4t", "disk_type": "pd-ssd"}), "pd-ssd disk type"),
        (slice_pool("np", initial_node_count=1001, placement_policy={}), "more than 1000 nodes in one zone"),
        (NodePool(name="np", initial_node_count=4, config=NodeConfig(machine_type="e2-medium"),
                  placement_policy={"tpu_topology": "4x4"}), "not supported for machine type"),
        (NodePool(initial_node_count=1), "NodePool.name must be specified"),
    ],
)  # fmt: skip
def test_node_pools_that_gke_rejects(emulate: Emulate, wanted: NodePool, said: str) -> None:
    cloud = emulate()
    cloud.running_cluster()
    with pytest.raises(exceptions.InvalidArgument, match=said):
        cloud.client.create_node_pool(parent=RED, node_pool=wanted)
    assert [pool.name for pool in cloud.client.list_node_pools(parent=RED).node_pools] == ["default-pool"]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"name": "Red"}, "Must be a match of regex"),
        ({"initial_cluster_version": "1.2"}, '"1.2" is unsupported'),
        ({"node_pools": []}, "initial_node_count must be greater than zero"),
        ({"subnetwork": "no-such"}, '"no-such" not found'),
        ({"ip_allocation_policy": {"cluster_ipv4_cidr_block": "/many"}}, 'Invalid CIDR block "/many"'),
        ({"locations": ["us-east5-z"]}, '"us-east5-z" does not exist'),
    ],
)
def test_clusters_that_gke_rejects(emulate: Emulate, fields: dict[str, Any], said: str) -> None:
    cloud = emulate()
    with pytest.raises(exceptions.InvalidArgument, match=said):
        cloud.create_cluster(**fields)
    assert not cloud.client.list_clusters(parent=PARENT).clusters


def test_locations_that_do_not_exist(emulate: Emulate) -> None:
    cloud = emulate()
    with pytest.raises(exceptions.InvalidArgument, match='"mars-north1" does not exist'):
        cloud.client.get_server_config(name="projects/p/locations/mars-north1")
    with pytest.raises(exceptions.InvalidArgument, match="Invalid resource name"):
        cloud.client.get_cluster(name="clusters/red/and/more")
    with pytest.raises(exceptions.NotFound, match=r"clusters/red\."):
        cloud.create_slice()


def test_a_multi_host_slice_is_resized_as_a_whole(emulate: Emulate) -> None:
    cloud = emulate()
    cloud.running_cluster()
    cloud.done(cloud.create_slice())
    name = f"{RED}/nodePools/red-np-0"
    with pytest.raises(exceptions.InvalidArgument, match="only be resized to zero"):
        cloud.client.set_node_pool_size({"name": name, "node_count": 2})
    cloud.done(cloud.client.set_node_pool_size({"name": name, "node_count": 0}))
    cloud.done(cloud.client.set_node_pool_size({"name": name, "node_count": 4}))
    assert cloud.client.get_cluster(name=RED).current_node_count == 5


def test_a_flex_start_slice_starts_empty_and_is_created_atomically(emulate: Emulate) -> None:
    cloud = emulate()
    cloud.running_cluster()
    grown = {"enabled": True, "max_node_count": 4, "location_policy": "ANY"}
    cloud.done(cloud.create_slice(initial_node_count=0, config={"flex_start": True}, autoscaling=grown))
    assert cloud.client.get_cluster(name=RED).current_node_count == 1
    # The emulator has no autoscaler: the test sets the size.
    cloud.done(cloud.client.set_node_pool_size({"name": f"{RED}/nodePools/red-np-0", "node_count": 4}))
    assert cloud.client.get_cluster(name=RED).current_node_count == 1 + 4


def test_a_cluster_has_a_maximum_number_of_nodes(emulate: Emulate) -> None:
    cloud = emulate(nodes_per_cluster=6)
    cloud.running_cluster()
    cloud.create_slice(0)
    with pytest.raises(exceptions.InvalidArgument, match="cannot have more than 6 nodes; the request would give it 9"):
        cloud.create_slice(1)


def test_a_zonal_cluster_is_in_its_zone(emulate: Emulate) -> None:
    cloud = emulate()
    zone = f"projects/red-project/locations/{ZONE}"
    pool = NodePool(name="default-pool", initial_node_count=1)
    cloud.client.create_cluster(parent=zone, cluster=Cluster(name="small", node_pools=[pool]))
    cluster = cloud.client.get_cluster(name=f"{zone}/clusters/small")
    assert cluster.locations == [ZONE] and cluster.self_link.endswith(f"/zones/{ZONE}/clusters/small")
    everywhere = cloud.client.list_clusters(parent="projects/red-project/locations/-").clusters
    assert [item.location for item in everywhere] == [ZONE]
    assert not cloud.client.list_clusters(parent=PARENT).clusters


def test_changes_that_are_not_emulated_are_rejected(emulate: Emulate) -> None:
    cloud = emulate()
    cloud.running_cluster()
    with pytest.raises(exceptions.MethodNotImplemented, match="windows_node_config of a node pool"):
        cloud.client.update_node_pool(
            {"name": f"{RED}/nodePools/default-pool", "windows_node_config": {"os_version": "OS_VERSION_LTSC2022"}}
        )
    assert cloud.pool("default-pool").status == NodePool.Status.RUNNING
    with pytest.raises(exceptions.MethodNotImplemented, match="desired_cost_management_config"):
        update = ClusterUpdate(desired_cost_management_config={"enabled": True})
        cloud.client.update_cluster(name=RED, update=update)
    with pytest.raises(exceptions.MethodNotImplemented, match="Autopilot"):
        cloud.create_cluster("blue", autopilot={"enabled": True})
