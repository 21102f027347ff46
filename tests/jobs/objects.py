"""Objects as JobSet 0.12 and Kueue 0.19 write them, for tests that read them."""

from __future__ import annotations

from typing import Any

from xpk.jobs.output.roots import OutputRoots
from xpk.model.specs import Target

Obj = dict[str, Any]
ROOTS = OutputRoots(
    lambda: Target(emulated=True, sets_slice_environment=True, output_root="/output", on_this_machine=True)
)
NOW = "2026-01-31T12:00:00Z"


def at(seconds: int) -> str:
    """Return the time this many seconds after NOW."""
    return f"2026-01-31T12:{seconds // 60:02d}:{seconds % 60:02d}Z"


def jobset(*, annotations: Obj | None = None, labels: Obj | None = None, **status: Any) -> Obj:
    """Return a queued JobSet of two slices with one host each."""
    job = {"parallelism": 1, "template": {"spec": {"containers": [{"name": "host", "command": ["true"]}]}}}
    queue = {"kueue.x-k8s.io/queue-name": "multislice-queue", "xpk.google.com/workload": "w"}
    return {
        "metadata": {
            "name": "w", "namespace": "default", "uid": "u", "creationTimestamp": NOW,
            "labels": queue if labels is None else labels, "annotations": annotations or {},
        },
        "spec": {"replicatedJobs": [{"name": "slice-job", "replicas": 2, "template": {"spec": job}}]},
        "status": status,
    }  # fmt: skip


def workload(name: str, owner: str, *, namespace: str = "default", **given: Any) -> Obj:
    """A Kueue workload; `given`: priority, created, uses, and conditions as Type=(status, reason, message)."""
    conditions = [
        {"type": kind, "status": value[0], "reason": value[1], "message": value[2], "lastTransitionTime": NOW}
        for kind, value in given.items()
        if isinstance(value, tuple)
    ]
    status: Obj = {"conditions": conditions}
    if "uses" in given:
        usage = {"flavors": {"google.com/tpu": "v5e"}, "resourceUsage": {"google.com/tpu": str(given["uses"])}}
        status["admission"] = {"clusterQueue": "cluster-queue", "podSetAssignments": [{"name": "slice-job", **usage}]}
    pod = {"spec": {"containers": [{"resources": {"limits": {"google.com/tpu": 8}}}]}}
    return {
        "metadata": {
            "name": f"jobset-{name}", "namespace": namespace, "uid": f"workload-{owner}",
            "creationTimestamp": given.get("created", NOW), "ownerReferences": [{"uid": owner, "name": name}],
        },
        "spec": {
            "priority": given.get("priority", 500), "queueName": "multislice-queue",
            "podSets": [{"count": 2, "template": pod}],
        },
        "status": status,
    }  # fmt: skip


WAITS = ("False", "Pending", "insufficient unused quota")
ADMITTED = workload("w", "u", Admitted=("True", "Admitted", ""), QuotaReserved=("True", "QuotaReserved", ""))


def local_queue(namespace: str = "default") -> Obj:
    """Return a queue of a namespace; all use one cluster queue."""
    return {
        "metadata": {"name": "multislice-queue", "namespace": namespace},
        "spec": {"clusterQueue": "cluster-queue"},
    }


def cluster_queue(used: int) -> Obj:
    """Return the cluster queue with 16 chips, some of them used."""
    total = {"name": "v5e", "resources": [{"name": "google.com/tpu", "total": str(used)}]}
    flavor = {"name": "v5e", "resources": [{"name": "google.com/tpu", "nominalQuota": "16"}]}
    return {
        "metadata": {"name": "cluster-queue"},
        "spec": {"resourceGroups": [{"coveredResources": ["google.com/tpu"], "flavors": [flavor]}]},
        "status": {"flavorsReservation": [total]},
    }


def pod(slice_id: int, status: Obj, *, node: str | None = None) -> Obj:
    """Return the pod of a slice's only host."""
    return {
        "metadata": {
            "name": f"w-slice-job-{slice_id}-0-abcde", "uid": f"pod-{slice_id}", "creationTimestamp": NOW,
            "labels": {"jobset.sigs.k8s.io/jobset-uid": "u", "jobset.sigs.k8s.io/job-index": str(slice_id)},
            "annotations": {"batch.kubernetes.io/job-completion-index": "0"},
        },
        "spec": {"nodeName": node, "containers": [{"name": "host", "image": "registry.invalid/nope:1"}]},
        "status": status,
    }  # fmt: skip


RUNNING = {"phase": "Running", "containerStatuses": [{"state": {"running": {"startedAt": NOW}}}]}


def event(kind: str, name: str, reason: str, message: str, seconds: int, **more: Any) -> Obj:
    """Return a warning event as controllers of Kubernetes write it."""
    uid = more.pop("uid", f"{kind}-{name}")
    result = {
        "metadata": {"name": f"{name}.{seconds}", "uid": f"event-{name}-{seconds}-{reason}"},
        "involvedObject": {"kind": kind, "name": name, "namespace": "default", "uid": uid},
        "reason": reason, "message": message, "type": "Warning", "lastTimestamp": at(seconds), "count": 1,
    }  # fmt: skip
    return result | more


def restarted(slice_id: int, seconds: float, **more: Any) -> Obj:
    """Return JobSet's event for a restart; its times have microseconds, and repetitions are a series."""
    message = f"applying RestartJobSet failure policy action (first failed job: w-slice-job-{slice_id})"
    stamp = at(int(seconds)).replace("Z", f".{round(seconds % 1 * 1e6):06d}Z")
    result = event("JobSet", "w", "RestartJobSetFailurePolicyAction", message, int(seconds), uid="u")
    return result | {"lastTimestamp": None, "eventTime": stamp, "count": None} | more


def exited(slice_id: int, code: int, seconds: int, *, host: int = 0) -> Obj:
    """Return the Job controller's event for a slice that failed because one of its hosts ended."""
    who = f"default/w-slice-job-{slice_id}-{host}-fghij"
    message = f"Container host for pod {who} failed with exit code {code} matching FailJob rule at index 3"
    return event("Job", f"w-slice-job-{slice_id}", "PodFailurePolicy", message, seconds)
