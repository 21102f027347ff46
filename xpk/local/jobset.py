"""JobSet controller: N Jobs that start, finish and fail together, and restart together or one by one."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from functools import partial

from xpk.api.base import Obj
from xpk.api.slice_restarts import restarts_slices
from xpk.local import objects as o
from xpk.local.cache import copy_of
from xpk.local.store import Transaction
from xpk_shared.supervisor.restarts import LONGEST_PAUSE, SHORT_SECONDS, pause_after

_RESTARTING = "RestartingJobSet"
_RESTARTS, _COUNTED = "jobRestarts", "jobRestartsCountTowardsMax"  # by replicated job: of each of its Jobs
_TTL_AT_LEAST = 5.0  # lets watchers see the end before the object is removed


def delete_pod(tx: Transaction, pod: Obj, grace: int | None = None, *, why: str = "") -> None:
    """Delete a pod. One that its controller deletes (`why`) does not count as a failure."""
    meta = pod["metadata"]
    if why and o.TRACKING in meta.get("finalizers", ()):
        meta["finalizers"].remove(o.TRACKING)
    seconds = pod["spec"].get("terminationGracePeriodSeconds", 30) if grace is None else grace
    if not o.is_terminating(pod):
        meta["deletionTimestamp"] = o.now()
        if not o.has_ended(pod):
            tx.event(pod, "Killing", f"Stopping the host: {why}" if why else "Stopping the host")
    meta["deletionGracePeriodSeconds"] = min(seconds, meta.get("deletionGracePeriodSeconds", seconds))
    tx.put(pod)


def delete_job(tx: Transaction, job: Obj, grace: int | None = None, *, why: str) -> None:
    """Delete a Job: it is removed once its pods are gone."""
    job["metadata"].setdefault("deletionTimestamp", o.now())
    tx.put(job)
    for pod in tx.owned("Pod", job):
        delete_pod(tx, pod, grace, why=why)


def delete_jobset(tx: Transaction, jobset: Obj, grace: int | None = None) -> None:
    """Remove a JobSet and delete everything that it owns."""
    for job in tx.owned("Job", jobset):
        delete_job(tx, job, grace, why="the JobSet was deleted")
    for kind in ("Workload", "FormerPod"):
        for obj in tx.list(kind):
            meta = jobset["metadata"]
            if meta["uid"] in (o.owner_uid(obj), o.label(obj, f"{o.JOBSET}jobset-uid")):
                tx.remove(obj)
    tx.remove(jobset)


def _labels(jobset: Obj, replicated: Obj, index: int, name: str) -> dict[str, str]:
    meta, spec = jobset["metadata"], jobset["spec"]
    before = 0
    for other in spec["replicatedJobs"]:
        if other["name"] == replicated["name"]:
            break
        before += other["replicas"]
    everything = sum(other["replicas"] for other in spec["replicatedJobs"])
    values: dict[str, object] = {
        "jobset-name": meta["name"],
        "jobset-uid": meta["uid"],
        "replicatedjob-name": replicated["name"],
        "replicatedjob-replicas": replicated["replicas"],
        "global-replicas": everything,
        "job-index": index,
        "job-global-index": before + index,
        "job-key": hashlib.sha1(f"{meta['namespace']}/{name}".encode(), usedforsecurity=False).hexdigest(),
        "group-name": "default",
        "group-replicas": everything,
        "job-group-index": before + index,
        "restart-attempt": jobset["status"]["restarts"],
        "job-restart-attempt": _restarts_of_jobs(jobset, replicated["name"], _RESTARTS)[index],
    }
    if "coordinator" in spec:
        values["coordinator"] = o.coordinator_address(jobset)
    return {o.JOBSET + key: str(value) for key, value in values.items()}


def _status_of(jobset: Obj, name: str) -> Obj:
    """Return the status of a replicated job, empty if there is none yet."""
    statuses: list[Obj] = jobset["status"].get("replicatedJobsStatus", [])
    return next((status for status in statuses if status["name"] == name), {})


def _restarts_of_jobs(jobset: Obj, name: str, key: str) -> list[int]:
    """Return the number of restarts of each Job of a replicated job."""
    counts = _status_of(jobset, name)
    replicas: int = next(job["replicas"] for job in jobset["spec"]["replicatedJobs"] if job["name"] == name)
    return list(counts.get(key) or [0] * replicas)


def _create_job(tx: Transaction, jobset: Obj, replicated: Obj, index: int) -> None:
    meta = jobset["metadata"]
    name = f"{meta['name']}-{replicated['name']}-{index}"
    labels = _labels(jobset, replicated, index, name)
    template = replicated["template"].get("metadata", {})
    annotations = {**template.get("annotations", {}), **labels}
    topology = meta.get("annotations", {}).get(o.TOPOLOGY)
    if topology:
        annotations[o.TOPOLOGY] = topology
    job: Obj = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name,
            "namespace": meta["namespace"],
            "labels": {**template.get("labels", {}), **labels},
            "annotations": annotations,
            "ownerReferences": [o.owner_reference(jobset)],
        },
        "spec": {**copy_of(replicated["template"]["spec"]), "suspend": jobset["spec"].get("suspend", False)},
        "status": {},
    }
    pod = job["spec"]["template"].setdefault("metadata", {})
    pod["labels"] = {**pod.get("labels", {}), **labels}
    pod["annotations"] = {**pod.get("annotations", {}), **annotations}
    job["spec"]["template"]["spec"]["subdomain"] = jobset["spec"]["network"]["subdomain"]
    tx.put(job)


def _finish(tx: Transaction, jobset: Obj, kind: str, reason: str, message: str) -> None:
    status = jobset["status"]
    status["terminalState"] = kind
    o.set_condition(jobset, kind, True, reason, message)
    if o.is_true(jobset, _RESTARTING):
        o.set_condition(jobset, _RESTARTING, False, f"JobSet{kind}", message)
    tx.put(jobset)
    tx.event(jobset, reason, message, warning=kind == "Failed")


def _first_match(rules: list[Obj], failed: list[Obj]) -> tuple[Obj | None, Obj]:
    """Return the first rule that matches a failed Job, and that Job; else None and the first failed Job."""
    for rule in rules:
        for job in failed:
            why = failure(job)
            patterns = rule.get("onJobFailureMessagePatterns", ())
            targets = rule.get("targetReplicatedJobs", ())
            if (
                why["reason"] in rule.get("onJobFailureReasons", [why["reason"]])
                and (not patterns or any(re.search(p, why["message"]) for p in patterns))
                and (not targets or o.label(job, f"{o.JOBSET}replicatedjob-name") in targets)
            ):
                return rule, job
    return None, failed[0]


def failure(job: Obj) -> Obj:
    """Return the condition with the cause of a Job's failure, empty if it has not failed.

    `FailureTarget` is sufficient: waiting for `Failed`, as JobSet does, would let the hosts of the other slices
    run until the last one of this slice has ended.
    """
    return next((c for c in job["status"].get("conditions", ()) if c["type"] in ("FailureTarget", "Failed")), {})


def _back_off(tx: Transaction, jobset: Obj, failed: list[Obj]) -> None:
    """Return when the next attempt may start: at once, but with growing delays after several short attempts."""
    status = jobset["status"]
    lived = max(o.age(job["status"].get("startTime", o.now())) for job in failed)
    count = status["shortAttempts"] = status.get("shortAttempts", 0) + 1 if lived < SHORT_SECONDS else 0
    pause = pause_after(count)
    if pause:
        status["nextAttemptAt"] = o.later(pause)
        early = f"the last {count} attempts ended within {SHORT_SECONDS:g} s each"
        tx.event(jobset, "BackOff", f"restart {status['restarts']} waits for {pause:g} s: {early}", warning=True)


def _counted(jobset: Obj) -> int:
    """Return the restarts that `maxRestarts` limits: of the JobSet, and of its Jobs."""
    jobs: Iterator[int] = (sum(counts.get(_COUNTED, ())) for counts in jobset["status"].get("replicatedJobsStatus", ()))
    own: int = jobset["status"]["restartsCountTowardsMax"]
    return own + sum(jobs)


def _restart_job(tx: Transaction, jobset: Obj, job: Obj, action: str, because: str) -> None:
    """Count the restart of one Job; the Job of the former attempt is deleted then."""
    name, index = o.label(job, f"{o.JOBSET}replicatedjob-name"), int(o.label(job, f"{o.JOBSET}job-index"))
    entry = _status_of(jobset, name)
    for key in (_RESTARTS, *([_COUNTED] if action == "RestartJob" else [])):
        entry[key] = _restarts_of_jobs(jobset, name, key)
        entry[key][index] += 1
    tx.put(jobset)
    message = f"restart {entry[_RESTARTS][index]} of {job['metadata']['name']} ({because})"
    tx.event(jobset, f"{action}FailurePolicyAction", message, warning=True)


def _is_former(jobset: Obj, job: Obj) -> bool:
    """Return whether a Job belongs to an earlier attempt, of the JobSet or of its own."""
    name, index = o.label(job, f"{o.JOBSET}replicatedjob-name"), int(o.label(job, f"{o.JOBSET}job-index"))
    current = jobset["status"]["restarts"], _restarts_of_jobs(jobset, name, _RESTARTS)[index]
    labels = (o.label(job, f"{o.JOBSET}{key}") or "0" for key in ("restart-attempt", "job-restart-attempt"))
    return tuple(map(int, labels)) != current


def _fail_or_restart(tx: Transaction, jobset: Obj, failed: list[Obj]) -> None:
    status, policy = jobset["status"], jobset["spec"].get("failurePolicy")
    failed = sorted(failed, key=lambda job: str(failure(job)["lastTransitionTime"]))
    rule, job = _first_match((policy or {}).get("rules", []), failed)
    index = (policy or {}).get("rules", []).index(rule) if rule else 0
    action = rule["action"] if rule else "RestartJobSet"
    because = f"first failed job: {job['metadata']['name']}: {failure(job)['message']}"
    if policy is None:
        _finish(tx, jobset, "Failed", "FailedJobs", f"a job failed ({because})")
    elif action == "FailJobSet":
        _finish(tx, jobset, "Failed", "FailJobSetFailurePolicyAction", f"a failure policy rule ended it ({because})")
    elif action in ("RestartJobSet", "RestartJob") and _counted(jobset) >= policy.get("maxRestarts", 0):
        _finish(tx, jobset, "Failed", "ReachedMaxRestarts", f"the limit of restarts is reached ({because})")
    elif action in ("RestartJob", "RestartJobAndIgnoreMaxRestarts"):
        _restart_job(tx, jobset, job, action, because)
    else:
        status["restarts"] += 1
        status["restartsCountTowardsMax"] += action == "RestartJobSet"
        name = f"FailurePolicy_{rule.get('name', f'failurePolicyRule{index}')}" if rule else "DefaultFailurePolicy"
        o.set_condition(jobset, _RESTARTING, True, name, f"restart {status['restarts']} ({because})")
        _back_off(tx, jobset, failed)
        tx.put(jobset)
        tx.event(jobset, f"{action}FailurePolicyAction", f"restart {status['restarts']} ({because})", warning=True)


def _succeeded(jobset: Obj, jobs: list[Obj]) -> bool:
    policy = jobset["spec"]["successPolicy"]
    targets = policy.get("targetReplicatedJobs") or [job["name"] for job in jobset["spec"]["replicatedJobs"]]
    needed = sum(job["replicas"] for job in jobset["spec"]["replicatedJobs"] if job["name"] in targets)
    done = sum(o.label(j, f"{o.JOBSET}replicatedjob-name") in targets and o.is_true(j, "Complete") for j in jobs)
    return done >= (needed if policy["operator"] == "All" else 1)


def _count(tx: Transaction, jobset: Obj, jobs: list[Obj]) -> None:
    counts = []
    for replicated in jobset["spec"]["replicatedJobs"]:
        own_jobs = [job for job in jobs if o.label(job, f"{o.JOBSET}replicatedjob-name") == replicated["name"]]
        states = [job["status"] for job in own_jobs]
        hosts = replicated["template"]["spec"]["parallelism"]
        done = [o.is_true(job, "Complete") for job in own_jobs]
        earlier = _status_of(jobset, replicated["name"])
        lit = [s.get("ready", 0) + s.get("succeeded", 0) >= hosts for s in states]
        counts.append(
            {
                "name": replicated["name"],
                "ready": sum(a and not b for a, b in zip(lit, done, strict=True)),
                "succeeded": sum(done),
                "failed": sum(bool(failure(job)) for job in own_jobs),
                "active": sum(s.get("active", 0) > 0 for s in states),
                "suspended": sum(o.is_true(job, "Suspended") for job in own_jobs),
                **{key: earlier[key] for key in (_RESTARTS, _COUNTED) if key in earlier},
            }
        )
    jobset["status"]["replicatedJobsStatus"] = counts
    is_running = all(
        c["ready"] + c["succeeded"] == r["replicas"]
        for c, r in zip(counts, jobset["spec"]["replicatedJobs"], strict=True)
    )
    if is_running and o.is_true(jobset, _RESTARTING):
        o.set_condition(jobset, _RESTARTING, False, "JobsReady", "all hosts of the new attempt are running")
    tx.put(jobset)


def _suspend_or_resume(tx: Transaction, jobset: Obj, jobs: list[Obj]) -> None:
    suspend = jobset["spec"].get("suspend", False)
    leaving = any(o.is_terminating(pod) for job in jobs for pod in tx.owned("Pod", job))
    for job in jobs:
        # A slice must not restart while its previous hosts are still ending.
        if job["spec"]["suspend"] != suspend and (suspend or not leaving):
            job["spec"]["suspend"] = suspend
            tx.put(job)
    if suspend and o.set_condition(jobset, "Suspended", True, "SuspendedJobs", "jobset is suspended"):
        tx.event(jobset, "SuspendedJobs", "jobset is suspended")
    elif not suspend and o.is_true(jobset, "Suspended"):
        o.set_condition(jobset, "Suspended", False, "ResumeJobs", "jobset is resumed")
        tx.event(jobset, "ResumeJobs", "jobset is resumed")


def _create_jobs(tx: Transaction, jobset: Obj) -> None:
    """Create the Jobs of this attempt that may start now."""
    old = [job for job in tx.owned("Job", jobset) if o.is_terminating(job)]
    if old and jobset["spec"].get("failurePolicy", {}).get("restartStrategy") == "BlockingRecreate":
        return
    remaining = -o.age(jobset["status"].get("nextAttemptAt", o.now()))
    if 0 < remaining <= LONGEST_PAUSE:  # longer only if the clock was set back
        return
    jobset["status"].pop("nextAttemptAt", None)
    for replicated in jobset["spec"]["replicatedJobs"]:
        for index in range(replicated["replicas"]):
            name = f"{jobset['metadata']['name']}-{replicated['name']}-{index}"
            if not tx.get("Job", jobset["metadata"]["namespace"], name):
                _create_job(tx, jobset, replicated, index)


def reconcile(tx: Transaction) -> None:
    """Reconcile all JobSets once."""
    for jobset in tx.list("JobSet"):
        uid = jobset["metadata"]["uid"]
        tx.settle(("jobset", uid), (uid,), partial(_reconcile, tx, jobset))


def _reconcile(tx: Transaction, jobset: Obj) -> bool:
    """Reconcile one JobSet; return whether it waits for a time."""
    status = jobset.setdefault("status", {})
    status.setdefault("restarts", 0)
    status.setdefault("restartsCountTowardsMax", 0)
    jobs = [job for job in tx.owned("Job", jobset) if not o.is_terminating(job)]
    failed = [job for job in jobs if failure(job)]
    if not status.get("terminalState"):
        if failed:
            _fail_or_restart(tx, jobset, failed)
        elif _succeeded(jobset, jobs):
            _finish(tx, jobset, "Completed", "AllJobsCompleted", "jobset completed successfully")
    if status.get("terminalState"):
        _count(tx, jobset, jobs)
        for job in jobs:
            if not o.is_true(job, "Complete", "Failed", "FailureTarget"):
                delete_job(tx, job, why="the JobSet has ended")
        ttl = jobset["spec"].get("ttlSecondsAfterFinished")
        ended = o.condition(jobset, status["terminalState"])["lastTransitionTime"]
        if ttl is not None and o.age(ended) >= max(ttl, _TTL_AT_LEAST):
            delete_jobset(tx, jobset)
        return ttl is not None
    for job in jobs:
        if _is_former(jobset, job):
            delete_job(tx, job, why="the slice restarts" if restarts_slices(jobset) else "the JobSet restarts")
    _suspend_or_resume(tx, jobset, [job for job in jobs if not o.is_terminating(job)])
    _create_jobs(tx, jobset)
    _count(tx, jobset, [job for job in tx.owned("Job", jobset) if not o.is_terminating(job)])
    return "nextAttemptAt" in status
