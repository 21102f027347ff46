"""Hosts of a workload on nodes with evidence against them, and on quarantined slices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime

from xpk.api.base import Obj, ObjectApi, Objs
from xpk.jobs.status.fields import PREFIX, host_key
from xpk.model import names
from xpk.model.accelerators import NODEPOOL_LABEL
from xpk.model.errors import AuthorizationError
from xpk.model.evidence import from_text, scores
from xpk.model.status import SuspectHost, WorkloadStatus

_LEAST = 0.05  # score that is worth mentioning
_MOST_NODES = 20  # nodes on which hosts are looked for, those with the highest scores


def with_suspects(api: ObjectApi, status: WorkloadStatus) -> WorkloadStatus:
    """Return a status with the hosts on nodes with evidence, and one host of each quarantined slice without any.

    Unchanged without permission to list nodes. Only evidence that nodes carry counts. These nodes have labels, so that
    the API server returns few.
    """
    if status.phase.is_final:
        return status
    try:
        marked = api.list("Node", selector={names.EVIDENCE_LABEL: "true"})
        quarantined = api.list("Node", selector={names.QUARANTINE_LABEL: "true"})
    except AuthorizationError:
        return status
    reasons = {_name(node): reason for node in (*marked, *quarantined) if (reason := _quarantine(node)) is not None}
    score_of = _highest_scores(marked)
    known = {_pool(node) for node in marked if _name(node) in score_of}
    # The node because of which a slice was quarantined has the shortest reason: the others name it first.
    by_reason = sorted(reasons.items(), key=lambda item: (-len(item[1]), item[0]))
    pool_of = {_name(node): _pool(node) for node in quarantined}
    first = {pool_of[name]: name for name, _ in by_reason if name in pool_of}
    others = [name for pool, name in sorted(first.items()) if pool not in known]
    suspects = [
        SuspectHost(
            slice=place[0], host=place[1], node=node, score=score_of.get(node, 0.0), quarantine=reasons.get(node)
        )
        for node in (*score_of, *others[:_MOST_NODES])
        for place in _places(api, status, node)
    ]
    return replace(status, suspects=tuple(suspects))


def _highest_scores(nodes: Objs) -> Mapping[str, float]:
    """Return the highest scores of the evidence that nodes carry, by the names of the nodes, highest first."""
    evidence = [
        one for node in nodes for one in from_text(_name(node), _annotations(node).get(names.EVIDENCE_ANNOTATION))
    ]
    highest = sorted(scores(evidence, datetime.now(UTC)).items(), key=lambda item: (-item[1], item[0]))[:_MOST_NODES]
    return {node: round(score, 2) for node, score in highest if score >= _LEAST}


def _quarantine(node: Obj) -> str | None:
    """Return the reason of a node's quarantine, None if it is not quarantined."""
    if not any(taint.get("key") == names.QUARANTINE_TAINT for taint in node["spec"].get("taints") or []):
        return None
    return str(_annotations(node).get(names.QUARANTINE_REASON) or "")


def _name(node: Obj) -> str:
    return str(node["metadata"]["name"])


def _pool(node: Obj) -> str:
    """Return the slice of a node: its node pool, which is quarantined as a whole."""
    return str((node["metadata"].get("labels") or {}).get(NODEPOOL_LABEL) or _name(node))


def _annotations(node: Obj) -> Obj:
    annotations: Obj = node["metadata"].get("annotations") or {}
    return annotations


def _places(api: ObjectApi, status: WorkloadStatus, node: str) -> list[tuple[int, int]]:
    """Return the slice and the index of the workload's hosts on a node."""
    own = {f"{PREFIX}/jobset-name": status.name}
    pods = api.list("Pod", status.namespace, own, fields={"spec.nodeName": node})
    on = [pod for pod in pods if (pod.get("status") or {}).get("phase") in ("Pending", "Running")]
    return sorted(host_key(pod) for pod in on)
