"""Faults of kind: the API server, etcd, controllers, webhooks and names."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterable
from typing import Any

from e2e.kind_cluster import AWAY_SECONDS as RETURN_SECONDS
from e2e.matrix.cell import Cell
from e2e.matrix.fault import KIND, Holds, fault
from e2e.matrix.on_kind import AWAY_SECONDS, FROZEN_SECONDS, dropping, in_node, place_of_cell
from tests.waiting import until

_ONLY_KIND = (KIND,)
_LATE_SECONDS, _BETWEEN_SECONDS = 1.0, 0.1  # of a slow program: it stops, and goes on for a moment
_DNS_LATE_SECONDS = 4.0  # a resolver asks again after 5 s
_DNS = ("-l", "k8s-app=kube-dns")
_NAMESPACES = ("jobset-system", "kueue-system")
_WEBHOOK_PORT = "9443"  # of both controllers


@fault("kill-api-server", "SIGKILL of the API server.", Holds.CONTINUES, platforms=_ONLY_KIND)
def _kill_api(cell: Cell) -> None:
    _kill_component(cell, "kube-apiserver")


@fault("kill-etcd", "SIGKILL of etcd.", Holds.CONTINUES, platforms=_ONLY_KIND)
def _kill_etcd(cell: Cell) -> None:
    _kill_component(cell, "etcd")


@fault("stop-etcd", f"etcd stops for {FROZEN_SECONDS:.0f} s (SIGSTOP).", Holds.CONTINUES, platforms=_ONLY_KIND)
def _stop_etcd(cell: Cell) -> None:
    cell.train()
    control_plane = _control_plane(cell)
    cell.strike(lambda: in_node(control_plane, "pkill", "-STOP", "-x", "etcd"))
    cell.heal_after(FROZEN_SECONDS, lambda: in_node(control_plane, "pkill", "-CONT", "-x", "etcd"))


@fault(
    "slow-etcd",
    f"A host's container is killed while etcd is slow: for {AWAY_SECONDS:.0f} s it stops for {_LATE_SECONDS:.0f} s "
    "again and again.",
    Holds.RESTARTS,
    platforms=_ONLY_KIND,
)
def _slow_etcd(cell: Cell) -> None:
    cell.train()
    host = cell.described(cell.any_host())
    cell.strike(lambda: cell.lab.kill(host, signal.SIGKILL))
    _slow(cell, {_control_plane(cell)}, "etcd", AWAY_SECONDS, _LATE_SECONDS)


@fault(
    "kill-controllers",
    "A host's container is killed, and a moment later the controllers of JobSet and Kueue.",
    Holds.RESTARTS,
    platforms=_ONLY_KIND,
)
def _kill_controllers(cell: Cell) -> None:
    cell.train()
    host, place = cell.described(cell.any_host()), place_of_cell(cell)
    cell.heals.callback(place.await_controllers)
    cell.strike(lambda: cell.lab.kill(host, signal.SIGKILL))
    for namespace in _NAMESPACES:
        place.kill_component(namespace, "control-plane=controller-manager")


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


@fault(
    "webhooks-down",
    f"A host's container is killed while the webhooks of JobSet and Kueue do not answer, for {AWAY_SECONDS:.0f} s.",
    Holds.RESTARTS,
    platforms=_ONLY_KIND,
)
def _webhooks_down(cell: Cell) -> None:
    cell.train()
    host = cell.described(cell.any_host())
    # Also on connections that the API server has kept open.
    begin, end = dropping(_control_plane(cell), "OUTPUT", ["-p", "tcp", "--dport", _WEBHOOK_PORT])
    cell.heals.callback(end)
    begin()
    cell.strike(lambda: cell.lab.kill(host, signal.SIGKILL))
    cell.heal_after(AWAY_SECONDS, end)


@fault("dns-down", "A host's process is killed while names are not resolved.", Holds.RESTARTS, platforms=_ONLY_KIND)
def _dns_down(cell: Cell) -> None:
    _without(cell, "kube-system", "coredns")


@fault(
    "dns-late",
    f"A host's container is killed while names are resolved {_DNS_LATE_SECONDS:.0f} s late, for "
    f"{2 * AWAY_SECONDS:.0f} s.",
    Holds.RESTARTS,
    platforms=_ONLY_KIND,
)
def _dns_late(cell: Cell) -> None:
    cell.train()
    host, place = cell.described(cell.any_host()), place_of_cell(cell)
    nodes = place.kubectl("get", "pods", "-n", "kube-system", *_DNS, "-o", "jsonpath={.items[*].spec.nodeName}")
    cell.strike(lambda: cell.lab.kill(host, signal.SIGKILL))
    _slow(cell, set(nodes.split()), "coredns", 2 * AWAY_SECONDS, _DNS_LATE_SECONDS)


@fault(
    "dns-wrong",
    f"A host's container is killed while DNS says that the name does not exist, for {AWAY_SECONDS:.0f} s.",
    Holds.RESTARTS,
    platforms=_ONLY_KIND,
)
def _dns_wrong(cell: Cell) -> None:
    cell.train()
    host, place = cell.described(cell.any_host()), place_of_cell(cell)
    map_of = ("configmap", "coredns", "-n", "kube-system")
    right = json.loads(place.kubectl("get", *map_of, "-o", "json"))["data"]["Corefile"]
    wrong = right.replace("kubernetes cluster.local", "kubernetes elsewhere.local")

    def answer(corefile: str) -> None:
        place.kubectl("patch", *map_of, "-p", json.dumps({"data": {"Corefile": corefile}}))
        # It reads the file when it starts.
        place.kubectl("delete", "pods", "-n", "kube-system", *_DNS, "--grace-period=1")
        place.kubectl("rollout", "status", "deployment", "-n", "kube-system", "coredns", "--timeout=60s")

    cell.heals.callback(answer, right)
    answer(wrong)
    cell.strike(lambda: cell.lab.kill(host, signal.SIGKILL))
    cell.heal_after(AWAY_SECONDS, lambda: answer(right))


def _control_plane(cell: Cell) -> str:
    """Return the node of the control plane."""
    return f"{cell.lab.cluster}-control-plane"


def _kill_component(cell: Cell, name: str) -> None:
    """Kill a component of the control plane, and wait until the API server answers again."""
    cell.train()
    place = place_of_cell(cell)
    cell.strike(lambda: place.kill_component("kube-system", f"component={name}"))
    _await(cell, lambda: place.kubectl("get", "--raw", "/readyz") == "ok")


def _slow(cell: Cell, nodes: Iterable[str], program: str, seconds: float, pause: float) -> None:
    """Stop a program of some nodes again and again for some seconds, so that it answers late."""

    def send(number: signal.Signals) -> None:
        for node in nodes:
            in_node(node, "pkill", f"-{number.name}", "-x", program)

    cell.heals.callback(send, signal.SIGCONT)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        send(signal.SIGSTOP)
        cell.wait(pause)
        send(signal.SIGCONT)
        cell.wait(_BETWEEN_SECONDS)
    cell.healed = time.time()


def _without(cell: Cell, namespace: str, deployment: str) -> None:
    """Kill a host's process while a deployment has no pods; they come back when all hosts train again."""
    cell.train()
    place = place_of_cell(cell)
    scale = ("scale", "deployment", "-n", namespace, deployment)
    replicas = place.kubectl("get", "deployment", "-n", namespace, deployment, "-o", "jsonpath={.spec.replicas}")
    cell.heals.callback(place.await_controllers)
    cell.heals.callback(place.kubectl, *scale, f"--replicas={replicas}")
    place.kubectl(*scale, "--replicas=0")
    place.kubectl("rollout", "status", "deployment", "-n", namespace, deployment, "--timeout=60s")
    cell.send(signal.SIGKILL, cell.any_host())


def _await(cell: Cell, condition: Callable[[], Any]) -> None:
    """Wait for the control plane; the run must not need it."""
    until(condition, seconds=RETURN_SECONDS, every=1.0)
    cell.progress.read()
