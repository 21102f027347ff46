"""The slice controller of Kueue: creates the Slices of a workload that has quota, and answers its admission check.

Source: the controller that Google's xpk published (`slice/internal/controller/workload_controller.go`). It runs in the
cluster beside Kueue; Google's guide installs it in the namespace slice-controller-system.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from tools.gke_emulator.slices import USABLE, Invalid, check_slice, state_of
from xpk.api.base import Obj, ObjectApi

CONTROLLER = "accelerator.gke.io/slice"
OWNER_NAMESPACE = "slice.accelerator.gke.io/owner-workload-namespace"
OWNER_NAME = "slice.accelerator.gke.io/owner-workload-name"
_TOPOLOGY = "cloud.google.com/gke-tpu-slice-topology"
_ACCELERATOR = "cloud.google.com/gke-tpu-accelerator"
_HOSTNAME = "kubernetes.io/hostname"
_PARTS = ("2x4x4", "2x2x4", "2x2x2", "2x2x1")
_FAILED = ("FAILED", "SliceCreationFailed")
_NAME_LENGTH, _HASH_LENGTH = 49, 5
_RETRY_SECONDS = 10


class SliceChecks:
    """The slice controller of Kueue in one cluster; each `step` looks at every workload once."""

    def __init__(self, api: ObjectApi) -> None:
        self._api = api

    def step(self) -> None:
        """Answer the checks of workloads with quota, and delete the slices of those that ended or were evicted."""
        api = self._api
        checks = {
            obj["metadata"]["name"] for obj in api.list("AdmissionCheck", None)
            if obj["spec"].get("controllerName") == CONTROLLER
        }  # fmt: skip
        for obj in api.list("AdmissionCheck", None):
            if obj["metadata"]["name"] in checks and not obj.get("status", {}).get("conditions"):
                self._activate(obj)
        nodes = {node["metadata"]["name"]: node for node in api.list("Node")}
        owned: dict[tuple[str, str], list[Obj]] = {}
        for obj in api.list("Slice", None):
            owned.setdefault(_owner_of(obj), []).append(obj)
        workloads = {_key(workload): workload for workload in api.list("Workload", None)}
        for key, workload in workloads.items():
            check = next((item for item in _checks(workload) if item["name"] in checks), None)
            if check and _has_quota(workload) and _assigned(workload):
                self._answer(workload, check, owned.get(key, []), nodes)
        for key, slices in owned.items():
            if key[1] and (key not in workloads or self._is_over(workloads[key])):
                self._delete(slices)

    def _activate(self, check: Obj) -> None:
        active = _condition("Active", "True", "Active", "The admission check is active")
        self._api.patch("AdmissionCheck", f"{check['metadata']['name']}/status", {"status": {"conditions": [active]}})

    def _answer(self, workload: Obj, check: Obj, slices: list[Obj], nodes: Mapping[str, Obj]) -> None:
        desired = list(_desired(workload, nodes))
        if check["state"] == "Ready" and len(slices) < len(desired):
            self._set(workload, check, "Retry", "Slice has been deleted")
            return
        if check["state"] != "Pending" and check["state"] != "Ready":
            return  # Kueue resets the check to Pending after the eviction
        existing = {obj["metadata"]["name"] for obj in slices}
        new = [obj for obj in desired if obj["metadata"]["name"] not in existing]
        for obj in new:
            try:
                check_slice(obj)
            except Invalid as error:
                self._set(workload, check, "Pending", f'Error creating Slice "{obj["metadata"]["name"]}": {error}')
                return
            self._api.create(obj)
        states = [_shown(obj) for obj in [*slices, *new]]
        failed = [obj for obj in slices if state_of(obj) in _FAILED]
        message = _message(states, failed)
        if failed:
            self._set(workload, check, "Retry", message)
            self._delete(slices)
        elif len(states) == len(desired) and all(state in USABLE for state in states):
            self._set(workload, check, "Ready", message, updates=list(_updates(workload)))
        else:
            self._set(workload, check, "Pending", message)

    def _set(self, workload: Obj, check: Obj, state: str, message: str, **more: Any) -> None:
        if (check["state"], check.get("message")) == (state, message):
            return
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        changed = {**check, "state": state, "message": message, "lastTransitionTime": now}
        if more.get("updates"):
            changed["podSetUpdates"] = more["updates"]
        if state == "Retry":
            changed["requeueAfterSeconds"] = _RETRY_SECONDS
        checks = [changed if item["name"] == check["name"] else item for item in _checks(workload)]
        namespace, name = _key(workload)
        self._api.patch("Workload", f"{name}/status", {"status": {"admissionChecks": checks}}, namespace)

    def _is_over(self, workload: Obj) -> bool:
        """Return whether a workload has ended or lost its quota, and all its pods have ended."""
        if _has_quota(workload) and not _is_true(workload, "Finished") and workload["spec"].get("active", True):
            return False
        owners = [item["name"] for item in workload["metadata"].get("ownerReferences", []) if item["kind"] == "JobSet"]
        pods = [
            pod for owner in owners
            for pod in self._api.list("Pod", _key(workload)[0], {"jobset.sigs.k8s.io/jobset-name": owner})
        ]  # fmt: skip
        return all(pod.get("status", {}).get("phase") in ("Succeeded", "Failed") for pod in pods)

    def _delete(self, slices: list[Obj]) -> None:
        for obj in slices:
            if not obj["metadata"].get("deletionTimestamp"):
                self._api.delete("Slice", obj["metadata"]["name"])


def slice_name(namespace: str, workload: str, pod_set: str, index: int) -> str:
    """Return the name of a workload's slice; longer ones end in a hash."""
    name = f"{namespace}-{workload}-{pod_set}-{index}"
    if len(name) <= _NAME_LENGTH:
        return name
    return f"{name[: _NAME_LENGTH - _HASH_LENGTH - 1]}-{hashlib.sha256(name.encode()).hexdigest()[:_HASH_LENGTH]}"


def hosts_of(assignment: Obj) -> list[str]:
    """Return the nodes of a topology assignment of Kueue, in the order of its domains."""
    hosts: list[str] = []
    position = assignment["levels"].index(_HOSTNAME)
    for part in assignment["slices"]:
        values = part["valuesPerLevel"][position]
        if "universal" in values:
            hosts += [values["universal"]] * int(part["domainCount"])
            continue
        individual = values["individual"]
        prefix, suffix = individual.get("prefix", ""), individual.get("suffix", "")
        hosts += [f"{prefix}{root}{suffix}" for root in individual["roots"]]
    return hosts


def _desired(workload: Obj, nodes: Mapping[str, Obj]) -> Iterator[Obj]:
    """Yield the Slices of a workload: the partitions of its hosts, evenly divided among its slices."""
    namespace, name = _key(workload)
    for pod_set, topology, accelerator, assignment in _assigned(workload):
        label = f"cloud.google.com/gke-tpu-partition-{topology if topology in _PARTS else '4x4x4'}-id"
        labels = (nodes[host]["metadata"]["labels"] for host in hosts_of(assignment) if host in nodes)
        partitions = list(dict.fromkeys(item[label] for item in labels if label in item))
        each = max(1, math.prod(map(int, topology.split("x"))) // 64)
        count = int(pod_set.get("topologyRequest", {}).get("subGroupCount") or 1)
        for index in range(count):
            yield {
                "apiVersion": "accelerator.gke.io/v1beta1",
                "kind": "Slice",
                "metadata": {
                    "name": slice_name(namespace, name, pod_set["name"], index),
                    "annotations": {OWNER_NAMESPACE: namespace, OWNER_NAME: name},
                },
                "spec": {
                    "type": accelerator,
                    "topology": topology,
                    "partitionIds": partitions[index * each : (index + 1) * each],
                },
            }


def _assigned(workload: Obj) -> list[tuple[Obj, str, str, Obj]]:
    """Return the pod sets that need slices: each with topology, accelerator and its topology assignment."""
    assignments = (workload.get("status", {}).get("admission") or {}).get("podSetAssignments") or []
    by_name = {item["name"]: item.get("topologyAssignment") for item in assignments}
    requests = []
    for pod_set in workload["spec"]["podSets"]:
        template, assignment = pod_set["template"], by_name.get(pod_set["name"])
        topology = (template.get("metadata") or {}).get("annotations", {}).get(_TOPOLOGY)
        accelerator = template["spec"].get("nodeSelector", {}).get(_ACCELERATOR)
        if topology and accelerator == "tpu7x" and assignment:
            requests.append((pod_set, topology, accelerator, assignment))
    return requests


def _updates(workload: Obj) -> Iterator[dict[str, Any]]:
    """Yield what Kueue adds to the pods of an admitted workload: the topology that their nodes now have."""
    for pod_set, topology, _, _ in _assigned(workload):
        yield {"name": pod_set["name"], "nodeSelector": {"cloud.google.com/gke-tpu-topology": topology}}


def _message(states: list[str], failed: list[Obj]) -> str:
    counts = Counter(states)
    text = "Slices are in states: " + ", ".join(f"{number} {state}" for state, number in sorted(counts.items()))
    if failed:
        text += ". Errors: " + "; ".join(item["status"]["conditions"][0]["message"] for item in failed)
    return text


def _shown(obj: Obj) -> str:
    state = state_of(obj)
    if obj["metadata"].get("deletionTimestamp"):
        return "DELETED"
    if state in USABLE:
        return state
    return "FAILED" if state in _FAILED else "ACTIVATING" if state else "CREATED"


def _checks(workload: Obj) -> list[Obj]:
    checks: list[Obj] = workload.get("status", {}).get("admissionChecks") or []
    return checks


def _has_quota(workload: Obj) -> bool:
    return _is_true(workload, "QuotaReserved") and bool(workload.get("status", {}).get("admission"))


def _is_true(workload: Obj, kind: str) -> bool:
    conditions = workload.get("status", {}).get("conditions") or []
    return any(item["type"] == kind and item["status"] == "True" for item in conditions)


def _condition(kind: str, status: str, reason: str, message: str) -> dict[str, str]:
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": now}


def _key(workload: Obj) -> tuple[str, str]:
    meta = workload["metadata"]
    return str(meta.get("namespace", "default")), str(meta["name"])


def _owner_of(obj: Obj) -> tuple[str, str]:
    annotations = obj["metadata"].get("annotations") or {}
    return str(annotations.get(OWNER_NAMESPACE, "")), str(annotations.get(OWNER_NAME, ""))
