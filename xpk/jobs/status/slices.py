"""Slices that GKE forms from cubes for a workload: their states, while the workload waits for them."""

from __future__ import annotations

from collections.abc import Iterable

from xpk.api.base import Obj, ObjectApi
from xpk.api.text import short
from xpk.jobs.status.fields import condition, owned_by
from xpk.model import names, super_slices
from xpk.model.errors import AuthorizationError, MissingToolError

_FORMED = ("ACTIVE", "ACTIVE_DEGRADED")
_NAMED = 3  # slices of one state that are named
_WORDS = {
    "": "not looked at yet",
    "SliceNotCreated": "being checked",
    "SliceCreationFailed": "cannot be formed",
    "ACTIVATING": "being formed",
    "FAILED": "not formed",
    "DEACTIVATING": "being released",
    "INCOMPLETE": "being released",
}  # of the Slice's condition Ready, by its reason


def read_slices(api: ObjectApi, jobset: Obj, workloads: Iterable[Obj]) -> list[Obj]:
    """Return the Slices of a workload that waits for them, none for others or without permission. One request."""
    workload = owned_by(workloads, jobset["metadata"]["uid"])
    checks = (workload or {}).get("status", {}).get("admissionChecks") or []
    is_waiting = any(item.get("name") == names.SLICE_CHECK and item.get("state") != "Ready" for item in checks)
    if workload is None or not is_waiting:
        return []
    try:
        return [obj for obj in api.list("Slice", None) if _owner(obj) == _key(workload)]
    except (MissingToolError, AuthorizationError):
        return []


def unformed(slices: Iterable[Obj]) -> str:
    """Return the slices that are not formed, each with its state and GKE's message; "" if there are none."""
    groups: dict[str, list[str]] = {}
    for obj in slices:
        ready = condition(obj, "Ready")
        state, message = str(ready.get("reason", "")), short(ready.get("message"), 200)
        if state not in _FORMED:
            words = _WORDS.get(state, f"in state {state}")
            groups.setdefault(f"{words}: {message}" if message else words, []).append(_title(obj))
    return "; ".join(f"{_some(titles)} ({words})" for words, titles in groups.items())


def _title(obj: Obj) -> str:
    return f"{obj['metadata']['name']} of {obj.get('spec', {}).get('topology', 'unknown topology')}"


def _some(titles: list[str]) -> str:
    more = f" and {len(titles) - _NAMED} more" if len(titles) > _NAMED else ""
    return f"slice{'s' if len(titles) > 1 else ''} {', '.join(titles[:_NAMED])}{more}"


def _owner(obj: Obj) -> tuple[str, str]:
    annotations = obj["metadata"].get("annotations") or {}
    return str(annotations.get(super_slices.OWNER_NAMESPACE, "")), str(annotations.get(super_slices.OWNER_NAME, ""))


def _key(workload: Obj) -> tuple[str, str]:
    meta = workload["metadata"]
    return str(meta.get("namespace", "default")), str(meta["name"])
