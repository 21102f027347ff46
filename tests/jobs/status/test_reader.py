"""Reading objects as a real cluster has them; everything else about statuses is tested on running workloads."""

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
    """A pod's status while it does not run."""
    return {"phase": "Pending", **status}


def waiting(reason: str, message: str = "") -> Obj:
    """A pod whose container waits."""
    state = {"waiting": {"reason": reason, "message": message}}
    return pending(containerStatuses=[{"name": "host", "state": state}])


def unschedulable(message: str) -> Obj:
    """A pod without a node."""
    return pending(
        conditions=[{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}]
    )


def started(*pods: Obj, **more: Any) -> Snapshot:
    """An admitted workload with these pods."""
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
def test_why_a_host_does_not_start(trouble: Obj, says: str) -> None:
    found = read(jobset(), started(pod(0, RUNNING), pod(1, trouble)))
    assert found.phase is Phase.STARTING and found.reason.endswith(says)


def test_hosts_in_the_same_trouble_are_counted_not_repeated() -> None:
    found = read(jobset(), started(pod(0, waiting("ErrImagePull", "x")), pod(1, waiting("ImagePullBackOff", "x"))))
    (trouble,) = found.troubles
    assert trouble.hosts == ("s0/h0", "s1/h0") and trouble.image == "registry.invalid/nope:1"
    assert "s0/h0 and 1 more cannot start" in found.reason


def test_create_does_not_wait_for_an_image_that_cannot_be_pulled() -> None:
    check_images(read(jobset(), started(pod(0, RUNNING), pod(1, waiting("ErrImagePull", "429 Too Many Requests")))), {})
    for message in ("registry.invalid/nope:1: not found", "manifest unknown"):
        stuck = read(jobset(), started(pod(0, RUNNING), pod(1, waiting("ImagePullBackOff", message))))
        with pytest.raises(WorkloadFailedError, match=r"image registry\.invalid/nope:1 cannot be pulled") as raised:
            check_images(stuck, {}, where=" --cluster c")
        assert "xpk workload delete w --cluster c" in str(raised.value.hint)


@pytest.mark.parametrize("message", [NO_IMAGE, "pull access denied", "403 Forbidden"])
def test_it_waits_where_a_registry_or_a_name_server_may_be_in_trouble_for_a_moment(message: str) -> None:
    stuck = read(jobset(), started(pod(0, RUNNING), pod(1, waiting("ErrImagePull", message))))
    silent = read(jobset(), started(pod(0, RUNNING), pod(1, waiting("ImagePullBackOff", "Back-off pulling image"))))
    well = read(jobset(), started(pod(0, RUNNING), pod(1, RUNNING)))
    refused: dict[str, float] = {}
    for second, status in ((0.0, stuck), (25.0, stuck), (40.0, well), (45.0, stuck), (60.0, silent), (70.0, stuck)):
        check_images(status, refused, clock=partial(float, second))
    with pytest.raises(WorkloadFailedError, match="cannot be pulled"):
        check_images(stuck, refused, clock=lambda: 75.0)


def test_it_looks_again_though_nothing_has_changed() -> None:
    host = pod(0, waiting("ErrImagePull", "pull access denied"))
    host["metadata"] |= {"namespace": "default"}
    host["metadata"]["labels"] |= {names.WORKLOAD_LABEL: "w", "jobset.sigs.k8s.io/jobset-name": "w"}
    told: list[object] = []
    with pytest.raises(WorkloadFailedError, match="cannot be pulled"):
        api = FakeApi([jobset() | {"kind": "JobSet"}, host | {"kind": "Pod"}, ADMITTED | {"kind": "Workload"}])
        lifecycle.wait(api, "w", "default", timeout=10, tell=told.append, must_start=True, pull_grace_seconds=0.2)
    assert len(told) == 1


def test_a_volume_that_cannot_be_mounted_is_only_in_the_events() -> None:
    told = event("Pod", "w-slice-job-1-0-abcde", "FailedMount", "hostPath type check failed", 5, uid="pod-1")
    found = read(jobset(), started(pod(0, RUNNING), pod(1, waiting("ContainerCreating")), events=[told]))
    assert found.reason.endswith("s1/h0 cannot start: FailedMount: hostPath type check failed")


def test_jobs_that_cannot_be_created_are_told_of_but_not_what_passes() -> None:
    passing = event("Job", "w-slice-job-1", "FailedCreate", "follower pod node selector for topology not found", 9)
    real = event("JobSet", "w", "JobCreationFailed", "Job is invalid: must be ordered\nand more", 5, uid="u")
    assert read(jobset(), started(events=[passing])).troubles == ()
    (trouble,) = read(jobset(), started(events=[passing, real])).troubles
    assert (trouble.reason, trouble.message) == ("JobCreationFailed", "Job is invalid: must be ordered")


def test_a_node_that_no_longer_answers_takes_its_hosts_along() -> None:
    gone = RUNNING | {
        "conditions": [{"type": "Ready", "status": "False"}, {"type": "ContainersReady", "status": "True"}]
    }
    found = read(jobset(), started(pod(0, RUNNING, node="a"), pod(1, gone, node="b")))
    assert (
        found.phase is Phase.RESTARTING and found.reason == "1 of 2 hosts running: s1/h0 lost: node b does not answer"
    )
    assert [host.phase for host in found.hosts] == ["Running", "NodeLost"]


def test_position_counts_priority_before_age_over_all_namespaces() -> None:
    waits: dict[str, Any] = {"QuotaReserved": WAITS}
    others = [
        workload("older", "a", created="2026-01-31T11:00:00Z", **waits),
        workload("urgent", "b", namespace="ml", priority=1000, created="2026-01-31T13:00:00Z", **waits),
        workload("lowly", "c", priority=100, created="2026-01-31T10:00:00Z", **waits),
        workload("running", "d", uses=16, QuotaReserved=("True", "", "")),
        workload("elsewhere", "e", namespace="other", priority=1000, **waits),
    ]
    queues = [local_queue(), local_queue("ml")]  # that of `other` leads to another cluster queue
    snapshot = Snapshot(
        jobsets=[],
        workloads=[*others, workload("w", "u", **waits)],
        local_queues=queues,
        cluster_queues=[cluster_queue(16)],
    )
    found = read(jobset(annotations={"xpk.dev/accelerator-type": "v5e"}), snapshot)
    assert found.phase is Phase.QUEUED and found.position == 3
    assert found.ahead == ("ml/urgent", "older") and found.reason == "insufficient unused quota"
    (quota,) = found.quota
    assert (quota.flavor, quota.resource, quota.quota) == ("v5e", "google.com/tpu", 16)
    assert (quota.used, quota.needed, quota.free) == (16, 16, 0)
    assert [(share.workload, share.amount) for share in quota.holders] == [("running", 16)]
    assert [(each.type, each.reason) for each in found.conditions] == [("QuotaReserved", "Pending")]


def test_who_was_preempted_is_told_by_whom() -> None:
    said = "Preempted to accommodate a workload (UID: workload-x, JobUID: x) due to prioritization in the ClusterQueue"
    mine = workload("w", "u", Evicted=("True", "Preempted", said.replace("workload-x", "abc")), QuotaReserved=WAITS)
    winner = workload("urgent", "x", priority=1000, QuotaReserved=("True", "", ""))
    winner["metadata"]["uid"] = "abc"
    found = read(jobset(), Snapshot(jobsets=[], workloads=[mine, winner]))
    assert found.reason == "preempted by urgent; insufficient unused quota"


def test_what_is_still_ending_after_an_eviction_waits_already() -> None:
    holds: dict[str, Any] = {
        "QuotaReserved": ("True", "", ""),
        "Admitted": ("True", "", ""),
        "Evicted": ("True", "Preempted", "so"),
    }
    found = read(jobset(), Snapshot(jobsets=[], workloads=[workload("w", "u", **holds)]))
    assert found.phase is Phase.QUEUED and found.position == 1 and "its hosts are terminating" in found.reason


def test_an_admission_check_that_is_not_ready_is_named() -> None:
    mine = workload("w", "u", QuotaReserved=("True", "", ""))
    mine["status"]["admissionChecks"] = [{"name": "provision", "state": "Pending", "message": "no nodes yet"}]
    found = read(jobset(), Snapshot(jobsets=[], workloads=[mine]))
    assert found.reason == "admission check 'provision' is Pending: no nodes yet"
    assert found.position is None and found.quota == (), "nobody holds what it has itself"


def test_the_exit_code_is_that_of_the_users_program_whatever_runs_beside_it() -> None:
    """Kubelet sorts containers by their names, and starts sidecars again that have ended."""
    beside = {"name": "datadog", "state": {"terminated": {"exitCode": 0, "finishedAt": at(9)}}}
    ours = {"name": "host", "state": {"terminated": {"exitCode": 9, "finishedAt": at(8)}}}
    again = {"name": "proxy", "state": {"running": {"startedAt": NOW}}, "lastState": {"terminated": {"exitCode": 3}}}
    failed = {"phase": "Failed", "containerStatuses": [beside, ours], "initContainerStatuses": [again]}
    over = jobset(conditions=[{"type": "Failed", "status": "True", "reason": "FailedJobs"}])
    both = pod(0, failed)
    both["spec"]["containers"] = [{"name": "datadog"}, {"name": "host"}]
    found = read(over, Snapshot(jobsets=[], pods=[both]))
    assert found.hosts[0].exit_code == 9 and "s0/h0 ended with exit code 9" in found.reason


def test_a_jobset_without_any_jobs_hides_no_other() -> None:
    empty = jobset()
    del empty["spec"]["replicatedJobs"]
    found = read(empty, Snapshot(jobsets=[], events=[event("Pod", "p", "Pulled", "", 1)]))
    assert (found.num_slices, found.num_hosts, found.command, found.mounts) == (0, 0, (), ())


def provisioning(message: str, *, state: str = "Pending", failures: int = 0, **conditions: Any) -> WorkloadStatus:
    """Read a workload that asks GKE for nodes."""
    mine = workload("w", "u", **conditions)
    check: dict[str, Any] = {"name": "dws-prov", "state": state, "message": message}
    mine["status"]["admissionChecks"] = [check | ({"retryCount": failures} if failures else {})]
    if failures:
        mine["status"]["requeueState"] = {"count": failures, "requeueAt": at(60)}
    mine["spec"]["active"] = "Deactivated" not in str(conditions.get("Evicted"))
    return read(jobset(), Snapshot(jobsets=[], workloads=[mine]))


def test_what_gke_says_of_nodes_that_it_is_to_make() -> None:
    reserved: dict[str, Any] = {"QuotaReserved": ("True", "", "")}
    waits = "waiting for GKE to create its nodes: {} (admission check 'dws-prov' is Pending{})"
    unanswered = "its ProvisioningRequest is pending"
    assert provisioning("", **reserved).reason == waits.format(unanswered, "")
    assert provisioning("no room, ETA 5m", **reserved).reason == waits.format("no room, ETA 5m", "")
    again = provisioning("Reset to Pending after eviction. Previously: Retry", failures=2, **reserved)
    assert again.reason == waits.format(unanswered, "; 2 attempts failed")
    (check,) = again.checks
    assert (check.name, check.state, check.failures, check.next_attempt) == ("dws-prov", "Pending", 2, at(60))


def test_a_request_for_nodes_that_failed() -> None:
    said = "Evicted due to AdmissionCheck in Retry state: \"dws-prov\" (Retrying after failure: Quota 'TPUS' exceeded)"
    conditions: dict[str, Any] = {
        "QuotaReserved": ("False", "Pending", said),
        "Evicted": ("True", "AdmissionCheck", said),
    }
    found = provisioning("Reset to Pending after eviction. Previously: Retry", failures=1, **conditions)
    assert found.phase is Phase.QUEUED
    assert found.reason == f"GKE created no nodes: Quota 'TPUS' exceeded (1 attempt failed, next attempt at {at(60)})"
    # The same while Kueue has not taken its quota away yet, and counts the attempt after that.
    reserved: dict[str, Any] = {"QuotaReserved": ("True", "", "")}
    early = provisioning("Retrying after failure: Quota 'TPUS' exceeded", state="Retry", failures=1, **reserved)
    assert early.reason == f"GKE created no nodes: Quota 'TPUS' exceeded (2 attempts failed, next attempt at {at(60)})"


def test_a_request_for_nodes_that_is_given_up() -> None:
    said = 'The workload is deactivated due to AdmissionCheck in Rejected state: "dws-prov" (Quota exceeded)'
    found = provisioning("Quota exceeded", Evicted=("True", "DeactivatedDueToAdmissionCheck", said))
    assert found.phase is Phase.SUSPENDED
    assert found.reason == "given up: GKE created no nodes: Quota exceeded (admission check 'dws-prov' is Rejected)"
    theirs = provisioning("", Evicted=("True", "Deactivated", "The workload is deactivated"))
    assert theirs.reason == "suspended by its user"


def test_objects_that_the_controllers_have_not_touched_yet() -> None:
    bare = jobset()
    del bare["status"]
    bare["spec"]["suspend"] = True
    found = read(bare, Snapshot(jobsets=[]))
    assert found.phase is Phase.QUEUED and found.hosts == () and found.restarts == 0


def test_a_host_whose_code_did_not_arrive_says_so() -> None:
    said = "the code at gs://b/.code/x.tar.gz cannot be unpacked: HTTP Error 403: Forbidden"
    ended = {"name": "code", "state": {"terminated": {"exitCode": 1, "reason": "Error", "message": f"{said}\n"}}}
    failed = {
        "phase": "Failed",
        "initContainerStatuses": [ended],
        "containerStatuses": [{"state": {"waiting": {"reason": "PodInitializing"}}}],
    }
    over = jobset(conditions=[{"type": "Failed", "status": "True", "reason": "ReachedMaxRestarts"}])
    found = read(over, Snapshot(jobsets=[], workloads=[ADMITTED], pods=[pod(0, RUNNING), pod(1, failed)]))
    words = f"init container 'code' failed with exit code 1: {said}"
    assert found.reason == f"host s1/h0: {words}, and no restart is left"
    assert (found.hosts[1].exit_code, found.hosts[1].reason) == (1, words)


def test_a_jobset_of_another_tool_is_read_as_far_as_it_goes() -> None:
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
    found = read(foreign, Snapshot(jobsets=[], pods=[stray]))
    assert (found.maker, found.num_hosts, found.accelerator_type, found.queue) == ("kubectl", 1, "", None)


def test_googles_workloads_have_the_type_of_their_nodes() -> None:
    theirs = jobset()
    pod_spec = theirs["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    pod_spec["nodeSelector"] = {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice",
        "cloud.google.com/gke-tpu-topology": "2x4",
    }
    found = read(theirs, Snapshot(jobsets=[]))
    assert (found.accelerator_type, found.maker) == ("v5litepod-8", "xpk")


class Limited(FakeApi):
    """Refuses what is asked of all namespaces, or has no Kueue."""

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
def test_less_may_be_seen(kueue: bool) -> None:
    mine = {"kind": "JobSet", **jobset()}
    waits = {"kind": "Workload", **workload("w", "u", QuotaReserved=WAITS)}
    status, events = inspect(Limited([mine, waits], kueue=kueue), "w", "default", ROOTS)
    assert status.name == "w" and events == ()
    assert status.position == (1 if kueue else None)
    with pytest.raises(NotFoundError, match="there is no workload 'x'"):
        inspect(Limited([mine], kueue=kueue), "x", "default", ROOTS)


@pytest.mark.parametrize("count", [1, 50])
def test_a_list_takes_as_many_requests_however_many_workloads_there_are(count: int) -> None:
    many: list[Obj] = []
    for index in range(count):
        one = {"kind": "JobSet", **jobset()}
        one["metadata"] = {**one["metadata"], "name": f"w{index}", "uid": f"u{index}"}
        many += [one, {"kind": "Workload", **workload(f"w{index}", f"u{index}", QuotaReserved=WAITS)}]
    api = FakeApi(many)
    assert len(find_all(api)) == count
    assert sorted(api.calls) == [("list", kind, "") for kind in ("JobSet", "LocalQueue", "Pod", "Workload")]


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
def test_whether_a_node_pool_is_being_made_for_hosts_without_a_node(reason: str, message: str, says: str) -> None:
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
