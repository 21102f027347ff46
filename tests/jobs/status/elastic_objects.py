"""Objects of workloads with elastic slices."""

from __future__ import annotations

from typing import Any

from tests.jobs.objects import NOW, Obj, jobset, pod
from xpk.model import names
from xpk_shared.supervisor.names import MIN_SLICES

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


def slice_pod(number: int, state: Obj, *, attempt: int = 0, created: str = NOW) -> Obj:
    """Return the pod of a slice whose Job has been restarted this many times."""
    result = pod(number, state)
    result["metadata"]["labels"] |= {
        "jobset.sigs.k8s.io/restart-attempt": "0",
        "jobset.sigs.k8s.io/job-restart-attempt": str(attempt),
    }
    result["metadata"] |= {"uid": f"pod-{number}-{attempt}", "creationTimestamp": created}
    return result
