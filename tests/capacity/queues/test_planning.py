"""Queues with their own quotas: requests, rejections, and no slice in two quotas."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xpk.api.base import Obj, ObjectApi
from xpk.capacity.cluster_setup import apply_queues
from xpk.capacity.nodes.inventory import has_queues
from xpk.capacity.queues.planning import plan_create
from xpk.capacity.queues.reading import Queues, check_promised, promised, quotas_of
from xpk.capacity.queues.removal import plan_delete
from xpk.capacity.queues.request import QueueRequest
from xpk.model.accelerators import find_shape
from xpk.model.errors import AuthorizationError, CapacityError, ConflictError, NotFoundError, UsageError, XpkError
from xpk.model.specs import ClusterSpec, QueueSpec, SliceQuota
from xpk.render import render_queue, render_queues
from xpk.testing import FakeApi

TYPE, OTHER = "v5litepod-16", "v4-8"
TOTAL = {TYPE: 8, OTHER: 2}
SPECS = [ClusterSpec(name="c", shape=find_shape(kind), num_slices=number) for kind, number in TOTAL.items()]


class Cluster:
    """A cluster of eight slices of one type and two of another; every write is checked against the capacity."""

    def __init__(self, *extra: Obj) -> None:
        self.overcommitted = True
        namespaces = [
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}} for name in ("default", "red", "blue")
        ]
        self.api = FakeApi([*render_queues(*SPECS), *namespaces, *extra], react=self._check)
        self.overcommitted = False

    def _check(self, kind: str, obj: Obj) -> None:
        if kind == "ClusterQueue" and not self.overcommitted:
            sums = self.sums()
            assert all(sums[item] <= TOTAL[item] for item in TOTAL), "no slice is in two quotas at any time"

    def sums(self) -> dict[str, float]:
        """Return the sums of the quotas of all queues."""
        result = dict.fromkeys(TOTAL, 0.0)
        for queue in self.api.list("ClusterQueue"):
            for kind, number in quotas_of(queue).items():
                result[kind] += number
        return result

    def quotas(self, name: str) -> dict[str, float]:
        """Return the quotas of a queue."""
        return quotas_of(self.api.get("ClusterQueue", name))

    def create(self, name: str, *quota: str, **more: Any) -> list[str]:
        """Create or change a queue; return the executed plan."""
        given: dict[str, Any] = {"namespaces": (name,), **more}
        plan = plan_create(self.api, QueueRequest(name=name, quota=quota, **given))
        done: list[str] = []
        plan.carry_out(done.append)
        return done

    def delete(self, name: str, namespace: str | None = None, *, force: bool = False) -> None:
        """Remove a queue."""
        plan_delete(self.api, name, namespace, where=" --cluster c", force=force).carry_out(lambda step: None)


def refusal(cluster: Cluster, name: str, *quota: str, **more: Any) -> XpkError:
    """Return the error of a rejected queue; nothing changes."""
    before = dict(cluster.api.objects)
    with pytest.raises(XpkError) as raised:
        cluster.create(name, *quota, **more)
    assert cluster.api.objects == before
    return raised.value


def test_a_new_quota_is_taken_from_the_clusters_own_queue() -> None:
    cluster = Cluster()
    done = cluster.create("red", f"{TYPE}=3", f"{OTHER}=50%")
    assert done[0].endswith(
        "a quota of 3 x v5litepod-16, 1 x v4-8; 'multislice-queue' keeps 5 x v5litepod-16, 1 x v4-8"
    )
    assert cluster.quotas("red") == {TYPE: 3, OTHER: 1}
    assert cluster.quotas("cluster-queue") == {TYPE: 5, OTHER: 1}
    assert cluster.create("red", f"{TYPE}=3", f"{OTHER}=1") == []
    assert cluster.create("red") == [], "settings that are not requested stay"
    (changed,) = cluster.create("red", f"{TYPE}=64chips")
    assert "from a quota of 3 x v5litepod-16, 1 x v4-8 to a quota of 4 x v5litepod-16, 1 x v4-8" in changed
    cluster.create("blue", f"{TYPE}=4")
    assert cluster.quotas("cluster-queue") == {TYPE: 0, OTHER: 1}
    cluster.delete("red")
    assert cluster.quotas("cluster-queue") == {TYPE: 4, OTHER: 2}
    assert "red" not in [item.name for item in Queues.read(cluster.api).infos()]


def test_a_missing_permission_in_a_namespace_is_reported_before_the_first_change() -> None:
    class Limited(FakeApi):
        def apply(self, obj: Obj, *, dry_run: bool = False, force: bool = False) -> Obj:
            if obj["kind"] == "LocalQueue" and obj["metadata"]["namespace"] == "blue":
                raise AuthorizationError("localqueues is forbidden")
            return super().apply(obj, dry_run=dry_run, force=force)

    cluster, limited = Cluster(), Limited()
    limited.objects = cluster.api.objects
    cluster.api = limited
    assert isinstance(refusal(cluster, "red", f"{TYPE}=3", namespaces=("red", "blue")), AuthorizationError)


def test_a_change_of_the_quota_opens_a_queue_to_no_other_namespace() -> None:
    cluster = Cluster()
    cluster.create("red", f"{TYPE}=3")
    cluster.delete("red", "red")
    plan = plan_create(cluster.api, QueueRequest(name="red", namespaces=(), quota=(f"{TYPE}=2",)))
    assert plan.summary.startswith("queue 'red' for no namespace: a quota of 2 x v5litepod-16")
    plan.carry_out(lambda step: None)
    assert [queue for queue in cluster.api.list("LocalQueue", None) if queue["metadata"]["name"] == "red"] == []
    assert cluster.create("red", namespaces=("blue",)) == ["create a LocalQueue in namespace 'blue'"]


AMOUNT = st.integers(0, 9)
ACTIONS = st.lists(
    st.tuples(st.sampled_from(["red", "blue"]), st.sampled_from(["create", "delete", "adapt"]), AMOUNT, AMOUNT),
    max_size=6,
)


@settings(max_examples=40)
@given(ACTIONS, st.integers(0, 30))
def test_an_interrupted_command_never_duplicates_or_loses_quota(
    actions: list[tuple[str, str, int, int]], writes: int
) -> None:
    cluster = Cluster()
    cut_off: tuple[Any, ...] = ()

    def run(name: str, verb: str, one: int, other: int) -> None:
        try:
            if verb == "create":
                cluster.create(name, f"{TYPE}={one}", f"{OTHER}={other}")
            elif verb == "delete":
                cluster.delete(name)
            else:
                apply_queues(cluster.api, SPECS)
        except (CapacityError, NotFoundError):
            pass

    for action in actions:
        with Limited(cluster.api, writes) as limited:
            try:
                run(*action)
            except CutOffError:
                cut_off = action
        writes = limited.left
        if cut_off:
            break
    if cut_off:
        run(*cut_off)  # the same command again
    assert cluster.sums() == TOTAL
    assert has_queues(cluster.api, *SPECS)


class CutOffError(Exception):
    """The command was killed."""


class Limited:
    """An API server that accepts this number of writes."""

    def __init__(self, api: FakeApi, left: int) -> None:
        self.api, self.left = api, left
        self._apply, self._delete = api.apply, api.delete

    def __enter__(self) -> Limited:
        self.api.apply, self.api.delete = self._counted(self._apply), self._counted(self._delete)  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        self.api.apply, self.api.delete = self._apply, self._delete  # type: ignore[method-assign]

    def _counted(self, method: Any) -> Any:
        def call(*arguments: Any, **more: Any) -> Any:
            if self.left == 0:
                raise CutOffError
            self.left -= 1
            return method(*arguments, **more)

        return call


def test_excessive_quota_is_rejected_with_the_available_one() -> None:
    cluster = Cluster()
    cluster.create("red", f"{TYPE}=6")
    refused = refusal(cluster, "blue", f"{TYPE}=3", f"{OTHER}=1")
    assert isinstance(refused, CapacityError)
    assert "the cluster has 8, other queues have 6 (red 6), 2 left" in refused.message
    assert refused.hint == f"--quota {TYPE}=2, or --force to exceed the cluster's capacity"
    cluster.overcommitted = True
    cluster.create("blue", f"{TYPE}=3", force=True)
    assert (cluster.quotas("blue"), cluster.quotas("cluster-queue")[TYPE]) == ({TYPE: 3}, 0)
    cluster.delete("red")
    assert cluster.quotas("cluster-queue") == {TYPE: 5, OTHER: 2}, "excess quota is not restored"


@pytest.mark.parametrize(
    ("quota", "more", "says"),
    [
        (("4",), {}, "--quota: no type given; the cluster has v5litepod-16, v4-8"),
        (("v5p-8=1",), {}, "--quota: the cluster has no slices of v5p-8; it has v5litepod-16, v4-8"),
        (("v5e-16x=1",), {}, "unknown accelerator type 'v5e-16x'"),
        ((f"{TYPE}=much",), {}, f"'{TYPE}=much' is not an amount: use 4 (slices), 64chips or 25%"),
        ((f"{TYPE}=24chips",), {}, "is 1.5 slices of v5litepod-16; only whole ones can be used"),
        ((f"{TYPE}=none",), {}, "is not an amount"),
        ((f"{TYPE}=-1",), {}, "is not an amount"),
        ((f"{TYPE}=1,{TYPE}=2",), {}, "--quota is given twice for v5litepod-16"),
        ((), {}, "no quota given"),
        ((f"{TYPE}=1",), {"lending_limit": (f"{TYPE}=2",)}, "it cannot lend more than its quota, 1"),
        ((f"{TYPE}=1",), {"borrowing_limit": (f"{OTHER}=2",)}, f"--quota {OTHER}=0 is one"),
        ((f"{TYPE}=1",), {"namespaces": ("Red",)}, "namespace name 'Red' is not a DNS label"),
    ],
)
def test_invalid_queue_requests_are_rejected(quota: tuple[str, ...], more: dict[str, Any], says: str) -> None:
    refused = refusal(Cluster(), "red", *quota, **more)
    assert isinstance(refused, UsageError)
    assert len(refused.problems) == 1 and says in refused.problems[0]


def test_all_problems_are_reported_together() -> None:
    refused = refusal(Cluster(), "Red", f"{TYPE}=9", f"{OTHER}=x", namespaces=("red",))
    assert isinstance(refused, UsageError) and len(refused.problems) == 3
    refused = refusal(Cluster(), "red", f"{TYPE}=9", namespaces=("green",))
    assert isinstance(refused, UsageError) and len(refused.problems) == 2


def test_namespaces_are_created_only_on_request() -> None:
    cluster = Cluster()
    refused = refusal(cluster, "green", f"{TYPE}=1")
    assert isinstance(refused, NotFoundError) and "--create-namespace" in refused.hint
    done = cluster.create("green", f"{TYPE}=1", create_namespace=True)
    assert done[0] == "create namespace 'green'" and cluster.api.get("Namespace", "green")
    assert cluster.create("green", namespaces=("red",)) == ["create a LocalQueue in namespace 'red'"]
    assert Queues.read(cluster.api).info(cluster.api.get("ClusterQueue", "green")).namespaces == ("green", "red")


def test_the_clusters_own_queue_accepts_only_namespaces() -> None:
    cluster = Cluster()
    refused = refusal(cluster, "multislice-queue", f"{TYPE}=1", namespaces=("red",), reclaim="any")
    assert isinstance(refused, UsageError) and len(refused.problems) == 2
    refused = refusal(cluster, "cluster-queue", f"{TYPE}=1", namespaces=("red",))
    assert isinstance(refused, UsageError) and "its queue is 'multislice-queue'" in refused.problems[0]
    assert cluster.create("multislice-queue", namespaces=("red",)) == ["create a LocalQueue in namespace 'red'"]
    assert cluster.create("multislice-queue", namespaces=("red",)) == []
    with pytest.raises(UsageError, match="it is deleted with the cluster"):
        cluster.delete("multislice-queue")
    cluster.delete("multislice-queue", "red")
    assert [item["metadata"]["namespace"] for item in cluster.api.list("LocalQueue", None)] == ["default"]


def theirs(kind: str, name: str, **spec: Any) -> Obj:
    """Return an object of another tool."""
    meta = {"name": name, "namespace": "red"} if kind == "LocalQueue" else {"name": name}
    return {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, "metadata": meta, "spec": spec}


def test_objects_of_other_tools_are_not_changed() -> None:
    cluster = Cluster(theirs("ClusterQueue", "red"), theirs("LocalQueue", "blue", clusterQueue="red"))
    assert isinstance(refusal(cluster, "red", f"{TYPE}=1"), ConflictError)
    assert "points to ClusterQueue 'red'" in refusal(cluster, "blue", f"{TYPE}=1", namespaces=("red",)).message
    with pytest.raises(ConflictError, match="created by another tool"):
        cluster.delete("red")
    listed = {item.name: item for item in Queues.read(cluster.api).infos()}
    assert (listed["red"].namespaces, listed["red"].shares) == (("red/blue",), ())


def test_limits_and_policies_are_set_in_kueue_and_kept() -> None:
    cluster = Cluster()
    limits = {"borrowing_limit": (f"{TYPE}=2",), "lending_limit": (f"{TYPE}=0",), "reclaim": "never"}
    cluster.create("red", f"{TYPE}=4", **limits)
    spec = cluster.api.get("ClusterQueue", "red")["spec"]
    entry = {"name": "google.com/tpu", "nominalQuota": 64, "borrowingLimit": 32, "lendingLimit": 0}
    assert spec["resourceGroups"][0]["flavors"][0]["resources"] == [entry]
    assert spec["preemption"]["reclaimWithinCohort"] == spec["preemption"]["borrowWithinCohort"]["policy"] == "Never"
    cluster.create("red", f"{TYPE}=5")
    (share,) = Queues.read(cluster.api).info(cluster.api.get("ClusterQueue", "red")).shares
    assert (share.quota, share.borrowing_limit, share.lending_limit, share.most) == (5, 2, 0, 7)
    cluster.create("red", borrowing_limit=(f"{TYPE}=none",), reclaim="any")
    (share,) = Queues.read(cluster.api).info(cluster.api.get("ClusterQueue", "red")).shares
    assert (share.borrowing_limit, share.most) == (None, 8)


def test_reducing_quota_below_usage_requires_confirmation() -> None:
    cluster = Cluster()
    cluster.create("red", f"{TYPE}=4")
    for name, used in (("red", "48"), ("cluster-queue", "64")):
        total = [{"name": TYPE, "resources": [{"name": "google.com/tpu", "total": used}]}]
        cluster.api.patch("ClusterQueue", name, {"status": {"flavorsReservation": total}})
    plan = plan_create(cluster.api, QueueRequest(name="red", namespaces=(), quota=(f"{TYPE}=2",)))
    assert "'red' uses 3 slices of v5litepod-16, and would have 2" in plan.notes[0] and plan.question
    plan = plan_create(cluster.api, QueueRequest(name="blue", namespaces=("blue",), quota=(f"{TYPE}=1",)))
    assert "'multislice-queue' uses 4 slices of v5litepod-16, and would have 3" in plan.notes[0] and plan.question
    plan = plan_create(cluster.api, QueueRequest(name="blue", namespaces=("blue",), quota=(f"{OTHER}=1",)))
    assert (plan.notes, plan.question) == ((), "")


def workload(name: str, namespace: str, queue: str, *, finished: bool = False) -> Obj:
    """Return Kueue's object of a JobSet."""
    conditions = [{"type": "Finished", "status": "True"}] if finished else []
    owner = {"kind": "JobSet", "name": name}
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Workload",
        "metadata": {"name": f"jobset-{name}", "namespace": namespace, "ownerReferences": [owner]},
        "spec": {"queueName": queue},
        "status": {"conditions": conditions},
    }


def test_a_queue_with_workloads_is_kept_unless_forced() -> None:
    jobset = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet"}
    runs, others = (jobset | {"metadata": {"name": "w", "namespace": item}} for item in ("red", "blue"))
    inside = [workload("w", "red", "red"), workload("old", "red", "red", finished=True), workload("w", "blue", "blue")]
    cluster = Cluster(runs, others, *inside)
    cluster.create("red", f"{TYPE}=4")
    cluster.create("blue", f"{TYPE}=4")
    with pytest.raises(ConflictError, match="workloads are in queue 'red': red/w") as raised:
        cluster.delete("red")
    assert raised.value.hint == "`xpk workload delete w --cluster c -n red`, or --force to end them"
    cluster.delete("red", force=True)
    assert [item["metadata"]["namespace"] for item in cluster.api.list("JobSet", None)] == ["blue"]
    with pytest.raises(NotFoundError) as missing:
        cluster.delete("red")
    assert missing.value.hint == "choose from multislice-queue, blue"


def test_jobs_of_other_kinds_in_a_queue_are_suspended_by_force() -> None:
    theirs = workload("batch", "red", "red")
    theirs["metadata"]["ownerReferences"][0]["kind"] = "Job"
    cluster = Cluster(theirs)
    cluster.create("red", f"{TYPE}=4")
    with pytest.raises(ConflictError) as raised:
        cluster.delete("red")
    assert raised.value.hint == "`kubectl delete job batch -n red`, or --force to end them"
    plan = plan_delete(cluster.api, "red", None, where="", force=True)
    assert plan.steps[0].title == "suspend red/batch"
    plan.carry_out(lambda title: None)
    (left,) = cluster.api.list("Workload", "red")
    assert left["spec"]["active"] is False, "as long as it runs, Kueue keeps the queue"


def test_a_queue_that_is_being_deleted_does_not_count() -> None:
    cluster = Cluster()
    cluster.create("red", f"{TYPE}=4")
    cluster.api.patch("ClusterQueue", "red", {"metadata": {"deletionTimestamp": "2026-01-31T12:00:00Z"}})
    assert isinstance(refusal(cluster, "red", f"{TYPE}=1"), ConflictError)
    assert Queues.read(cluster.api).promised() == {}


def test_a_cluster_without_its_own_queue_has_no_quota_to_give() -> None:
    empty: ObjectApi = FakeApi()
    with pytest.raises(NotFoundError, match="no queue of its own"):
        plan_create(empty, QueueRequest(name="red", namespaces=("red",), quota=("1",)))


def test_quota_above_the_capacity_may_be_kept_but_not_increased() -> None:
    cluster = Cluster()
    cluster.create("red", f"{TYPE}=6")
    cluster.overcommitted = True
    cluster.create("blue", f"{TYPE}=4", force=True)
    assert cluster.create("red", f"{TYPE}=6") == []
    cluster.create("red", f"{TYPE}=5")
    assert isinstance(refusal(cluster, "red", f"{TYPE}=6"), CapacityError)


def test_concurrent_requests_for_the_same_slices_conflict() -> None:
    cluster = Cluster()
    plans = [
        plan_create(cluster.api, QueueRequest(name=item, namespaces=(item,), quota=(f"{TYPE}=8",)))
        for item in ("red", "blue")
    ]
    plans[0].carry_out(lambda step: None)
    with pytest.raises(ConflictError, match="slices were allotted to other queues concurrently") as caught:
        plans[1].carry_out(lambda step: None)
    assert caught.value.hint == f"run the command again with --quota {TYPE}=0"
    assert cluster.quotas("cluster-queue")[TYPE] == 0


@pytest.mark.parametrize("existing", [False, True])
def test_of_two_requests_at_the_same_time_none_exceeds_the_capacity(existing: bool) -> None:
    """Another client allots the same slices between the check and the write."""
    cluster = Cluster()
    if existing:
        cluster.create("blue", f"{TYPE}=1")
    plan = plan_create(cluster.api, QueueRequest(name="blue", namespaces=("blue",), quota=(f"{TYPE}=6",)))
    (red,) = (obj for obj in render_queue(red_queue()) if obj["kind"] == "ClusterQueue")
    check = cluster._check

    def react(kind: str, obj: Obj) -> None:
        check(kind, obj)
        if obj["metadata"]["name"] == "cluster-queue" and not cluster.overcommitted:
            cluster.overcommitted = True
            cluster.api.create(red)

    cluster.api._react = react
    with pytest.raises(ConflictError, match="slices were allotted to other queues concurrently"):
        plan.carry_out(lambda step: None)
    assert cluster.sums()[TYPE] == TOTAL[TYPE]
    assert [item.shares[0].quota for item in Queues.read(cluster.api).infos() if item.name == "blue"] == [1] * existing


def red_queue() -> QueueSpec:
    """Return a queue with half of the slices."""
    quota = SliceQuota(shape=find_shape(TYPE), num_slices=4, borrowing_limit=None, lending_limit=None)
    return QueueSpec(name="red", namespaces=("red",), quotas=(quota,))


def test_slices_are_counted_by_chips_not_by_cpus() -> None:
    """Another tool's queue may have quotas for all resources of its pods."""
    amounts = {"google.com/tpu": 16, "cpu": 112, "memory": "100Gi"}
    theirs = {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "ClusterQueue",
        "metadata": {"name": "theirs"},
        "spec": {
            "cohortName": "cluster-cohort",
            "resourceGroups": [
                {
                    "coveredResources": list(amounts),
                    "flavors": [
                        {
                            "name": TYPE,
                            "resources": [{"name": key, "nominalQuota": amounts[key]} for key in amounts],
                        }
                    ],
                }
            ],
        },
    }
    cluster = Cluster()
    cluster.overcommitted = True
    cluster.api.create(theirs)
    assert promised(cluster.api) == {TYPE: 1}
    (share,) = Queues.read(cluster.api).info(theirs).shares
    assert (share.type, share.quota) == (TYPE, 1)


def test_queues_above_the_remaining_capacity_are_named_with_a_hint() -> None:
    cluster = Cluster()
    for name, slices in (("blue", 1), ("red", 4), ("green", 0)):
        cluster.create(name, f"{TYPE}={slices}", namespaces=("red",))
    with pytest.raises(ConflictError, match=r"allotted more: blue 1, red 4$") as caught:
        check_promised(cluster.api, find_shape(TYPE), 4, cluster="c")
    assert caught.value.hint == f"`xpk queue create red --quota {TYPE}=N --cluster c` first"
    check_promised(cluster.api, find_shape(TYPE), 5, cluster="c")


def policies(cluster: Cluster) -> list[str]:
    """Return the policies that an API server enforces."""
    kinds = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
    return [obj["metadata"]["name"] for kind in kinds for obj in cluster.api.list(kind)]


def test_a_priority_limit_is_set_kept_and_removed() -> None:
    cluster = Cluster()
    done = cluster.create("red", f"{TYPE}=2", max_priority="medium")
    assert "reject priorities above medium in queue 'red'" in done
    assert len(policies(cluster)) == 4
    assert cluster.create("red", max_priority="medium") == [], "the second plan has nothing to do"
    cluster.create("red", f"{TYPE}=3")
    find = next(item for item in Queues.read(cluster.api).infos() if item.name == "red")
    assert find.max_priority == "medium", "settings that are not named stay"
    done = cluster.create("red", max_priority="very-high")
    assert "accept all priorities in queue 'red'" in done and policies(cluster) == []
    assert "annotations" not in cluster.api.get("ClusterQueue", "red")["metadata"]


def test_admission_policies_are_removed_with_the_queue() -> None:
    cluster = Cluster()
    cluster.create("red", f"{TYPE}=2", max_priority="low")
    plan_delete(cluster.api, "red", None, where="", force=False).carry_out(lambda title: None)
    assert policies(cluster) == []


def test_the_clusters_own_queue_has_no_limit() -> None:
    with pytest.raises(UsageError) as caught:
        Cluster().create("multislice-queue", max_priority="low")
    assert caught.value.problems[0].startswith("--max-priority does not apply to it")
