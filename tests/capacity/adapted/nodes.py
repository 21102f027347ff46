"""Nodes with the labels of a provider."""

from __future__ import annotations

from xpk.api.base import Obj
from xpk.model.accelerators import NODEPOOL_LABEL, find_shape


def node(name: str, pool: str = "", tpus: int = 0, tpu_type: str = "v5litepod-8", **spec: object) -> Obj:
    labels = {NODEPOOL_LABEL: pool, **find_shape(tpu_type).node_labels} if pool else {}
    has = {"google.com/tpu": str(tpus)} if tpus else {}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels, "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": spec,
        "status": {"capacity": has, "allocatable": has, "conditions": [{"type": "Ready", "status": "True"}]},
    }
