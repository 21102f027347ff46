"""Status of workloads from objects of an API server. Pure functions over dicts, except those that take an `api`."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from xpk.api.base import NotIn, Obj, ObjectApi
from xpk.api.paths import container_of, programs_of
from xpk.api.slice_restarts import restarts_slices
from xpk.api.text import counted, short
from xpk.jobs.mounts import mounts_of
from xpk.jobs.output.roots import OutputRoots
from xpk.jobs.status import elastic, pod_selection, queue_position
from xpk.jobs.status import events as happened
from xpk.jobs.status.admission_checks import checks_of, deactivation_reason
from xpk.jobs.status.diagnosis import attempt_of, failed_checks, failed_start, lost_node, troubles
from xpk.jobs.status.fields import (
    PREFIX,
    QUEUE_LABEL,
    Snapshot,
    condition,
    host_key,
    is_true,
    jobs_in,
    label,
    number,
    owners_of,
)
from xpk.jobs.status.in_place import with_restarts_in_place
from xpk.jobs.status.jobset import copy_spec, maker_of, pod_spec_of, priority_of, size_of, type_of
from xpk.jobs.status.restarts import last_failure, restarts, with_output
from xpk.jobs.status.slices import read_slices
from xpk.jobs.status.suspects import with_suspects
from xpk.model import names
from xpk.model.closest import did_you_mean
from xpk.model.errors import AuthorizationError, MissingToolError, NotFoundError, UsageError
from xpk.model.status import HostStatus, Occurrence, Phase, WorkloadStatus, exit_words
from xpk.model.terminal import printable
from xpk.render.supervisor import command_of
from xpk_shared.supervisor.names import EXHAUSTED

_log = logging.getLogger(__name__)
_SPENT = re.compile(r"exit code (\d{1,3}) after \d+ restarts? in place")  # the supervisor's last words
_NAMED = 10  # workloads of a namespace, in the error for one that does not exist
_FAILURES = {
    "ReachedMaxRestarts": "and no restart is left",
    "FailJobSetFailurePolicyAction": "which is not restarted",
}


def find(api: ObjectApi, name: str, namespace: str = "default") -> WorkloadStatus:
    """Return one workload's status. Raises NotFoundError with the existing names."""
    snapshot = take(api, namespace, name=name)
    return read(snapshot.jobsets[0], snapshot)


def inspect(
    api: ObjectApi, name: str, namespace: str, roots: OutputRoots, *, brief: bool = False
) -> tuple[WorkloadStatus, tuple[Occurrence, ...]]:
    """Return one workload's status, with restarts from its output, and all its events, oldest first.

    `brief`: without hosts that run, and without events that every host has; a large workload has many of both.
    """
    snapshot = take(api, namespace, name=name, brief=brief)
    (jobset,) = snapshot.jobsets
    status = with_output(read(jobset, snapshot), roots, restarts_slices=restarts_slices(jobset))
    status = with_suspects(api, with_restarts_in_place(status, roots))
    has_logs = status.restarts > status.restarts_in_place and api.former_pods(
        namespace, {f"{PREFIX}/jobset-name": name}
    )
    return replace(status, previous_logs=bool(has_logs)), happened.occurrences(happened.events_of(jobset, snapshot))


def not_found(api: ObjectApi, name: str, namespace: str) -> NotFoundError:
    """Return the error for a workload that does not exist, with the closest name."""
    existing = [jobset["metadata"]["name"] for jobset in api.list("JobSet", namespace)]
    more = f" and {len(existing) - _NAMED} more" if len(existing) > _NAMED else ""
    hint = f"choose from {', '.join(existing[:_NAMED])}{more}" if existing else "`xpk workload create` creates one"
    hint = did_you_mean(name, existing) or hint
    location = "" if namespace == "default" else f" in namespace '{namespace}'"
    return NotFoundError(f"workload '{name}' not found{location}", hint=hint, resource=f"JobSet '{name}'")


def find_pod(api: ObjectApi, name: str, namespace: str, slice_id: int, host: int) -> Obj:
    """Return the pod of one host of the current attempt. Raises NotFoundError with the existing hosts."""
    status = find(api, name, namespace)
    for existing in status.hosts:
        if (existing.slice, existing.host) == (slice_id, host):
            return api.get("Pod", existing.pod, namespace)
    labels = ", ".join(existing.label for existing in status.hosts) or "none"
    raise NotFoundError(f"'{name}' has no host s{slice_id}/h{host} now", hint=f"choose from {labels}")


def find_all(
    api: ObjectApi,
    namespace: str | None = "default",
    selector: Mapping[str, str] | None = None,
    *,
    brief: bool = False,
) -> list[WorkloadStatus]:
    """Return the status of every workload, oldest first, with at most five requests; `brief`: see `inspect`."""
    snapshot = take(api, namespace, selector=selector, brief=brief)
    statuses = [read(jobset, snapshot) for jobset in snapshot.jobsets]
    return sorted(statuses, key=lambda status: (status.created, status.name))


def take(
    api: ObjectApi,
    namespace: str | None,
    *,
    name: str | None = None,
    selector: Mapping[str, str] | None = None,
    brief: bool = False,
) -> Snapshot:
    """Read the objects of all workloads, of those with the labels of `selector`, or all objects of a named one.

    `brief`: without pods and events that `inspect` does not need.

    Raises NotFoundError if it does not exist, UsageError if `namespace` cannot be the name of one. Queues are shared
    across namespaces; without permission to read the others, only those of `namespace` are read.
    """
    if namespace is not None and (problems := names.namespace_problems(namespace)):
        raise UsageError(problems[0], problems=problems, hint="pass the name of a namespace, such as default")
    if name and namespace:
        try:
            jobsets = [api.get("JobSet", name, namespace)]
        except NotFoundError:
            raise not_found(api, name, namespace) from None
    else:
        jobsets = api.list("JobSet", namespace, selector or None)
    workloads = _wide(api, "Workload", namespace)
    all_up: set[str] = set()
    if brief:
        queued = {uid for workload in workloads if not is_true(workload, "Admitted") for uid in owners_of(workload)}
        pods, all_up = pod_selection.read_pods(api, namespace, jobsets, queued, name)
    else:
        own = {f"{PREFIX}/jobset-name": name} if name else None
        pods = api.list("Pod", namespace, own, keep=pod_selection.needed_fields)
    routine = {"reason": NotIn(happened.ROUTINE_OF_HOSTS)} if brief else None
    return Snapshot(
        jobsets=jobsets,
        workloads=workloads,
        local_queues=_wide(api, "LocalQueue", namespace),
        cluster_queues=_cluster_queues(api) if name else [],
        pods=pods,
        events=api.list("Event", namespace, fields=routine) if name else [],
        all_up=all_up,
        slices=[obj for jobset in jobsets for obj in read_slices(api, jobset, workloads)] if name else [],
    )


def _wide(api: ObjectApi, kind: str, namespace: str | None) -> list[Obj]:
    """Return the objects of all namespaces; only of `namespace` without permission, none without Kueue."""
    try:
        return api.list(kind, None)
    except MissingToolError:
        return []
    except AuthorizationError:
        if namespace is None:
            raise
        return api.list(kind, namespace)


def _cluster_queues(api: ObjectApi) -> list[Obj]:
    """Return the ClusterQueues, none without permission or without Kueue."""
    try:
        return api.list("ClusterQueue", None)
    except (MissingToolError, AuthorizationError):
        return []


def read(jobset: Obj, snapshot: Snapshot) -> WorkloadStatus:
    """Return the status of one JobSet; Unknown if it or its related objects are malformed."""
    try:
        status, copy = _read(jobset, snapshot), copy_spec(jobset)
        return replace(status, clusters=copy.clusters) if copy else status
    except (UsageError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        meta = jobset["metadata"]
        why = printable(f"'{meta['name']}': {type(error).__name__}: {short(error)}")
        _log.warning("warning: cannot read workload %s", why)
        return WorkloadStatus(
            name=meta["name"],
            namespace=str(meta.get("namespace") or "default"),
            phase=Phase.UNKNOWN,
            reason="its objects cannot be read",
            priority="", accelerator_type="", num_slices=0, hosts_per_slice=0, num_hosts=0,
            restarts=0, restarts_counted=0, max_restarts=0,
            created=str(meta.get("creationTimestamp") or ""), started=None, finished=None,
            queue=None, cluster_queue=None, position=None, ahead=(), conditions=(), checks=(), quota=(),
            user="", command=(), output_dir="", hosts=(), troubles=(), restart_history=(), events=(),
            maker=maker_of(jobset),
        )  # fmt: skip


def _read(jobset: Obj, snapshot: Snapshot) -> WorkloadStatus:
    meta, spec, attempt = jobset["metadata"], jobset["spec"], str(jobset.get("status", {}).get("restarts", 0))
    workload, pods = snapshot.workload_of.get(meta["uid"]), snapshot.pods_of.get(meta["uid"], [])
    hosts, are_all_up = _hosts(pods, attempt), meta["uid"] in snapshot.all_up
    events = happened.events_of(jobset, snapshot) if snapshot.events else []
    num_slices, hosts_per_slice, size = size_of(spec)
    phase, reason = _phase(jobset, workload, snapshot, hosts, up := _counts(hosts, size if are_all_up else None))
    restart_count, counted_restarts = elastic.restart_counts(jobset)
    reason = _failure(condition(jobset, "Failed"), hosts, events, meta["uid"]) if phase is Phase.FAILED else reason
    wrong = troubles(_current(pods, attempt), events) if _is_on(phase) and not are_all_up else ()
    reason = f"{reason}: {wrong[0]}" if wrong and phase is not Phase.RUNNING else reason
    queued, kind = workload if phase is Phase.QUEUED else None, type_of(jobset)
    ahead, annotations = queue_position.ahead_of(queued, snapshot) if queued else None, meta.get("annotations") or {}
    return WorkloadStatus(
        name=meta["name"],
        namespace=meta["namespace"],
        phase=phase,
        reason=reason,
        priority=priority_of(jobset),
        accelerator_type=kind,
        num_slices=num_slices,
        hosts_per_slice=hosts_per_slice,
        num_hosts=size,
        restarts=restart_count,
        restarts_counted=counted_restarts,
        max_restarts=spec.get("failurePolicy", {}).get("maxRestarts", 0),
        created=meta["creationTimestamp"],
        started=condition(workload, "Admitted").get("lastTransitionTime") if is_true(workload, "Admitted") else None,
        finished=_finished(jobset),
        queue=label(jobset, QUEUE_LABEL) or None,
        cluster_queue=queue_position.cluster_queue_of(workload, snapshot) if workload else None,
        position=len(ahead) + 1 if ahead is not None else None,
        ahead=ahead or (),
        conditions=queue_position.conditions(workload),
        checks=checks_of(workload),
        # A workload with reserved quota does not wait for quota.
        quota=queue_position.quota_for(queued, snapshot, kind) if queued and ahead is not None else (),
        user=annotations.get(names.USER_ANNOTATION, ""),
        command=command_of(pod_spec_of(jobset)["containers"][0]),
        output_dir=annotations.get(names.OUTPUT_ANNOTATION, ""),
        hosts=hosts,
        troubles=wrong,
        restart_history=restarts(events, meta["uid"], restart_count),
        events=happened.occurrences(happened.notable_events(events)),
        maker=maker_of(jobset),
        mounts=mounts_of(pod_spec_of(jobset)),
        launcher=annotations.get(names.LAUNCHER_ANNOTATION, "plain"),
        num_hosts_up=size if phase is Phase.SUCCEEDED else sum(up),
        min_slices=elastic.min_slices(jobset),
        pending_reason=queue_position.pending_reason(queued) if queued else "",
    )


def _is_on(phase: Phase) -> bool:
    return phase in (Phase.STARTING, Phase.RUNNING, Phase.RESTARTING)


def _phase(
    jobset: Obj, workload: Obj | None, snapshot: Snapshot, hosts: tuple[HostStatus, ...], up: tuple[int, int]
) -> tuple[Phase, str]:
    """Return the phase and its reason. `up`: the number of running and of finished hosts."""
    for kind, phase in (("Completed", Phase.SUCCEEDED), ("Failed", Phase.FAILED)):
        if is_true(jobset, kind):
            return phase, "all hosts finished"
    if not jobs_in(jobset["spec"]):
        return Phase.UNKNOWN, "its JobSet has no slices"
    if label(jobset, QUEUE_LABEL) == names.HELD_QUEUE:
        return Phase.SUSPENDED, "held: it may run on one of its other clusters"
    if workload and workload["spec"].get("active") is False:
        return Phase.SUSPENDED, deactivation_reason(workload) or "suspended by its user"
    if workload and (not is_true(workload, "Admitted") or is_true(workload, "Evicted")):
        return Phase.QUEUED, queue_position.waiting_reason(workload, snapshot)
    if jobset["spec"].get("suspend") and not workload:
        queued = bool(label(jobset, QUEUE_LABEL))
        return (Phase.QUEUED, "waiting for the queue") if queued else (Phase.SUSPENDED, "not started yet")
    return _phase_of_hosts(jobset, hosts, *up)


def _phase_of_hosts(jobset: Obj, hosts: tuple[HostStatus, ...], running: int, done: int) -> tuple[Phase, str]:
    """Return the phase of an admitted workload with a number of running and of finished hosts."""
    num_slices, hosts_per_slice, size = size_of(jobset["spec"])
    if running + done == size:
        both = f"{counted(running, 'host')} running, {done} finished"
        return Phase.RUNNING, both if done else f"all {counted(size, 'host')} running" if size > 1 else "1 host running"
    lost = any(host.phase in ("Failed", "NodeLost") or (host.phase == "Terminating" and host.started) for host in hosts)
    is_restart = lost or elastic.restart_counts(jobset)[0] > 0
    minimum = elastic.min_slices(jobset)
    phase = minimum and elastic.phase_of(hosts, minimum, num_slices, hosts_per_slice, is_restart=is_restart)
    if phase:
        return phase
    if is_restart:
        return Phase.RESTARTING, f"{running} of {counted(size, 'host')} running"
    return Phase.STARTING, f"{running} of {counted(size, 'host')} running"


def _counts(hosts: Iterable[HostStatus], all_up: int | None) -> tuple[int, int]:
    """Return the number of running and of finished hosts; `all_up`: the number of hosts if all run or have finished."""
    phases = [host.phase for host in hosts]
    done = phases.count("Succeeded")
    return phases.count("Running") if all_up is None else all_up - done, done


def _failure(failed_condition: Mapping[str, Any], hosts: Iterable[HostStatus], events: list[Obj], uid: str) -> str:
    """Return the reason of a JobSet's failure: the first host that failed by itself, else the controller's message."""
    failed = [host for host in hosts if host.exit_code not in (None, 0)]
    own_failures = [host for host in failed if host.exit_code not in (75, 143)] or failed
    first = min(own_failures, key=lambda host: host.finished or "", default=None)
    note = _FAILURES.get(str(failed_condition.get("reason")), "")
    if f"exit code {EXHAUSTED} " in str(failed_condition.get("message")):
        note = _FAILURES["ReachedMaxRestarts"]
    if first is not None:
        message = str(first.reason) if " " in str(first.reason) else ""  # of an init container or a failed preflight
        cause = (
            f"host {first.label}: {message}"
            if message
            else f"host {first.label} ended with {exit_words(first.exit_code or 0)}"
        )
    elif (failure := last_failure(events, uid, str(failed_condition.get("message")))) and failure.host:
        cause = "host s{}/h{} ".format(*failure.host) + failure.words
    else:
        return f"{failed_condition.get('reason', '')}: {short(failed_condition.get('message'), 300)}"
    return f"{cause}, {note}" if note else cause


def _hosts(pods: Iterable[Obj], attempt: str) -> tuple[HostStatus, ...]:
    """Return the status of every host, of the current attempt if it has a pod of that."""
    return tuple(_host(pod, *key) for key, pod in sorted(_newest(pods, attempt).items()))


def _current(pods: Iterable[Obj], attempt: str) -> list[Obj]:
    """Return the newest pod of every host that has one of the current attempt."""
    return [pod for pod in _newest(pods, attempt).values() if attempt_of(pod) == attempt]


def _newest(pods: Iterable[Obj], attempt: str) -> dict[tuple[int, int], Obj]:
    """Return the newest pod of every host, of the current attempt if it has one."""

    def rank(pod: Obj) -> tuple[bool, int, str]:
        """Return what increases from pod to pod of a host."""
        return attempt_of(pod) == attempt, elastic.job_attempt_of(pod), pod["metadata"]["creationTimestamp"]

    return {host_key(pod): pod for pod in sorted(pods, key=rank)}


def _host(pod: Obj, slice_id: int, host: int) -> HostStatus:
    status = pod.get("status", {})
    container = _container_status(pod)
    ended = container.get("state", {}).get("terminated") or failed_start(pod)
    running = container.get("state", {}).get("running") or {}
    code, spent = ended.get("exitCode"), _SPENT.fullmatch(str(ended.get("message", "")))
    if code == EXHAUSTED and spent:  # its command's
        code = int(spent[1])
    scheme, _, pid = str(container.get("containerID", "")).partition("://")
    phase = "NodeLost" if lost_node(pod) else status.get("phase", "Pending")
    return HostStatus(
        slice=slice_id,
        host=host,
        pod=pod["metadata"]["name"],
        node=pod["spec"].get("nodeName"),
        phase="Terminating" if pod["metadata"].get("deletionTimestamp") and not ended else phase,
        pid=number(pid) or None if scheme == "process" and running else None,
        exit_code=code,
        reason=failed_checks(ended)
        or ended.get("reason")
        or (container.get("state", {}).get("waiting") or {}).get("reason")
        or status.get("reason"),
        started=running.get("startedAt") or ended.get("startedAt"),
        finished=ended.get("finishedAt"),
    )


def _container_status(pod: Obj) -> Obj:
    """Return the status of the container with the user's program; of several, of the first that failed."""
    statuses: list[Obj] = pod.get("status", {}).get("containerStatuses") or [{}]
    of_program = {container_of(one) for one in programs_of(pod)}
    candidates = [one for one in statuses if one.get("name") in of_program] or statuses
    failed = (one for one in candidates if (one.get("state", {}).get("terminated") or {}).get("exitCode"))
    return next(failed, candidates[0])


def _finished(jobset: Obj) -> str | None:
    for kind in ("Completed", "Failed"):
        if is_true(jobset, kind):
            return condition(jobset, kind).get("lastTransitionTime")
    return None
