"""Support bundle: a cluster's state, read in parallel and redacted, as one text."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import Any

import yaml

from xpk.api.base import Obj, ObjectApi, Objs
from xpk.capacity.controllers import install
from xpk.model.errors import XpkError
from xpk.model.redaction import redact, redacted
from xpk.model.terminal import printable

Read = Callable[[], Any]

_AT_ONCE = 8
_LOG_LINES = 100
_MOST = 2_000_000  # characters of one section
_RULE = "=" * 80


def bundle(sections: Mapping[str, Read]) -> str:
    """Return all sections as one text. A section that cannot be read contains the error."""
    with ThreadPoolExecutor(_AT_ONCE) as executor:
        texts = list(executor.map(_text, sections.values()))
    parts = (f"{_RULE}\n{title}\n{_RULE}\n{text}" for title, text in zip(sections, texts, strict=True))
    return "\n".join(parts)


def of_cluster(api: ObjectApi) -> dict[str, Read]:
    """Return the sections of a cluster's nodes, queues and controllers."""
    sections: dict[str, Read] = {
        "nodes": lambda: [_node(node) for node in api.list("Node")],
        "how workloads run on it": lambda: api.get("ConfigMap", "xpk-cluster").get("data"),
        "events with a warning": lambda: [
            _event(event) for event in api.list("Event", None, fields={"type": "Warning"})
        ],
    }
    for kind in ("ClusterQueue", "LocalQueue", "ResourceFlavor"):
        sections[f"{kind} objects"] = partial(api.list, kind, None)
    for controller in install.CONTROLLERS:
        sections[f"{controller.name}: deployment"] = partial(
            api.get, "Deployment", controller.deployment, controller.namespace
        )
        sections[f"{controller.name}: last {_LOG_LINES} log lines"] = partial(_controller_logs, api, controller)
    return sections


def of_workload(api: ObjectApi, name: str, namespace: str) -> dict[str, Read]:
    """Return the sections of one workload's objects and logs."""
    selector = {"jobset.sigs.k8s.io/jobset-name": name}
    return {
        f"JobSet {name}": lambda: api.get("JobSet", name, namespace),
        f"Kueue Workloads of {name}": lambda: [
            workload
            for workload in api.list("Workload", namespace)
            if any(owner["name"] == name for owner in workload["metadata"].get("ownerReferences") or [])
        ],
        f"pods of {name}": lambda: api.list("Pod", namespace, selector),
        f"events of {name}": lambda: [
            _event(event)
            for event in api.list("Event", namespace)
            if str((event.get("involvedObject") or {}).get("name", "")).startswith(name)
        ],
        f"logs of the first host of {name}": lambda: _first_log(api.list("Pod", namespace, selector), api),
    }


def _text(read: Read) -> str:
    try:
        content = read()
    except XpkError as error:
        return f"not read: {redact(printable(error.message))}\n"
    if isinstance(content, str):
        return printable(redact(content), limit=_MOST) + "\n"
    plain = json.loads(json.dumps(redacted(content), default=str))
    return printable(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True), limit=_MOST)


def _controller_logs(api: ObjectApi, controller: install.Controller) -> str:
    pods = api.list("Pod", controller.namespace)
    named = [pod for pod in pods if pod["metadata"]["name"].startswith(controller.deployment)]
    return "\n".join(f"--- {pod['metadata']['name']}\n{_log(api, pod)}" for pod in named) or "no pods"


def _first_log(pods: Objs, api: ObjectApi) -> str:
    return _log(api, pods[0]) if pods else "no pods"


def _log(api: ObjectApi, pod: Obj) -> str:
    lines = islice(api.logs(pod, tail=_LOG_LINES), _LOG_LINES)
    return "\n".join(f"{line.time.isoformat()} {line.text}" for line in lines)


def _node(node: Obj) -> Obj:
    status, labels = node.get("status") or {}, node["metadata"].get("labels") or {}
    return {
        "name": node["metadata"]["name"],
        "node_pool": labels.get("cloud.google.com/gke-nodepool", ""),
        "conditions": {condition["type"]: condition["status"] for condition in status.get("conditions") or []},
        "unschedulable": bool((node.get("spec") or {}).get("unschedulable")),
        "taints": (node.get("spec") or {}).get("taints") or [],
        "allocatable": status.get("allocatable") or {},
    }


def _event(event: Obj) -> Obj:
    about = event.get("involvedObject") or event.get("regarding") or {}
    return {
        "about": f"{about.get('kind', '')} {about.get('namespace', '')}/{about.get('name', '')}",
        "reason": event.get("reason"),
        "message": event.get("message") or event.get("note"),
        "last": event.get("lastTimestamp") or event.get("eventTime"),
    }
