"""Slices to remove are cordoned and checked again; new workloads keep theirs. Pods are evicted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.capacity.gke.site import Site
from tools.gke_emulator.faults import PoolFault
from xpk.api.base import Obj, Objs
from xpk.capacity.gke.steps.shrinking import Pods, drain
from xpk.capacity.nodes.cordon import MARK
from xpk.model.errors import (
    AuthorizationError,
    CapacityError,
    ConflictError,
    ProtectedError,
    TimedOutError,
    UnavailableError,
)
from xpk.testing import FakeApi


def closed(site: Site) -> list[str]:
    """Return the pools with cordoned nodes."""
    nodes = site.api.list("Node")
    return sorted({item["metadata"]["name"].rpartition("-")[0] for item in nodes if item["spec"].get("unschedulable")})


def marks(site: Site) -> int:
    """Return the number of nodes with our mark."""
    return sum(MARK in item["metadata"].get("annotations", {}) for item in site.api.list("Node"))


def admitted(name: str, chips: int) -> Obj:
    """Return Kueue's object of an admitted workload."""
    used = {"flavors": {"google.com/tpu": "v5litepod-16"}, "resourceUsage": {"google.com/tpu": str(chips)}}
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Workload",
        "metadata": {
            "name": f"jobset-{name}", "namespace": "default",
            "ownerReferences": [{"kind": "JobSet", "name": name, "uid": name}],
        },
        "spec": {},
        "status": {"admission": {"clusterQueue": "cluster-queue", "podSetAssignments": [{"name": "j", **used}]}},
    }  # fmt: skip


def test_a_workload_created_after_the_plan_keeps_its_slice(site: Site) -> None:
    site.create(3)
    plan = site.provider().plan_resize("c", 2, force=False)
    site.run_workload("late", "c-np-2")
    with pytest.raises(ConflictError, match="late runs on c-np-2 now, which was free when the plan was made") as error:
        plan.carry_out(lambda title: None)
    assert "choose other free slices" in error.value.hint
    assert closed(site) == [] and marks(site) == 0
    assert set(site.pools()) >= {"c-np-0", "c-np-1", "c-np-2"} and site.quotas() == {"v5litepod-16": 48}
    site.provider().plan_resize("c", 2, force=False).carry_out(lambda title: None)
    assert "c-np-1" not in site.pools() and "c-np-2" in site.pools(), "repeating the command removes another slice"


def test_an_admitted_workload_without_pods_counts(site: Site) -> None:
    site.create(2)
    plan = site.provider().plan_resize("c", 1, force=False)
    site.api.create(admitted("late", 32))
    with pytest.raises(ConflictError, match="late was admitted, and 2 slices of v5litepod-16 are in use of the 1"):
        plan.carry_out(lambda title: None)
    assert closed(site) == [] and site.quotas() == {"v5litepod-16": 32}
    with pytest.raises(ConflictError, match="late was admitted"):
        site.provider().plan_resize("c", 1, force=False)


def test_workloads_with_one_name_in_two_namespaces_are_distinct(site: Site) -> None:
    site.create(3)
    for namespace, chips in (("team-a", 32), ("team-b", 16)):
        one = admitted("train", chips)
        one["metadata"]["namespace"] = namespace
        site.api.create(one)
    with pytest.raises(ConflictError, match="team-a/train, team-b/train was admitted, and 3 slices") as error:
        site.provider().plan_resize("c", 2, force=False)
    assert "`xpk workload delete train --cluster c --namespace team-a`" in error.value.hint


def test_a_slice_that_never_became_ready_is_removed_first(site: Site) -> None:
    site.gke.add_fault(PoolFault("stockout", name="c-np-1"))
    with pytest.raises(CapacityError):
        site.create(3)
    site.provider().plan_resize("c", 2, force=False).carry_out(lambda title: None)
    assert site.pools() == {"default-pool": "RUNNING", "c-np-0": "RUNNING", "c-np-2": "RUNNING"}
    assert site.quotas() == {"v5litepod-16": 32}


def test_quota_counts_only_ready_slices(site: Site) -> None:
    site.gke.add_fault(PoolFault("stockout", name="c-np-[12]"))
    with pytest.raises(CapacityError):
        site.create(3)
    site.provider().plan_resize("c", 2, force=False).carry_out(lambda title: None)
    assert "c-np-2" not in site.pools() and site.quotas() == {"v5litepod-16": 16}


def test_a_slice_with_a_jobset_of_another_tool_is_kept(site: Site) -> None:
    site.create(2)
    site.run_workload("theirs", "c-np-1")
    for pod in site.api.list("Pod"):
        labels = {"xpk.google.com/workload": None, "jobset.sigs.k8s.io/jobset-name": "theirs"}
        site.api.patch("Pod", pod["metadata"]["name"], {"metadata": {"labels": labels}})
    site.provider().plan_resize("c", 1, force=False).carry_out(lambda title: None)
    assert "c-np-1" in site.pools() and "c-np-0" not in site.pools()


def test_a_slice_with_a_pod_outside_workloads_is_kept(site: Site) -> None:
    site.create(2)

    def run_alone(name: str, pool: str) -> None:
        meta, chips = {"name": name, "namespace": "lab"}, {"resources": {"limits": {"google.com/tpu": "4"}}}
        spec = {"nodeName": f"{pool}-0", "containers": [chips]}
        site.api.create({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})

    run_alone("notebook", "c-np-1")
    plan = site.provider().plan_resize("c", 1, force=False)
    run_alone("second", "c-np-0")
    with pytest.raises(ConflictError, match="lab/Pod second runs on c-np-0 now"):
        plan.carry_out(lambda title: None)
    with pytest.raises(ConflictError, match="lab/Pod notebook is running on them") as refused:
        site.provider().plan_resize("c", 1, force=False)
    assert "`kubectl delete pod notebook --namespace lab`" in str(refused.value.hint)
    assert {"c-np-0", "c-np-1"} <= site.pools().keys()


def test_quota_is_restored_for_a_workload_admitted_during_a_resize(site: Site) -> None:
    site.create(2)
    plan = site.provider().plan_resize("c", 1, force=False)

    def note(title: str) -> None:
        if title.startswith("set up queue"):
            site.run_workload("last", "c-np-1")

    with pytest.raises(ConflictError, match="last runs on c-np-1"):
        plan.carry_out(note)
    assert closed(site) == [] and site.quotas() == {"v5litepod-16": 32} and "c-np-1" in site.pools()


def test_with_force_new_workloads_are_drained(site: Site) -> None:
    site.create(2)
    plan = site.provider().plan_resize("c", 1, force=True)
    site.run_workload("late", "c-np-1")
    done: list[str] = []
    plan.carry_out(done.append)
    assert done.index("drain c-np-1") < done.index("delete node pool c-np-1")
    assert ("evict", "Pod", "late-0") in site.api.calls and ("delete", "Pod", "late-0") not in site.api.calls


def close(site: Site, pool: str, *, marked: bool = True) -> None:
    """Cordon a pool like a resize that is killed."""
    patch: Obj = {"metadata": {"annotations": {MARK: "true"} if marked else {}}, "spec": {"unschedulable": True}}
    for item in site.api.list("Node"):
        if item["metadata"]["name"].startswith(pool):
            site.api.patch("Node", item["metadata"]["name"], patch)


def test_slices_cordoned_by_an_interrupted_resize_are_removed_first_or_uncordoned(site: Site) -> None:
    site.create(3)
    close(site, "c-np-0")
    plan = site.provider().plan_resize("c", 2, force=False)
    assert plan.steps[-1].title == "delete node pool c-np-0"
    plan = site.provider().plan_resize("c", 3, force=False)
    assert [step.title for step in plan.steps] == ["uncordon c-np-0: an interrupted command has cordoned it"]
    plan.carry_out(lambda title: None)
    assert closed(site) == [] and marks(site) == 0
    assert site.provider().plan_resize("c", 3, force=False).steps == []


def test_cordoned_slices_are_uncordoned_even_if_none_is_removed(site: Site) -> None:
    site.create(2)
    for pool in ("c-np-0", "c-np-1"):
        site.run_workload(f"on-{pool}", pool)
    close(site, "c-np-1")
    plan = site.provider().plan_resize("c", 1, force=False)
    assert plan.question == ""
    with pytest.raises(ConflictError, match="1 slices would be removed, but on-c-np-1 is running on them"):
        plan.carry_out(lambda title: None)
    assert closed(site) == []


def test_slices_cordoned_by_others_stay_cordoned(site: Site) -> None:
    site.create(2)
    close(site, "c-np-1", marked=False)
    assert site.provider().plan_resize("c", 2, force=False).steps == []
    plan = site.provider().plan_resize("c", 1, force=False)
    site.run_workload("late", "c-np-1")
    with pytest.raises(ConflictError, match="late runs on c-np-1"):
        plan.carry_out(lambda title: None)
    assert closed(site) == ["c-np-1"] and marks(site) == 0


def test_a_cluster_with_a_new_workload_is_not_deleted(site: Site) -> None:
    site.create(1)
    plan = site.provider().plan_delete("c", force=False)
    meta = {"name": "late", "namespace": "default"}
    site.api.create({"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": meta})
    with pytest.raises(ConflictError, match="workloads are on cluster 'c': late"):
        plan.carry_out(lambda title: None)
    assert closed(site) == [] and site.provider().names() == ["c"] and "c-np-0" in site.pools()
    close(site, "c-np-0")
    with pytest.raises(ConflictError) as error:
        site.provider().plan_delete("c", force=False)
    assert "`xpk cluster resize c` to its present size uncordons its slices" in error.value.hint


def test_a_queue_of_another_tool_keeps_its_flavors_and_used_quota(site: Site) -> None:
    site.create(3)
    queue = site.api.get("ClusterQueue", "cluster-queue")
    del queue["metadata"]["labels"]
    queue["spec"]["resourceGroups"][0]["flavors"][0]["name"] = "3xv5litepod-16"
    used = [{"name": "3xv5litepod-16", "resources": [{"name": "google.com/tpu", "total": "48"}]}]
    site.api.delete("ClusterQueue", "cluster-queue")
    site.api.create({**queue, "status": {"flavorsReservation": used}})
    plan = site.provider().plan_resize("c", 2, force=False)
    with pytest.raises(ConflictError, match="48 in use: it would be less than what is in use"):
        plan.carry_out(lambda title: None)
    assert closed(site) == [] and "c-np-2" in site.pools()
    site.provider().plan_resize("c", 2, force=True).carry_out(lambda title: None)
    assert site.quotas() == {"3xv5litepod-16": 32} and "c-np-2" not in site.pools()


def on_node(name: str, **spec: object) -> Obj:
    meta = {"name": name, "namespace": "ml", "labels": {}}
    return {"kind": "Pod", "metadata": meta, "spec": {"nodeName": "n0", **spec}, "status": {"phase": "Running"}}


def pool_with(*pods: Obj) -> FakeApi:
    labels = {"cloud.google.com/gke-nodepool": "p", "cloud.google.com/gke-tpu-accelerator": "x"}
    return FakeApi([{"kind": "Node", "metadata": {"name": "n0", "labels": labels}, "spec": {}, "status": {}}, *pods])


class Clock:
    """A clock that only pauses advance."""

    def __init__(self) -> None:
        self.now, self.waits = 0.0, list[float]()

    def __call__(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        self.now += seconds
        self.waits.append(seconds)


def test_a_drain_waits_for_a_disruption_budget() -> None:
    api, clock = pool_with(on_node("a"), on_node("b")), Clock()
    api.budgets["b"] = "the disruption budget web needs 1 healthy pods and has 1 currently"

    def pause(seconds: float) -> None:
        clock.pause(seconds)
        if len(clock.waits) == 3:
            api.budgets.clear()

    drain(Pods(api, 5.0, clock), "p", pause)
    assert api.list("Pod", None) == [] and len(clock.waits) == 4
    assert [call for call in api.calls if call[0] == "evict"].count(("evict", "Pod", "a")) == 1
    assert not [call for call in api.calls if call[0] == "delete"]


def test_a_disruption_budget_that_blocks_the_drain_is_named() -> None:
    api, clock = pool_with(on_node("b")), Clock()
    api.budgets["b"] = "the disruption budget web needs 1 healthy pods and has 1 currently"
    with pytest.raises(
        TimedOutError, match=r"p was not drained within 600 s: .*the disruption budget web needs 1"
    ) as error:
        drain(Pods(api, 60.0, clock), "p", clock.pause)
    assert clock.now == 600 and "\n" not in error.value.message and "-n ml" in error.value.hint


def test_listing_time_counts_and_listings_are_shared_by_all_pools() -> None:
    class Slow(FakeApi):
        def list(self, kind: str, *args: Any, **given: Any) -> Objs:
            if kind == "Pod":
                clock.now += 100
                lists.append(kind)
            return super().list(kind, *args, **given)

    clock, lists = Clock(), list[str]()
    api = Slow([*pool_with(on_node("b")).objects.values()])
    api.budgets["b"] = "the disruption budget web needs 1"
    pods = Pods(api, 5.0, clock)
    with pytest.raises(TimedOutError):
        drain(pods, "p", clock.pause)
    assert clock.now < 800
    lists.clear()
    for _ in range(100):
        drain(pods, "free", clock.pause)
    assert len(lists) <= 1


def test_unreachable_servers_are_retried_but_rejections_are_not() -> None:
    class Away(FakeApi):
        errors: list[Exception]

        def evict(self, name: str, namespace: str = "default") -> None:
            if self.errors:
                raise self.errors.pop()
            super().evict(name, namespace)

    api = Away([*pool_with(on_node("a")).objects.values()])
    api.errors = [UnavailableError("away")]
    clock = Clock()
    drain(Pods(api, 5.0, clock), "p", clock.pause)
    assert api.list("Pod", None) == []
    api = Away([*pool_with(on_node("a")).objects.values()])
    api.errors = [AuthorizationError("user 'ann' may not create pods/eviction")]
    with pytest.raises(AuthorizationError, match="may not create pods/eviction"):
        drain(Pods(api, 5.0, clock), "p", clock.pause)


def test_an_eviction_blocked_by_a_budget_is_reported_immediately(tmp_path: Path) -> None:
    from tests.api.scripted_server import Script, kubeconfig, serving
    from xpk.api.kubernetes import KubernetesApi

    output = "The disruption budget web needs 2 healthy pods and has 2 currently"
    refusal = {
        "kind": "Status", "reason": "TooManyRequests", "code": 429,
        "message": "Cannot evict pod as it would violate the pod's disruption budget.",
        "details": {"causes": [{"reason": "DisruptionBudget", "message": output}]},
    }  # fmt: skip
    busy = {"kind": "Status", "reason": "TooManyRequests", "message": "too many requests"}
    path = "POST /api/v1/namespaces/ml/pods/a/eviction"
    script = Script({path: [(429, busy), (429, refusal), (201, {"kind": "Status"})]})
    with serving(script) as url:
        api = KubernetesApi(kubeconfig=kubeconfig(tmp_path, url), pause=lambda seconds: None)
        with pytest.raises(ProtectedError, match="Pod 'a' cannot be evicted now: The disruption budget web needs 2"):
            api.evict("a", "ml")
        assert script.asked == [path, path], "a request to a busy server is repeated"
        api.evict("a", "ml")
