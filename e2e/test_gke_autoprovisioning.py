"""A workload without a slice is admitted where GKE adds node pools, and requests the right ones.

GKE is emulated and adds none by itself: the test creates those that its autoscaler would. JobSet, Kueue and the
scheduler are real.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.cloud.container_v1 import ClusterManagerClient, NodePool
from google.cloud.container_v1.services.cluster_manager.transports import ClusterManagerGrpcTransport

from e2e.cloud import MISSING, QUOTAS, WHERE, Cloud, empty_project
from xpk.api.base import Obj

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)
LIMITS = ("--enable-autoprovisioning", "--autoprovisioning-max-chips", "32")
CREATE = ("cluster", "create", "c", *WHERE, "--on-demand", "--tpu-type", "v5litepod-16", "--num-slices", "0", *LIMITS)
WANTED = {
    "cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice",
    "cloud.google.com/gke-tpu-topology": "4x4",
    "cloud.google.com/gke-spot": "true",
}


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[Cloud]:
    with empty_project(tmp_path, QUOTAS) as project:
        yield project


def test_a_workload_is_admitted_before_a_slice_exists(cloud: Cloud) -> None:
    cloud.xpk(*CREATE)
    assert cloud.pools() == {"default-pool": "RUNNING"}
    what = ("--cluster", "c", "--image", "none", "--command", "sleep inf", "--output-root", "gs://runs/here")
    cloud.xpk("workload", "create", "train", "--num-slices", "3", "--spot", *what, code=5)
    cloud.xpk("workload", "create", "train", "--num-slices", "2", "--spot", *what)

    leaders = cloud.until(lambda: len(pods := unschedulable(cloud)) == 2 and pods)
    for pod in leaders:
        assert WANTED.items() <= pod["spec"]["nodeSelector"].items()
        spot = {"key": "cloud.google.com/gke-spot", "operator": "Equal", "value": "true", "effect": "NoSchedule"}
        assert spot in pod["spec"]["tolerations"]
    assert cloud.run("train")["phase"] == "Starting"
    cloud.api.create(scaling_event(leaders[0]))
    status = cloud.xpk("workload", "status", "train", "--cluster", "c")
    assert "GKE adds nodes: pod triggered scale-up: [{nap-0 0->4 (max: 4)}]" in " ".join(status.split())

    for number in (0, 1):
        make_pool(cloud, f"c-np-{number}")
    cloud.check_each_slice_has_a_pool(cloud.running("train"))
    described = cloud.json("cluster", "describe", "c")
    assert (described["state"], described["num_slices"], described["chips"]) == ("Ready", 2, 32)
    cloud.xpk(*CREATE)
    assert sorted(cloud.pools()) == ["c-np-0", "c-np-1", "default-pool"], "create keeps autoprovisioned node pools"


def unschedulable(cloud: Cloud) -> list[Obj]:
    """Return the pods that the scheduler reports as unschedulable."""
    return [
        pod
        for pod in cloud.api.list("Pod")
        for condition in pod.get("status", {}).get("conditions", [])
        if (condition["type"], condition.get("reason")) == ("PodScheduled", "Unschedulable")
    ]


def scaling_event(pod: Obj) -> dict[str, Any]:
    """Return the event of GKE's autoscaler for a pod for which it creates a node pool."""
    meta = pod["metadata"]
    about = {"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "namespace": "default", "uid": meta["uid"]}
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{meta['name']}.1", "namespace": "default"},
        "involvedObject": about,
        "reason": "TriggeredScaleUp",
        "message": "pod triggered scale-up: [{nap-0 0->4 (max: 4)}]",
        "type": "Normal",
        "source": {"component": "cluster-autoscaler"},
        "firstTimestamp": meta["creationTimestamp"],
        "lastTimestamp": meta["creationTimestamp"],
        "count": 1,
    }


def make_pool(cloud: Cloud, name: str) -> None:
    """Create a spot slice of 4x4 as GKE's autoscaler does."""
    pool = NodePool(
        {
            "name": name,
            "initial_node_count": 4,
            "config": {"machine_type": "ct5lp-hightpu-4t", "spot": True},
            "placement_policy": {"type_": NodePool.PlacementPolicy.Type.COMPACT, "tpu_topology": "4x4"},
            "autoscaling": {"enabled": True, "autoprovisioned": True, "max_node_count": 4},
        }
    )
    with grpc.insecure_channel(cloud.gke.grpc_target) as channel:
        client = ClusterManagerClient(transport=ClusterManagerGrpcTransport(channel=channel))
        client.create_node_pool(parent="projects/p/locations/us-central1/clusters/c", node_pool=pool)
    cloud.until(lambda: cloud.pools().get(name) == "RUNNING")
