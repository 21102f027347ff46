"""Nodes as GKE's node pools of TPU slices register them, without machines."""

from __future__ import annotations

import hashlib
import time
from datetime import UTC, datetime

from bench.at_scale.server import Server, each
from xpk.api.base import Obj
from xpk.model import names
from xpk.model.accelerators import NODEPOOL_LABEL, SliceShape

CLUSTER = "bench"
_SETTLED_SECONDS = 6.0  # without a further list of KWOK's, which lists the pods of each new node
_LIST_SECONDS = 600.0
_OTHER_ALLOCATABLE = {"cpu": "111", "memory": "186Gi", "pods": "15"}
_CONDITIONS = ("MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable", "Ready")


def pool_name(index: int) -> str:
    """Return the name of a slice's node pool."""
    return names.node_pool_name(CLUSTER, index)


def node_name(pool: str, host: int) -> str:
    """Return the name of a node, in GKE's form."""
    digest = hashlib.sha256(pool.encode()).hexdigest()[:8]
    return f"gke-{pool}-{digest}-{host:04x}"


def pool_of(node: str) -> str:
    """Return the node pool in a node's name."""
    return node.removeprefix("gke-").rpartition("-")[0].rpartition("-")[0]


def create_nodes(server: Server, shape: SliceShape, slices: range) -> float:
    """Create the nodes of slices; return the seconds until KWOK has taken them over."""
    start, now = time.monotonic(), datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    places = [(index, host) for index in slices for host in range(shape.hosts)]
    each(lambda place: server.call("POST", "/api/v1/nodes", _node(shape, *place, now)), places)
    _await_settled(server)
    return time.monotonic() - start


def _node(shape: SliceShape, index: int, host: int, now: str) -> Obj:
    pool = pool_name(index)
    name = node_name(pool, host)
    labels = {
        **shape.node_labels,
        NODEPOOL_LABEL: pool,
        "kubernetes.io/hostname": name,
        "kubernetes.io/arch": "amd64",
        "kubernetes.io/os": "linux",
        "cloud.google.com/machine-family": "ct5lp",
        "node.kubernetes.io/instance-type": "ct5lp-hightpu-4t",
        "topology.kubernetes.io/region": "us-central1",
        "topology.kubernetes.io/zone": "us-central1-a",
    }
    amounts = {**_OTHER_ALLOCATABLE, shape.resource: str(shape.resource_per_host)}
    conditions = [
        {"type": kind, "status": str(kind == "Ready"), "reason": "Emulated", "message": "",
         "lastHeartbeatTime": now, "lastTransitionTime": now}
        for kind in _CONDITIONS
    ]  # fmt: skip
    address = f"10.{64 + index // 4}.{index % 4 * 64 + host // 4}.{host % 4 * 64 + 1}"
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels, "annotations": {"kwok.x-k8s.io/node": "fake"}},
        "spec": {"taints": [{"key": shape.resource, "value": "present", "effect": "NoSchedule"}]},
        "status": {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": conditions,
            "addresses": [{"type": "InternalIP", "address": address}, {"type": "Hostname", "address": name}],
        },
    }


def _await_settled(server: Server) -> None:
    deadline, counted, since = time.monotonic() + _LIST_SECONDS, -1.0, time.monotonic()
    while time.monotonic() - since < _SETTLED_SECONDS and time.monotonic() < deadline:
        lists = _pod_lists(server)
        if lists != counted:
            counted, since = lists, time.monotonic()
        time.sleep(0.5)


def _pod_lists(server: Server) -> float:
    lines = server.text("/metrics").splitlines()
    parts = ("apiserver_request_total{", 'resource="pods"', 'verb="LIST"')
    return sum(float(line.rpartition(" ")[2]) for line in lines if all(part in line for part in parts))
