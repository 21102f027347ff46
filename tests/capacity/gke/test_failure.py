"""Every failure ends in one message with its cause and the next command; created resources are kept, or rolled back."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.capacity.gke.conftest import MakeSite
from tests.capacity.gke.site import Site
from tests.waiting import until
from tools.gke_emulator.faults import CallFault, OperationFault, PoolFault
from xpk.model.errors import (
    AuthorizationError,
    CapacityError,
    ConflictError,
    NotFoundError,
    TimedOutError,
    UsageError,
    XpkError,
)

POOL_FAULTS = [
    ("stockout", CapacityError, "out of stock .GCE_STOCKOUT, ZONE_RESOURCE_POOL_EXHAUSTED"),
    ("partial", CapacityError, "out of stock"),
    ("quota", CapacityError, "quota is too small"),
    ("internal", XpkError, "Internal error"),
]


@pytest.mark.parametrize(("outcome", "kind", "cause"), POOL_FAULTS)
def test_created_slices_are_kept_and_the_same_command_continues(
    site: Site, outcome: str, kind: type[XpkError], cause: str
) -> None:
    site.gke.add_fault(PoolFault(outcome, name="c-np-1", times=1))  # type: ignore[arg-type]
    with pytest.raises(kind, match=cause) as caught:
        site.create(3)
    assert "create node pool c-np-1" in caught.value.message and caught.value.hint
    assert type(caught.value) is kind and caught.value.message.count("\n") == 0
    assert site.pools() == {"default-pool": "RUNNING", "c-np-0": "RUNNING", "c-np-1": "ERROR", "c-np-2": "RUNNING"}
    plan = site.plan(3)
    titles = [step.title for step in plan.steps]
    assert titles[0].startswith("delete node pool c-np-1: it failed: ") and titles[1].startswith(
        "create node pool c-np-1"
    )
    plan.carry_out(lambda title: None)
    assert set(site.pools().values()) == {"RUNNING"} and site.quotas() == {"v5litepod-16": 48}
    assert site.plan(3).steps == []


def test_many_failures_are_summarized_in_one_message(site: Site) -> None:
    site.gke.add_fault(PoolFault("stockout", name="c-np-*"))
    with pytest.raises(CapacityError, match=r"could not create node pool .*4 steps failed, 4 of them with.*skipped"):
        site.create(4)


def test_failures_can_be_ignored(site: Site) -> None:
    site.gke.add_fault(PoolFault("stockout", name="c-np-1"))
    done: list[str] = []
    warnings: list[str] = []
    site.plan(3, ignore_nodepool_creation_errors=True).carry_out(done.append, warn=warnings.append)
    assert len(warnings) == 1 and "could not create node pool c-np-1" in warnings[0] and "out of stock" in warnings[0]
    assert site.quotas() == {"v5litepod-16": 32}, "workloads run on the created slices"


def test_created_slices_can_be_rolled_back(site: Site) -> None:
    site.create(1)
    site.gke.add_fault(PoolFault("stockout", name="c-np-2"))
    with pytest.raises(CapacityError, match="2 steps were reverted"):
        site.create(3, roll_back=True)
    assert site.pools() == {"default-pool": "RUNNING", "c-np-0": "RUNNING"}, "existing slices stay"
    assert site.plan(1).steps == []


def test_a_cluster_created_by_the_command_is_rolled_back_completely(site: Site) -> None:
    site.gke.add_fault(PoolFault("quota", name="c-np-0"))
    with pytest.raises(CapacityError, match="quota is too small"):
        site.create(2, roll_back=True)
    with pytest.raises(NotFoundError):
        site.pools()
    assert site.provider().names() == [], "deleted slices are not listed"


def test_what_another_client_has_created_meanwhile_is_not_rolled_back(site: Site) -> None:
    plan = site.plan(2, roll_back=True)
    site.create(1)
    site.gke.add_fault(PoolFault("quota", name="c-np-1"))
    with pytest.raises(CapacityError, match="quota is too small"):
        plan.carry_out(lambda title: None)
    assert site.pools() == {"default-pool": "RUNNING", "c-np-0": "RUNNING"}
    assert site.provider(project="").names() == ["c"], "commands of this machine find it"


def test_a_deleted_cluster_is_unregistered_in_a_rollback(site: Site) -> None:
    site.create(1)
    site.provider()._google.call("delete_cluster", {"name": "projects/p/locations/us-central1/clusters/c"})
    site.gke.add_fault(PoolFault("quota", name="c-np-0"))
    with pytest.raises(CapacityError, match="quota is too small"):
        site.create(1, roll_back=True)
    assert site.provider().names() == []


def test_a_cluster_stays_registered_if_its_rollback_fails(site: Site) -> None:
    site.gke.add_fault(PoolFault("quota", name="c-np-0"))
    site.gke.add_fault(CallFault("DeleteCluster", "PERMISSION_DENIED", probability=1.0))
    with pytest.raises(AuthorizationError):
        site.create(1, roll_back=True)
    assert site.provider().names() == ["c"]


@pytest.mark.parametrize("code", ["UNAVAILABLE", "RESOURCE_EXHAUSTED", "ABORTED"])  # HTTP's 503, 429, 409
@pytest.mark.parametrize("applied", [False, True], ids=["refused", "answer-lost"])
def test_a_request_to_a_busy_server_is_repeated(site: Site, code: str, applied: bool) -> None:
    for method in ("CreateCluster", "CreateNodePool", "ListOperations"):
        site.gke.add_fault(CallFault(method, code, nth=(1, 2), message="try again later", applied=applied))
    site.create(2)
    assert set(site.pools().values()) == {"RUNNING"} and len(site.pools()) == 3
    assert site.plan(2).steps == []


@pytest.mark.parametrize(
    ("fault", "kind", "cause"),
    [
        (
            CallFault("CreateCluster", "PERMISSION_DENIED", nth=(1,), message="no roles"),
            AuthorizationError,
            "permission denied by Google Cloud: no",
        ),
        (CallFault("CreateNodePool", "INVALID_ARGUMENT", nth=(1,), message="bad topology"), UsageError, "bad topology"),
        (CallFault("ListClusters", "PERMISSION_DENIED", nth=(1,), message="no API"), AuthorizationError, "no API"),
        (CallFault("ListClusters", "UNAVAILABLE", probability=1.0), XpkError, "unexpected response"),
        (OperationFault("CREATE_CLUSTER", code="INTERNAL", message="boom"), XpkError, "create cluster 'c'.*boom"),
        (OperationFault("CREATE_NODE_POOL", code="PERMISSION_DENIED", message="no SA"), AuthorizationError, "no SA"),
    ],
)
def test_permanent_errors_are_not_retried(
    site: Site, fault: CallFault | OperationFault, kind: type[XpkError], cause: str
) -> None:
    site.gke.add_fault(fault)
    with pytest.raises(kind, match=cause) as caught:
        site.create(1)
    assert type(caught.value) is kind and caught.value.hint and "\n" not in caught.value.message


def test_hung_operations_time_out_and_are_awaited_by_the_next_command(site: Site) -> None:
    site.gke.add_fault(PoolFault("never", name="c-np-0", times=1))
    with pytest.raises(TimedOutError, match="timed out after 1s"):
        site.create(1, timeout_seconds=1)
    titles = [step.title for step in site.plan(1).steps]
    assert titles[0] == "wait for c-np-0: it is being created" and not any(
        "create node pool" in item for item in titles
    )


def test_a_running_operation_on_the_cluster_is_awaited(make_site: MakeSite) -> None:
    site = make_site(parallel_pools=False)
    site.create(3)
    assert set(site.pools().values()) == {"RUNNING"} and len(site.pools()) == 4


def test_too_many_operations_at_once(make_site: MakeSite) -> None:
    site = make_site(concurrent_operations=2)
    site.create(4)
    assert set(site.pools().values()) == {"RUNNING"} and len(site.pools()) == 5


def test_a_low_limit_of_operations_is_waited_for(make_site: MakeSite) -> None:
    """Pools wait for each other longer than for any other busy server, and longer than one operation may take."""
    site = make_site(concurrent_operations=1, speed=1000, seconds={"CREATE_NODE_POOL": 600.0}, seconds_per_node=0.0)
    began = time.monotonic()
    site.create(6, timeout_seconds=2)
    assert time.monotonic() - began > 2, "the pools together have to take longer than the time limit of one"
    assert set(site.pools().values()) == {"RUNNING"} and len(site.pools()) == 7
    refused = [call for call in site.gke.calls if call.method == "CreateNodePool" and call.code != "OK"]
    assert len(refused) < 250, "one pool at a time asks again"


def test_an_interrupted_plan_starts_no_waiting_operation(make_site: MakeSite) -> None:
    site = make_site(concurrent_operations=1, speed=1000, seconds={"CREATE_NODE_POOL": 1e6})
    plan = site.plan(3)

    def run() -> None:
        with pytest.raises(XpkError, match="interrupted"):
            plan.carry_out(lambda title: None)

    thread = threading.Thread(target=run)
    thread.start()
    until(lambda: sum("other operations" in state for state in plan.activity.now().values()) == 2)
    plan.activity.stop.set()
    thread.join(timeout=30)
    assert not thread.is_alive() and len(site.pools()) == 2, "the default pool and one slice"


def test_a_broken_cluster_is_rejected(site: Site) -> None:
    site.gke.add_fault(OperationFault("CREATE_CLUSTER", code="INTERNAL", message="boom", times=1))
    with pytest.raises(XpkError):
        site.create(1)
    with pytest.raises(ConflictError, match="cluster 'c' is broken: boom") as caught:
        site.plan(1)
    assert "cluster delete c --provider gke --force" in caught.value.hint
    site.provider().plan_delete("c", force=True).carry_out(lambda title: None)
    site.create(1)


def test_reservations(site: Site) -> None:
    with pytest.raises(NotFoundError, match="reservation projects/p/reservations/r not found"):
        site.plan(1, reservation=("r",))
    for name, count in (("r", 9), ("s", 4)):
        site.gke.add_reservation(name, project="p", zone="us-central1-a", machine_type="ct5lp-hightpu-4t", count=count)
    with pytest.raises(CapacityError, match="needs 16 of 13"):
        site.create(
            4,
            reservation=(
                "r",
                "s",
            ),
        )
    site.create(
        3,
        reservation=(
            "r",
            "s",
        ),
    )
    held = [pool["config"].get("reservation_affinity", {}).get("values") for pool in site.cluster["node_pools"]]
    assert sorted(filter(None, held)) == [["r"], ["r"], ["s"]], "slices of 4 machines, in the available stock"


def failing_requests() -> Iterator[tuple[dict[str, Any], str]]:
    yield {"spot": True, "flex": True}, "--spot and --flex exclude each other"
    yield {"reservation": ("a/b",)}, "neither a name nor"
    yield {"authorized_networks": ("10.0.0.0/99",)}, "invalid range '10.0.0.0/99'"
    yield {"zone": "us-central1"}, "invalid zone 'us-central1'"
    yield {"stated_region": "us-east1"}, "not in region us-east1"
    yield {"gke_version": "1.99"}, "does not offer version 1.99"
    yield {"custom_nodepool_arguments": ("--disk-size=large",)}, "--disk-size=large"
    yield {"host_maintenance_interval": "DAILY"}, "choose from AS_NEEDED, PERIODIC"
    yield {"at_once": 0}, "--at-once must be at least 2, got 0"
    yield {"queued_provisioning": True}, "requires --flex"
    for item in ("min_chips", "max_chips", "max_cpu", "max_memory"):
        yield {f"autoprovisioning_{item}": 64}, f"{item.replace('_', '-')} requires --enable-autoprovisioning"
    yield {"private_endpoint_subnetwork": "s"}, "--private-endpoint-subnetwork requires --private"
    yield {"enable_master_global_access": True}, "--enable-master-global-access requires --private"
    yield {"roll_back": True, "ignore_nodepool_creation_errors": True}, "exclude each other"
    yield {"max_pods_per_node": 7}, "must be between 8 and 256"
    yield {"max_pods_per_node": 257}, "must be between 8 and 256"


@pytest.mark.parametrize(("options", "cause"), list(failing_requests()), ids=lambda value: str(value)[:40])
def test_an_invalid_request_is_rejected_before_anything_is_created(
    site: Site, options: dict[str, Any], cause: str
) -> None:
    with pytest.raises(UsageError) as caught:
        site.plan(1, **options)
    assert any(cause in problem for problem in caught.value.problems), caught.value.problems
    assert site.asked("CreateCluster") == 0


def test_names_that_are_too_long_are_rejected_before_anything_is_created(site: Site) -> None:
    with pytest.raises(UsageError) as caught:
        site.plan(1024, name="a" * 34)
    assert "42 characters, GKE allows 40" in caught.value.problems[0]


@pytest.mark.parametrize("seconds", ["often", "0", "-1", "nan", "3600"])
def test_the_polling_interval_is_validated(site: Site, seconds: str) -> None:
    site.environ["XPK_GKE_POLL_SECONDS"] = seconds
    with pytest.raises(UsageError, match=f"XPK_GKE_POLL_SECONDS must be a number of seconds up to 60, got '{seconds}'"):
        site.plan(1)
