"""Pods that a status without its hosts needs: of a workload whose hosts all run, only those that have finished.

A workload may have ten thousand hosts, whose pods take seconds to read. JobSet's status has the number of its slices
whose hosts all run; then the server is asked only for pods that do not run.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable
from typing import Any

from xpk.api.base import NotIn, Obj, ObjectApi, Selector
from xpk.api.slice_restarts import restarts_slices
from xpk.jobs.status.diagnosis import attempt_of
from xpk.jobs.status.fields import PREFIX, is_true, jobs_in, label

_JOBSET_NAME = f"{PREFIX}/jobset-name"
_MAX_NAMES = 40  # in a selector, which is a part of the URL
_RUNNING = "Running"
_OF_SPEC = ("nodeName", "readinessGates")
_UNREAD = ("managedFields", "ownerReferences", "finalizers")


def read_pods(
    api: ObjectApi, namespace: str | None, jobsets: list[Obj], queued: Collection[str], name: str | None
) -> tuple[list[Obj], set[str]]:
    """Return the pods that are needed, and the UIDs of JobSets whose other hosts are all running.

    `queued`: UIDs of JobSets that wait in a queue; `name`: of the only JobSet.
    """
    own: Selector = {_JOBSET_NAME: name} if name else {}
    finished = [jobset for jobset in jobsets if is_true(jobset, "Completed")]
    # Of these, pods that do not run tell the cause, unless a host may have a former pod and a newer one.
    failed = [jobset for jobset in jobsets if is_true(jobset, "Failed") and not restarts_slices(jobset)]
    settled = [jobset for jobset in jobsets if not is_final(jobset) and are_all_ready(jobset)]
    pods = api.list(
        "Pod",
        namespace,
        own or _without(finished, jobsets),
        fields={"status.phase": NotIn((_RUNNING,))},
        keep=needed_fields,
    )
    settled = [jobset for jobset in settled if not _contradicts(jobset, pods)]
    known = {jobset["metadata"]["uid"] for jobset in [*settled, *finished, *failed]} | {*queued}
    if any(jobset["metadata"]["uid"] not in known for jobset in jobsets):
        others = own or _without([*settled, *finished], jobsets)
        pods += api.list("Pod", namespace, others, fields={"status.phase": _RUNNING}, keep=needed_fields)
    unique = {pod["metadata"]["uid"]: pod for pod in pods}  # one may have started to run in between
    return list(unique.values()), {jobset["metadata"]["uid"] for jobset in settled}


def needed_fields(pod: Obj) -> Obj:
    """Return a pod without the fields that no status needs: most of its spec, which takes most of the memory."""
    spec, meta = pod.get("spec"), pod.get("metadata")
    if not isinstance(spec, dict) or not isinstance(meta, dict):
        return pod
    kept = {key: spec[key] for key in _OF_SPEC if key in spec}
    for key in ("containers", "initContainers"):
        if isinstance(items := spec.get(key), list):
            kept[key] = [_named(item) for item in items]
    kept_meta = {key: _shared(value) for key, value in meta.items() if key not in _UNREAD}
    return {**pod, "metadata": kept_meta, "spec": kept}


def _named(container: Any) -> Any:
    if not isinstance(container, dict):
        return container
    return {key: container[key] for key in ("name", "image") if key in container}


def _shared(texts: Any) -> Any:
    """Return texts by key, equal ones as one object: those of a workload's pods are mostly equal."""
    if not isinstance(texts, dict):
        return texts
    return {key: sys.intern(value) if type(value) is str else value for key, value in texts.items()}


def are_all_ready(jobset: Obj) -> bool:
    """Return whether, by JobSet's status, the hosts of all slices run or have finished."""
    counts = {item.get("name"): item for item in (jobset.get("status") or {}).get("replicatedJobsStatus") or []}
    jobs = jobs_in(jobset["spec"])
    return bool(jobs) and all(_up(counts.get(job.get("name"))) >= job.get("replicas", 1) for job in jobs)


def is_final(jobset: Obj) -> bool:
    """Return whether a JobSet has ended."""
    return is_true(jobset, "Completed") or is_true(jobset, "Failed")


def _up(counts: Obj | None) -> int:
    numbers = [(counts or {}).get(key) for key in ("ready", "succeeded")]
    return sum(number for number in numbers if isinstance(number, int))


def _contradicts(jobset: Obj, pods: Iterable[Obj]) -> bool:
    """Return whether a pod of the current attempt has failed, is pending or is being deleted.

    Then JobSet's status is older than the pods, or pods of a Job that was replaced still exist.
    """
    uid, attempt = jobset["metadata"]["uid"], str((jobset.get("status") or {}).get("restarts", 0))
    return any(
        (pod.get("status") or {}).get("phase") != "Succeeded" or pod["metadata"].get("deletionTimestamp")
        for pod in pods
        if label(pod, f"{PREFIX}/jobset-uid") == uid and attempt_of(pod) == attempt
    )


def _without(unneeded: Iterable[Obj], jobsets: Iterable[Obj]) -> Selector:
    """Return a selector that omits the pods of JobSets: of the largest, as a selector has a limited length."""
    uids = {jobset["metadata"]["uid"] for jobset in unneeded}
    kept = {jobset["metadata"]["name"] for jobset in jobsets if jobset["metadata"]["uid"] not in uids}
    # A label has no namespace: another namespace may have a JobSet of the same name.
    omitted = [jobset for jobset in jobsets if jobset["metadata"]["name"] not in kept]
    largest = sorted(omitted, key=_size, reverse=True)[:_MAX_NAMES]
    return {_JOBSET_NAME: NotIn(tuple(jobset["metadata"]["name"] for jobset in largest))} if largest else {}


def _size(jobset: Obj) -> int:
    jobs = jobs_in(jobset["spec"])
    return sum(job.get("replicas", 1) * _spec(job.get("template")).get("parallelism", 1) for job in jobs)


def _spec(template: Obj | None) -> Obj:
    spec: Obj = (template or {}).get("spec") or {}
    return spec
