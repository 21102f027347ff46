"""Objects of an API server read into one `WorkloadStatus`. Pure functions over dicts, but for `find`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from xpk.api.base import Obj, ObjectApi
from xpk.model import names
from xpk.model.errors import NotFoundError
from xpk.model.status import HostStatus, Phase, Restart, WorkloadStatus

_PREFIX = "jobset.sigs.k8s.io"
_INDEX = "batch.kubernetes.io/job-completion-index"
_RESTARTS = ("RestartJobSet", "Restart")  # how JobSet's restart events begin
_FAILURES = {
    "ReachedMaxRestarts": "and no restart is left",
    "FailJobSetFailurePolicyAction": "which restarting cannot help",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """All objects that tell of the workloads in a namespace, read once."""

    jobsets: list[Obj]
    workloads: list[Obj] = field(default_factory=list)
    pods: list[Obj] = field(default_factory=list)
    events: list[Obj] = field(default_factory=list)


def find(api: ObjectApi, name: str, namespace: str = "default") -> WorkloadStatus:
    """Return one workload's status. Raises NotFoundError naming those there are."""
    snapshot = take(api, namespace, name=name)
    for jobset in snapshot.jobsets:
        if jobset["metadata"]["name"] == name:
            return read(jobset, snapshot)
    raise not_found(api, name, namespace)


def not_found(api: ObjectApi, name: str, namespace: str) -> NotFoundError:
    """Return the error for a workload that is not there."""
    there = [jobset["metadata"]["name"] for jobset in api.list("JobSet", namespace)]
    hint = f"there are: {', '.join(there)}" if there else "`xpk workload create` makes one"
    return NotFoundError(f"there is no workload '{name}'", hint=hint)


def find_pod(api: ObjectApi, name: str, namespace: str, slice_id: int, host: int) -> Obj:
    """Return the pod of one host of the current attempt. Raises NotFoundError naming those there are."""
    status = find(api, name, namespace)
    for known in status.hosts:
        if (known.slice, known.host) == (slice_id, host):
            return api.get("Pod", known.pod, namespace)
    there = ", ".join(known.label for known in status.hosts) or "none"
    raise NotFoundError(f"'{name}' has no host s{slice_id}/h{host} now", hint=f"there are: {there}")


def find_all(api: ObjectApi, namespace: str | None = "default") -> list[WorkloadStatus]:
    """Return the status of every workload, oldest first."""
    snapshot = take(api, namespace)
    found = [read(jobset, snapshot) for jobset in snapshot.jobsets]
    return sorted(found, key=lambda status: (status.created, status.name))


def take(api: ObjectApi, namespace: str | None, *, name: str | None = None) -> Snapshot:
    """Read the objects of all workloads, pods and events only of the one named, if one is."""
    selector = {f"{_PREFIX}/jobset-name": name} if name else None
    return Snapshot(
        jobsets=api.list("JobSet", namespace),
        workloads=api.list("Workload", namespace),
        pods=api.list("Pod", namespace, selector),
        events=api.list("Event", namespace) if name else [],
    )


def read(jobset: Obj, snapshot: Snapshot) -> WorkloadStatus:
    """Return the status of one JobSet."""
    meta, spec, status = jobset["metadata"], jobset["spec"], jobset.get("status", {})
    replicated = spec["replicatedJobs"][0]
    job = replicated["template"]["spec"]
    workload = _owned_by(snapshot.workloads, meta["uid"])
    pods = [pod for pod in snapshot.pods if pod["metadata"]["labels"].get(f"{_PREFIX}/jobset-uid") == meta["uid"]]
    hosts = _hosts(pods, attempt=str(status.get("restarts", 0)))
    size = replicated["replicas"] * job["parallelism"]
    phase, reason = _phase(jobset, workload, hosts, size)
    if phase in (Phase.STARTING, Phase.RESTARTING) and (trouble := _trouble(pods)):
        reason = f"{reason}: {trouble}"
    queue = _queue_order(snapshot.workloads) if phase is Phase.QUEUED else []
    ahead = _before(queue, meta["name"])
    labels, annotations = meta.get("labels", {}), meta.get("annotations", {})
    admitted = _condition(workload, "Admitted")
    container = job["template"]["spec"]["containers"][0]
    return WorkloadStatus(
        name=meta["name"],
        namespace=meta["namespace"],
        phase=phase,
        reason=reason,
        priority=labels.get("kueue.x-k8s.io/priority-class", ""),
        accelerator_type=annotations.get(names.TYPE_ANNOTATION, ""),
        num_slices=replicated["replicas"],
        hosts_per_slice=job["parallelism"],
        restarts=status.get("restarts", 0),
        restarts_counted=status.get("restartsCountTowardsMax", 0),
        max_restarts=spec.get("failurePolicy", {}).get("maxRestarts", 0),
        created=meta["creationTimestamp"],
        started=admitted.get("lastTransitionTime") if admitted.get("status") == "True" else None,
        finished=_finished(jobset),
        queue=labels.get("kueue.x-k8s.io/queue-name"),
        position=len(ahead) + 1 if phase is Phase.QUEUED and meta["name"] in queue else None,
        ahead=ahead,
        user=annotations.get(names.USER_ANNOTATION, ""),
        command=tuple(container.get("command", [])) + tuple(container.get("args", [])),
        output_dir=annotations.get(names.OUTPUT_ANNOTATION, ""),
        hosts=hosts,
        restart_history=_restarts(snapshot.events, meta["uid"]),
    )


def _phase(jobset: Obj, workload: Obj | None, hosts: tuple[HostStatus, ...], size: int) -> tuple[Phase, str]:
    status = jobset.get("status", {})
    for kind, phase in (("Completed", Phase.SUCCEEDED), ("Failed", Phase.FAILED)):
        condition = _condition(jobset, kind)
        if condition.get("status") == "True":
            return phase, _failure(condition, hosts) if phase is Phase.FAILED else "all hosts are done"
    if workload and workload["spec"].get("active") is False:
        return Phase.SUSPENDED, "suspended by its user"
    if workload and _condition(workload, "Admitted").get("status") != "True":
        return Phase.QUEUED, _waiting(workload)
    if jobset["spec"].get("suspend"):
        queued = "kueue.x-k8s.io/queue-name" in jobset["metadata"].get("labels", {})
        return (Phase.QUEUED, "waiting for the queue") if queued else (Phase.SUSPENDED, "not started yet")
    running = sum(host.phase == "Running" for host in hosts)
    done = sum(host.phase == "Succeeded" for host in hosts)
    if running + done == size:
        return Phase.RUNNING, f"all {size} hosts run" if not done else f"{running} hosts run, {done} are done"
    if status.get("restarts", 0) or any(host.phase == "Failed" for host in hosts):
        return Phase.RESTARTING, f"{running} of {size} hosts run"
    return Phase.STARTING, f"{running} of {size} hosts run"


def _failure(condition: Mapping[str, Any], hosts: Iterable[HostStatus]) -> str:
    """Return why a JobSet failed: the first host that ended badly by itself, then the controller's words."""
    failed = [host for host in hosts if host.exit_code not in (None, 0)]
    own = [host for host in failed if host.exit_code not in (75, 143)] or failed
    first = min(own, key=lambda host: host.finished or "", default=None)
    if first is None:
        return f"{condition.get('reason', '')}: {condition.get('message', '')}"
    cause = f"host {first.label} ended with exit code {first.exit_code}"
    note = _FAILURES.get(str(condition.get("reason")), "")
    return f"{cause}, {note}" if note else cause


def _waiting(workload: Obj) -> str:
    evicted, reserved = _condition(workload, "Evicted"), _condition(workload, "QuotaReserved")
    if evicted.get("status") == "True":
        return f"evicted: {evicted.get('message') or evicted.get('reason', '')}"
    return str(reserved.get("message") or "waiting for the queue")


def _hosts(pods: Iterable[Obj], attempt: str) -> tuple[HostStatus, ...]:
    """Return the newest pod of every host of the current attempt; of an earlier one where none is yet."""
    newest: dict[tuple[int, int], Obj] = {}
    for pod in sorted(pods, key=lambda pod: (_attempt(pod) == attempt, pod["metadata"]["creationTimestamp"])):
        newest[host_key(pod)] = pod
    return tuple(_host(pod, *key) for key, pod in sorted(newest.items()))


def host_key(pod: Obj) -> tuple[int, int]:
    """Return a pod's (slice, host)."""
    meta = pod["metadata"]
    return int(meta["labels"][f"{_PREFIX}/job-index"]), int(meta["annotations"][_INDEX])


def _trouble(pods: Iterable[Obj]) -> str:
    """Return why a host does not start, if one says so: its image, its place, its configuration."""
    for pod in sorted(pods, key=host_key):
        who = "s{}/h{}".format(*host_key(pod))
        scheduled = _condition(pod, "PodScheduled")
        if scheduled.get("status") == "False":
            return f"{who} has no node: {scheduled.get('message') or scheduled.get('reason')}"
        for container in pod.get("status", {}).get("containerStatuses") or []:
            waiting = container.get("state", {}).get("waiting") or {}
            if waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
                return f"{who} cannot start: {waiting['reason']}: {waiting.get('message', '')}".rstrip(": ")
    return ""


def _attempt(pod: Obj) -> str:
    return str(pod["metadata"]["labels"].get(f"{_PREFIX}/restart-attempt", "0"))


def _host(pod: Obj, slice_id: int, host: int) -> HostStatus:
    status = pod.get("status", {})
    container = (status.get("containerStatuses") or [{}])[0]
    ended = container.get("state", {}).get("terminated") or {}
    running = container.get("state", {}).get("running") or {}
    scheme, _, pid = str(container.get("containerID", "")).partition("://")
    return HostStatus(
        slice=slice_id,
        host=host,
        pod=pod["metadata"]["name"],
        node=pod["spec"].get("nodeName"),
        phase="Terminating"
        if pod["metadata"].get("deletionTimestamp") and not ended
        else status.get("phase", "Pending"),
        pid=int(pid) if scheme == "process" and running else None,
        exit_code=ended.get("exitCode"),
        reason=ended.get("reason")
        or (container.get("state", {}).get("waiting") or {}).get("reason")
        or status.get("reason"),
        started=running.get("startedAt") or ended.get("startedAt"),
        finished=ended.get("finishedAt"),
    )


def _restarts(events: Iterable[Obj], uid: str) -> tuple[Restart, ...]:
    """Return the restarts of a JobSet, each with the first host that failed before it, where events tell."""
    ordered = sorted(events, key=lambda event: (_time(event), str(event["metadata"].get("uid"))))
    found: list[Restart] = []
    failed: list[Obj] = []
    for event in ordered:
        about, reason = event.get("involvedObject", {}), str(event.get("reason", ""))
        if about.get("kind") == "Pod" and reason == "Failed" and event.get("type") == "Warning":
            failed.append(event)
        elif about.get("uid") == uid and reason.startswith(_RESTARTS):
            message = str(event.get("message", ""))
            first = next((each for each in failed if each["involvedObject"]["name"].startswith(_job(message))), None)
            found.append(Restart(time=_time(event), cause=_host_failure(first) if first else message))
            failed = []
    return tuple(found)


def _time(event: Obj) -> str:
    return str(event.get("lastTimestamp") or event.get("eventTime") or "")


def _job(message: str) -> str:
    """Return the prefix of the names of the pods of the Job that a restart's message blames."""
    return f"{match[1]}-" if (match := re.search(r"first failed job: ([^:\s]+)", message)) else ""


def _host_failure(event: Obj) -> str:
    name = str(event["involvedObject"]["name"])
    slice_id, host, _ = name.rsplit("-", 3)[1:]
    message = str(event.get("message", ""))
    said = message.removeprefix("The host")
    return f"host s{slice_id}/h{host}{said}" if said != message else f"host s{slice_id}/h{host}: {message}"


def events(api: ObjectApi, name: str, namespace: str = "default") -> list[dict[str, str]]:
    """Return what the control plane says has happened to a workload and its hosts, oldest first."""
    jobset = api.get("JobSet", name, namespace)
    uids = {jobset["metadata"]["uid"]}
    selector = {f"{_PREFIX}/jobset-uid": jobset["metadata"]["uid"]}
    for kind in ("Job", "Pod"):
        uids |= {obj["metadata"]["uid"] for obj in api.list(kind, namespace, selector)}
    uids |= {obj["metadata"]["uid"] for obj in api.list("Workload", namespace) if _owned_by([obj], *uids)}
    found = [event for event in api.list("Event", namespace) if event["involvedObject"].get("uid") in uids]
    return [
        {
            "time": _time(event),
            "type": str(event.get("type", "Normal")),
            "reason": str(event.get("reason", "")),
            "object": "{kind}/{name}".format(**event["involvedObject"]),
            "message": str(event.get("message", "")),
        }
        for event in sorted(found, key=_time)
    ]


def _queue_order(workloads: Iterable[Obj]) -> list[str]:
    """Return the JobSets that wait, in the order in which Kueue considers them."""
    waiting = [
        item
        for item in workloads
        if item["spec"].get("active", True)
        and _condition(item, "QuotaReserved").get("status") != "True"
        and _condition(item, "Finished").get("status") != "True"
    ]
    waiting.sort(key=lambda item: (-item["spec"].get("priority", 0), item["metadata"]["creationTimestamp"]))
    return [str(item["metadata"]["ownerReferences"][0]["name"]) for item in waiting]


def _before(queue: list[str], name: str) -> tuple[str, ...]:
    return tuple(queue[: queue.index(name)]) if name in queue else ()


def _owned_by(objects: Iterable[Obj], *uids: str) -> Obj | None:
    return next(
        (obj for obj in objects if any(ref["uid"] in uids for ref in obj["metadata"].get("ownerReferences", []))), None
    )


def _condition(obj: Obj | None, kind: str) -> Mapping[str, Any]:
    conditions = (obj or {}).get("status", {}).get("conditions") or []
    return next((condition for condition in conditions if condition["type"] == kind), {})


def _finished(jobset: Obj) -> str | None:
    for kind in ("Completed", "Failed"):
        condition = _condition(jobset, kind)
        if condition.get("status") == "True":
            return str(condition.get("lastTransitionTime"))
    return None
