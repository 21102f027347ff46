"""Nodes of a cluster with their evidence, as `xpk node list` shows them, and the state of slices for the verdict."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from xpk.api.base import Obj, ObjectApi, Objs
from xpk.capacity.nodes.health import SliceHealth, health_of
from xpk.capacity.nodes.inventory import holders, in_slices, pool_of, pool_order
from xpk.capacity.nodes.quarantine import quarantine_of, relevant
from xpk.capacity.provider import ClusterInfo
from xpk.capacity.quarantine.verdict import SliceState
from xpk.model.errors import NotFoundError
from xpk.model.evidence import THRESHOLD, Evidence, scores


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeInfo:
    """A node of a slice, and the evidence against it since it was last returned to service."""

    node: str  # name of the node
    slice: str  # its slice: the node pool
    state: str  # InService, Suspect or Quarantined
    score: float  # sum of the decayed weights of the evidence; a node is a suspect from 1
    reason: str = ""  # reason of the quarantine
    since: str | None = None  # time of the quarantine
    passes: int = 0  # preflight checks that its slice has passed in a row since the quarantine
    workload: str | None = None  # workload on the node; null if there is none
    evidence: tuple[Evidence, ...] = ()  # evidence, oldest first


def evidence_on(nodes: Objs, observed: Sequence[Evidence]) -> list[Evidence]:
    """Return the evidence that counts: what nodes carry and what is observed, since they were last returned."""
    return [one for node in nodes for one in relevant(node, observed)]


def list_nodes(api: ObjectApi, nodes: Objs, observed: Sequence[Evidence], now: datetime) -> list[NodeInfo]:
    """Return the nodes of slices: quarantined ones first, then by score."""
    evidence, workloads = evidence_on(nodes, observed), holders(api)
    score_of = scores(evidence, now, observed)
    infos = []
    for node in nodes:
        name, quarantine = str(node["metadata"]["name"]), quarantine_of(node)
        score = score_of.get(name, 0.0)
        infos.append(
            NodeInfo(
                node=name,
                slice=pool_of(node),
                state="Quarantined" if quarantine else "Suspect" if score >= THRESHOLD else "InService",
                score=round(score, 2),
                reason=quarantine.reason if quarantine else "",
                since=quarantine.since or None if quarantine else None,
                passes=quarantine.passes if quarantine else 0,
                workload=workloads.get(name),
                evidence=tuple(one for one in evidence if one.node == name),
            )
        )
    return sorted(infos, key=lambda info: (info.state != "Quarantined", -info.score, pool_order(info.node)))


def nodes_of_slices(api: ObjectApi) -> Objs:
    """Return the nodes of slices, in order."""
    return sorted(in_slices(api.list("Node")), key=lambda node: pool_order(str(node["metadata"]["name"])))


def slice_states(api: ObjectApi, info: ClusterInfo, nodes: Objs) -> list[SliceState]:
    """Return the slices as the verdict sees them. A slice is idle if it is free and a workload can start on it."""
    return [_state(health, nodes) for health in health_of(api, info) if health.hosts]


def _state(health: SliceHealth, nodes: Objs) -> SliceState:
    own = [node for node in nodes if pool_of(node) == health.node_pool]
    return SliceState(
        name=health.node_pool,
        accelerator_type=health.accelerator_type,
        nodes=tuple(str(node["metadata"]["name"]) for node in own),
        is_idle=health.workload is None and health.is_usable,
        is_quarantined=any(map(quarantine_of, own)),
    )


def slice_of(nodes: Objs, name: str) -> tuple[Obj, Objs]:
    """Return a node and all nodes of its slice. Raises NotFoundError with the closest names."""
    node = next((node for node in nodes if node["metadata"]["name"] == name), None)
    if node is None:
        existing = [str(node["metadata"]["name"]) for node in nodes]
        of_pool = [str(node["metadata"]["name"]) for node in nodes if pool_of(node) == name]
        close = of_pool or difflib.get_close_matches(name, existing, n=3) or existing
        more = f" and {len(close) - 3} more" if len(close) > 3 else ""
        hint = f"choose from {', '.join(close[:3])}{more}" if close else "`xpk node list` lists the nodes"
        hint = f"'{name}' is a slice: {hint}" if of_pool else hint
        raise NotFoundError(f"no slice has a node '{name}'", hint=hint, resource=f"node '{name}'")
    return node, [other for other in nodes if pool_of(other) == pool_of(node)]
