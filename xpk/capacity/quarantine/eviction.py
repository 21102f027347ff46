"""Eviction of workloads from quarantined slices, so that they restart elsewhere."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from xpk.api.base import ObjectApi
from xpk.model.errors import NotFoundError

_JOBSET = "jobset.sigs.k8s.io/jobset-name"


def evict_workloads(api: ObjectApi, nodes: Iterable[str]) -> list[str]:
    """Evict the hosts of workloads from nodes and return their pods, as NAMESPACE/NAME.

    A host gets SIGTERM and its grace period, so that the trainer saves; the restart is not counted. Raises
    ProtectedError if a PodDisruptionBudget forbids it.
    """
    evicted = []
    for node in nodes:
        for pod in api.list("Pod", None, fields={"spec.nodeName": node}):
            meta, phase = pod["metadata"], (pod.get("status") or {}).get("phase")
            if _JOBSET not in (meta.get("labels") or {}) or phase not in ("Pending", "Running"):
                continue
            namespace = str(meta.get("namespace", "default"))
            with suppress(NotFoundError):  # it has ended meanwhile
                api.evict(str(meta["name"]), namespace)
                evicted.append(f"{namespace}/{meta['name']}")
    return evicted
