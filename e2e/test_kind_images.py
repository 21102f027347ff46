"""Images on all nodes of a real cluster before anything runs there, and whether those nodes are well.

eval "$(e2e/environment/up)" && .venv/bin/python -m pytest e2e/test_kind_images.py --timeout 900

The registry is one of ours; each node reaches it at its own loopback address, where containerd needs no TLS.
"""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from e2e.kind_cluster import SLICES, SPARE_SLICES, XPK, Place, docker
from e2e.registry import Registry, registry
from tests import waiting

NODES = SLICES + SPARE_SLICES  # each slice is one node
KINDS = "jobs,daemonsets,controllerrevisions,configmaps,pods"
SIZE = 3 << 20
HOST = "127.0.0.1:5005"
_SECONDS = 90.0


@pytest.fixture(scope="module")
def images(place: Place) -> Iterator[Registry]:
    """Yield a registry that the nodes of slices reach, and a restricted namespace in which they pull."""
    place.kubectl("create", "namespace", "pulls")
    place.kubectl("label", "namespace", "pulls", "pod-security.kubernetes.io/enforce=restricted")
    with registry(place.gateway()) as made:
        made.add("nothing", SIZE)
        made.add("large", SIZE)
        to = f"TCP:{place.gateway()}:{made.port}"
        for node in nodes(place):
            docker("exec", "--detach", node, "socat", "TCP-LISTEN:5005,bind=127.0.0.1,fork,reuseaddr", to)
        yield made
    for node in nodes(place):
        docker("exec", node, "pkill", "-x", "socat")
        docker("exec", node, "ctr", "--namespace", "k8s.io", "images", "remove", f"{HOST}/nothing:1", f"{HOST}/large:1")
    place.kubectl("delete", "namespace", "pulls", "--wait=false")


def nodes(place: Place) -> list[str]:
    """Return the names of the slices' nodes."""
    label = "cloud.google.com/gke-tpu-topology"
    return place.kubectl("get", "nodes", "-l", label, "-o", "jsonpath={.items[*].metadata.name}").split()


def cache(place: Place, *arguments: str, code: int = 0) -> dict[str, Any]:
    """Cache images and return the output."""
    done = place.xpk("cluster", "cache-image", place.cluster, "-n", "pulls", "-o", "json", *arguments, code=code)
    return {**json.loads(done.stdout), "stderr": done.stderr}


def left(place: Place) -> str:
    """Return our remaining objects."""
    return place.kubectl("get", KINDS, "-A", "-l", "xpk.dev/image-cache", "-o", "name")


def until(condition: Callable[[], bool], report: Callable[[], str]) -> None:
    """Wait until a condition holds."""
    waiting.until(condition, seconds=_SECONDS, every=0.5, report=report)


def test_an_image_without_a_program_is_pulled_onto_every_node_and_measured(place: Place, images: Registry) -> None:
    images.seconds = 1.5
    output = cache(place, "--image", f"{HOST}/nothing:1")
    (image,) = output["images"]
    assert (output["nodes"], image["pulled"], image["present"], image["failed"]) == (NODES, NODES, 0, [])
    assert 1.5 <= image["p50_seconds"] <= image["p95_seconds"] <= image["max_seconds"] < output["seconds"]
    assert SIZE <= image["size_bytes"] < 1.1 * SIZE and image["pulled_bytes"] == NODES * image["size_bytes"]
    for node in nodes(place):
        assert f"{HOST}/nothing" in docker("exec", node, "ctr", "--namespace", "k8s.io", "images", "list", "--quiet")
    until(lambda: not left(place), lambda: left(place))
    (again,) = cache(place, "--image", f"{HOST}/nothing:1")["images"]
    assert (again["pulled"], again["present"], again["max_seconds"]) == (0, NODES, 0.0)
    # Nodes report their images every few minutes.
    assert again["size_bytes"] in (None, image["size_bytes"]) and again["pulled_bytes"] == 0


def test_a_failed_pull_is_named_and_another_image_is_pulled(place: Place, images: Registry) -> None:
    output = cache(place, "--image", f"{HOST}/none:1", "--image", f"{HOST}/nothing:1", code=1)
    none, nothing = output["images"]
    assert {item["node"] for item in none["failed"]} == set(nodes(place))
    assert all("not found" in item["message"] for item in none["failed"]) and nothing["failed"] == []
    assert f"error: image {HOST}/none:1 is not on {NODES} of {NODES} nodes" in output["stderr"]
    until(lambda: not left(place), lambda: left(place))


@pytest.mark.extended
def test_after_a_kill_the_cache_job_ends_by_itself(place: Place, images: Registry) -> None:
    images.seconds = 600.0
    argv = [*XPK, "cluster", "cache-image", place.cluster, "-n", "pulls", "--image", f"{HOST}/large:1"]
    child = subprocess.Popen([*argv, "--timeout", "15s"], env=place.lab.environ, stderr=subprocess.DEVNULL)
    until(lambda: left(place).count("pod/") == NODES, place.what_is_there)
    child.send_signal(signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    assert "job" in left(place)
    ended = ("get", "pods", "-n", "pulls", "-o", "jsonpath={.items[*].metadata.deletionTimestamp}")
    until(lambda: len(place.kubectl(*ended).split()) == NODES, place.what_is_there)
    images.seconds = 0.0  # the kubelet releases a pod when its pull has ended
    until(lambda: not left(place), place.what_is_there)


def test_health_names_an_unschedulable_node(place: Place) -> None:
    asked = ("cluster", "health", place.cluster, "-o", "json")
    slices = json.loads(place.xpk(*asked).stdout)
    assert [(item["state"], item["hosts_ready"], item["chips_offered"]) for item in slices] == [("Ready", 2, 8)] * NODES
    node = nodes(place)[0]
    place.kubectl("cordon", node)
    try:
        refused = place.xpk(*asked, code=1)
        (bad,) = [item for item in json.loads(refused.stdout) if not item["usable"]]
        assert bad["state"] == "Cordoned" and bad["troubles"][0]["node"] == node and bad["troubles"][0]["since"]
        assert f"1 of {NODES} slices do not accept workloads" in refused.stderr
    finally:
        place.kubectl("uncordon", node)
    place.xpk(*asked)
