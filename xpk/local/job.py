"""Job controller: the hosts of one slice, one pod each, by completion index."""

from __future__ import annotations

from functools import partial

from xpk.api.base import Obj
from xpk.local import clock
from xpk.local import objects as o
from xpk.local.cache import copy_of
from xpk.local.jobset import delete_pod
from xpk.local.store import Transaction

_LETTERS = "bcdfghjklmnpqrstvwxz2456789"  # of the names of pods, as in Kubernetes


def _suffix() -> str:
    return "".join(_LETTERS[byte % len(_LETTERS)] for byte in clock.random_bytes(5))


def _create_pod(tx: Transaction, job: Obj, index: int) -> None:
    name, template = f"{job['metadata']['name']}-{index}", copy_of(job["spec"]["template"])
    meta = template["metadata"]
    pod: Obj = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{name}-{_suffix()}",
            "namespace": job["metadata"]["namespace"],
            "labels": {**meta["labels"], o.INDEX: str(index), "batch.kubernetes.io/job-name": job["metadata"]["name"]},
            "annotations": {**meta["annotations"], o.INDEX: str(index)},
            "ownerReferences": [o.owner_reference(job)],
            "finalizers": [o.TRACKING],
        },
        "spec": {**template["spec"], "hostname": name},
        "status": {"phase": "Pending"},
    }
    field = {"fieldRef": {"fieldPath": f"metadata.annotations['{o.INDEX}']"}}
    pod["spec"]["containers"][0].setdefault("env", []).append({"name": "JOB_COMPLETION_INDEX", "valueFrom": field})
    tx.put(pod)
    tx.event(job, "SuccessfulCreate", f"Created pod: {pod['metadata']['name']}")


def _terminated(pod: Obj) -> Obj:
    """Return the terminated state of a pod's host, empty if it never ran."""
    statuses = pod["status"].get("containerStatuses") or [{}]
    terminated: Obj = statuses[0].get("state", {}).get("terminated", {})
    return terminated


def _matches(rule: Obj, pod: Obj) -> bool:
    codes = rule.get("onExitCodes")
    container = pod["spec"]["containers"][0]["name"]
    if codes:
        code = int(_terminated(pod).get("exitCode", 0))
        named = codes.get("containerName", container) == container
        return code != 0 and named and (code in codes["values"]) == (codes["operator"] == "In")
    patterns = rule.get("onPodConditions", ())
    return any(o.condition(pod, w["type"]).get("status") == w.get("status", "True") for w in patterns)


def _judge(job: Obj, pod: Obj) -> tuple[str, str]:
    """Return the podFailurePolicy's action for a failed pod, and the reason."""
    for index, rule in enumerate(job["spec"].get("podFailurePolicy", {}).get("rules", ())):
        if not _matches(rule, pod):
            continue
        at = f"matching {rule['action']} rule at index {index}"
        if "onExitCodes" in rule:
            code, container = _terminated(pod)["exitCode"], pod["spec"]["containers"][0]["name"]
            return rule["action"], f"Container {container} for pod {o.full_name(pod)} failed with exit code {code} {at}"
        kind = next(w["type"] for w in rule["onPodConditions"] if o.condition(pod, w["type"]))
        return rule["action"], f"Pod {o.full_name(pod)} has condition {kind} {at}"
    return "Count", ""


def _indexes(job: Obj) -> set[int]:
    """Parse `completedIndexes`, e.g. `0,2-4`."""
    indexes: set[int] = set()
    for part in filter(None, job["status"].get("completedIndexes", "").split(",")):
        first, _, last = part.partition("-")
        indexes.update(range(int(first), int(last or first) + 1))
    return indexes


def _written(indexes: set[int]) -> str:
    parts: list[list[int]] = []
    for index in sorted(indexes):
        if parts and parts[-1][-1] == index - 1:
            parts[-1] = [parts[-1][0], index]
        else:
            parts.append([index])
    return ",".join("-".join(map(str, part)) for part in parts)


def _account(job: Obj, pods: list[Obj], tx: Transaction) -> None:
    """Count each ended pod once: its tracking finalizer is removed in the same transaction."""
    status, done = job["status"], _indexes(job)
    fresh = [p for p in pods if o.has_ended(p) and o.TRACKING in p["metadata"].get("finalizers", ())]
    for pod in sorted(fresh, key=lambda p: str(_terminated(p).get("finishedAt", ""))):
        pod["metadata"]["finalizers"].remove(o.TRACKING)
        tx.put(pod)
        if pod["status"]["phase"] == "Succeeded":
            done.add(int(o.label(pod, o.INDEX)))
            continue
        action, message = _judge(job, pod)
        status["failed"] = status.get("failed", 0) + (action != "Ignore")
        if o.is_true(job, "FailureTarget"):
            continue
        if action == "FailJob":
            o.set_condition(job, "FailureTarget", True, "PodFailurePolicy", message)
        elif status["failed"] > job["spec"]["backoffLimit"]:
            message = "Job has reached the specified backoff limit"
            o.set_condition(job, "FailureTarget", True, "BackoffLimitExceeded", message)
    if done:
        status["completedIndexes"] = _written(done)
        status["succeeded"] = len(done)


def _end(tx: Transaction, job: Obj, kind: str, reason: str, message: str) -> None:
    o.set_condition(job, kind, True, reason, message)
    if kind == "Complete":
        job["status"]["completionTime"] = o.now()
    tx.event(job, reason if kind == "Failed" else "Completed", message, warning=kind == "Failed")


def _progress(tx: Transaction, job: Obj, pods: list[Obj]) -> None:
    """Start, stop or complete a Job that has not ended."""
    alive = [pod for pod in pods if not o.has_ended(pod)]
    target = o.condition(job, "FailureTarget")
    if target or job["spec"].get("suspend"):
        for pod in alive:
            delete_pod(tx, pod, why="the slice failed" if target else "the slice is suspended")
        if not target:
            job["status"].pop("startTime", None)
        if target and not alive:
            _end(tx, job, "Failed", target["reason"], target["message"])
        elif not target:
            o.set_condition(job, "Suspended", True, "JobSuspended", "Job suspended")
        return
    if o.condition(job, "Suspended"):
        o.set_condition(job, "Suspended", False, "JobResumed", "Job resumed")
    job["status"].setdefault("startTime", o.now())
    done = _indexes(job)
    if len(done) == job["spec"]["completions"]:
        _end(tx, job, "Complete", "CompletionsReached", "Reached expected number of succeeded pods")
    used_indices = {int(o.label(pod, o.INDEX)) for pod in alive}
    for index in sorted(set(range(job["spec"]["completions"])) - done - used_indices):
        _create_pod(tx, job, index)


def reconcile(tx: Transaction) -> None:
    """Reconcile all Jobs once."""
    for job in tx.list("Job"):
        topic = o.label(job, f"{o.JOBSET}jobset-uid")
        tx.settle(("job", job["metadata"]["uid"]), (topic,), partial(_reconcile, tx, job))


def _reconcile(tx: Transaction, job: Obj) -> bool:
    """Reconcile one Job; return False, because it waits for nothing but its pods."""
    pods = tx.owned("Pod", job)
    if o.is_terminating(job):
        if not pods:
            tx.remove(job)
        return False
    _account(job, pods, tx)
    if not o.is_true(job, "Complete", "Failed"):
        _progress(tx, job, pods)
    alive = [pod for pod in tx.owned("Pod", job) if not o.has_ended(pod)]
    job["status"] |= {
        "active": sum(not o.is_terminating(pod) for pod in alive),
        "terminating": sum(o.is_terminating(pod) for pod in alive),
        "ready": sum(o.is_true(pod, "Ready") and not o.is_terminating(pod) for pod in alive),
    }
    tx.put(job)
    return False
