"""Evidence from conditions that node problem detectors set on nodes."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from xpk.api.base import Obj, Objs
from xpk.api.text import rfc3339, short
from xpk.model.evidence import Evidence, EvidenceKind

# Conditions of the node problem detector, as on GKE. They are true while a problem lasts.
PROBLEMS = ("KernelDeadlock", "ReadonlyFilesystem")
WARNINGS = (
    *("FrequentKubeletRestart", "FrequentContainerdRestart", "FrequentDockerRestart"),
    *("FrequentUnregisterNetDevice", "CorruptDockerOverlay2"),
)
_KINDS: Mapping[str, EvidenceKind] = {
    **dict.fromkeys(PROBLEMS, EvidenceKind.PROBLEM),
    **dict.fromkeys(WARNINGS, EvidenceKind.WARNING),
}


def evidence_of_conditions(nodes: Objs, now: datetime) -> list[Evidence]:
    """Return the evidence of the conditions that are true now; it does not decay while they last."""
    return [
        _evidence(node, condition, now)
        for node in nodes
        for condition in node["status"].get("conditions") or []
        if condition.get("type") in _KINDS and condition.get("status") == "True"
    ]


def _evidence(node: Obj, condition: Obj, now: datetime) -> Evidence:
    kind, since = str(condition["type"]), str(condition.get("lastTransitionTime") or "")
    message = f"{kind}: {short(condition.get('message') or condition.get('reason') or 'reported by the node')}"
    return Evidence(
        node=str(node["metadata"]["name"]),
        kind=_KINDS[kind],
        time=rfc3339(now),
        source="node",
        number=f"{kind} {since}",
        message=message,
    )
