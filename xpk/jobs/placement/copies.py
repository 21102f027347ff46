"""One copy of a workload of several clusters: its state, and how it is held and released.

A held copy is in a queue that does not exist, so the queue controller cannot admit it. It gets its own queue by one
write, which fails if the copy was modified since it was read: that is the release.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from xpk.api.base import Obj, ObjectApi
from xpk.jobs.placement.decision import CopyState, CopyView
from xpk.jobs.status.fields import PREFIX, QUEUE_LABEL, Snapshot, condition, is_true, label, number, owned_by
from xpk.jobs.status.jobset import copy_spec
from xpk.jobs.status.pod_selection import needed_fields
from xpk.jobs.status.reader import read as read_status
from xpk.model import names
from xpk.model.errors import Modified, NotFoundError, UnavailableError, XpkError
from xpk.model.status import Phase

_ENDED = ("Succeeded", "Failed")  # phases of pods
_READS = 10
# Reasons for which Kueue, and not the user, suspends a workload: no capacity came.
_GIVEN_UP = ("DeactivatedDueToAdmissionCheck", "DeactivatedDueToRequeuingLimitExceeded")
_NO_NODE = ("Unschedulable", "NodeLost")  # troubles that only another node ends


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy as it was read; `jobset` is None if it does not exist or its cluster cannot be reached."""

    view: CopyView
    jobset: Obj | None = None
    workload: Obj | None = None  # Kueue's


def look(api: ObjectApi, name: str, namespace: str, run: str) -> Copy:
    """Read a copy. Its pods are read last: a copy that was held before has no more of them than these."""
    try:
        try:
            jobset, workload = _read_together(api, name, namespace)
        except NotFoundError:
            return Copy(CopyView(CopyState.MISSING))
        spec = copy_spec(jobset)
        if spec is None or spec.run != run:
            return Copy(CopyView(CopyState.MISSING))
        pods = api.list("Pod", namespace, {f"{PREFIX}/jobset-name": name}, keep=needed_fields)
    except XpkError as error:
        return Copy(CopyView(CopyState.UNREACHABLE, reason=error.message))
    state, reason = _state(jobset, workload, pods)
    return Copy(CopyView(state, _number(jobset, names.EPOCH_ANNOTATION), reason), jobset, workload)


def _read_together(api: ObjectApi, name: str, namespace: str) -> tuple[Obj, Obj | None]:
    """Return a JobSet, and Kueue's Workload as it was at a time at which the JobSet was like this.

    Otherwise a program that pauses between the two would change a Workload for an epoch that is over.
    """
    jobset = api.get("JobSet", name, namespace)
    for _ in range(_READS):
        workload = owned_by(api.list("Workload", namespace), jobset["metadata"]["uid"])
        again = api.get("JobSet", name, namespace)
        if again["metadata"]["resourceVersion"] == jobset["metadata"]["resourceVersion"]:
            return jobset, workload
        jobset = again
    raise UnavailableError(f"JobSet '{name}' is modified all the time")


def _number(jobset: Obj, annotation: str) -> int:
    return number((jobset["metadata"].get("annotations") or {}).get(annotation))


def _is_in_held_queue(jobset: Obj) -> bool:
    return label(jobset, QUEUE_LABEL) == names.HELD_QUEUE


def _is_waiting_in_held_queue(workload: Obj) -> bool:
    """Return whether Kueue's Workload waits in the queue of held copies, so that only a release is missing."""
    spec = workload["spec"]
    return spec.get("queueName") == names.HELD_QUEUE and spec.get("active", True) and not _has_quota(workload)


def _has_quota(workload: Obj) -> bool:
    return any(is_true(workload, kind) for kind in ("QuotaReserved", "Admitted"))


def _state(jobset: Obj, workload: Obj | None, pods: list[Obj]) -> tuple[CopyState, str]:
    """Return the state of a copy and its reason."""
    for kind, end in (("Completed", "succeeded"), ("Failed", "failed")):
        if is_true(jobset, kind):
            return CopyState.ENDED, f"it {end} on {_cluster(jobset)}"
    if _is_in_held_queue(jobset):
        queued = workload is None or _is_waiting_in_held_queue(workload)
        is_held = queued and is_stopped(jobset, workload, pods)
        return (CopyState.HELD, "") if is_held else (CopyState.HOLDING, "its hosts are stopping")
    if _number(jobset, names.RELEASED_ANNOTATION) != _number(jobset, names.EPOCH_ANNOTATION):
        return CopyState.HOLDING, "its hosts are stopping"
    if workload and workload["spec"].get("queueName") != label(jobset, QUEUE_LABEL) and not _has_quota(workload):
        return CopyState.RELEASING, ""
    status = read_status(jobset, Snapshot(jobsets=[jobset], workloads=[workload] if workload else [], pods=pods))
    if status.phase is Phase.SUSPENDED and condition(workload, "Evicted").get("reason") not in _GIVEN_UP:
        return CopyState.SUSPENDED, status.reason
    lacks_nodes = [trouble for trouble in status.troubles if trouble.reason in _NO_NODE]
    if status.phase in (Phase.QUEUED, Phase.SUSPENDED) or lacks_nodes:
        return CopyState.WAITING, f"{status.phase}: {status.reason}"
    return CopyState.RUNNING, ""


def is_stopped(jobset: Obj, workload: Obj | None, pods: list[Obj]) -> bool:
    """Return whether a copy has no hosts, and no admission by which it would get some."""
    live = [pod for pod in pods if pod.get("status", {}).get("phase") not in _ENDED]
    return bool(jobset["spec"].get("suspend")) and not live and not (workload and _has_quota(workload))


def _cluster(jobset: Obj) -> str:
    spec = copy_spec(jobset)
    return spec.cluster if spec else ""


def release(api: ObjectApi, copy: Copy, epoch: int) -> bool:
    """Put a held copy into its queue; return False if it was modified since it was read, or obeys a newer epoch.

    For one that was released in this epoch, put Kueue's Workload into the queue.
    """
    spec = copy_spec(copy.jobset) if copy.jobset else None
    if copy.jobset is None or spec is None or copy.view.epoch > epoch:
        return False
    if copy.view.state is CopyState.RELEASING and copy.view.epoch == epoch:
        return copy.workload is not None and _patch(api, copy.workload, spec={"queueName": spec.queue})
    annotations = {names.EPOCH_ANNOTATION: str(epoch), names.RELEASED_ANNOTATION: str(epoch)}
    return _patch(api, copy.jobset, {"labels": {QUEUE_LABEL: spec.queue}, "annotations": annotations})


def hold(api: ObjectApi, copy: Copy, epoch: int) -> bool:
    """Do the next step to hold a copy; return whether there was one, False while its hosts stop.

    The first step makes it obey the epoch: no program that decided earlier can release it from then on.
    """
    jobset, workload = copy.jobset, copy.workload
    if jobset is None or copy.view.epoch > epoch:
        return False
    if copy.view.epoch < epoch:
        return _patch(api, jobset, {"annotations": {names.EPOCH_ANNOTATION: str(epoch)}})
    if workload is None:  # Kueue may be about to create one, for the queue that the copy has now
        return False
    active = workload["spec"].get("active", True)
    if _is_in_held_queue(jobset):
        if _has_quota(workload):
            return active and _patch(api, workload, spec={"active": False})
        # Kueue moves a Workload with its JobSet only if it was not evicted.
        return not _is_waiting_in_held_queue(workload) and _patch(
            api, workload, spec={"queueName": names.HELD_QUEUE, "active": True}
        )
    if active:
        return _patch(api, workload, spec={"active": False})
    pods = api.list("Pod", jobset["metadata"]["namespace"], {f"{PREFIX}/jobset-name": jobset["metadata"]["name"]})
    if not is_stopped(jobset, workload, pods):
        return False
    return _patch(api, jobset, {"labels": {QUEUE_LABEL: names.HELD_QUEUE}})


def remove(api: ObjectApi, copy: Copy) -> bool:
    """Delete a copy; return whether it existed."""
    if copy.jobset is None:
        return False
    meta = copy.jobset["metadata"]
    with suppress(NotFoundError):
        now = api.get("JobSet", meta["name"], meta["namespace"])["metadata"]
        if now["uid"] == meta["uid"]:  # else a new workload of the name
            api.delete("JobSet", meta["name"], meta["namespace"])
    return True


def _patch(api: ObjectApi, obj: Obj, metadata: Obj | None = None, *, spec: Obj | None = None) -> bool:
    """Change an object unless it was modified since it was read; return whether it was changed."""
    meta = obj["metadata"]
    change: Obj = {"metadata": {"resourceVersion": meta["resourceVersion"], **(metadata or {})}}
    if spec is not None:
        change["spec"] = spec
    try:
        api.patch(obj["kind"], meta["name"], change, meta["namespace"])
    except (Modified, NotFoundError):
        return False
    return True
