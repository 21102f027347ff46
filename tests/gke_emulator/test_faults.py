"""Injected faults from a client's view."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from google.api_core import exceptions
from google.cloud.container_v1 import Cluster, NodePool, Operation, StatusCondition

from tests.gke_emulator.cloud import PARENT, PROJECT, ZONE, Cloud
from tools.gke_emulator import CallFault, OperationFault, PoolFault
from tools.gke_emulator.faults import fault_of

Emulate = Callable[..., Cloud]
RED = f"{PARENT}/clusters/red"
STOCKOUT = StatusCondition.Code.GCE_STOCKOUT


def test_only_the_nth_pool_has_a_stockout(emulate: Emulate) -> None:
    cloud = emulate(faults=(PoolFault("stockout", nth=(2,)),))
    cloud.running_cluster()
    ended = [cloud.done(item) for item in [cloud.create_slice(number) for number in range(3)]]
    assert [bool(item.error.code) for item in ended] == [False, True, False]
    error = ended[1]
    assert error.error.code == 8 and "ZONE_RESOURCE_POOL_EXHAUSTED" in error.error.message  # RESOURCE_EXHAUSTED
    assert f"projects/{PROJECT}/zones/{ZONE}" in error.error.message and error.status_message == error.error.message
    assert [item.code for item in error.nodepool_conditions] == [STOCKOUT]
    pool = cloud.pool("red-np-1")
    assert pool.status == NodePool.Status.ERROR and pool.status_message == error.error.message
    assert [(item.code, item.canonical_code) for item in pool.conditions] == [(STOCKOUT, 8)]


def test_a_temporary_stockout(emulate: Emulate) -> None:
    cloud = emulate(faults=(PoolFault("stockout", times=1),))
    cloud.running_cluster()
    assert cloud.done(cloud.create_slice()).error.code
    with pytest.raises(exceptions.AlreadyExists):  # a pool in ERROR keeps its name
        cloud.create_slice()
    cloud.done(cloud.client.delete_node_pool(name=f"{RED}/nodePools/red-np-0"))
    assert not cloud.done(cloud.create_slice()).error.code


def test_a_pool_is_created_partially(emulate: Emulate) -> None:
    cloud = emulate(faults=(PoolFault("partial", nodes=3),))
    cloud.running_cluster()
    ended = cloud.done(cloud.create_slice())
    assert "Expected 4, running 3, transitioning 1" in ended.error.message
    assert cloud.pool("red-np-0").status == NodePool.Status.ERROR
    assert cloud.client.get_cluster(name=RED).current_node_count == 1 + 3
    group = cloud.pool("red-np-0").instance_group_urls[0].partition(f"{PROJECT}/")[2]
    shown = cloud.rest("GET", group)[1]
    assert (shown["targetSize"], shown["currentActions"]["none"], shown["status"]["isStable"]) == (4, 3, False)
    instances = cloud.rest("POST", f"{group}/listManagedInstances", {})[1]["managedInstances"]
    assert [item["currentAction"] for item in instances] == ["NONE"] * 3 + ["CREATING"]
    assert instances[-1]["lastAttempt"]["errors"]["errors"][0]["code"] == "ZONE_RESOURCE_POOL_EXHAUSTED"


def test_a_quota_stops_a_pool(emulate: Emulate) -> None:
    cloud = emulate(faults=(PoolFault("quota"),))
    cloud.running_cluster()
    ended = cloud.done(cloud.create_slice())
    assert [item.code for item in ended.nodepool_conditions] == [StatusCondition.Code.GCE_QUOTA_EXCEEDED]


def test_a_resize_that_fails_leaves_the_pool_usable(emulate: Emulate) -> None:
    cloud = emulate()
    cloud.running_cluster()
    cloud.gke.add_fault(PoolFault("stockout", name="default-pool"))
    ended = cloud.done(cloud.client.set_node_pool_size({"name": f"{RED}/nodePools/default-pool", "node_count": 5}))
    assert ended.error.code and cloud.pool("default-pool").status == NodePool.Status.RUNNING_WITH_ERROR
    assert cloud.client.get_cluster(name=RED).current_node_count == 1


def test_an_operation_that_never_ends_locks_its_pool(emulate: Emulate) -> None:
    cloud = emulate(speed=1e6, faults=(PoolFault("never"),))
    cloud.running_cluster()
    begun = cloud.create_slice()
    time.sleep(0.5)  # days of emulated time
    assert cloud.operation(begun).status == Operation.Status.RUNNING
    assert cloud.pool("red-np-0").status == NodePool.Status.PROVISIONING
    with pytest.raises(exceptions.FailedPrecondition, match=begun.name):
        cloud.client.delete_node_pool(name=f"{RED}/nodePools/red-np-0")


def test_operations_of_a_type_fail(emulate: Emulate) -> None:
    cloud = emulate(faults=(OperationFault("CREATE_CLUSTER", code="INTERNAL", message="Internal error.", times=1),))
    ended = cloud.done(cloud.create_cluster())
    assert (ended.error.code, ended.error.message) == (13, "Internal error.")
    assert cloud.client.get_cluster(name=RED).status == Cluster.Status.ERROR
    cloud.done(cloud.client.delete_cluster(name=RED))
    assert not cloud.done(cloud.create_cluster()).error.code


@pytest.mark.parametrize(
    ("code", "raised"),
    [
        ("UNAVAILABLE", exceptions.ServiceUnavailable),
        ("RESOURCE_EXHAUSTED", exceptions.TooManyRequests),
        ("ABORTED", exceptions.Conflict),
        ("PERMISSION_DENIED", exceptions.Forbidden),
        ("INTERNAL", exceptions.InternalServerError),
    ],
)
def test_the_nth_call_fails(emulate: Emulate, code: str, raised: type[Exception]) -> None:
    cloud = emulate(faults=(CallFault("CreateNodePool", code, nth=(2,), message="not now"),))
    cloud.running_cluster()
    cloud.create_slice(0)
    with pytest.raises(raised, match="not now"):
        cloud.create_slice(1)
    cloud.create_slice(1)
    assert [call.code for call in cloud.gke.calls if call.method == "CreateNodePool"] == ["OK", code, "OK"]


def test_a_response_lost_after_the_work_is_done(emulate: Emulate) -> None:
    cloud = emulate(faults=(CallFault("CreateNodePool", nth=(1,), applied=True),))
    cloud.running_cluster()
    with pytest.raises(exceptions.ServiceUnavailable):
        cloud.create_slice()
    assert cloud.pool("red-np-0").name == "red-np-0"
    with pytest.raises(exceptions.AlreadyExists):
        cloud.create_slice()


def test_random_failures_are_reproducible_by_seed(emulate: Emulate) -> None:
    def outcome(seed: int) -> list[str]:
        cloud = emulate(seed=seed, faults=(CallFault("GetServerConfig", "ABORTED", probability=0.5),))
        for _ in range(20):
            try:
                cloud.client.get_server_config(name=PARENT)
            except exceptions.Aborted:
                continue
        return [call.code for call in cloud.gke.calls]

    first = outcome(1)
    assert first == outcome(1) != outcome(2)
    assert {"OK", "ABORTED"} == set(first)


def test_faults_apply_to_rest_calls(emulate: Emulate) -> None:
    cloud = emulate(faults=(CallFault("GET *regions/*", "RESOURCE_EXHAUSTED", nth=(1,), message="slower"),))
    assert cloud.rest("GET", "regions/us-east5")[0] == 429
    assert cloud.rest("GET", "regions/us-east5")[0] == 200


def test_faults_can_be_cleared(emulate: Emulate) -> None:
    cloud = emulate(faults=(CallFault("GetServerConfig", "ABORTED", probability=1.0),))
    with pytest.raises(exceptions.Aborted):
        cloud.client.get_server_config(name=PARENT)
    cloud.gke.clear_faults()
    cloud.client.get_server_config(name=PARENT)
    cloud.gke.add_fault(CallFault("GetServerConfig", "ABORTED", nth=(1,)))  # the first from now on
    with pytest.raises(exceptions.Aborted):
        cloud.client.get_server_config(name=PARENT)


def test_faults_are_read_from_data() -> None:
    assert fault_of({"kind": "pool", "outcome": "stockout", "nth": [2]}) == PoolFault("stockout", nth=(2,))
    assert fault_of({"kind": "call", "method": "*", "probability": 0.1}) == CallFault("*", probability=0.1)
    with pytest.raises(ValueError, match="call, pool, operation"):
        fault_of({"kind": "flood"})
    with pytest.raises(TypeError):
        fault_of({"kind": "pool", "outcome": "stockout", "color": "red"})
