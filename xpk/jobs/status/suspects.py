"""Hosts of a workload on nodes with evidence against them."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from xpk.api.base import ObjectApi
from xpk.jobs.status.fields import PREFIX, host_key
from xpk.model import names
from xpk.model.errors import AuthorizationError
from xpk.model.evidence import from_text, scores
from xpk.model.status import SuspectHost, WorkloadStatus

_LEAST = 0.05  # score that is worth mentioning
_MOST_NODES = 20  # nodes on which hosts are looked for, those with the highest scores


def with_suspects(api: ObjectApi, status: WorkloadStatus) -> WorkloadStatus:
    """Return a status with the hosts on nodes with evidence; unchanged without permission to list nodes.

    Only evidence that nodes carry counts. They have a label, so that the API server returns few of them.
    """
    if status.phase.is_final:
        return status
    try:
        nodes = api.list("Node", selector={names.EVIDENCE_LABEL: "true"})
    except AuthorizationError:
        return status
    evidence = [
        one
        for node in nodes
        for one in from_text(
            str(node["metadata"]["name"]), (node["metadata"].get("annotations") or {}).get(names.EVIDENCE_ANNOTATION)
        )
    ]
    highest = sorted(scores(evidence, datetime.now(UTC)).items(), key=lambda item: (-item[1], item[0]))[:_MOST_NODES]
    suspects = [
        SuspectHost(slice=place[0], host=place[1], node=node, score=round(score, 2))
        for node, score in highest
        if score >= _LEAST
        for place in _places(api, status, node)
    ]
    return replace(status, suspects=tuple(suspects))


def _places(api: ObjectApi, status: WorkloadStatus, node: str) -> list[tuple[int, int]]:
    """Return the slice and the index of the workload's hosts on a node."""
    own = {f"{PREFIX}/jobset-name": status.name}
    pods = api.list("Pod", status.namespace, own, fields={"spec.nodeName": node})
    on = [pod for pod in pods if (pod.get("status") or {}).get("phase") in ("Pending", "Running")]
    return sorted(host_key(pod) for pod in on)
