"""Queued provisioning by a user's commands: Kueue is real, and the test acts as GKE's autoscaler."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.cloud.container_v1.services.cluster_manager import ClusterManagerClient
from google.cloud.container_v1.services.cluster_manager.transports import ClusterManagerGrpcTransport

from e2e.api_server import BINARIES
from e2e.cloud import DELETE, MISSING, QUOTAS, WHERE, Cloud, empty_project

SHAPE = ("--flex", "--queued-provisioning", "--tpu-type", "v5litepod-16", "--num-slices", "2")
CREATE = ("cluster", "create", "c", *WHERE, *SHAPE)
WHAT = ("--cluster", "c", "--image", "none", "--command", "sleep inf", "--output-root", "gs://runs/here")
NO_CAPACITY = "Quota 'PREEMPTIBLE_TPU_LITE_PODSLICE_V5' exceeded"
WAITS = "Waiting for resources. Currently there are not enough resources available to fulfill the request."
_CLUSTER = "projects/p/locations/us-central1/clusters/c"
pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)
# The fields of k8s.io/autoscaler's autoscaling.x-k8s.io/v1, which GKE installs on its clusters.
_SPEC = {
    "type": "object",
    "required": ["podSets", "provisioningClassName"],
    "properties": {
        "podSets": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["count", "podTemplateRef"],
                "properties": {
                    "count": {"type": "integer", "format": "int32", "minimum": 1},
                    "podTemplateRef": {"type": "object", "properties": {"name": {"type": "string"}}},
                },
            },
        },
        "provisioningClassName": {"type": "string"},
        "parameters": {"type": "object", "additionalProperties": {"type": "string", "maxLength": 255}},
    },
}
_STATUS = {
    "type": "object",
    "properties": {
        "conditions": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["type"],
                "properties": {"type": {"type": "string"}},
                "x-kubernetes-preserve-unknown-fields": True,
            },
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["type"],
        },
        "provisioningClassDetails": {"type": "object", "additionalProperties": {"type": "string"}},
    },
}
CRD = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {
        "name": "provisioningrequests.autoscaling.x-k8s.io",
        "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes/autoscaler/pull/5848"},
    },
    "spec": {
        "group": "autoscaling.x-k8s.io",
        "names": {
            "kind": "ProvisioningRequest",
            "listKind": "ProvisioningRequestList",
            "plural": "provisioningrequests",
            "singular": "provisioningrequest",
        },
        "scope": "Namespaced",
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "required": ["spec"],
                        "properties": {"spec": _SPEC, "status": _STATUS},
                    }
                },
            }
        ],
    },
}


class Autoscaler:
    """GKE's autoscaler for ProvisioningRequests, controlled by a test."""

    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud

    def requests(self) -> list[dict[str, Any]]:
        """Return the existing ProvisioningRequests, oldest first."""
        listed = json.loads(self._kubectl("get", "provisioningrequests", "-o", "json"))["items"]
        return sorted(listed, key=lambda request: str(request["metadata"]["name"]))

    def pods_of(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the pods of a request."""
        name = request["spec"]["podSets"][0]["podTemplateRef"]["name"]
        podtemplate = json.loads(self._kubectl("get", "podtemplate", name, "-o", "json"))
        return dict(podtemplate["template"]["spec"])

    def answer(self, request: dict[str, Any], **conditions: tuple[str, str]) -> None:
        """Set the conditions of a request, each with status, message and the current time, from which Kueue counts."""
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        entries = [
            {"type": kind, "status": status, "reason": kind, "message": message, "lastTransitionTime": now}
            for kind, (status, message) in conditions.items()
        ]
        status = {"conditions": entries, "provisioningClassDetails": {"ResizeRequestName": "resize-1"}}
        name = request["metadata"]["name"]
        patch = json.dumps({"status": status})
        self._kubectl("patch", "provisioningrequest", name, "--subresource=status", "--type=merge", f"--patch={patch}")

    def make_nodes(self, pool: str, count: int) -> None:
        """Resize a node pool; its nodes name the resize that created them."""
        channel = grpc.insecure_channel(self._cloud.gke.grpc_target)
        client = ClusterManagerClient(transport=ClusterManagerGrpcTransport(channel=channel))
        client.set_node_pool_size({"name": f"{_CLUSTER}/nodePools/{pool}", "node_count": count})
        channel.close()
        self._cloud.until(lambda: self._cloud.slices()[pool] == count)
        for node in self._cloud.api.list("Node"):
            if node["metadata"]["labels"]["cloud.google.com/gke-nodepool"] == pool:
                labels = {"autoscaling.gke.io/provisioning-request": "resize-1"}
                self._cloud.api.patch("Node", node["metadata"]["name"], {"metadata": {"labels": labels}})

    def _kubectl(self, *arguments: str) -> str:
        argv = [str(BINARIES / "kubectl"), f"--kubeconfig={self._cloud.kubeconfig}", *arguments]
        return subprocess.run(argv, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def site(tmp_path: Path) -> Iterator[tuple[Cloud, Autoscaler]]:
    """Return a project without clusters; its API server has ProvisioningRequests, like GKE's."""
    with empty_project(tmp_path, {**QUOTAS, "PREEMPTIBLE_TPU_LITE_PODSLICE_V5": 1000}) as cloud:
        cloud.api.apply(CRD)
        yield cloud, Autoscaler(cloud)


def test_nodes_are_created_when_a_workload_requests_them(site: tuple[Cloud, Autoscaler]) -> None:
    cloud, autoscaler = site
    cloud.xpk(*CREATE)
    assert not cloud.slices() and quota(cloud) == "32"
    cloud.until(lambda: is_active(cloud))
    assert cloud.json(*CREATE, "--dry-run")["steps"] == []

    cloud.xpk("workload", "create", "train", *WHAT, "--num-slices", "2", "--max-run-duration", "2h")
    (asked,) = cloud.until(autoscaler.requests)
    assert asked["spec"]["provisioningClassName"] == "queued-provisioning.gke.io"
    assert asked["spec"]["parameters"] == {"maxRunDurationSeconds": "7200"}
    assert [item["count"] for item in asked["spec"]["podSets"]] == [8]
    pods = autoscaler.pods_of(asked)
    assert pods["nodeSelector"]["cloud.google.com/gke-queued"] == "true"
    assert {"google.com/tpu", "cloud.google.com/gke-queued"} <= {item["key"] for item in pods["tolerations"]}
    assert reason(cloud, "train") == (
        "waiting for GKE to create its nodes: its ProvisioningRequest is pending "
        "(admission check 'dws-prov' is Pending)"
    )
    autoscaler.answer(asked, Accepted=("True", "taken"), Provisioned=("False", WAITS))
    cloud.until(lambda: WAITS in reason(cloud, "train"))
    for pool in ("c-np-0", "c-np-1"):
        autoscaler.make_nodes(pool, 4)
    status = cloud.run("train")
    assert (status["phase"], status["hosts"]) == ("Queued", []), "nodes alone do not complete the request"

    autoscaler.answer(asked, Accepted=("True", "taken"), Provisioned=("True", "made"))
    cloud.check_each_slice_has_a_pool(cloud.running("train"))
    assert [(check["name"], check["state"]) for check in cloud.run("train")["checks"]] == [("dws-prov", "Ready")]
    for pod in cloud.api.list("Pod"):
        assert pod["spec"]["nodeSelector"]["autoscaling.gke.io/provisioning-request"] == "resize-1"
        request_name = pod["metadata"]["annotations"]["autoscaling.x-k8s.io/consume-provisioning-request"]
        assert request_name == asked["metadata"]["name"]
    cloud.xpk("workload", "delete", "train", "--cluster", "c", "--yes")
    cloud.until(lambda: not autoscaler.requests() and not cloud.api.list("Pod"))
    cloud.xpk(*DELETE)
    cloud.check_nothing_is_left()


@pytest.mark.extended
def test_a_failed_request_is_reported(site: tuple[Cloud, Autoscaler]) -> None:
    cloud, autoscaler = site
    cloud.xpk(*CREATE)
    later = {"spec": {"retryStrategy": {"backoffBaseSeconds": 1000}}}  # than this machine takes to poll
    cloud.api.patch("ProvisioningRequestConfig", "dws-config", later)
    cloud.xpk("workload", "create", "late", *WHAT)
    (asked,) = cloud.until(autoscaler.requests)
    assert asked["spec"]["parameters"] == {}, "GKE's own, 7 days"
    autoscaler.answer(asked, Failed=("True", NO_CAPACITY))
    cloud.until(lambda: "1 attempt failed" in reason(cloud, "late"))
    line = cloud.xpk("workload", "status", "late", "--cluster", "c").splitlines()[0]
    assert f"GKE created no nodes: {NO_CAPACITY} (1 attempt failed, next attempt at 20" in line
    cloud.xpk("workload", "delete", "late", "--cluster", "c", "--yes")
    cloud.until(lambda: not autoscaler.requests())

    never = {"spec": {"retryStrategy": {"backoffLimitCount": 0}}}
    cloud.api.patch("ProvisioningRequestConfig", "dws-config", never)
    cloud.xpk("workload", "create", "never", *WHAT)
    (asked,) = cloud.until(autoscaler.requests)
    autoscaler.answer(asked, Failed=("True", NO_CAPACITY))
    cloud.until(lambda: cloud.run("never")["phase"] == "Suspended")
    words = f"given up: GKE created no nodes: {NO_CAPACITY} (admission check 'dws-prov' is Rejected)"
    cloud.until(lambda: reason(cloud, "never") == words)


def reason(cloud: Cloud, workload: str) -> str:
    """Return the reason of a workload's phase."""
    return str(cloud.run(workload)["reason"])


def quota(cloud: Cloud) -> str:
    """Return the quota of the cluster's queue."""
    (group,) = cloud.api.get("ClusterQueue", "cluster-queue")["spec"]["resourceGroups"]
    return str(group["flavors"][0]["resources"][0]["nominalQuota"])


def is_active(cloud: Cloud) -> bool:
    """Return whether Kueue's admission check is active, and the queue with it admits workloads."""
    objects = [cloud.api.get("AdmissionCheck", "dws-prov"), cloud.api.get("ClusterQueue", "cluster-queue")]
    conditions = [item for obj in objects for item in obj.get("status", {}).get("conditions", [])]
    return [item["status"] for item in conditions if item["type"] == "Active"] == ["True", "True"]
