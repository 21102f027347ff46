"""Reading objects as a real cluster has them; everything else about statuses is tested on running workloads."""

from __future__ import annotations

from typing import Any

import pytest

from xpk.jobs.observe import Snapshot, read
from xpk.model.status import Phase

Obj = dict[str, Any]
NOW = "2026-01-31T12:00:00Z"


def jobset(**status: Any) -> Obj:
    """A queued JobSet of two slices with one host each."""
    job = {"parallelism": 1, "template": {"spec": {"containers": [{"name": "host", "command": ["true"]}]}}}
    return {
        "metadata": {
            "name": "w", "namespace": "default", "uid": "u", "creationTimestamp": NOW,
            "labels": {"kueue.x-k8s.io/queue-name": "multislice-queue"}, "annotations": {},
        },
        "spec": {"replicatedJobs": [{"name": "slice-job", "replicas": 2, "template": {"spec": job}}]},
        "status": status,
    }  # fmt: skip


def workload(name: str, owner: str, *, priority: int = 500, created: str = NOW, **conditions: tuple[str, str]) -> Obj:
    """A Kueue workload; conditions as type=(status, message)."""
    return {
        "metadata": {
            "name": f"jobset-{name}",
            "creationTimestamp": created,
            "ownerReferences": [{"uid": owner, "name": name}],
        },
        "spec": {"priority": priority},
        "status": {"conditions": [{"type": t, "status": s, "message": m} for t, (s, m) in conditions.items()]},
    }


def pod(slice_id: int, status: Obj) -> Obj:
    """The pod of a slice's only host."""
    return {
        "metadata": {
            "name": f"w-slice-job-{slice_id}-0-abcde", "creationTimestamp": NOW,
            "labels": {"jobset.sigs.k8s.io/jobset-uid": "u", "jobset.sigs.k8s.io/job-index": str(slice_id)},
            "annotations": {"batch.kubernetes.io/job-completion-index": "0"},
        },
        "spec": {},
        "status": status,
    }  # fmt: skip


ADMITTED = workload("w", "u", Admitted=("True", ""), QuotaReserved=("True", ""))
RUNNING = {"phase": "Running", "containerStatuses": [{"state": {"running": {"startedAt": NOW}}}]}


@pytest.mark.parametrize(
    ("trouble", "says"),
    [
        (
            {
                "phase": "Pending",
                "conditions": [{"type": "PodScheduled", "status": "False", "message": "0/3 nodes fit"}],
            },
            "s1/h0 has no node: 0/3 nodes fit",
        ),
        (
            {
                "phase": "Pending",
                "containerStatuses": [{"state": {"waiting": {"reason": "ErrImagePull", "message": "no such image"}}}],
            },
            "s1/h0 cannot start: ErrImagePull: no such image",
        ),
        (
            {"phase": "Pending", "containerStatuses": [{"state": {"waiting": {"reason": "ContainerCreating"}}}]},
            "1 of 2 hosts run",
        ),
    ],
)
def test_why_a_host_does_not_start(trouble: Obj, says: str) -> None:
    found = read(jobset(), Snapshot(jobsets=[], workloads=[ADMITTED], pods=[pod(0, RUNNING), pod(1, trouble)]))
    assert found.phase is Phase.STARTING and says in found.reason


def test_position_counts_priority_before_age() -> None:
    waiting: dict[str, Any] = {"QuotaReserved": ("False", "insufficient unused quota")}
    others = [
        workload("older", "a", created="2026-01-31T11:00:00Z", **waiting),
        workload("urgent", "b", priority=1000, created="2026-01-31T13:00:00Z", **waiting),
        workload("lowly", "c", priority=100, created="2026-01-31T10:00:00Z", **waiting),
        workload("running", "d", QuotaReserved=("True", "")),
    ]
    found = read(jobset(), Snapshot(jobsets=[], workloads=[*others, workload("w", "u", **waiting)]))
    assert found.phase is Phase.QUEUED and found.position == 3
    assert found.ahead == ("urgent", "older") and found.reason == "insufficient unused quota"


def test_objects_that_the_controllers_have_not_touched_yet() -> None:
    bare = jobset()
    del bare["status"]
    bare["spec"]["suspend"] = True
    found = read(bare, Snapshot(jobsets=[]))
    assert found.phase is Phase.QUEUED and found.hosts == () and found.restarts == 0
