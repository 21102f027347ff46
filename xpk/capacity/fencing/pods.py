"""Pods of a node whose machine is gone: no kubelet will ever report their end."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any

from xpk.api.base import Obj, ObjectApi, Objs
from xpk.api.text import rfc3339
from xpk.capacity.nodes.out_of_service import TAINT
from xpk.model.errors import NotFoundError

_MIRROR = "kubernetes.io/config.mirror"  # annotation of static pods


def pods_to_end(api: ObjectApi, node: str) -> Objs:
    """Return the pods of a node that do not survive the out-of-service taint."""
    return [pod for pod in api.list("Pod", None, fields={"spec.nodeName": node}) if not _stays(pod)]


def end_pods(api: ObjectApi, pods: Objs, reason: str, now: datetime) -> None:
    """Record that pods have failed by a disruption, and delete them without waiting for a kubelet.

    A Job replaces only failed pods, and the condition distinguishes the end of the machine from that of the program.
    """
    for pod in pods:
        meta, status = pod["metadata"], pod.get("status", {})
        name, namespace = str(meta["name"]), str(meta.get("namespace", "default"))
        with suppress(NotFoundError):  # it has been deleted meanwhile
            if status.get("phase") not in ("Succeeded", "Failed"):
                api.patch("Pod", f"{name}/status", {"status": _failed(status, reason, now)}, namespace)
            api.delete("Pod", name, namespace, grace_seconds=0)


def _failed(status: Mapping[str, Any], reason: str, now: datetime) -> Obj:
    time = rfc3339(now)
    disrupted = {
        "type": "DisruptionTarget", "status": "True", "reason": "DeletionByNodeFencing", "message": reason,
        "lastTransitionTime": time,
    }  # fmt: skip
    conditions = [
        condition for condition in status.get("conditions") or [] if condition.get("type") != "DisruptionTarget"
    ]
    return {"phase": "Failed", "reason": "NodeFenced", "message": reason, "conditions": [*conditions, disrupted]}


def _stays(pod: Obj) -> bool:
    """Return whether a pod belongs to its node, or tolerates the taint."""
    meta = pod["metadata"]
    owned = any(ref.get("kind") in ("DaemonSet", "Node") for ref in meta.get("ownerReferences") or [])
    return owned or _MIRROR in (meta.get("annotations") or {}) or any(map(_tolerates, _tolerations(pod)))


def _tolerations(pod: Obj) -> Objs:
    tolerations: Objs = pod["spec"].get("tolerations") or []
    return tolerations


def _tolerates(toleration: Obj) -> bool:
    every = not toleration.get("key") and toleration.get("operator") == "Exists"
    this = toleration.get("key") == TAINT and (
        toleration.get("operator") == "Exists" or toleration.get("value") == "nodeshutdown"
    )
    return (every or this) and toleration.get("effect") in (None, "", "NoExecute")
