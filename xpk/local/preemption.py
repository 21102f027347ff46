"""Marks on workloads of a local cluster, so that preemptions end.

The rules of queues can contradict each other. The workload for which others were preempted is therefore first in its
queue until it is admitted: what it preempted could otherwise be admitted again before it. Other loops pass through
several queues: the first preempts the second, a third takes its place, and the second gets it back. A workload that has
preempted another one several times, each soon after it was admitted, spares it from then on: pairs are finite.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from xpk.api.base import Obj
from xpk.local import objects as o
from xpk.local.store import Transaction

_PREEMPTS = "xpk.local/preempts"  # annotation of a waiting workload: its ClusterQueue
_EARLY = "xpk.local/early-preemptions"  # UIDs of workloads that this one has preempted early, one for each time
_SPARES = "xpk.local/spares"  # UIDs of workloads that this one does not preempt
_EARLY_SECONDS = 60.0  # from an admission to an early preemption
_LOOP = 5  # early preemptions of one workload by another, in a row


def is_first(workload: Obj, queue: str) -> bool:
    """Return whether a waiting workload is the one of its ClusterQueue for which others were preempted."""
    return _annotation(workload, _PREEMPTS) == queue


def spared_by(workload: Obj) -> tuple[str, ...]:
    """Return the UIDs of those that a workload only preempts to reclaim the quota of its queue."""
    return tuple(_annotation(workload, _SPARES).split())


def mark(tx: Transaction, workloads: Iterable[tuple[Obj, str]], preemptors: Mapping[str, str]) -> None:
    """Mark those for which others are preempted, by ClusterQueue, instead of earlier ones."""
    for workload, queue in workloads:
        is_preemptor = preemptors.get(queue) == workload["metadata"]["uid"]
        if queue in preemptors and is_first(workload, queue) != is_preemptor:
            if is_preemptor:
                _annotate(workload, _PREEMPTS, queue)
            else:
                unmark(workload)
            tx.put(workload)


def unmark(workload: Obj) -> None:
    """Let a workload no longer be the first of its queue: it is admitted, or deactivated."""
    _annotate(workload, _PREEMPTS, "")


def record(tx: Transaction, winner: Obj, victim: Obj) -> None:
    """Record that a workload preempts another one. If it has done so too often soon after admissions, it spares it."""
    uid, name = victim["metadata"]["uid"], victim["metadata"]["name"]
    early = _annotation(winner, _EARLY).split()
    is_early = o.age(o.condition(victim, "QuotaReserved")["lastTransitionTime"]) < _EARLY_SECONDS
    times = early.count(uid) + 1 if is_early else 0
    if times == _LOOP:
        _annotate(winner, _SPARES, " ".join([*spared_by(winner), uid]))
        message = f"no longer preempts {name}: it did {times} times, each within a minute of its admission"
        tx.event(winner, "PreemptionLoop", message, warning=True)
        times = 0
    _annotate(winner, _EARLY, " ".join([*(other for other in early if other != uid), *[uid] * times]))
    tx.put(winner)


def _annotation(workload: Obj, key: str) -> str:
    return str(workload["metadata"].get("annotations", {}).get(key, ""))


def _annotate(workload: Obj, key: str, value: str) -> None:
    if value:
        workload["metadata"].setdefault("annotations", {})[key] = value
    else:
        workload["metadata"].get("annotations", {}).pop(key, None)
