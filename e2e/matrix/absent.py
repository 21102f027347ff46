"""Reasons for which faults are injected on one platform only: by the module that injects them, or by their names."""

from __future__ import annotations

from collections.abc import Mapping

from e2e.matrix.fault import Fault

_CONTAINER = "the supervisor is the first process of its container: `kill-supervisor` ends all that it has started"
_BY_NAME: Mapping[str, str] = {
    "kill-host": _CONTAINER,
    "kill-all-hosts": _CONTAINER,
    "kill-create": "on both platforms the same command writes the same objects, one request after the other",
    "partition-of-pods": "see `partition`",
}
_BY_MODULE: Mapping[str, str] = {
    "moments": "it is planted by a module of the tests, which the image does not have; the trainer's code is the same",
    "commands": "it is a process of local clusters; see `kill-api-server` and `kill-controllers`",
    "clock": "all nodes share this machine's clock, and the image has no library that shifts it for a process",
    "storage": "it is injected in a file system of this machine; a pod's trainer handles its files by the same code",
    "bucket": "a pod's trainer reads and writes buckets by the same code",
    "network": "see `partition-of-pods`",
    "nodes": "local hosts are processes of this machine: there are no pods, nodes, kubelets and images",
    "control_plane": "local clusters have no API server, etcd, controllers, webhooks or DNS; see `kill-control-plane`",
}


def why_absent(fault: Fault) -> str:
    """Return why a fault is injected only on its platform."""
    return _BY_NAME.get(fault.name) or _BY_MODULE[fault.inject.__module__.rpartition(".")[2]]
