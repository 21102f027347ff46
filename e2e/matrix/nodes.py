"""Faults of kind: pods, nodes, the links between them, and the control plane."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable
from functools import partial
from typing import Any

from e2e.harness import DrillError
from e2e.kind_cluster import AWAY_SECONDS, KindLab, Place, docker
from e2e.matrix.cell import Cell
from e2e.matrix.fault import KIND, Holds, fault
from e2e.matrix.programs import HOSTS
from tests.waiting import until

_AWAY_SECONDS, _FROZEN_SECONDS = 30.0, 10.0
_MOVE_SECONDS = 420.0  # until a slice has moved from a frozen node to the spare one
_ONLY_KIND = (KIND,)


@fault("delete-pod", "A host's pod is deleted.", Holds.SAVES, platforms=_ONLY_KIND)
def _delete_pod(cell: Cell) -> None:
    _delete(cell)


@fault("delete-pod-by-force", "A host's pod is deleted without a grace period.", Holds.RESTARTS, platforms=_ONLY_KIND)
def _delete_by_force(cell: Cell) -> None:
    _delete(cell, "--force", "--grace-period=0")


@fault("kill-node", "The machine of a node ends, while `xpk cluster fence` runs.", Holds.RESTARTS, platforms=_ONLY_KIND)
def _kill_node(cell: Cell) -> None:
    cell.train()
    node, place = cell.described(HOSTS - 1)["node"], _place(cell)
    cell.heals.enter_context(place.fencing())
    cell.removals.callback(_return, place)
    cell.strike(partial(docker, "kill", node))
    cell.limit_seconds = _MOVE_SECONDS


@fault("freeze-node", "A node stops (`docker pause`), and nobody fences it.", Holds.RESTARTS, platforms=_ONLY_KIND)
def _freeze_node(cell: Cell) -> None:
    cell.train()
    node, place = cell.described(HOSTS - 1)["node"], _place(cell)
    cell.removals.callback(_return, place)
    cell.strike(partial(docker, "pause", node))
    cell.limit_seconds = _MOVE_SECONDS


@fault("kill-kubelet", "SIGKILL of the kubelet of a node.", Holds.CONTINUES, platforms=_ONLY_KIND)
def _kill_kubelet(cell: Cell) -> None:
    cell.train()
    node = cell.described(HOSTS - 1)["node"]
    cell.strike(lambda: _in(node, "pkill", "-KILL", "kubelet"))
    cell.wait(_FROZEN_SECONDS)


@fault(
    "stop-kubelet", f"SIGSTOP of the kubelet of a node for {_AWAY_SECONDS:.0f} s.", Holds.CONTINUES,
    platforms=_ONLY_KIND,
)  # fmt: skip
def _stop_kubelet(cell: Cell) -> None:
    cell.train()
    node = cell.described(HOSTS - 1)["node"]
    cell.strike(lambda: _in(node, "pkill", "-STOP", "kubelet"))
    cell.heal_after(_AWAY_SECONDS, lambda: _in(node, "pkill", "-CONT", "kubelet"))


@fault(
    "partition-from-api-server", f"A node does not reach the API server for {_AWAY_SECONDS:.0f} s.", Holds.CONTINUES,
    platforms=_ONLY_KIND,
)  # fmt: skip
def _from_api(cell: Cell) -> None:
    cell.train()
    node = cell.described(HOSTS - 1)["node"]
    _drop(cell, node, "OUTPUT", ["-p", "tcp", "--dport", "6443"])


@fault(
    "partition-of-pods", f"A host and all others lose each other for {_AWAY_SECONDS:.0f} s.", Holds.RESTARTS,
    platforms=_ONLY_KIND,
)  # fmt: skip
def _partition(cell: Cell) -> None:
    cell.train()
    host = cell.described(cell.any_host())
    address = _place(cell).kubectl("get", "pod", host["pod"], "-o", "jsonpath={.status.podIP}")
    _drop(cell, host["node"], "FORWARD", ["-s", address], ["-d", address])


@fault("kill-api-server", "SIGKILL of the API server.", Holds.CONTINUES, platforms=_ONLY_KIND)
def _kill_api(cell: Cell) -> None:
    cell.train()
    place = _place(cell)
    cell.strike(lambda: place.kill_component("kube-system", "component=kube-apiserver"))
    _await(cell, lambda: place.kubectl("get", "--raw", "/readyz") == "ok")


@fault("kill-etcd", "SIGKILL of etcd.", Holds.CONTINUES, platforms=_ONLY_KIND)
def _kill_etcd(cell: Cell) -> None:
    cell.train()
    place = _place(cell)
    cell.strike(lambda: place.kill_component("kube-system", "component=etcd"))
    _await(cell, lambda: place.kubectl("get", "--raw", "/readyz") == "ok")


@fault("slow-etcd", f"etcd stops for {_FROZEN_SECONDS:.0f} s (SIGSTOP).", Holds.CONTINUES, platforms=_ONLY_KIND)
def _slow_etcd(cell: Cell) -> None:
    cell.train()
    control_plane = f"{cell.lab.cluster}-control-plane"
    cell.strike(lambda: _in(control_plane, "pkill", "-STOP", "-x", "etcd"))
    cell.heal_after(_FROZEN_SECONDS, lambda: _in(control_plane, "pkill", "-CONT", "-x", "etcd"))


@fault(
    "jobset-down", "A host's process is killed while JobSet's controller is away.", Holds.RESTARTS, platforms=_ONLY_KIND
)
def _jobset_down(cell: Cell) -> None:
    _without(cell, "jobset-system", "jobset-controller-manager")


@fault(
    "kueue-down", "A host's process is killed while Kueue's controller is away.", Holds.RESTARTS, platforms=_ONLY_KIND
)
def _kueue_down(cell: Cell) -> None:
    _without(cell, "kueue-system", "kueue-controller-manager")


@fault("dns-down", "A host's process is killed while names are not resolved.", Holds.RESTARTS, platforms=_ONLY_KIND)
def _dns_down(cell: Cell) -> None:
    _without(cell, "kube-system", "coredns")


@fault(
    "webhooks-down",
    f"A host's container is killed while the webhooks of JobSet and Kueue do not answer, for {_AWAY_SECONDS:.0f} s.",
    Holds.RESTARTS,
    platforms=_ONLY_KIND,
)
def _webhooks_down(cell: Cell) -> None:
    cell.train()
    host, place = cell.described(cell.any_host()), _place(cell)
    services = [(f"{name}-system", f"{name}-webhook-service") for name in ("jobset", "kueue")]
    select = [
        json.loads(place.kubectl("get", "service", "-n", *one, "-o", "json"))["spec"]["selector"] for one in services
    ]

    def point(extra: str | None) -> None:
        for (namespace, name), selector in zip(services, select, strict=True):
            patch = {"spec": {"selector": {**selector, "away": extra}}}
            place.kubectl("patch", "service", "-n", namespace, name, "-p", json.dumps(patch))

    point("true")
    cell.heals.callback(point, None)
    cell.strike(lambda: cell.lab.kill(host, signal.SIGKILL))
    cell.heal_after(_AWAY_SECONDS, lambda: point(None))


def _place(cell: Cell) -> Place:
    """Return the cluster of a cell. Raises DrillError on local hosts."""
    if not isinstance(cell.lab, KindLab):
        raise DrillError("only on kind")
    return Place(cell.lab)


def _delete(cell: Cell, *how: str) -> None:
    cell.train()
    pod, place = cell.described(cell.any_host())["pod"], _place(cell)
    cell.strike(lambda: place.kubectl("delete", "pod", pod, "--wait=false", *how))


def _without(cell: Cell, namespace: str, deployment: str) -> None:
    """Kill a host's process while a deployment has no pods; they come back when all hosts train again."""
    cell.train()
    place = _place(cell)
    scale = ("scale", "deployment", "-n", namespace, deployment)
    replicas = place.kubectl("get", "deployment", "-n", namespace, deployment, "-o", "jsonpath={.spec.replicas}")
    cell.heals.callback(place.await_controllers)
    cell.heals.callback(place.kubectl, *scale, f"--replicas={replicas}")
    place.kubectl(*scale, "--replicas=0")
    place.kubectl("rollout", "status", "deployment", "-n", namespace, deployment, "--timeout=60s")
    cell.send(signal.SIGKILL, cell.any_host())


def _drop(cell: Cell, node: str, chain: str, *rules: list[str]) -> None:
    """Drop packets on a node for some seconds."""

    def change(how: str) -> None:
        for rule in rules:
            _in(node, "iptables", how, chain, *rule, "-j", "DROP")

    cell.strike(lambda: change("-I"))
    cell.heal_after(_AWAY_SECONDS, lambda: change("-D"))


def _in(node: str, *argv: str) -> None:
    """Run a command in a node; one that has been done before may fail."""
    subprocess.run(["docker", "exec", node, *argv], check=False, capture_output=True)


def _await(cell: Cell, condition: Callable[[], Any]) -> None:
    """Wait for the control plane; the run must not need it."""
    until(condition, seconds=AWAY_SECONDS, every=1.0)
    cell.progress.read()


def _return(place: Place) -> None:
    """Bring all nodes back, and wait until they are ready."""
    place.wake()
    place.kubectl("wait", "nodes", "--all", "--for=condition=Ready", "--timeout=240s")
