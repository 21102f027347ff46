"""Object helpers that all local controllers share: owners, conditions, requests, times."""

from __future__ import annotations

import copy
import uuid
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from xpk.api.base import Obj
from xpk.api.quantities import quantity as quantity
from xpk.api.quantities import requests as requests
from xpk.local import clock

JOBSET = "jobset.sigs.k8s.io/"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
PRIORITY_LABEL = "kueue.x-k8s.io/priority-class"
TOPOLOGY = "alpha.jobset.sigs.k8s.io/exclusive-topology"
INDEX = "batch.kubernetes.io/job-completion-index"
TRACKING = "batch.kubernetes.io/job-tracking"
ENDED = ("Succeeded", "Failed")


def now() -> str:
    """Return the current time in Kubernetes' format."""
    return _stamp(int(clock.time()))


@lru_cache(maxsize=8)  # the controllers write many times within a second
def _stamp(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def later(seconds: float) -> str:
    """Return a future time with full precision."""
    return datetime.fromtimestamp(clock.time() + seconds, UTC).isoformat()


def age(stamp: str) -> float:
    """Return the seconds since a time."""
    return clock.time() - datetime.fromisoformat(stamp).timestamp()


def new_uid() -> str:
    """Return a UID that sorts by creation time, which timestamps in whole seconds do not."""
    ticks = clock.time_ns() >> 2
    value = (ticks >> 12) << 80 | 8 << 76 | (ticks & 0xFFF) << 64 | 2 << 62 | int.from_bytes(clock.random_bytes(7))
    return str(uuid.UUID(int=value))


def label(obj: Obj, key: str) -> str:
    """Return a label's value, "" if it is not set."""
    labels = obj["metadata"].get("labels")
    return str(labels.get(key, "")) if labels else ""


def full_name(obj: Obj) -> str:
    """Return `namespace/name`."""
    return f"{obj['metadata'].get('namespace', '')}/{obj['metadata']['name']}"


def owner_reference(owner: Obj) -> Obj:
    """Return the reference that makes `owner` the controller of another object."""
    meta = owner["metadata"]
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": meta["name"],
        "uid": meta["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def owner_uid(obj: Obj) -> str:
    """Return the UID of an object's controller, "" without one."""
    references = obj["metadata"].get("ownerReferences")
    return str(references[0]["uid"]) if references else ""


def condition(obj: Obj, kind: str) -> Obj:
    """Return a condition, empty if it is not set."""
    conditions: list[Obj] = obj.get("status", {}).get("conditions", [])
    for item in conditions:
        if item["type"] == kind:
            return item
    return {}


def coordinator_address(jobset: Obj) -> str:
    """Return the DNS name of a JobSet's coordinator, "" without one."""
    leader, name = jobset["spec"].get("coordinator"), jobset["metadata"]["name"]
    if not leader:
        return ""
    pod_suffix = f"{leader['replicatedJob']}-{leader.get('jobIndex', 0)}-{leader.get('podIndex', 0)}"
    return f"{name}-{pod_suffix}.{jobset['spec']['network']['subdomain']}"


def is_true(obj: Obj, *kinds: str) -> bool:
    """Return whether one of these conditions is true."""
    for item in obj.get("status", {}).get("conditions", ()):
        if item["type"] in kinds and item.get("status") == "True":
            return True
    return False


def set_condition(obj: Obj, kind: str, holds: bool, reason: str, message: str = "") -> bool:
    """Set a condition; its time changes only with its status. Return whether the status changed."""
    old = condition(obj, kind)
    status = str(holds)
    changed = old.get("status") != status
    new = {"type": kind, "status": status, "reason": reason, "message": message}
    new["lastTransitionTime"] = now() if changed else old["lastTransitionTime"]
    conditions = obj.setdefault("status", {}).setdefault("conditions", [])
    if old:
        conditions[conditions.index(old)] = new
    else:
        conditions.append(new)
    return changed


def is_terminating(obj: Obj) -> bool:
    """Return whether an object is being deleted."""
    return "deletionTimestamp" in obj["metadata"]


def has_ended(pod: Obj) -> bool:
    """Return whether a pod's host has ended, or will never start."""
    return pod.get("status", {}).get("phase") in ENDED


def is_fenced(node: Obj) -> bool:
    """Return whether a node's taints evict its hosts."""
    return any(taint.get("effect") == "NoExecute" for taint in node.get("spec", {}).get("taints", ()))


def is_closed(node: Obj, tolerations: Iterable[Obj] = ()) -> bool:
    """Return whether a node accepts no new hosts with these tolerations: it is cordoned, or has another taint."""
    spec, tolerated = node.get("spec", {}), list(tolerations)
    taints = [taint for taint in spec.get("taints", ()) if taint.get("effect") in ("NoSchedule", "NoExecute")]
    return bool(spec.get("unschedulable")) or any(
        not any(_tolerates(toleration, taint) for toleration in tolerated) for taint in taints
    )


def selects(pod: Obj, node: Obj) -> bool:
    """Return whether a pod's node selector and its required node affinity allow a node."""
    spec, labels = pod["spec"], node["metadata"].get("labels", {})
    affinity = spec.get("affinity", {}).get("nodeAffinity", {}).get("requiredDuringSchedulingIgnoredDuringExecution")
    return spec.get("nodeSelector", {}).items() <= labels.items() and (
        affinity is None or any(_matches(term, labels) for term in affinity["nodeSelectorTerms"])
    )


def _matches(term: Obj, labels: Obj) -> bool:
    """Return whether labels have one of the values of each expression; a term without expressions matches no node."""
    expressions = term.get("matchExpressions") or ()
    return bool(expressions) and all(labels.get(one["key"]) in one["values"] for one in expressions)


def _tolerates(toleration: Obj, taint: Obj) -> bool:
    if toleration.get("effect") not in (None, "", taint.get("effect")):
        return False
    if toleration.get("operator") == "Exists":
        return toleration.get("key") in (None, "", taint.get("key"))
    same = toleration.get("key") == taint.get("key")
    return same and (toleration.get("value") or "") == (taint.get("value") or "")


def merge_patch(target: object, patch: object) -> Any:
    """Return `target` changed by a JSON merge patch (RFC 7386)."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key), value)
    return merged


def merge_applied(live: object, before: object, applied: object) -> object:
    """Return `live` with the fields of `wanted` set and those only in `before` removed; lists are replaced."""
    if not isinstance(applied, dict) or not isinstance(live, dict):
        return copy.deepcopy(applied)
    old = before if isinstance(before, dict) else {}
    merged = dict(live)
    for key in old.keys() - applied.keys():
        merged_value = merge_applied(merged.get(key), old[key], {}) if isinstance(old[key], dict) else None
        if merged_value:
            merged[key] = merged_value
        else:
            merged.pop(key, None)
    for key, value in applied.items():
        merged[key] = merge_applied(merged.get(key), old.get(key), value)
    return merged
