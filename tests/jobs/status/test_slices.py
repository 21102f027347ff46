"""Status of workloads that wait for slices that GKE forms from cubes."""

from __future__ import annotations

from typing import Any

from tests.jobs import objects
from tests.jobs.objects import Obj, cluster_queue, jobset, local_queue
from xpk.jobs.status.fields import Snapshot
from xpk.jobs.status.reader import find, find_all, read
from xpk.model.status import Phase
from xpk.testing import FakeApi

RESERVED: dict[str, Any] = {"QuotaReserved": ("True", "", "")}


def workload(**conditions: Any) -> Obj:
    """Return Kueue's workload of the JobSet."""
    return {"kind": "Workload", **objects.workload("w", "u", **conditions)}


def slice_of(owner: str, index: int, reason: str = "", message: str = "", topology: str = "4x4x8") -> Obj:
    """Return a Slice of a workload, in a state."""
    annotations = {
        "slice.accelerator.gke.io/owner-workload-namespace": "default",
        "slice.accelerator.gke.io/owner-workload-name": owner,
    }
    ready = {"type": "Ready", "status": "False", "reason": reason, "message": message}
    return {
        "apiVersion": "accelerator.gke.io/v1beta1",
        "kind": "Slice",
        "metadata": {"name": f"default-{owner}-slice-job-{index}", "annotations": annotations},
        "spec": {"type": "tpu7x", "topology": topology, "partitionIds": ["p"]},
        "status": {"conditions": [ready] if reason else []},
    }


def waiting(state: str = "Pending", message: str = "Slices are in states: 2 CREATED") -> Obj:
    """Return a workload with quota whose slices are not formed."""
    mine = workload(**RESERVED)
    mine["status"]["admissionChecks"] = [{"name": "ss-kueue-operator", "state": state, "message": message}]
    return mine


def reason_for(*slices: Obj, mine: Obj | None = None) -> str:
    """Return the reason of the status, read from an API server."""
    return find(FakeApi([{"kind": "JobSet", **jobset()}, mine or waiting(), *slices]), "w").reason


def test_slices_that_are_not_formed_are_named_with_the_cause() -> None:
    end = "(admission check 'ss-kueue-operator' is Pending)"
    assert reason_for() == f"waiting for GKE to form its slices: Slices are in states: 2 CREATED {end}"
    formed, forming = slice_of("jobset-w", 0, "ACTIVE"), slice_of("jobset-w", 1, "ACTIVATING")
    assert reason_for(formed, forming) == (
        f"waiting for GKE to form its slices: slice default-jobset-w-slice-job-1 of 4x4x8 (being formed) {end}"
    )
    failed = slice_of("jobset-w", 0, "SliceCreationFailed", "partition 7 is used by slice other")
    others = [slice_of("jobset-w", index) for index in range(1, 6)]
    assert reason_for(failed, *others, slice_of("another", 0, "FAILED")) == (
        "waiting for GKE to form its slices: slice default-jobset-w-slice-job-0 of 4x4x8 (cannot be formed: partition "
        "7 is used by slice other); slices default-jobset-w-slice-job-1 of 4x4x8, default-jobset-w-slice-job-2 of "
        f"4x4x8, default-jobset-w-slice-job-3 of 4x4x8 and 2 more (not looked at yet) {end}"
    )


def test_a_workload_without_a_check_reads_no_slices() -> None:
    for mine in (workload(**RESERVED), waiting("Ready")):
        api = FakeApi([{"kind": "JobSet", **jobset()}, mine])
        find(api, "w")
        assert ("list", "Slice", "") not in api.calls
    api = FakeApi([{"kind": "JobSet", **jobset()}, waiting()])
    find_all(api, "default")
    assert ("list", "Slice", "") not in api.calls, "a list of workloads says less"


def test_a_failed_formation_is_explained_after_the_eviction() -> None:
    said = 'Evicted due to AdmissionCheck in Retry state: "ss-kueue-operator" (Errors: p is bad)'
    mine = workload(QuotaReserved=("False", "Pending", said), Evicted=("True", "AdmissionCheck", said))
    result = read(jobset(), Snapshot(jobsets=[], workloads=[mine]))
    assert result.phase is Phase.QUEUED
    assert result.reason == "GKE formed no slices: Errors: p is bad (next attempt soon)"


def test_a_queue_whose_check_has_no_controller_is_explained() -> None:
    mine = workload(QuotaReserved=("False", "Inadmissible", "ClusterQueue cluster-queue is inactive"))
    queue = cluster_queue(0)
    message = "Can't admit new workloads: references inactive AdmissionCheck(s): ss-kueue-operator."
    queue["status"] = {"conditions": [{"type": "Active", "status": "False", "message": message}]}
    snapshot = Snapshot(jobsets=[], workloads=[mine], cluster_queues=[queue], local_queues=[local_queue()])
    assert read(jobset(), snapshot).reason == f"ClusterQueue cluster-queue is inactive: {message}"
