"""Reading objects of a real cluster; other statuses are tested on running workloads."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from tests.jobs.objects import (
    ADMITTED,
    NOW,
    ROOTS,
    RUNNING,
    WAITS,
    Obj,
    at,
    cluster_queue,
    event,
    jobset,
    local_queue,
    pod,
    workload,
)
from xpk.jobs import lifecycle
from xpk.jobs.lifecycle import check_images
from xpk.jobs.status.fields import Snapshot
from xpk.jobs.status.reader import find_all, inspect, read
from xpk.model import names
from xpk.model.errors import AuthorizationError, MissingToolError, NotFoundError, WorkloadFailedError
from xpk.model.status import Phase, WorkloadStatus
from xpk.testing import FakeApi

NO_IMAGE = (
    'Back-off pulling image "registry.invalid/nope:1": ErrImagePull: rpc error: code = Unknown desc = failed to pull '
    'and unpack image "registry.invalid/nope:1": failed to resolve reference "registry.invalid/nope:1": dial tcp: '
    "no such host"
)


def pending(**status: Any) -> Obj:
    """Return a pod's status while it is not running."""
    return {"phase": "Pending", **status}


def waiting(reason: str, message: str = "") -> Obj:
    """Return a pod whose container waits."""
    state = {"waiting": {"reason": reason, "message": message}}
    return pending(containerStatuses=[{"name": "host", "state": state}])


def unschedulable(message: str) -> Obj:
    """Return a pod without a node."""
    return pending(
        conditions=[{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}]
    )


def started(*pods: Obj, **more: Any) -> Snapshot:
    """Return an admitted workload with these pods."""
    return Snapshot(jobsets=[], workloads=[ADMITTED], pods=list(pods), **more)


@pytest.mark.parametrize(
    ("trouble", "says"),
    [
        (
            unschedulable(
                "0/3 nodes are available: 2 node(s) were unschedulable. no new claims to deallocate, "
                "preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling."
            ),
            "s1/h0 has no node: 0/3 nodes are available: 2 node(s) were unschedulable",
        ),
        (
            waiting("ImagePullBackOff", NO_IMAGE),
            "s1/h0 cannot start: ErrImagePull: registry.invalid/nope:1: dial tcp: no such host",
        ),
        (waiting("ErrImagePull", "no such image"), "ErrImagePull: registry.invalid/nope:1: no such image"),
        (waiting("CreateContainerError", "no command"), "s1/h0 cannot start: CreateContainerError: no command"),
        (
            pending(
                initContainerStatuses=[{"name": "fetch", "state": {"terminated": {"exitCode": 7}}}],
                containerStatuses=[{"name": "host", "state": {"waiting": {"reason": "PodInitializing"}}}],
            ),
            "s1/h0 cannot start: InitContainerFailed: init container 'fetch' failed with exit code 7",
        ),
        (waiting("ContainerCreating"), "1 of 2 hosts running"),
    ],
)
def test_the_cause_of_a_host_that_does_not_start_is_shown(trouble: Obj, says: str) -> None:
    result = read(jobset(), started(pod(0, RUNNING), pod(1, trouble)))
    assert result.phase is Phase.STARTING and result.reason.endswith(says)


def test_hosts_with_the_same_problem_are_counted() -> None:
    result = read(jobset(), started(pod(0, waiting("ErrImagePull", "x")), pod(1, waiting("ImagePullBackOff", "x"))))
    (trouble,) = result.troubles
    assert trouble.hosts == ("s0/h0", "s1/h0") and trouble.image == "registry.invalid/nope:1"
    assert "s0/h0 and 1 more cannot start" in result.reason


def test_create_does_not_wait_for_an_image_that_cannot_be_pulled() -> None:
    check_images(read(jobset(), started(pod(0, RUNNING), pod(1, waiting("ErrImagePull", "429 Too Many Requests")))), {})
    for message in ("registry.invalid/nope:1: not found", "manifest unknown"):
        stuck = read(jobset(), started(pod(0, RUNNING), pod(1, waiting("ImagePullBackOff", message))))
        with pytest.raises(WorkloadFailedError, match=r"image registry\.invalid/nope:1 cannot be pulled") as raised:
            check_images(stuck, {}, where=" --cluster c")
        assert "xpk workload delete w --cluster c" in str(raised.value.hint)


@pytest.mark.parametrize("message", [NO_IMAGE, "pull access denied", "403 Forbidden"])
def test_temporary_registry_and_dns_errors_are_tolerated(message: str) -> None:
    stuck = read(jobset(), started(pod(0, RUNNING), pod(1, waiting("ErrImagePull", message))))
    silent = read(jobset(), started(pod(0, RUNNING), pod(1, waiting("ImagePullBackOff", "Back-off pulling image"))))
    well = read(jobset(), started(pod(0, RUNNING), pod(1, RUNNING)))
    refused: dict[str, float] = {}
    for second, status in ((0.0, stuck), (25.0, stuck), (40.0, well), (45.0, stuck), (60.0, silent), (70.0, stuck)):
        check_images(status, refused, clock=partial(float, second))
    with pytest.raises(WorkloadFailedError, match="cannot be pulled"):
        check_images(stuck, refused, clock=lambda: 75.0)


def test_status_is_read_again_without_changes() -> None:
    host = pod(0, waiting("ErrImagePull", "pull access denied"))
    host["metadata"] |= {"namespace": "default"}
    host["metadata"]["labels"] |= {names.WORKLOAD_LABEL: "w", "jobset.sigs.k8s.io/jobset-name": "w"}
    report: list[object] = []
    with pytest.raises(WorkloadFailedError, match="cannot be pulled"):
        api = FakeApi([jobset() | {"kind": "JobSet"}, host | {"kind": "Pod"}, ADMITTED | {"kind": "Workload"}])
        lifecycle.wait(api, "w", "default", timeout=10, tell=report.append, must_start=True, pull_grace_seconds=0.2)
    assert len(report) == 1


def test_a_failed_mount_is_found_in_the_events() -> None:
    report = event("Pod", "w-slice-job-1-0-abcde", "FailedMount", "hostPath type check failed", 5, uid="pod-1")
    result = read(jobset(), started(pod(0, RUNNING), pod(1, waiting("ContainerCreating")), events=[report]))
    assert result.reason.endswith("s1/h0 cannot start: FailedMount: hostPath type check failed")


def test_failed_job_creation_is_reported_unless_temporary() -> None:
    passing = event("Job", "w-slice-job-1", "FailedCreate", "follower pod node selector for topology not found", 9)
    real = event("JobSet", "w", "JobCreationFailed", "Job is invalid: must be ordered\nand more", 5, uid="u")
    assert read(jobset(), started(events=[passing])).troubles == ()
    (trouble,) = read(jobset(), started(events=[passing, real])).troubles
    assert (trouble.reason, trouble.message) == ("JobCreationFailed", "Job is invalid: must be ordered")


def test_hosts_on_an_unreachable_node_are_lost() -> None:
    gone = RUNNING | {
        "conditions": [{"type": "Ready", "status": "False"}, {"type": "ContainersReady", "status": "True"}]
    }
    result = read(jobset(), started(pod(0, RUNNING, node="a"), pod(1, gone, node="b")))
    assert (
        result.phase is Phase.RESTARTING and result.reason == "1 of 2 hosts running: s1/h0 lost: node b does not answer"
    )
    assert [host.phase for host in result.hosts] == ["Running", "NodeLost"]


def test_position_counts_priority_before_age_over_all_namespaces() -> None:
    waits: dict[str, Any] = {"QuotaReserved": WAITS}
    others = [
        workload("older", "a", created="2026-01-31T11:00:00Z", **waits),
        workload("urgent", "b", namespace="ml", priority=1000, created="2026-01-31T13:00:00Z", **waits),
        workload("lowly", "c", priority=100, created="2026-01-31T10:00:00Z", **waits),
        workload("running", "d", uses=16, QuotaReserved=("True", "", "")),
        workload("elsewhere", "e", namespace="other", priority=1000, **waits),
    ]
    queues = [local_queue(), local_queue("ml")]  # that of `other` uses another cluster queue
    snapshot = Snapshot(
        jobsets=[],
        workloads=[*others, workload("w", "u", **waits)],
        local_queues=queues,
        cluster_queues=[cluster_queue(16)],
    )
    result = read(jobset(annotations={"xpk.dev/accelerator-type": "v5e"}), snapshot)
    assert result.phase is Phase.QUEUED and result.position == 3
    assert result.ahead == ("ml/urgent", "older") and result.reason == "insufficient unused quota"
    (quota,) = result.quota
    assert (quota.flavor, quota.resource, quota.quota) == ("v5e", "google.com/tpu", 16)
    assert (quota.used, quota.needed, quota.free) == (16, 16, 0)
    assert [(share.workload, share.amount) for share in quota.holders] == [("running", 16)]
    assert [(item.type, item.reason) for item in result.conditions] == [("QuotaReserved", "Pending")]


def test_the_preempting_workload_is_named() -> None:
    said = "Preempted to accommodate a workload (UID: workload-x, JobUID: x) due to prioritization in the ClusterQueue"
    mine = workload("w", "u", Evicted=("True", "Preempted", said.replace("workload-x", "abc")), QuotaReserved=WAITS)
    winner = workload("urgent", "x", priority=1000, QuotaReserved=("True", "", ""))
    winner["metadata"]["uid"] = "abc"
    result = read(jobset(), Snapshot(jobsets=[], workloads=[mine, winner]))
    assert result.reason == "preempted by urgent; insufficient unused quota"


def test_an_evicted_workload_is_pending_while_its_pods_end() -> None:
    holds: dict[str, Any] = {
        "QuotaReserved": ("True", "", ""),
        "Admitted": ("True", "", ""),
        "Evicted": ("True", "Preempted", "so"),
    }
    result = read(jobset(), Snapshot(jobsets=[], workloads=[workload("w", "u", **holds)]))
    assert result.phase is Phase.QUEUED and result.position == 1 and "its hosts are terminating" in result.reason


def test_an_admission_check_that_is_not_ready_is_named() -> None:
    mine = workload("w", "u", QuotaReserved=("True", "", ""))
    mine["status"]["admissionChecks"] = [{"name": "provision", "state": "Pending", "message": "no nodes yet"}]
    result = read(jobset(), Snapshot(jobsets=[], workloads=[mine]))
    assert result.reason == "admission check 'provision' is Pending: no nodes yet"
    assert result.position is None and result.quota == (), "no workload is blocked by its own slices"


def test_the_exit_code_is_that_of_the_users_container() -> None:
    """The kubelet sorts containers by name, and restarts ended sidecars."""
    beside = {"name": "datadog", "state": {"terminated": {"exitCode": 0, "finishedAt": at(9)}}}
    ours = {"name": "host", "state": {"terminated": {"exitCode": 9, "finishedAt": at(8)}}}
    again = {"name": "proxy", "state": {"running": {"startedAt": NOW}}, "lastState": {"terminated": {"exitCode": 3}}}
    failed = {"phase": "Failed", "containerStatuses": [beside, ours], "initContainerStatuses": [again]}
    over = jobset(conditions=[{"type": "Failed", "status": "True", "reason": "FailedJobs"}])
    both = pod(0, failed)
    both["spec"]["containers"] = [{"name": "datadog"}, {"name": "host"}]
    result = read(over, Snapshot(jobsets=[], pods=[both]))
    assert result.hosts[0].exit_code == 9 and "s0/h0 ended with exit code 9" in result.reason


def test_a_jobset_without_jobs_does_not_hide_others() -> None:
    empty = jobset()
    del empty["spec"]["replicatedJobs"]
    result = read(empty, Snapshot(jobsets=[], events=[event("Pod", "p", "Pulled", "", 1)]))
    assert (result.num_slices, result.num_hosts, result.command, result.mounts) == (0, 0, (), ())


def provisioning(message: str, *, state: str = "Pending", failures: int = 0, **conditions: Any) -> WorkloadStatus:
    """Return a workload that requests nodes from GKE."""
    mine = workload("w", "u", **conditions)
    check: dict[str, Any] = {"name": "dws-prov", "state": state, "message": message}
    mine["status"]["admissionChecks"] = [check | ({"retryCount": failures} if failures else {})]
    if failures:
        mine["status"]["requeueState"] = {"count": failures, "requeueAt": at(60)}
    mine["spec"]["active"] = "Deactivated" not in str(conditions.get("Evicted"))
    return read(jobset(), Snapshot(jobsets=[], workloads=[mine]))


def test_messages_of_provisioning_requests_are_shown() -> None:
    reserved: dict[str, Any] = {"QuotaReserved": ("True", "", "")}
    waits = "waiting for GKE to create its nodes: {} (admission check 'dws-prov' is Pending{})"
    unanswered = "its ProvisioningRequest is pending"
    assert provisioning("", **reserved).reason == waits.format(unanswered, "")
    assert provisioning("no room, ETA 5m", **reserved).reason == waits.format("no room, ETA 5m", "")
    again = provisioning("Reset to Pending after eviction. Previously: Retry", failures=2, **reserved)
    assert again.reason == waits.format(unanswered, "; 2 attempts failed")
    (check,) = again.checks
    assert (check.name, check.state, check.failures, check.next_attempt) == ("dws-prov", "Pending", 2, at(60))


def test_a_failed_provisioning_request_is_shown() -> None:
    said = "Evicted due to AdmissionCheck in Retry state: \"dws-prov\" (Retrying after failure: Quota 'TPUS' exceeded)"
    conditions: dict[str, Any] = {
        "QuotaReserved": ("False", "Pending", said),
        "Evicted": ("True", "AdmissionCheck", said),
    }
    result = provisioning("Reset to Pending after eviction. Previously: Retry", failures=1, **conditions)
    assert result.phase is Phase.QUEUED
    assert result.reason == f"GKE created no nodes: Quota 'TPUS' exceeded (1 attempt failed, next attempt at {at(60)})"
    # The same before Kueue has released its quota, while it counts the next attempt.
    reserved: dict[str, Any] = {"QuotaReserved": ("True", "", "")}
    early = provisioning("Retrying after failure: Quota 'TPUS' exceeded", state="Retry", failures=1, **reserved)
    assert early.reason == f"GKE created no nodes: Quota 'TPUS' exceeded (2 attempts failed, next attempt at {at(60)})"


def test_an_expired_provisioning_request_is_shown() -> None:
    said = 'The workload is deactivated due to AdmissionCheck in Rejected state: "dws-prov" (Quota exceeded)'
    result = provisioning("Quota exceeded", Evicted=("True", "DeactivatedDueToAdmissionCheck", said))
    assert result.phase is Phase.SUSPENDED
    assert result.reason == "given up: GKE created no nodes: Quota exceeded (admission check 'dws-prov' is Rejected)"
    theirs = provisioning("", Evicted=("True", "Deactivated", "The workload is deactivated"))
    assert theirs.reason == "suspended by its user"


def test_objects_without_status_are_pending() -> None:
    bare = jobset()
    del bare["status"]
    bare["spec"]["suspend"] = True
    result = read(bare, Snapshot(jobsets=[]))
    assert result.phase is Phase.QUEUED and result.hosts == () and result.restarts == 0


def test_a_host_without_its_code_explains_it() -> None:
    said = "the code at gs://b/.code/x.tar.gz cannot be unpacked: HTTP Error 403: Forbidden"
    ended = {"name": "code", "state": {"terminated": {"exitCode": 1, "reason": "Error", "message": f"{said}\n"}}}
    failed = {
        "phase": "Failed",
        "initContainerStatuses": [ended],
        "containerStatuses": [{"state": {"waiting": {"reason": "PodInitializing"}}}],
    }
    over = jobset(conditions=[{"type": "Failed", "status": "True", "reason": "ReachedMaxRestarts"}])
    result = read(over, Snapshot(jobsets=[], workloads=[ADMITTED], pods=[pod(0, RUNNING), pod(1, failed)]))
    words = f"init container 'code' failed with exit code 1: {said}"
    assert result.reason == f"host s1/h0: {words}, and no restart is left"
    assert (result.hosts[1].exit_code, result.hosts[1].reason) == (1, words)


def test_a_jobset_of_another_tool_is_read_partially() -> None:
    foreign = jobset(labels={})
    for key in ("labels", "annotations"):
        del foreign["metadata"][key]
    foreign["metadata"]["managedFields"] = [
        {"manager": "jobset", "subresource": "status"},
        {"manager": "kubectl-client-side-apply"},
    ]
    (job,) = foreign["spec"]["replicatedJobs"]
    del job["replicas"], job["template"]["spec"]["parallelism"]
    stray = {"metadata": {"name": "stray", "creationTimestamp": NOW}, "spec": {}, "status": {}}
    result = read(foreign, Snapshot(jobsets=[], pods=[stray]))
    assert (result.maker, result.num_hosts, result.accelerator_type, result.queue) == ("kubectl", 1, "", None)


def test_googles_workloads_have_the_type_of_their_nodes() -> None:
    theirs = jobset()
    pod_spec = theirs["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    pod_spec["nodeSelector"] = {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice",
        "cloud.google.com/gke-tpu-topology": "2x4",
    }
    result = read(theirs, Snapshot(jobsets=[]))
    assert (result.accelerator_type, result.maker) == ("v5litepod-8", "xpk")


class Limited(FakeApi):
    """An API server that rejects lists of all namespaces, or has no Kueue."""

    def __init__(self, objects: list[Obj], *, kueue: bool = True) -> None:
        super().__init__(objects)
        self._kueue = kueue

    def list(self, kind: str, namespace: str | None = "default", selector: Any = None, **more: Any) -> list[Obj]:
        if not self._kueue and kind in ("Workload", "LocalQueue", "ClusterQueue"):
            raise MissingToolError("Kueue is not installed")
        if namespace is None:
            raise AuthorizationError("not in the whole cluster")
        return super().list(kind, namespace, selector)


@pytest.mark.parametrize("kueue", [True, False])
def test_missing_permissions_reduce_the_status(kueue: bool) -> None:
    mine = {"kind": "JobSet", **jobset()}
    waits = {"kind": "Workload", **workload("w", "u", QuotaReserved=WAITS)}
    status, events = inspect(Limited([mine, waits], kueue=kueue), "w", "default", ROOTS)
    assert status.name == "w" and events == ()
    assert status.position == (1 if kueue else None)
    with pytest.raises(NotFoundError, match="workload 'x' not found"):
        inspect(Limited([mine], kueue=kueue), "x", "default", ROOTS)


@pytest.mark.parametrize("count", [1, 50])
def test_listing_makes_the_same_number_of_requests_for_any_number_of_workloads(count: int) -> None:
    many: list[Obj] = []
    for index in range(count):
        one = {"kind": "JobSet", **jobset()}
        one["metadata"] = {**one["metadata"], "name": f"w{index}", "uid": f"u{index}"}
        many += [one, {"kind": "Workload", **workload(f"w{index}", f"u{index}", QuotaReserved=WAITS)}]
    api = FakeApi(many)
    assert len(find_all(api)) == count
    assert sorted(api.calls) == [("list", kind, "") for kind in ("JobSet", "LocalQueue", "Pod", "Workload")]


def test_that_the_queue_of_held_copies_does_not_exist_is_not_worth_an_event() -> None:
    of_held = event("JobSet", "w", "Inadmissible", "LocalQueue xpk-held doesn't exist", 1, uid="u")
    of_wrong = event("JobSet", "w", "Inadmissible", "LocalQueue nope doesn't exist", 2, uid="u")
    shown = read(jobset(), started(pod(0, RUNNING), events=[of_held, of_wrong])).events
    assert [one.message for one in shown] == ["LocalQueue nope doesn't exist"]


@pytest.mark.parametrize(
    ("reason", "message", "says"),
    [
        ("TriggeredScaleUp", "pod triggered scale-up: [{nap-1 0->4 (max: 4)}]", "GKE adds nodes: pod triggered"),
        ("NotTriggerScaleUp", "pod didn't trigger scale-up: 1 max limit reached", "GKE adds no nodes: pod didn't"),
        (
            "FailedScaleUp",
            "Node scale up in zones us-east5-b failed: GCE out of resources",
            "could not add nodes: Node",
        ),
    ],
)
def test_node_pools_being_created_for_hosts_are_reported(reason: str, message: str, says: str) -> None:
    def said(reason: str, message: str, seconds: int, uid: str) -> Obj:
        return event("Pod", "w-slice-job-0-0-abcde", reason, message, seconds, uid=uid)

    events = [
        said("NotTriggerScaleUp", "earlier words", 1, "pod-0"),
        said(reason, message, 20, "pod-0"),
        said("TriggeredScaleUp", "of an earlier attempt", 30, "another"),
    ]
    snapshot = started(pod(0, unschedulable("0/6 nodes are available")), events=events)
    status = read(jobset(), snapshot)
    (trouble,) = status.troubles
    assert trouble.reason == "Unschedulable" and trouble.hosts == ("s0/h0",)
    assert trouble.message.startswith("0/6 nodes are available; ") and says in trouble.message
    assert message in status.reason and "earlier" not in status.reason
