"""The out-of-service taint, and the annotations of nodes that xpk has fenced."""

from __future__ import annotations

from datetime import datetime

from xpk.api.base import Obj, ObjectApi
from xpk.api.text import rfc3339

TAINT = "node.kubernetes.io/out-of-service"
_REASON = "xpk.dev/fenced"  # the reason, while the node is fenced
_LEASE = "xpk.dev/fenced-lease"  # last renewal of its lease before that
_TIME = "xpk.dev/fenced-at"  # stays after the release: the budget counts it


def reason_of(node: Obj) -> str | None:
    """Return the reason for which xpk has fenced a node; None if xpk has not, or has released it."""
    reason = _annotations(node).get(_REASON)
    return reason if isinstance(reason, str) and is_tainted(node) else None


def is_tainted(node: Obj) -> bool:
    """Return whether a node is out of service, by xpk or by someone else."""
    return any(taint.get("key") == TAINT for taint in node["spec"].get("taints") or [])


def fenced_at(node: Obj) -> datetime | None:
    """Return the last time at which xpk has fenced a node; None if never."""
    return parse_time(_annotations(node).get(_TIME))


def has_renewed(node: Obj, renewed: datetime | None) -> bool:
    """Return whether the kubelet of a fenced node has renewed its lease since."""
    return renewed is not None and renewed != parse_time(_annotations(node).get(_LEASE))


def fence(api: ObjectApi, node: Obj, reason: str, *, renewed: datetime | None, now: datetime) -> None:
    """Put a node out of service and record the reason. Raises Modified if the node has changed since it was read."""
    time = rfc3339(now)
    taint = {"key": TAINT, "value": "nodeshutdown", "effect": "NoExecute", "timeAdded": time}
    marks = {_REASON: reason, _TIME: time, _LEASE: renewed.isoformat() if renewed else ""}
    _patch(api, node, marks, [*(node["spec"].get("taints") or []), taint])


def release(api: ObjectApi, node: Obj) -> None:
    """Put a fenced node back into service. Raises Modified if the node has changed since it was read."""
    taints = [taint for taint in node["spec"].get("taints") or [] if taint.get("key") != TAINT]
    _patch(api, node, {_REASON: None, _LEASE: None}, taints)


def parse_time(text: object) -> datetime | None:
    """Return an RFC 3339 time, None for anything else."""
    try:
        time = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return time if time.tzinfo else None


def _annotations(node: Obj) -> Obj:
    annotations: Obj = node["metadata"].get("annotations") or {}
    return annotations


def _patch(api: ObjectApi, node: Obj, marks: Obj, taints: list[Obj]) -> None:
    # With the version, since a patch replaces all taints: the node controller may have added one meanwhile.
    meta = {"resourceVersion": node["metadata"].get("resourceVersion"), "annotations": marks}
    api.patch("Node", node["metadata"]["name"], {"metadata": meta, "spec": {"taints": taints or None}})
