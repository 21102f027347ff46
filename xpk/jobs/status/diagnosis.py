"""Diagnosis of hosts that are not running: no node, no image, a failed mount, a lost node. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from xpk.api.base import Obj
from xpk.api.text import IMAGE_TROUBLES, image_words, short
from xpk.jobs.status.fields import condition, event_times, host_key, host_label, label, when
from xpk.model.status import Trouble
from xpk_shared.supervisor.names import PREFLIGHT_FAILED

_ORDINARY = (None, "ContainerCreating", "PodInitializing")
_STUCK = ("FailedMount", "FailedAttachVolume", "FailedCreatePodSandBox", "FailedPreStartHook")
# Events of GKE's autoscaler about pods that fit no node.
_SCALING = {
    "TriggeredScaleUp": "GKE adds nodes",
    "NotTriggerScaleUp": "GKE adds no nodes",
    "FailedScaleUp": "GKE could not add nodes",
}
_NO_PODS = ("FailedCreate", "JobCreationFailed")
# Followers are rejected until their leader has a node, and Jobs while those of the last attempt are terminating.
_PASSING = ("follower pod node selector", "leader pod not yet scheduled", "expected 1 leader pod", "already exists")


def troubles(pods: Iterable[Obj], events: Iterable[Obj]) -> tuple[Trouble, ...]:
    """Return the problems of a JobSet's hosts, each once with all its hosts.

    `events`: those of the JobSet, its Jobs and its pods.
    """
    pods, events = sorted(pods, key=host_key), list(events)
    hosts_of: dict[tuple[str, str, str | None], list[str]] = {}
    for pod in pods:
        for reason, message, image in _of_pod(pod, events):
            hosts_of.setdefault((reason, message, image), []).append(host_label(pod))
    if not pods:
        for reason, message in _no_pods(events):
            hosts_of.setdefault((reason, message, None), [])
    return tuple(
        Trouble(reason=reason, message=message, image=image, hosts=tuple(hosts))
        for (reason, message, image), hosts in hosts_of.items()
    )


def lost_node(pod: Obj) -> bool:
    """Return True if a pod's node does not respond: the pod's Ready is False then, but ContainersReady is True."""
    status = pod.get("status", {})
    return (
        status.get("phase") == "Running"
        and condition(pod, "Ready").get("status") == "False"
        and condition(pod, "ContainersReady").get("status") == "True"
        and not pod.get("spec", {}).get("readinessGates")
    )


def _of_pod(pod: Obj, events: list[Obj]) -> Iterator[tuple[str, str, str | None]]:
    status, node = pod.get("status", {}), pod.get("spec", {}).get("nodeName")
    scheduled = condition(pod, "PodScheduled")
    if lost_node(pod):
        yield "NodeLost", f"node {node} does not answer", None
        return
    if status.get("phase", "Pending") != "Pending" or pod["metadata"].get("deletionTimestamp"):
        return
    if scheduled.get("status") == "False":
        words = [_scheduler_words(scheduled), *_scaling(pod, events)]
        yield str(scheduled.get("reason") or "Unschedulable"), "; ".join(words), None
        return
    waiting = list(_waiting(pod))
    yield from waiting
    if not waiting:
        stuck = [event for event in events if _is_about(event, pod) and event.get("reason") in _STUCK]
        if stuck:
            last = max(stuck, key=lambda event: when(event_times(event)[1]))
            yield str(last["reason"]), short(last.get("message"), 300), None


def waits_for(pod: Obj) -> str:
    """Return the reason why a pod's container has not started, in a few words."""
    for reason, message, _ in _of_pod(pod, []):
        return f"{reason}: {message}" if message else reason
    status = pod.get("status", {})
    containers = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
    reasons = [str(((item.get("state") or {}).get("waiting") or {}).get("reason") or "") for item in containers]
    return next(
        filter(None, reasons),
        "its container has not started" if pod.get("spec", {}).get("nodeName") else "it has no node yet",
    )


def failed_checks(ended: Mapping[str, Any]) -> str | None:
    """Return the preflight checks that a host has failed, from the message of its end; None if it has failed none."""
    message = str(ended.get("message", ""))
    return short(message, 300) if message.startswith(PREFLIGHT_FAILED) else None


def failed_start(pod: Obj) -> dict[str, Any]:
    """Return the termination state of a failed init container, with its message; empty if none failed."""
    for item in pod.get("status", {}).get("initContainerStatuses") or []:
        state: dict[str, Any] = item.get("state") or {}
        if state.get("running"):  # restarted, or a sidecar, whose last state is an earlier run
            continue
        ended = state.get("terminated") or (item.get("lastState") or {}).get("terminated") or {}
        if ended.get("exitCode"):
            message = short(ended.get("message"), 300)
            words = f"init container '{item['name']}' failed with exit code {ended['exitCode']}"
            return {**ended, "reason": f"{words}: {message}" if message else words}
    return {}


def _waiting(pod: Obj) -> Iterator[tuple[str, str, str | None]]:
    """Yield the waiting reasons of a pending pod's containers, init containers first."""
    status = pod.get("status", {})
    if ended := failed_start(pod):
        yield "InitContainerFailed", str(ended["reason"]), None
        return
    containers = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
    for item in containers:
        waiting = (item.get("state") or {}).get("waiting") or {}
        reason = waiting.get("reason")
        if reason in IMAGE_TROUBLES:
            # kubelet alternates between pulling and waiting: one problem.
            kind = "ErrImagePull" if reason == "ImagePullBackOff" else reason
            yield kind, image_words(str(waiting.get("message", ""))), item.get("image") or _image(pod, item)
            return
        if reason not in _ORDINARY:
            yield str(reason), short(waiting.get("message"), 300), None
            return


def _no_pods(events: list[Obj]) -> Iterator[tuple[str, str]]:
    """Yield the reason why a JobSet has no pods, if its controllers report one."""
    wrong = [
        event
        for event in events
        if event.get("reason") in _NO_PODS and not any(text in str(event.get("message")) for text in _PASSING)
    ]
    if wrong:
        last = max(wrong, key=lambda event: when(event_times(event)[1]))
        yield str(last["reason"]), short(str(last.get("message", "")).splitlines()[0], 300)


def _scheduler_words(scheduled: Any) -> str:
    """Return the scheduler's reason without its remarks on preemption, which does not apply to TPU hosts."""
    message = short(scheduled.get("message"), 1000)
    return short(re.split(r"\.? (?:preemption:|no new claims)", message)[0].rstrip("."), 300)


def _scaling(pod: Obj, events: list[Obj]) -> Iterator[str]:
    """Yield the last event of GKE's autoscaler about an unschedulable pod: whether it creates a node pool."""
    decisions = [event for event in events if event.get("reason") in _SCALING and _is_about(event, pod)]
    if decisions:
        last = max(decisions, key=lambda event: when(event_times(event)[1]))
        yield f"{_SCALING[last['reason']]}: {short(last.get('message'), 300)}"


def _image(pod: Obj, container: Obj) -> str | None:
    """Return the image of a container's spec: the status does not name an image that cannot be pulled."""
    spec = pod.get("spec", {})
    for candidate in [*(spec.get("initContainers") or []), *(spec.get("containers") or [])]:
        if candidate.get("name") == container.get("name"):
            return str(candidate.get("image", "")) or None
    return None


def _is_about(event: Obj, pod: Obj) -> bool:
    about = event.get("involvedObject") or {}
    return about.get("kind") == "Pod" and about.get("uid") == pod["metadata"].get("uid")


def is_passing(event: Obj) -> bool:
    """Return True for a transient warning that healthy JobSets have as well."""
    return any(text in str(event.get("message")) for text in _PASSING)


def attempt_of(pod: Obj) -> str:
    """Return the number of the attempt that a pod belongs to."""
    return label(pod, "jobset.sigs.k8s.io/restart-attempt") or "0"
