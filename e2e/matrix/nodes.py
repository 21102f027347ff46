"""Faults of kind: pods, nodes, and the links between them."""

from __future__ import annotations

import signal
from functools import partial

from e2e.kind_cluster import Place, docker
from e2e.matrix.cell import Cell
from e2e.matrix.fault import KIND, Holds, fault
from e2e.matrix.on_kind import AWAY_SECONDS, FROZEN_SECONDS, dropping, in_node, place_of_cell
from e2e.matrix.programs import HOSTS

_MOVE_SECONDS = 420.0  # until a slice has moved from a frozen node to the spare one
_ONLY_KIND = (KIND,)
_OF_SLICES = ("-l", "cloud.google.com/gke-tpu-topology")
_KEPT = "matrix/kept"  # another name of an image, so that its layers stay on the node


@fault("delete-pod", "A host's pod is deleted.", Holds.SAVES, platforms=_ONLY_KIND)
def _delete_pod(cell: Cell) -> None:
    _delete(cell)


@fault("delete-pod-by-force", "A host's pod is deleted without a grace period.", Holds.RESTARTS, platforms=_ONLY_KIND)
def _delete_by_force(cell: Cell) -> None:
    _delete(cell, "--force", "--grace-period=0")


@fault(
    "image-gone",
    f"A host's container is killed, and its node does not have the image for {AWAY_SECONDS:.0f} s; status names it.",
    Holds.RESTARTS,
    platforms=_ONLY_KIND,
)
def _image_gone(cell: Cell) -> None:
    cell.train()
    host, place = cell.described(cell.any_host()), place_of_cell(cell)
    image = place.kubectl("get", "pod", host["pod"], "-o", "jsonpath={.spec.containers[0].image}")
    name = image if "/" in image else f"docker.io/library/{image}"
    nodes = place.kubectl("get", "nodes", *_OF_SLICES, "-o", "jsonpath={.items[*].metadata.name}").split()
    images = ("ctr", "-n", "k8s.io", "images")

    def bring_back() -> None:
        for node in nodes:
            in_node(node, *images, "tag", "--force", _KEPT, name)

    for node in nodes:
        in_node(node, *images, "tag", "--force", name, _KEPT)
    cell.heals.callback(bring_back)
    for node in nodes:
        in_node(node, *images, "remove", "--sync", name)
    cell.strike(lambda: cell.lab.kill(host, signal.SIGKILL))
    cell.until(lambda: image in cell.run.describe()["reason"], every=2.0)
    cell.heal_after(AWAY_SECONDS, bring_back)


@fault("kill-node", "The machine of a node ends, while `xpk cluster fence` runs.", Holds.RESTARTS, platforms=_ONLY_KIND)
def _kill_node(cell: Cell) -> None:
    cell.train()
    node, place = cell.described(HOSTS - 1)["node"], place_of_cell(cell)
    cell.heals.enter_context(place.fencing())
    cell.removals.callback(_return, place)
    cell.strike(partial(docker, "kill", node))
    cell.limit_seconds = _MOVE_SECONDS


@fault("freeze-node", "A node stops (`docker pause`), and nobody fences it.", Holds.RESTARTS, platforms=_ONLY_KIND)
def _freeze_node(cell: Cell) -> None:
    cell.train()
    node, place = cell.described(HOSTS - 1)["node"], place_of_cell(cell)
    cell.removals.callback(_return, place)
    cell.strike(partial(docker, "pause", node))
    cell.limit_seconds = _MOVE_SECONDS


@fault("kill-kubelet", "SIGKILL of the kubelet of a node.", Holds.CONTINUES, platforms=_ONLY_KIND)
def _kill_kubelet(cell: Cell) -> None:
    cell.train()
    node = cell.described(HOSTS - 1)["node"]
    cell.strike(lambda: in_node(node, "pkill", "-KILL", "-x", "kubelet"))
    cell.wait(FROZEN_SECONDS)


@fault(
    "stop-kubelet", f"SIGSTOP of the kubelet of a node for {AWAY_SECONDS:.0f} s.", Holds.CONTINUES,
    platforms=_ONLY_KIND,
)  # fmt: skip
def _stop_kubelet(cell: Cell) -> None:
    cell.train()
    node = cell.described(HOSTS - 1)["node"]
    cell.strike(lambda: in_node(node, "pkill", "-STOP", "-x", "kubelet"))
    cell.heal_after(AWAY_SECONDS, lambda: in_node(node, "pkill", "-CONT", "-x", "kubelet"))


@fault(
    "partition-from-api-server", f"A node does not reach the API server for {AWAY_SECONDS:.0f} s.", Holds.CONTINUES,
    platforms=_ONLY_KIND,
)  # fmt: skip
def _from_api(cell: Cell) -> None:
    cell.train()
    node = cell.described(HOSTS - 1)["node"]
    _drop(cell, node, "OUTPUT", ["-p", "tcp", "--dport", "6443"])


@fault(
    "partition-of-pods", f"A host and all others lose each other for {AWAY_SECONDS:.0f} s.", Holds.RESTARTS,
    platforms=_ONLY_KIND,
)  # fmt: skip
def _partition(cell: Cell) -> None:
    cell.train()
    host = cell.described(cell.any_host())
    address = place_of_cell(cell).kubectl("get", "pod", host["pod"], "-o", "jsonpath={.status.podIP}")
    cell.limit_seconds = _MOVE_SECONDS
    _drop(cell, host["node"], "FORWARD", ["-s", address], ["-d", address])


def _delete(cell: Cell, *how: str) -> None:
    cell.train()
    pod, place = cell.described(cell.any_host())["pod"], place_of_cell(cell)
    cell.strike(lambda: place.kubectl("delete", "pod", pod, "--wait=false", *how))


def _drop(cell: Cell, node: str, chain: str, *rules: list[str]) -> None:
    """Drop packets on a node for some seconds."""
    begin, end = dropping(node, chain, *rules)
    cell.strike(begin)
    cell.heal_after(AWAY_SECONDS, end)


def _return(place: Place) -> None:
    """Bring all nodes back, and wait until they are ready."""
    place.wake()
    place.kubectl("wait", "nodes", "--all", "--for=condition=Ready", "--timeout=240s")
