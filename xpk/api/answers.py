"""Validation of an API server's responses before other code reads them. Pure, except for warnings.

A response that is not a Kubernetes object is an error. In an object, a field of an unexpected type is dropped with a
warning, so that one malformed object does not hide all others.
"""

from __future__ import annotations

import json
import logging
import re
from datetime import datetime
from functools import lru_cache
from typing import Any, cast

from xpk.api.base import Change, Keep, Obj, Objs
from xpk.api.connection import foreign_server, malformed_response
from xpk.api.kinds import Kind
from xpk.api.text import short
from xpk.model.terminal import printable

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_MAX_WARNINGS = 3
_CHANGES = ("ADDED", "MODIFIED", "DELETED")
_UNNAMED = ("SelfSubjectAccessReview",)  # kinds that a server answers and does not store
_log = logging.getLogger(__name__)


class _Time:
    """A time in RFC 3339."""


_ANY = "*"  # every other key
_NEEDED: Any = object()  # the keys without which an item of a list is dropped
_TEXTS = {_ANY: str}
_STATE = {
    "terminated": {"exitCode": int, "reason": str, "message": str, "startedAt": _Time, "finishedAt": _Time},
    "running": {"startedAt": _Time},
    "waiting": {"reason": str, "message": str},
}
_CONTAINER = {
    "name": str, "image": str, "command": [str], "args": [str], "env": [{"name": str, "value": str}],
    "resources": {"limits": dict, "requests": dict},
}  # fmt: skip
_POD = {
    "nodeName": str, "nodeSelector": _TEXTS, "containers": [_CONTAINER], "initContainers": [_CONTAINER],
    "volumes": [dict], "readinessGates": [dict],
}  # fmt: skip
_RAN = [{"name": str, "image": str, "containerID": str, "state": _STATE, "lastState": _STATE}]
_META = {
    "name": str, "namespace": str, "uid": str, "resourceVersion": str, "generation": int,
    "creationTimestamp": _Time, "deletionTimestamp": _Time, "labels": _TEXTS, "annotations": _TEXTS,
    "ownerReferences": [{_NEEDED: ("name",), "name": str, "kind": str, "uid": str}],
    "managedFields": [{"manager": str}], "finalizers": [str],
}  # fmt: skip
_CONDITIONS = [
    {
        _NEEDED: ("type", "status"),
        "type": str,
        "status": str,
        "reason": str,
        "message": str,
        "lastTransitionTime": _Time,
    }
]
_FLAVORS = [
    {_NEEDED: ("name", "resources"), "name": str, "resources": [{_NEEDED: ("name",), "name": str}]},
]  # fmt: skip
_JOBS = {"name": str, "jobRestarts": [int], "jobRestartsCountTowardsMax": [int]}
_OBJECT = {"metadata": _META, "spec": dict, "status": {"conditions": _CONDITIONS}}
_SPECS: dict[str, dict[str, Any]] = {
    "JobSet": {
        "suspend": bool,
        "failurePolicy": {"maxRestarts": int},
        "replicatedJobs": [
            {
                "name": str,
                "replicas": int,
                "template": {
                    "spec": {"parallelism": int, "completions": int, "template": {"metadata": dict, "spec": _POD}}
                },
            }
        ],
    },
    "Pod": _POD,
    "Node": {"taints": [{_NEEDED: ("key",), "key": str, "value": str, "effect": str}]},
    "Workload": {
        "active": bool,
        "priority": int,
        "queueName": str,
        "podSets": [
            {_NEEDED: ("template",), "name": str, "count": int, "template": {_NEEDED: ("spec",), "spec": _POD}}
        ],
    },
    "LocalQueue": {"clusterQueue": str},
    "ResourceFlavor": {"nodeLabels": _TEXTS},
    "ClusterQueue": {
        "cohortName": str,
        "preemption": {"withinClusterQueue": str, "reclaimWithinCohort": str, "borrowWithinCohort": {"policy": str}},
        "admissionChecksStrategy": {"admissionChecks": [{_NEEDED: ("name",), "name": str, "onFlavors": [str]}]},
        "resourceGroups": [
            {_NEEDED: ("flavors",), "coveredResources": [str], "flavors": _FLAVORS},
        ],
    },
}
_STATUSES: dict[str, dict[str, Any]] = {
    "JobSet": {"restarts": int, "restartsCountTowardsMax": int, "replicatedJobsStatus": [_JOBS]},
    "Pod": {"phase": str, "reason": str, "podIP": str, "containerStatuses": _RAN, "initContainerStatuses": _RAN},
    "Node": {"allocatable": dict, "capacity": dict},
    "Workload": {
        "admission": {"clusterQueue": str, "podSetAssignments": [dict]},
        "admissionChecks": [{"name": str, "state": str, "message": str, "retryCount": int}],
        "requeueState": {"requeueAt": _Time, "count": int},
    },
    "ClusterQueue": {
        "flavorsReservation": _FLAVORS,
        "flavorsUsage": _FLAVORS,
        "pendingWorkloads": int,
        "admittedWorkloads": int,
        "reservingWorkloads": int,
    },
}
_OTHERS: dict[str, dict[str, Any]] = {
    "Event": {
        "involvedObject": {"kind": str, "name": str, "uid": str, "namespace": str}, "reason": str, "message": str,
        "type": str, "count": int, "firstTimestamp": _Time, "lastTimestamp": _Time, "eventTime": _Time,
        "series": {"count": int, "lastObservedTime": _Time},
    },
    "ConfigMap": {"data": _TEXTS},
}  # fmt: skip


def parsed(host: str, answer: bytes) -> Obj:
    """Return the parsed response of an API server. Raises XpkError if it is not one."""
    try:
        value = _json(answer or b"{}")
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise foreign_server(host, answer)
    return value


def page_of(host: str, kind: Kind, answer: Obj, keep: Keep | None = None) -> tuple[Objs, str, str]:
    """Return one page of a list: its objects, its version, and the continue token ("" on the last page).

    Only the fields that `keep` returns are checked, which takes longer than to parse them.
    Raises XpkError if the response is not a list. Items that are not objects are dropped with a warning.
    """
    meta, items = answer.get("metadata"), answer.get("items", ...)
    if not isinstance(meta, dict) or not isinstance(items, list | None):
        lacks = "metadata" if not isinstance(meta, dict) else "items"
        raise malformed_response(host, f"a list of {kind.plural} without {lacks}")
    objs: Objs = []
    odd: list[str] = []
    for item in items or []:
        if not is_object(item):
            odd.append(f"{kind.name} without a name")
            continue
        # Items of a list lack these two.
        objs.append({"apiVersion": kind.api_version, "kind": kind.name, **(keep(item) if keep else item)})
        odd += _odd_in(kind, objs[-1])
    _warn(host, odd)
    return objs, str(meta.get("resourceVersion") or ""), str(meta.get("continue") or "")


def object_of(host: str, kind: Kind, answer: Obj) -> Obj:
    """Return a single object. Raises XpkError if the response is not one."""
    if kind.name in _UNNAMED:
        if not isinstance(answer.get("status"), dict):
            raise malformed_response(host, f"a {kind.name} without a status")
    elif not is_object(answer):
        raise malformed_response(host, f"a {kind.name} without a name")
    _warn(host, _odd_in(kind, answer))
    return answer


def event_of(host: str, kind: Kind, line: str) -> tuple[Change | None, Obj]:
    """Return one watch event: its type (None for a bookmark) and its object.

    Raises XpkError for a line that is not an event, and WatchError for an ERROR event.
    """
    event = parsed(host, line.encode(errors="surrogateescape"))
    change, obj = event.get("type"), event.get("object")
    if change == "ERROR":
        raise WatchError(short(obj.get("message")) if isinstance(obj, dict) else "")
    if change == "BOOKMARK" and isinstance(obj, dict) and isinstance(obj.get("metadata"), dict):
        return None, obj
    if change not in _CHANGES or not isinstance(obj, dict) or not is_object(obj):
        raise malformed_response(host, f"an event of {kind.plural} without an object")
    _warn(host, _odd_in(kind, obj))
    return cast(Change, change), obj


class WatchError(Exception):
    """A watch that the server ended with an error, such as 410: the resource version to resume from expired."""


def is_object(value: object) -> bool:
    """Return whether a response is a Kubernetes object, that is, has a name."""
    meta = value.get("metadata") if isinstance(value, dict) else None
    return isinstance(meta, dict) and isinstance(meta.get("name"), str) and bool(meta["name"])


def _json(text: bytes) -> Any:
    value = json.loads(text, parse_constant=_refuse)
    if _SURROGATE.search(text):  # lone surrogates cannot be printed
        value = json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))
    return value


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _odd_in(kind: Kind, obj: Obj) -> list[str]:
    """Drop an object's fields of unexpected types, add the fields of every object, and return what was dropped."""
    removed: list[str] = []
    _prune(obj, _OBJECT, "", removed)
    for managed in obj["metadata"].get("managedFields") or []:
        managed.pop("fieldsV1", None)  # half of a pod; xpk reads only the managers' names
    for part, shapes in (("spec", _SPECS), ("status", _STATUSES)):
        if isinstance(obj.get(part), dict):
            _prune(obj[part], shapes.get(kind.name, {}), f"{part}.", removed)
    _prune(obj, _OTHERS.get(kind.name, {}), "", removed)
    meta = obj["metadata"]
    for name in ("uid", "creationTimestamp", "resourceVersion"):
        meta.setdefault(name, "")
    if kind.namespaced:
        meta.setdefault("namespace", "default")
    for part, shapes in (("spec", _SPECS), ("status", _STATUSES)):
        if kind.name in shapes:
            obj.setdefault(part, {})
    return [f"{kind.name} '{meta['name']}': {field}" for field in removed]


def _prune(obj: Obj, shape: dict[str, Any], path: str, removed: list[str]) -> None:
    """Drop the fields of `found` whose types differ from `shape`; nulls are dropped silently."""
    other = shape.get(_ANY)
    if other is str and all(type(value) is str for value in obj.values()):
        return  # labels and annotations, most of what is checked
    for key in list(obj) if other else [key for key in shape if key in obj]:
        field_shape, value = shape.get(key, other), obj[key]
        if value is None:
            del obj[key]
        elif field_shape is not None and not _fits(value, field_shape, f"{path}{key}", removed):
            del obj[key]
            removed.append(f"{path}{key} {short(json.dumps(value), 40)}")


def _fits(value: Any, shape: Any, path: str, removed: list[str]) -> bool:
    """Return whether a value has a type; the contents of lists and objects are pruned to fit."""
    if isinstance(shape, dict):
        if isinstance(value, dict):
            _prune(value, shape, f"{path}.", removed)
        return isinstance(value, dict)
    if isinstance(shape, list):
        if isinstance(value, list):
            odd = [item for item in value if not _fits(item, shape[0], path, removed) or _lacks(item, shape[0])]
            removed += [f"{path}[] {short(json.dumps(item), 40)}" for item in odd]
            if odd:
                value[:] = [item for item in value if not any(item is bad for bad in odd)]
        return isinstance(value, list)
    if shape is _Time:
        return isinstance(value, str) and _is_time(value)
    if shape is int:
        return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 63
    return isinstance(value, shape)


def _lacks(item: Any, shape: Any) -> bool:
    """Return whether an item of a list, or an object in it, lacks a field that it must have."""
    needed = shape.get(_NEEDED, ()) if isinstance(shape, dict) else ()
    return any(key not in item or _lacks(item[key], shape.get(key)) for key in needed)


@lru_cache(maxsize=4096)  # the pods of a workload have few different times
def _is_time(text: str) -> bool:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


def _warn(host: str, odd: list[str]) -> None:
    """Warn about malformed objects: list the first few and count the rest."""
    for message in odd[:_MAX_WARNINGS]:
        _log.warning("warning: %s  sent a malformed object, ignoring part of it: %s", host, printable(short(message)))
    if len(odd) > _MAX_WARNINGS:
        _log.warning("warning: %s sent %d more malformed objects", host, len(odd) - _MAX_WARNINGS)
