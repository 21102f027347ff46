"""The taint and the annotations of quarantined nodes, and the evidence that nodes carry."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

from xpk.api.base import Obj, ObjectApi, Objs
from xpk.api.text import rfc3339
from xpk.capacity.nodes.change import change_node
from xpk.capacity.nodes.inventory import pool_of
from xpk.capacity.nodes.out_of_service import parse_time
from xpk.model import names
from xpk.model.errors import AuthorizationError, NotFoundError
from xpk.model.evidence import Evidence, from_text, merged, to_text

TAINT = names.QUARANTINE_TAINT
_REASON = names.QUARANTINE_REASON
_TIME = "xpk.dev/quarantined-at"
_RETURNED = "xpk.dev/returned-at"  # evidence from before counts no more
_PASSES = "xpk.dev/preflight-passes"  # preflight checks that the slice has passed in a row since its quarantine
_LONGEST = 1000  # characters of an event


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantine:
    """Quarantine of a node: its reason, the time at which it began, and the checks since."""

    reason: str
    since: str
    passes: int = 0  # preflight checks that the slice has passed in a row since then


def quarantine_of(node: Obj) -> Quarantine | None:
    """Return the quarantine of a node, None if it is not quarantined."""
    taint = next((item for item in node["spec"].get("taints") or [] if item.get("key") == TAINT), None)
    if taint is None:
        return None
    marks = _annotations(node)
    since = str(marks.get(_TIME) or taint.get("timeAdded") or "")
    passes = str(marks.get(_PASSES) or "")
    return Quarantine(
        reason=str(marks.get(_REASON) or ""), since=since, passes=int(passes) if passes.isdecimal() else 0
    )


def kept_evidence(node: Obj) -> list[Evidence]:
    """Return the evidence that a node carries."""
    return from_text(str(node["metadata"]["name"]), _annotations(node).get(names.EVIDENCE_ANNOTATION))


def relevant(node: Obj, evidence: Iterable[Evidence]) -> list[Evidence]:
    """Return the evidence against a node since it was last returned to service, with what it carries."""
    name, returned = str(node["metadata"]["name"]), parse_time(_annotations(node).get(_RETURNED))
    own = merged(kept_evidence(node), (one for one in evidence if one.node == name))
    return [one for one in own if returned is None or (parse_time(one.time) or returned) > returned]


def keep_evidence(api: ObjectApi, node: Obj, evidence: list[Evidence], now: datetime) -> bool:
    """Store evidence on a node; return whether it is new."""
    text = to_text(evidence, now)
    if {one.key for one in from_text("", text)} == {("", *one.key[1:]) for one in kept_evidence(node)}:
        return False
    has_some = text != "[]"
    marks = {names.EVIDENCE_ANNOTATION: text if has_some else None}
    labels = {names.EVIDENCE_LABEL: "true" if has_some else None}
    with suppress(NotFoundError):  # the node was deleted
        api.patch("Node", node["metadata"]["name"], {"metadata": {"annotations": marks, "labels": labels}})
    return True


def quarantine(api: ObjectApi, nodes: Objs, suspect: str, reason: str, now: datetime) -> None:
    """Quarantine all nodes of a slice because of one of them: a taint, annotations and an event on each.

    Raises Modified if others change a node again and again.
    """
    time = rfc3339(now)
    taint = {"key": TAINT, "value": "true", "effect": "NoSchedule", "timeAdded": time}
    labels = {names.QUARANTINE_LABEL: "true"}
    for node in nodes:
        name = str(node["metadata"]["name"])
        why = reason if name == suspect else f"in the slice of {suspect}: {reason}"
        if _change(api, name, [taint], {_REASON: why, _TIME: time, _PASSES: None}, labels):
            _event(api, node, "Quarantined", f"Quarantined slice {pool_of(node)}: {why}", now, is_warning=True)


def complete(api: ObjectApi, nodes: Objs, now: datetime) -> None:
    """Quarantine the other nodes of slices that are partly quarantined: a command was interrupted, or a node is new.

    Slices are left alone whose nodes were returned to service since: another client returns them right now, or the
    user can repeat the command.
    """
    for pool in sorted({*map(pool_of, nodes)}):
        members = [node for node in nodes if pool_of(node) == pool]
        if _is_returning(members):
            continue
        missing = [node for node in members if quarantine_of(node) is None]
        kept = [(mark.reason, node) for node in members if (mark := quarantine_of(node))]
        if missing and kept:
            reason, node = min(kept, key=lambda pair: len(pair[0]))  # the others name the suspect first
            quarantine(api, missing, str(node["metadata"]["name"]), reason, now)


def _is_returning(members: Objs) -> bool:
    """Return whether nodes of a slice were returned to service after the other ones were quarantined."""
    since = [parse_time(mark.since) for node in members if (mark := quarantine_of(node))]
    returned = [parse_time(_annotations(node).get(_RETURNED)) for node in members if not quarantine_of(node)]
    return any(time and began and time > began for time in returned for began in since)


def record_check(api: ObjectApi, nodes: Objs, *, passed: bool) -> int:
    """Record a preflight check of a quarantined slice; return how many it has passed in a row.

    Raises Modified if others change a node again and again.
    """
    passes = passes_of(nodes) + 1 if passed else 0

    def patch_of(node: Obj) -> Obj | None:
        # One that was returned to service meanwhile stays there.
        return {"metadata": {"annotations": {_PASSES: str(passes)}}} if quarantine_of(node) else None

    for node in nodes:
        change_node(api, str(node["metadata"]["name"]), patch_of)
    return passes


def passes_of(nodes: Objs) -> int:
    """Return how many preflight checks all quarantined nodes of a slice have passed in a row."""
    return min((mark.passes for node in nodes if (mark := quarantine_of(node))), default=0)


def release(api: ObjectApi, nodes: Objs, now: datetime) -> None:
    """Return the nodes of a slice to service. Raises Modified if others change a node again and again."""
    marks = {_REASON: None, _TIME: None, _PASSES: None, _RETURNED: rfc3339(now), names.EVIDENCE_ANNOTATION: None}
    labels = {names.EVIDENCE_LABEL: None, names.QUARANTINE_LABEL: None}
    for node in nodes:
        if _change(api, str(node["metadata"]["name"]), [], marks, labels):
            message = f"Returned slice {pool_of(node)} to service"
            _event(api, node, "ReturnedToService", message, now, is_warning=False)


def _annotations(node: Obj) -> Obj:
    annotations: Obj = node["metadata"].get("annotations") or {}
    return annotations


def _change(api: ObjectApi, name: str, own: Objs, marks: Obj, labels: Obj) -> bool:
    """Set the taint, annotations and labels of a node; return False if it was deleted."""

    def patch_of(node: Obj) -> Obj:
        taints = [taint for taint in node["spec"].get("taints") or [] if taint.get("key") != TAINT]
        return {"metadata": {"annotations": marks, "labels": labels}, "spec": {"taints": [*taints, *own] or None}}

    return change_node(api, name, patch_of)


def _event(api: ObjectApi, node: Obj, reason: str, message: str, now: datetime, *, is_warning: bool) -> None:
    """Record an event of a node, as kubelets do: in the namespace `default`."""
    name, time = str(node["metadata"]["name"]), rfc3339(now)
    about = {"kind": "Node", "apiVersion": "v1", "name": name, "uid": node["metadata"].get("uid", "")}
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{name}.{uuid.uuid4().hex[:16]}", "namespace": "default"},
        "involvedObject": about,
        "reason": reason,
        "message": message[:_LONGEST],
        "type": "Warning" if is_warning else "Normal",
        "source": {"component": "xpk"},
        "firstTimestamp": time,
        "lastTimestamp": time,
        "count": 1,
    }
    with suppress(AuthorizationError):  # the annotations say the same
        api.create(event)
