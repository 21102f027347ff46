"""A simulated cluster with one copy of a workload: its API server, Kueue, JobSet, and hosts.

Kueue's controllers decide by a cache, which may be old. Their writes fail if the object was modified since, as the real
ones do. Each controller acts only when the world calls it. While the API server is down, nobody reads or writes; once
it runs again, Kueue still decides by what it saw before, until its watches begin again. Objects are never modified, but
replaced.
"""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from xpk.api.base import Obj
from xpk.jobs.status.fields import is_true
from xpk.local.objects import merge_patch
from xpk.model import names
from xpk.model.errors import Modified, NotFoundError
from xpk.model.specs import CopySpec

NAME, NAMESPACE, QUEUE, STEPS = "w", "default", "team", 4
_TIME = "2026-01-31T12:00:00Z"


class Cluster:
    """Objects and controllers of a cluster. `changed` is called after each change of an object."""

    def __init__(self, spec: CopySpec, changed: Callable[[Cluster], None]) -> None:
        self.name, self.has_capacity = spec.cluster, True
        self.is_down = self.has_stale_watches = False
        self._changed, self._versions = changed, itertools.count(1)
        self.workload: Obj | None = None
        self.pods: list[Obj] = []
        self.jobset: Obj | None = self._stored(_jobset(spec))
        self._seen_jobset: Obj | None = None  # Kueue's cache
        self._seen_workload: Obj | None = None

    @property
    def live_pods(self) -> list[Obj]:
        """Pods that have not ended."""
        return [pod for pod in self.pods if pod["status"]["phase"] not in ("Succeeded", "Failed")]

    @property
    def is_released(self) -> bool:
        """True if the copy is in a queue that exists."""
        return self.jobset is not None and self.jobset["metadata"]["labels"][names.QUEUE_LABEL] == QUEUE

    def find(self, kind: str) -> Obj:
        """Return the object of a kind. Raises NotFoundError."""
        obj = self.jobset if kind == "JobSet" else self.workload
        if obj is None:
            raise NotFoundError(f"{kind} not found")
        return obj

    def patch(self, kind: str, change: Obj) -> Obj:
        """Merge a change into an object. Raises NotFoundError, and Modified if it is for another version."""
        have = self.find(kind)
        version = change.get("metadata", {}).get("resourceVersion")
        if version not in (None, have["metadata"]["resourceVersion"]):
            raise Modified(f"{kind} was modified concurrently")
        merged: Any = merge_patch(have, change)
        if kind == "JobSet" and not merged["spec"]["suspend"]:
            label = names.QUEUE_LABEL
            assert merged["metadata"]["labels"][label] == have["metadata"]["labels"][label], "Kueue refuses this"
        self._put(kind, merged)
        return dict(merged)

    def delete(self) -> None:
        """Delete the copy; its hosts end later."""
        self.find("JobSet")
        self.jobset = self.workload = None
        self._changed(self)

    def refresh(self) -> None:
        """Let Kueue see the present objects, unless its watches have not begun again."""
        if self.has_stale_watches:
            return
        self._seen_jobset, self._seen_workload = self.jobset, self.workload

    def reconcile(self) -> None:
        """Let Kueue's controller of JobSets act on what it has seen."""
        jobset, workload = self._seen_jobset, self._seen_workload
        if jobset is None or self.jobset is None or is_true(jobset, "Completed"):
            return
        if workload is None:
            if self.workload is None:
                self._put("Workload", _workload(jobset))
        elif is_true(workload, "Evicted"):
            self._evict(jobset, workload)
        elif jobset["spec"]["suspend"]:
            label = jobset["metadata"]["labels"][names.QUEUE_LABEL]
            if is_true(workload, "Admitted"):
                self._write(jobset, lambda obj: obj["spec"].update(suspend=False))
            elif workload["spec"]["queueName"] != label:
                self._write(workload, lambda obj: obj["spec"].update(queueName=label))
        elif not is_true(workload, "Admitted"):
            self._write(jobset, lambda obj: obj["spec"].update(suspend=True))

    def _evict(self, jobset: Obj, workload: Obj) -> None:
        if not jobset["spec"]["suspend"]:
            self._write(jobset, lambda obj: obj["spec"].update(suspend=True))
        elif not self.live_pods and is_true(workload, "QuotaReserved"):
            states = {"QuotaReserved": "False", "Admitted": "False"}  # evicted until it is admitted again
            self._write(workload, lambda obj: _set(obj, states))

    def deactivate(self) -> None:
        """Let Kueue's controller of Workloads evict a deactivated one."""
        workload = self._seen_workload
        if workload and not workload["spec"]["active"] and is_true(workload, "QuotaReserved"):
            self._write(workload, lambda obj: _set(obj, {"Evicted": "True"}))

    def schedule(self) -> None:
        """Let Kueue's scheduler admit the workload that it has seen, if there is capacity."""
        workload = self._seen_workload
        if workload is None or not self.has_capacity:
            return
        waits = workload["spec"]["active"] and not is_true(workload, "QuotaReserved")
        if waits and workload["spec"]["queueName"] == QUEUE:
            self._write(
                workload, lambda obj: _set(obj, {"QuotaReserved": "True", "Admitted": "True", "Evicted": "False"})
            )

    def run_jobs(self) -> None:
        """Let JobSet's controller create pods, or stop them."""
        if self.is_down:
            return
        jobset = self.jobset
        should_run = jobset is not None and not jobset["spec"]["suspend"] and not is_true(jobset, "Completed")
        if should_run and jobset is not None and not self.live_pods:
            self.pods = [_pod(jobset)]
        elif not should_run and self.live_pods:
            stopped = {"metadata": {"deletionTimestamp": _TIME}}
            self.pods = [merge_patch(pod, stopped) for pod in self.live_pods]
        self._changed(self)

    def settle(self) -> None:
        """Let every controller act once on what is there now."""
        for act in (self.reconcile, self.deactivate, self.schedule):
            self.refresh()
            act()
        self.run_jobs()
        self.end_pods()

    def end_pods(self) -> None:
        """Let pods end that were stopped."""
        if self.is_down:
            return
        self.pods = [pod for pod in self.pods if "deletionTimestamp" not in pod["metadata"]]
        self._changed(self)

    def train(self) -> bool:
        """Let the hosts do a step; return whether they did. After the last one the JobSet is completed."""
        running = [pod for pod in self.live_pods if "deletionTimestamp" not in pod["metadata"]]
        return self.jobset is not None and bool(running)

    def complete(self) -> None:
        """End all hosts successfully, once that can be written."""
        if self.is_down:
            return
        ended = {"status": {"phase": "Succeeded"}}
        self.pods = [merge_patch(pod, ended) for pod in self.live_pods]
        if self.jobset:
            self._write(self.jobset, lambda obj: _set(obj, {"Completed": "True"}))

    def run_out(self) -> None:
        """Take the capacity away: the queue controller evicts the workload."""
        self.has_capacity = False
        if self.workload and is_true(self.workload, "QuotaReserved"):
            self._write(self.workload, lambda obj: _set(obj, {"Evicted": "True"}))

    def _write(self, before: Obj, change: Callable[[Obj], object]) -> None:
        """Change an object as a controller does that has seen a version; do nothing if it is another one now."""
        current = self.jobset if before["kind"] == "JobSet" else self.workload
        if current is None or self.is_down:
            return
        if current["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]:
            changed = copy.deepcopy(current)
            change(changed)
            self._put(before["kind"], changed)

    def _put(self, kind: str, obj: Obj) -> None:
        stored = self._stored(obj)
        if kind == "JobSet":
            self.jobset = stored
        else:
            self.workload = stored
        self._changed(self)

    def _stored(self, obj: Obj) -> Obj:
        return {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(next(self._versions))}}


def _jobset(spec: CopySpec) -> Obj:
    container = {"name": "host", "command": ["true"]}
    job = {"parallelism": 1, "completions": 1, "template": {"metadata": {}, "spec": {"containers": [container]}}}
    annotations = {names.COPY_ANNOTATION: json.dumps(asdict(spec)), names.EPOCH_ANNOTATION: "0"}
    return {
        "kind": "JobSet",
        "metadata": {
            "name": NAME,
            "namespace": NAMESPACE,
            "uid": f"uid-{spec.cluster}",
            "creationTimestamp": _TIME,
            "labels": {names.QUEUE_LABEL: names.HELD_QUEUE, names.WORKLOAD_LABEL: NAME},
            "annotations": annotations,
        },
        "spec": {
            "suspend": True,
            "replicatedJobs": [{"name": "slice-job", "replicas": 1, "template": {"spec": job}}],
        },
        "status": {"conditions": []},
    }


def _workload(jobset: Obj) -> Obj:
    meta = jobset["metadata"]
    return {
        "kind": "Workload",
        "metadata": {
            "name": f"jobset-{NAME}",
            "namespace": NAMESPACE,
            "uid": f"workload-{meta['uid']}",
            "creationTimestamp": _TIME,
            "ownerReferences": [{"kind": "JobSet", "name": NAME, "uid": meta["uid"]}],
        },
        "spec": {"active": True, "queueName": meta["labels"][names.QUEUE_LABEL], "podSets": []},
        "status": {"conditions": []},
    }


def _pod(jobset: Obj) -> Obj:
    prefix = "jobset.sigs.k8s.io"
    labels = {
        f"{prefix}/jobset-uid": jobset["metadata"]["uid"],
        f"{prefix}/jobset-name": NAME,
        f"{prefix}/restart-attempt": "0",
    }
    return {
        "kind": "Pod",
        "metadata": {"name": "w-0", "namespace": NAMESPACE, "labels": labels, "creationTimestamp": _TIME},
        "spec": {"nodeName": "n", "containers": [{"name": "host"}]},
        "status": {"phase": "Running", "containerStatuses": [{"name": "host", "state": {"running": {}}}]},
    }


def _set(obj: Obj, states: dict[str, str]) -> None:
    """Set conditions of an object."""
    others = [item for item in obj["status"]["conditions"] if item["type"] not in states]
    new = [
        {"type": kind, "status": status, "reason": "Simulated", "message": "", "lastTransitionTime": _TIME}
        for kind, status in states.items()
    ]
    obj["status"]["conditions"] = others + new
