"""A client of the emulator for tests: Google's own, over a plain channel."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

import grpc
from google.cloud.container_v1 import Cluster, ClusterManagerClient, NodeConfig, NodePool, Operation
from google.cloud.container_v1.services.cluster_manager.transports import ClusterManagerGrpcTransport

from tests.waiting import until
from tools.gke_emulator import GkeEmulator

PROJECT, REGION, ZONE = "red-project", "us-east5", "us-east5-b"
PARENT = f"projects/{PROJECT}/locations/{REGION}"
_SECONDS = 240.0  # on a slow machine


class Cloud:
    """An emulator and a client of it."""

    def __init__(self, gke: GkeEmulator) -> None:
        self.gke = gke
        self.channel = grpc.insecure_channel(gke.grpc_target)
        self.client = ClusterManagerClient(transport=ClusterManagerGrpcTransport(channel=self.channel))

    def close(self) -> None:
        """Close the connection."""
        self.channel.close()

    def create_cluster(self, name: str = "red", nodes: int = 1, **fields: Any) -> Operation:
        """Start to create a cluster with a default pool in one zone."""
        pool = NodePool(name="default-pool", initial_node_count=nodes, config=NodeConfig(machine_type="e2-standard-16"))
        cluster = Cluster({"name": name, "locations": [ZONE], "node_pools": [pool], **fields})
        return self.client.create_cluster(parent=PARENT, cluster=cluster)

    def running_cluster(self, name: str = "red", **fields: Any) -> str:
        """Create a cluster; return its resource name."""
        ended = self.done(self.create_cluster(name, **fields))
        assert not ended.error.code, ended.error.message
        return f"{PARENT}/clusters/{name}"

    def create_slice(self, number: int = 0, cluster: str = "red", **fields: Any) -> Operation:
        """Start to create a node pool that is a v5e slice of 4x4: four hosts."""
        return self.client.create_node_pool(
            parent=f"{PARENT}/clusters/{cluster}", node_pool=slice_pool(f"{cluster}-np-{number}", **fields)
        )

    def pool(self, name: str, cluster: str = "red") -> NodePool:
        """Return a node pool."""
        return self.client.get_node_pool(name=f"{PARENT}/clusters/{cluster}/nodePools/{name}")

    def operation(self, operation: Operation) -> Operation:
        """Return the current state of an operation."""
        return self.client.get_operation(name=f"{PARENT}/operations/{operation.name}")

    def done(self, operation: Operation) -> Operation:
        """Wait for the end of an operation."""
        done = Operation.Status.DONE
        until(lambda: self.operation(operation).status == done, seconds=_SECONDS, every=0.02)
        return self.operation(operation)

    def rest(self, method: str, path: str, body: dict[str, Any] | None = None) -> tuple[int, Any]:
        """Send a REST request under the project; return the status code and the response."""
        data = json.dumps(body).encode() if body is not None else None
        url = f"{self.gke.http_url}/compute/v1/projects/{PROJECT}/{path}"
        try:
            with urllib.request.urlopen(urllib.request.Request(url, data=data, method=method), timeout=30) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)


def slice_pool(name: str, **fields: Any) -> NodePool:
    """Return the request for a v5e slice of 4x4; `config` is merged, other fields are replaced."""
    config = {"machine_type": "ct5lp-hightpu-4t", **fields.pop("config", {})}
    placement = {"type_": NodePool.PlacementPolicy.Type.COMPACT, "tpu_topology": "4x4"}
    return NodePool({"name": name, "initial_node_count": 4, "config": config, "placement_policy": placement, **fields})
