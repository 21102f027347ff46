"""Order of admission: quotas, age, priorities, preemption, and queues that share a quota."""

from __future__ import annotations

from typing import Any

from tests.conformance.case_environment import FOREVER, Ground, case
from xpk.api.base import Obj
from xpk.jobs import lifecycle, termination
from xpk.model.status import Phase

WAITING = "couldn't assign flavors to pod set slice-job: insufficient "
ONCE = (
    'mkdir -p "$XPK_OUTPUT_DIR"; mark="$XPK_OUTPUT_DIR/$MEGASCALE_SLICE_ID-$TPU_WORKER_ID"; '
    '[ ! -e "$mark" ] || exit 0; echo > "$mark"; '
)


def condition(obj: Obj, kind: str) -> Obj:
    """Return a condition of an object; empty if it does not exist."""
    return next((c for c in obj.get("status", {}).get("conditions", ()) if c["type"] == kind), {})


@case()
def admission_is_ordered_by_priority_and_age(ground: Ground) -> None:
    ground.submit("first", f"{ONCE} {FOREVER}", priority="very-high")
    ground.running("first")
    for name, priority in (("old", "medium"), ("young", "medium"), ("urgent", "high"), ("idle", "very-low")):
        ground.submit(name, "sleep 1.5", priority=priority)
        ground.a_second()
    ahead: list[str] = []
    for name in ("urgent", "old", "young", "idle"):
        result = ground.until(name, lambda status: status.position == len(ahead) + 1)
        assert result.ahead == tuple(ahead)
        ahead.append(name)
    termination.end(ground.api, "first", ground.namespace)
    assert [ground.ended(name).phase for name in ahead] == [Phase.SUCCEEDED] * 4
    admitted = {name: str(ground.status(name).started) for name in ahead}
    assert sorted(ahead, key=lambda name: admitted[name]) == ahead


@case()
def a_preempted_workload_resumes_by_itself(ground: Ground) -> None:
    ground.submit("victim", f"{ONCE} {FOREVER}", priority="low")
    ground.running("victim")
    ground.await_line("victim", "up")
    identity = ground.kueue_workload("victim")["metadata"]["uid"]
    ground.submit("winner", FOREVER, priority="high")
    ground.queued("victim", "reempted")
    assert ground.until("victim", lambda status: status.position == 1).restarts_counted == 0
    ground.running("winner")
    termination.end(ground.api, "winner", ground.namespace)
    result = ground.ended("victim")
    assert (result.phase, result.counted, result.exits) == (Phase.SUCCEEDED, 0, {"s0/h0": 0, "s0/h1": 0})
    workload = ground.kueue_workload("victim")
    assert workload["metadata"]["uid"] == identity
    assert condition(workload, "Evicted")["status"] == "False"
    assert (condition(workload, "Requeued")["status"], condition(workload, "Requeued")["reason"]) == (
        "True",
        "Preempted",
    )


@case(slices=2)
def the_lowest_and_youngest_are_preempted(ground: Ground) -> None:
    for name, priority in (("older", "low"), ("younger", "low")):
        ground.submit(name, FOREVER, priority=priority)
        ground.running(name)
        ground.a_second()
    ground.submit("equal", FOREVER, priority="low")
    ground.queued("equal", WAITING)
    ground.submit("winner", FOREVER, priority="medium")
    ground.running("winner")
    assert ground.queued("younger", "reempted").restarts_counted == 0
    assert ground.status("older").phase is Phase.RUNNING


@case(slices=2)
def of_equal_workloads_the_last_to_get_quota_is_preempted(ground: Ground) -> None:
    for name in ("older", "younger"):
        ground.submit(name, FOREVER, priority="low")
        ground.running(name)
        ground.a_second()
    lifecycle.set_active(ground.api, "older", ground.namespace, active=False)
    ground.until("older", lambda status: status.phase is Phase.SUSPENDED and not status.hosts)
    lifecycle.set_active(ground.api, "older", ground.namespace, active=True)
    ground.running("older")
    ground.a_second()
    ground.submit("winner", FOREVER, priority="medium")
    ground.running("winner")
    ground.queued("older", "reempted")
    assert ground.status("younger").phase is Phase.RUNNING


@case(slices=2)
def a_fitting_workload_passes_a_larger_one(ground: Ground) -> None:
    ground.submit("half", FOREVER)
    ground.running("half")
    ground.submit("whole", "true", slices=2)
    result = ground.queued("whole", WAITING)
    assert f"{WAITING}unused quota for google.com/tpu in flavor v5litepod-8, 8 more needed" in result.reason
    ground.submit("giant", "true", slices=3)
    result = ground.queued("giant", WAITING)
    capacity = "previously considered podsets requests (0) + current podset request (24) > maximum capacity (16)"
    assert f"{WAITING}quota for google.com/tpu in flavor v5litepod-8, {capacity}" in result.reason
    ground.submit("other", "true")
    assert ground.ended("other").phase is Phase.SUCCEEDED
    assert ground.status("whole").phase is Phase.QUEUED


@case()
def a_workload_without_its_queue_is_pending(ground: Ground) -> None:
    ground.submit("lost", "true", queue="nowhere")
    result = ground.queued("lost", "LocalQueue nowhere doesn't exist")
    assert ground.pods("lost") == []
    reserved = condition(ground.kueue_workload("lost"), "QuotaReserved")
    assert (reserved["status"], reserved["reason"]) == ("False", "Inadmissible")
    assert result.started is None


@case()
def a_suspended_workload_leaves_the_queue(ground: Ground) -> None:
    ground.submit("first", FOREVER)
    ground.running("first")
    ground.submit("napping", "true")
    ground.queued("napping", WAITING)
    ground.a_second()
    ground.submit("next", "true")
    ground.until("next", lambda status: status.position == 2)
    lifecycle.set_active(ground.api, "napping", ground.namespace, active=False)
    ground.until("napping", lambda status: status.phase is Phase.SUSPENDED)
    assert (ground.status("next").position, ground.status("next").ahead) == (1, ())
    termination.end(ground.api, "first", ground.namespace)
    assert ground.ended("next").phase is Phase.SUCCEEDED
    assert ground.status("napping").phase is Phase.SUSPENDED
    lifecycle.set_active(ground.api, "napping", ground.namespace, active=True)
    assert ground.ended("napping").phase is Phase.SUCCEEDED


@case()
def queues_of_two_namespaces_share_a_quota(ground: Ground) -> None:
    ground.submit("same", FOREVER)
    ground.running("same")
    ground.submit("same", FOREVER, namespace=ground.neighbor)
    ground.queued("same", WAITING, namespace=ground.neighbor)
    counts = ("pendingWorkloads", "reservingWorkloads", "admittedWorkloads")

    def counted() -> list[list[int]]:
        local = [ground.api.get("LocalQueue", "multislice-queue", item) for item in (ground.namespace, ground.neighbor)]
        queue = ground.api.get("ClusterQueue", ground.namespace)
        return [[item.get("status", {}).get(count, -1) for count in counts] for item in (*local, queue)]

    ground.hold(lambda: counted() == [[0, 1, 1], [1, 0, 0], [1, 1, 1]])
    termination.end(ground.api, "same", ground.namespace)
    ground.running("same", namespace=ground.neighbor)
    ground.hold(lambda: counted() == [[0, 0, 0], [0, 1, 1], [0, 1, 1]])


@case(slices=2)
def lent_quota_is_returned(ground: Ground) -> None:
    ground.split(own=1, theirs=1)
    ground.submit("whole", f"{ONCE} {FOREVER}", slices=2, priority="very-high")
    ground.running("whole")
    ground.await_line("whole", "up", hosts=4)
    theirs: dict[str, Any] = {"namespace": ground.neighbor, "queue": ground.neighbor}
    ground.submit("small", FOREVER, priority="very-low", **theirs)
    result = ground.queued("whole", "reempted")
    assert result.restarts_counted == 0
    assert condition(ground.kueue_workload("whole"), "Preempted")["reason"] == "InCohortReclamation"
    ground.running("small", namespace=ground.neighbor)
    result = ground.queued("whole", WAITING)
    (quota,) = result.quota
    assert (quota.quota, quota.needed, quota.free, quota.most) == (8, 16, 8, 16)
    assert [share.workload for share in quota.holders] == [f"{ground.neighbor}/small"]
    termination.end(ground.api, "small", ground.neighbor)
    assert ground.ended("whole").phase is Phase.SUCCEEDED


@case(slices=2)
def borrowed_quota_is_preempted_by_priority(ground: Ground) -> None:
    ground.split(own=2, theirs=0, reclaim="LowerPriority", borrowing_limit=1)
    theirs: dict[str, Any] = {"namespace": ground.neighbor, "queue": ground.neighbor}
    ground.submit("guest", FOREVER, priority="low", **theirs)
    ground.running("guest", namespace=ground.neighbor)
    ground.submit("giant", "true", slices=2, **theirs)
    ground.queued("giant", "> maximum capacity (8)", namespace=ground.neighbor)
    ground.submit("equal", FOREVER, slices=2, priority="low")
    ground.queued("equal", WAITING)
    assert ground.status("guest", ground.neighbor).phase is Phase.RUNNING
    ground.submit("full", FOREVER, slices=2, priority="high")
    ground.running("full")
    ground.queued("guest", "reempted", namespace=ground.neighbor)
    assert ground.status("equal").position == 1


@case()
def a_queue_accepts_priorities_up_to_its_limit(ground: Ground) -> None:
    ground.split(own=1, theirs=1)
    assert ground.takes("very-high", ground.neighbor)
    ground.limit_priority("medium")
    ground.hold(lambda: not ground.takes("high", ground.neighbor))
    assert ground.takes("medium", ground.neighbor)
    assert ground.takes("very-high", ground.namespace), "another queue has no limit"
