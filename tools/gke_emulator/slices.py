"""GKE's slice controller: forms Slice objects (accelerator.gke.io/v1beta1) from the cubes of a cluster.

Sources: "Use dynamic slicing with a custom scheduler" and the reference of the Slice custom resource, for the states,
their order, the causes of `SliceCreationFailed` and `FAILED`, the finalizer and the labels of nodes. Where they are
silent, docs/gke-emulator.md names what is assumed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from xpk.api.base import Obj, ObjectApi

FINALIZER = "accelerator.gke.io/slice-finalizer"
RETRY = "slice.gke.io/retry-on-failure"  # annotation: try again after `SliceCreationFailed`
SLICE_LABEL, TOPOLOGY_LABEL = "cloud.google.com/gke-tpu-slice", "cloud.google.com/gke-tpu-topology"
BLOCK, RESERVATION = "cloud.google.com/gce-topology-block", "cloud.google.com/reservation-name"
USABLE = ("ACTIVE", "ACTIVE_DEGRADED")
_CUBE = (4, 4, 4)
_PARTS = ("2x4x4", "2x2x4", "2x2x2", "2x2x1")
_MOST_CHIPS = 9216
_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_NAME_LENGTH = 49

# The custom resource as Google's xpk published it; GKE installs it with the slice controller.
CRD: Obj = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "slices.accelerator.gke.io"},
    "spec": {
        "group": "accelerator.gke.io",
        "names": {"kind": "Slice", "listKind": "SliceList", "plural": "slices", "singular": "slice"},
        "scope": "Cluster",
        "versions": [
            {
                "name": "v1beta1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {
                            "spec": {
                                "type": "object",
                                "required": ["partitionIds", "topology", "type"],
                                "properties": {
                                    "type": {"type": "string", "enum": ["v6e", "tpu7x"]},
                                    "topology": {"type": "string", "pattern": r"^\d+x\d+(x\d+)?$"},
                                    "partitionIds": {"type": "array", "minItems": 1, "items": {"type": "string"}},
                                },
                            },
                            "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                        },
                    }
                },
            }
        ],
    },
}


class Invalid(ValueError):
    """A Slice that GKE's validating webhook rejects."""


def check_slice(obj: Obj) -> None:
    """Raise Invalid as GKE's webhook rejects a Slice: its name, type, topology, or number of partitions."""
    name, spec = obj["metadata"]["name"], obj["spec"]
    if len(name) > _NAME_LENGTH or not _NAME.fullmatch(name):
        raise Invalid(f"metadata.name: '{name}' must have at most {_NAME_LENGTH} characters and match {_NAME.pattern}")
    if spec["type"] != "tpu7x":
        raise Invalid(f"spec.type: '{spec['type']}' is not supported; supported values: tpu7x")
    topology, sides = spec["topology"], [int(side) for side in spec["topology"].split("x")]
    is_part = topology in _PARTS
    if not is_part and (len(sides) != len(_CUBE) or any(side % 4 for side in sides)):
        raise Invalid(f"spec.topology: each dimension of '{topology}' must be a multiple of four")
    if not is_part and sides != sorted(sides):
        raise Invalid(f"spec.topology: the dimensions of '{topology}' must be in non-decreasing order")
    if math.prod(sides) > _MOST_CHIPS:
        raise Invalid(f"spec.topology: '{topology}' has more than {_MOST_CHIPS} chips")


class SliceController:
    """The slice controller of one cluster; each `step` takes every Slice to its next state."""

    def __init__(self, api: ObjectApi) -> None:
        self._api = api

    def step(self) -> None:
        """Take every Slice one state further, and remove the labels of slices that are gone."""
        nodes = self._api.list("Node")
        slices = self._api.list("Slice", None)
        for obj in slices:
            self._next(obj, nodes)
        existing = {obj["metadata"]["name"] for obj in slices}
        for node in nodes:
            if _labels(node).get(SLICE_LABEL, "") not in {"", *existing}:
                self._label(node, None, None)

    def _next(self, obj: Obj, nodes: list[Obj]) -> None:
        meta, reason = obj["metadata"], state_of(obj)
        members = _members(obj, nodes)
        if meta.get("deletionTimestamp"):
            self._dismantle(obj, reason, members)
        elif FINALIZER not in meta.get("finalizers", []):
            finalizers = [*meta.get("finalizers", []), FINALIZER]
            self._api.patch("Slice", meta["name"], {"metadata": {"finalizers": finalizers}})
            self._report(obj, "SliceNotCreated", "")
        elif reason == "SliceNotCreated":
            problem = _creation_problem(obj, members)
            self._report(obj, "SliceCreationFailed" if problem else "ACTIVATING", problem)
        elif reason == "SliceCreationFailed" and meta.get("annotations", {}).get(RETRY) == "true":
            self._report(obj, "SliceNotCreated", "")
        elif reason == "ACTIVATING" or reason in USABLE:
            self._form(obj, reason, members)

    def _form(self, obj: Obj, reason: str, members: Mapping[str, list[Obj]]) -> None:
        problem = _forming_problem(obj, members)
        if problem:
            self._report(obj, "FAILED", problem)
            return
        degraded = sorted(partition for partition, nodes in members.items() if "DEGRADED" in _states(obj, nodes))
        for node in (node for nodes in members.values() for node in nodes):
            if _labels(node).get(SLICE_LABEL) != obj["metadata"]["name"]:
                self._label(node, obj["metadata"]["name"], obj["spec"]["topology"])
        message = f"partitions {', '.join(degraded)} are degraded" if degraded else ""
        new = "ACTIVE_DEGRADED" if degraded else "ACTIVE"
        if new != reason:
            self._report(obj, new, message)

    def _dismantle(self, obj: Obj, reason: str, members: Mapping[str, list[Obj]]) -> None:
        name = obj["metadata"]["name"]
        if reason not in ("DEACTIVATING", "INCOMPLETE"):
            self._report(obj, "DEACTIVATING", "")
        elif reason == "DEACTIVATING":
            for node in (node for nodes in members.values() for node in nodes):
                if _labels(node).get(SLICE_LABEL) == name:
                    self._label(node, None, None)
            self._report(obj, "INCOMPLETE", "")
        else:
            finalizers = [item for item in obj["metadata"].get("finalizers", []) if item != FINALIZER]
            self._api.patch("Slice", name, {"metadata": {"finalizers": finalizers}})

    def _report(self, obj: Obj, reason: str, message: str) -> None:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        status = "True" if reason in USABLE else "False"
        ready = {"type": "Ready", "status": status, "reason": reason, "message": message, "lastTransitionTime": now}
        self._api.patch("Slice", f"{obj['metadata']['name']}/status", {"status": {"conditions": [ready]}})

    def _label(self, node: Obj, name: str | None, topology: str | None) -> None:
        labels = {SLICE_LABEL: name, TOPOLOGY_LABEL: topology}
        self._api.patch("Node", node["metadata"]["name"], {"metadata": {"labels": labels}})


def state_of(obj: Obj) -> str:
    """Return the reason of a Slice's condition `Ready`, which is its state; "" if it has none yet."""
    conditions = obj.get("status", {}).get("conditions") or []
    return next((str(item["reason"]) for item in conditions if item["type"] == "Ready"), "")


def _members(obj: Obj, nodes: Iterable[Obj]) -> dict[str, list[Obj]]:
    """Return the nodes of each partition that a Slice names."""
    label = f"{_partition(obj)}-id"
    members: dict[str, list[Obj]] = {str(partition): [] for partition in obj["spec"]["partitionIds"]}
    for node in nodes:
        if (partition := _labels(node).get(label)) in members:
            members[str(partition)].append(node)
    return members


def _partition(obj: Obj) -> str:
    """Return the beginning of the labels of the partitions that a Slice consists of."""
    topology = obj["spec"]["topology"]
    return f"cloud.google.com/gke-tpu-partition-{topology if topology in _PARTS else '4x4x4'}"


def _creation_problem(obj: Obj, members: Mapping[str, list[Obj]]) -> str:
    """Return why a Slice cannot be created, "" if it can."""
    name, sides = obj["metadata"]["name"], [int(side) for side in obj["spec"]["topology"].split("x")]
    count = max(1, math.prod(sides) // math.prod(_CUBE))
    if len(members) != count:
        return f"topology {obj['spec']['topology']} needs {count} partitions, got {len(members)}"
    missing = sorted(partition for partition, nodes in members.items() if not nodes)
    if missing:
        return f"partitions {', '.join(missing)} have no nodes"
    for partition, nodes in members.items():
        users = {_labels(node)[SLICE_LABEL] for node in nodes if _labels(node).get(SLICE_LABEL, name) != name}
        if users:
            return f"partition {partition} is used by slice {', '.join(sorted(users))}"
        unready = sorted(node["metadata"]["name"] for node in nodes if not _is_ready(node))
        if unready:
            return f"nodes {', '.join(unready)} of partition {partition} are not ready"
    return ""


def _forming_problem(obj: Obj, members: Mapping[str, list[Obj]]) -> str:
    """Return why GKE cannot form a slice, or can no longer keep it, "" if it can."""
    everyone = [node for nodes in members.values() for node in nodes]
    for label, word in ((RESERVATION, "reservation"), (BLOCK, "reservation block")):
        if len({_labels(node).get(label) for node in everyone}) > 1:
            return f"the nodes are not part of the same {word}"
    for partition, nodes in members.items():
        states = _states(obj, nodes) - {"HEALTHY", "DEGRADED"}
        if states or not nodes:
            return f"partition {partition} is {', '.join(sorted(states)) or 'without nodes'}"
    return ""


def _states(obj: Obj, nodes: Iterable[Obj]) -> set[str]:
    return {_labels(node).get(f"{_partition(obj)}-state", "UNSET") for node in nodes}


def _labels(node: Obj) -> dict[str, Any]:
    return node["metadata"].get("labels") or {}


def _is_ready(node: Obj) -> bool:
    conditions = node.get("status", {}).get("conditions", [])
    return any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)
