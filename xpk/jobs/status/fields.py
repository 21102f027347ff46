"""Accessors of fields of objects that any tool may have created: every optional field may be missing."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from xpk.api.base import Obj

PREFIX = "jobset.sigs.k8s.io"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
PRIORITY_LABEL = "kueue.x-k8s.io/priority-class"
_INDEX = "batch.kubernetes.io/job-completion-index"
_NUMBER = re.compile(r"[0-9]{1,9}")
_NEVER = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """All objects that determine the status of the workloads in a namespace, read once.

    `workloads` and `local_queues` are those of all namespaces, if the user may read them. `all_up`: UIDs of JobSets
    whose hosts that are not in `pods` are all running. `slices`: those that GKE forms for a named workload.
    """

    jobsets: list[Obj]
    workloads: list[Obj] = field(default_factory=list)
    local_queues: list[Obj] = field(default_factory=list)
    cluster_queues: list[Obj] = field(default_factory=list)
    pods: list[Obj] = field(default_factory=list)
    events: list[Obj] = field(default_factory=list)
    all_up: Collection[str] = ()
    slices: list[Obj] = field(default_factory=list)

    @cached_property
    def workload_of(self) -> Mapping[str, Obj]:
        """Return the first of Kueue's workloads of each owner, by its UID."""
        by_owner: dict[str, Obj] = {}
        for workload in self.workloads:
            for uid in owners_of(workload):
                by_owner.setdefault(uid, workload)
        return by_owner

    @cached_property
    def pods_of(self) -> Mapping[str, list[Obj]]:
        """Return the pods of each JobSet, by its UID."""
        by_jobset: dict[str, list[Obj]] = {}
        for pod in self.pods:
            by_jobset.setdefault(label(pod, f"{PREFIX}/jobset-uid"), []).append(pod)
        return by_jobset


def jobs_in(spec: Obj) -> list[Obj]:
    """Return the replicated jobs of a JobSet's spec, which may have none."""
    jobs: list[Obj] = spec.get("replicatedJobs") or []
    return jobs


def condition(obj: Obj | None, kind: str) -> Mapping[str, Any]:
    """Return a condition, empty if there is none."""
    conditions = (obj or {}).get("status", {}).get("conditions") or []
    return next((item for item in conditions if item.get("type") == kind), {})


def is_true(obj: Obj | None, kind: str) -> bool:
    """Return True if a condition is True."""
    return condition(obj, kind).get("status") == "True"


def label(obj: Obj, key: str) -> str:
    """Return a label, "" if there is none."""
    return str((obj["metadata"].get("labels") or {}).get(key, ""))


def owners_of(obj: Obj) -> list[str]:
    """Return the UIDs of an object's owners."""
    return [str(owner.get("uid")) for owner in obj["metadata"].get("ownerReferences") or []]


def owned_by(objects: Iterable[Obj], *uids: str) -> Obj | None:
    """Return the first object with an owner of one of these UIDs."""
    return next(
        (obj for obj in objects if any(ref.get("uid") in uids for ref in obj["metadata"].get("ownerReferences") or [])),
        None,
    )


def host_key(pod: Obj) -> tuple[int, int]:
    """Return a pod's (slice, host)."""
    # With several replicated jobs, only the global index is unique to a slice.
    slice_id = label(pod, f"{PREFIX}/job-global-index") or label(pod, f"{PREFIX}/job-index")
    index = (pod["metadata"].get("annotations") or {}).get(_INDEX) or label(pod, _INDEX)
    return number(slice_id), number(index)


def number(text: object) -> int:
    """Return a number in a label, 0 for a missing or invalid one."""
    return int(text) if isinstance(text, str) and _NUMBER.fullmatch(text) else 0


def host_label(pod: Obj) -> str:
    """Return the label of a pod's host: `s0/h1`."""
    return "s{}/h{}".format(*host_key(pod))


def when(text: object) -> datetime:
    """Return an object's time as a comparable datetime; the earliest time for an invalid one."""
    try:
        time = datetime.fromisoformat(str(text))
    except ValueError:
        return _NEVER
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def event_times(event: Obj) -> tuple[str, str, int]:
    """Return the first and the last time of an event, and its count. Controllers write two forms of events."""
    series = event.get("series") or {}
    stamps = (event.get("firstTimestamp"), event.get("eventTime"), event["metadata"].get("creationTimestamp"))
    first = str(next(filter(None, stamps), event.get("lastTimestamp")) or "")
    last = str(series.get("lastObservedTime") or event.get("lastTimestamp") or first)
    return first or last, last, int(series.get("count") or event.get("count") or 1)
