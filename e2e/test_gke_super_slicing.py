"""Slices that are formed from cubes, by a user's commands: Kueue is real, and the slice controllers are the emulator's.

Kueue places the hosts of each slice on whole cubes, and pods start once the Slice objects are formed.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from e2e.cloud import DELETE, MISSING, WHERE, Cloud, empty_project
from tools.gke_emulator.slice_checks import SliceChecks
from tools.gke_emulator.slices import CRD, SliceController, state_of
from xpk.model.errors import XpkError

BLOCK = "r/reservationBlocks/b"
SHAPE = ("--super-slicing", "--reservation", BLOCK, "--tpu-type", "tpu7x-128", "--num-slices", "3")
CREATE = ("cluster", "create", "c", *WHERE, *SHAPE)
WHAT = ("--cluster", "c", "--image", "none", "--command", "sleep inf", "--output-root", "gs://runs/here")
CUBE = "cloud.google.com/gke-tpu-partition-4x4x4"
_SECONDS = 1.0  # between two steps of the slice controllers
pytestmark = [pytest.mark.skipif(bool(MISSING), reason=MISSING), pytest.mark.timeout(600)]


@contextmanager
def slice_controllers(cloud: Cloud) -> Iterator[None]:
    """Run GKE's slice controller and that of Kueue."""
    stopped = threading.Event()

    def care() -> None:
        controllers = (SliceChecks(cloud.api), SliceController(cloud.api))
        while not stopped.wait(_SECONDS):
            for controller in controllers:
                try:
                    controller.step()
                except XpkError:  # an object was changed meanwhile, or Kueue is not installed yet
                    continue

    thread = threading.Thread(target=care, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[Cloud]:
    """Return a project without clusters, with a block for four cubes; its API server has Slices, like GKE's."""
    with empty_project(tmp_path, {"CPUS": 1000}) as project:
        project.gke.add_reservation(
            "r", project="p", zone="us-central1-a", machine_type="tpu7x-standard-4t", count=64, dense=True
        )
        path = f"projects/p/zones/us-central1-a/reservations/{BLOCK}"
        project.gke.add_resource(path, "compute#reservationBlock", count=64, inUseCount=0)
        project.api.apply(CRD)
        yield project


def slices(cloud: Cloud) -> list[dict[str, Any]]:
    """Return the existing Slices."""
    return cloud.api.list("Slice", None)


def mark(cloud: Cloud, pool: str, state: str) -> None:
    """Set the state of a cube."""
    for node in cloud.api.list("Node", None, {"cloud.google.com/gke-nodepool": pool}):
        cloud.api.patch("Node", node["metadata"]["name"], {"metadata": {"labels": {f"{CUBE}-state": state}}})


def test_workloads_run_on_slices_of_cubes(cloud: Cloud) -> None:
    cloud.xpk(*CREATE)
    assert cloud.slices() == {f"c-np-{index}": 16 for index in range(3)}
    assert cloud.json(*CREATE, "--dry-run")["steps"] == []
    cloud.xpk("workload", "create", "train", *WHAT, "--tpu-type", "tpu7x-4x4x8")
    inactive = "references inactive AdmissionCheck(s): ss-kueue-operator"
    cloud.until(lambda: inactive in cloud.run("train")["reason"])

    with slice_controllers(cloud):
        hosts = cloud.running("train")
        assert len(hosts) == 32
        nodes = {node["metadata"]["name"]: node["metadata"]["labels"] for node in cloud.api.list("Node")}
        assert sorted(Counter(nodes[host["node"]][f"{CUBE}-id"] for host in hosts.values()).values()) == [16, 16]
        (formed,) = slices(cloud)
        assert (formed["spec"]["topology"], state_of(formed)) == ("4x4x8", "ACTIVE")
        assert {nodes[host["node"]]["cloud.google.com/gke-tpu-topology"] for host in hosts.values()} == {"4x4x8"}

        cloud.xpk("workload", "create", "more", *WHAT, "--num-slices", "2")
        cloud.until(lambda: "insufficient unused quota" in cloud.run("more")["reason"])
        cloud.xpk("workload", "delete", "train", "--cluster", "c", "--yes")
        assert len(cloud.running("more")) == 32
        cloud.until(lambda: [item["spec"]["topology"] for item in slices(cloud)] == ["4x4x4", "4x4x4"])
        cloud.xpk("workload", "delete", "more", "--cluster", "c", "--yes")
        cloud.until(lambda: not slices(cloud))
        cloud.until(lambda: not cloud.api.list("Node", None, {"cloud.google.com/gke-tpu-topology": "4x4x4"}))

        mark(cloud, "c-np-0", "UNHEALTHY")
        cloud.xpk("workload", "create", "large", *WHAT, "--tpu-type", "tpu7x-4x4x12")
        cloud.until(lambda: "allows to fit only 2 out of 3 slice(s)" in cloud.run("large")["reason"])
        mark(cloud, "c-np-0", "HEALTHY")
        assert len(cloud.running("large")) == 48
        cloud.xpk("workload", "delete", "large", "--cluster", "c", "--yes")
        cloud.until(lambda: not slices(cloud))
    cloud.xpk(*DELETE)
    cloud.check_nothing_is_left()
