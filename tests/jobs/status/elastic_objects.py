"""Objects of workloads of which single slices restart."""

from __future__ import annotations

from typing import Any

from tests.jobs.objects import NOW, Obj, at, event, jobset, pod
from xpk.model import names
from xpk_shared.supervisor.names import MIN_SLICES, SLICE_ATTEMPT

RULES = [
    {"name": "hostDisrupted", "action": "RestartJobAndIgnoreMaxRestarts"},
    {"name": "rest", "action": "RestartJob"},
]


def elastic(minimum: int | None = 1, slices: int = 2, *, output: str = "", **status: Any) -> Obj:
    """Return a JobSet with elastic slices of one host each."""
    result = jobset(annotations={names.OUTPUT_ANNOTATION: output} if output else {}, **status)
    (job,) = result["spec"]["replicatedJobs"]
    job["replicas"] = slices
    if minimum is not None:
        env = [{"name": MIN_SLICES, "value": str(minimum)}]
        job["template"]["spec"]["template"]["spec"]["containers"][0]["env"] = env
    result["spec"]["failurePolicy"] = {"maxRestarts": 5, "rules": RULES}
    return result


def waiting(slices: int = 2, *, output: str = "", **status: Any) -> Obj:
    """Return a JobSet of one host per slice, whose slices wait for one that restarts."""
    result = elastic(None, slices, output=output, **status)
    path = "metadata.labels['jobset.sigs.k8s.io/job-restart-attempt']"
    env = [{"name": SLICE_ATTEMPT, "valueFrom": {"fieldRef": {"fieldPath": path}}}]
    result["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"][0]["env"] = env
    return result


def restarted_jobs(*counts: int, counted: tuple[int, ...] | None = None) -> list[Obj]:
    """Return `replicatedJobsStatus` with restarts of each Job."""
    states = {"ready": 1, "succeeded": 0, "failed": 0, "active": 1, "suspended": 0}
    kept = {"jobRestarts": [*counts], "jobRestartsCountTowardsMax": [*(counts if counted is None else counted)]}
    return [{"name": "slice-job", **states, **kept}]


def job_restarted(number: int, seconds: int, action: str = "RestartJob", more: Obj | None = None) -> Obj:
    """Return JobSet's event for the restart of a single Job."""
    message = f"applying {action} failure policy action (first failed job: w-slice-job-{number})"
    stamp = at(seconds).replace("Z", ".500000Z")
    result = event("JobSet", "w", f"{action}FailurePolicyAction", message, seconds, uid="u")
    return result | {"lastTimestamp": None, "eventTime": stamp, "count": None} | (more or {})


def slice_pod(number: int, state: Obj, *, attempt: int = 0, created: str = NOW) -> Obj:
    """Return the pod of a slice whose Job has been restarted this many times."""
    result = pod(number, state)
    result["metadata"]["labels"] |= {
        "jobset.sigs.k8s.io/restart-attempt": "0",
        "jobset.sigs.k8s.io/job-restart-attempt": str(attempt),
    }
    name = f"w-slice-job-{number}-0-abcd{attempt}"
    result["metadata"] |= {"name": name, "uid": f"pod-{number}-{attempt}", "creationTimestamp": created}
    return result
