"""Reports of a workload's other hosts that they have lost the host on a node."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime

from xpk.api.base import Obj, ObjectApi, Objs
from xpk.capacity.nodes.out_of_service import parse_time

_PREFIX = "jobset.sigs.k8s.io"
_INDEX = "batch.kubernetes.io/job-completion-index"
_VOUCHED = "kueue.x-k8s.io/safe-to-forcefully-delete"  # annotation of hosts whose second incarnation does no harm
_PEER_LOST = 75
_LOST = re.compile(r"lost slice (\d+) host (\d+)")
_FAILED = re.compile(rf"Container \S+ for pod (?:\S+/)?(\S+) failed with exit code {_PEER_LOST}\b")


def lost_hosts(api: ObjectApi, pods: Objs, since: datetime | None, away: set[str]) -> str | None:
    """Return the host of `pods` that another host of its workload reports as lost; None without such a report.

    `pods`: those on one node. `since`: the node's last sign of life. `away`: the nodes that do not answer, this one
    included. A report names the host, or comes from a workload with hosts on no other node of `away`.
    """
    for pod in pods:
        meta = pod["metadata"]
        jobset, namespace = _label(pod, "jobset-name"), str(meta.get("namespace", "default"))
        if not jobset or since is None or (meta.get("annotations") or {}).get(_VOUCHED) != "true":
            continue
        node_name = str(pod["spec"].get("nodeName"))
        hosts = api.list("Pod", namespace, {f"{_PREFIX}/jobset-name": jobset})
        peers = [host for host in hosts if host["spec"].get("nodeName") not in (None, node_name)]
        alone = not any(peer["spec"]["nodeName"] in away for peer in peers)
        named = _named(pod, peers)
        if _place(pod) in named or (alone and not named and _has_ended(api, jobset, namespace, peers, since)):
            return str(meta["name"])
    return None


def _place(pod: Obj) -> tuple[str, ...]:
    """Return the slice and the index of a host."""
    index = (pod["metadata"].get("annotations") or {}).get(_INDEX) or pod["metadata"].get("labels", {}).get(_INDEX)
    return _label(pod, "job-index"), str(index)


def _named(pod: Obj, peers: Objs) -> set[tuple[str, ...]]:
    """Return the hosts that those of the same attempt name as lost in their last messages."""
    same = [peer for peer in peers if _label(peer, "restart-attempt") == _label(pod, "restart-attempt")]
    matches = (_LOST.search(str(ended.get("message", ""))) for ended in _endings(same))
    return {match.groups() for match in matches if match}


def _has_ended(api: ObjectApi, jobset: str, namespace: str, peers: Objs, since: datetime) -> bool:
    """Return whether another host has ended since because it lost a peer: its pod says so, or its Job's event."""
    if any((parse_time(ended.get("finishedAt")) or since) > since for ended in _endings(peers)):
        return True
    names = re.compile(rf"{re.escape(jobset)}-[a-z0-9-]+-\d+-\d+-\w{{5}}")
    return any(names.fullmatch(host) and time > since for host, time in _failures(api, namespace))


def _endings(pods: Objs) -> Iterator[Obj]:
    """Yield the ends of hosts that have lost a peer."""
    for pod in pods:
        for container in pod.get("status", {}).get("containerStatuses") or []:
            ended = (container.get("state") or {}).get("terminated") or {}
            if ended.get("exitCode") == _PEER_LOST:
                yield ended


def _failures(api: ObjectApi, namespace: str) -> Iterator[tuple[str, datetime]]:
    """Yield the pods that have lost a peer, with the time, from the events of Jobs, which outlive the pods."""
    for event in api.list("Event", namespace):
        about, match = event.get("involvedObject") or {}, _FAILED.search(str(event.get("message", "")))
        time = parse_time(event.get("lastTimestamp") or event.get("eventTime"))
        if match and time and about.get("kind") == "Job":
            yield match[1], time


def _label(pod: Obj, name: str) -> str:
    return str((pod["metadata"].get("labels") or {}).get(f"{_PREFIX}/{name}", ""))
