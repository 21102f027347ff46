"""google.container.v1.ClusterManager over gRPC, with Google's generated messages on the wire."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from google.cloud import container_v1, container_v1beta1
from google.protobuf import empty_pb2
from google.protobuf.json_format import MessageToDict

from tools.gke_emulator.clusters import Clusters
from tools.gke_emulator.names import target_of
from tools.gke_emulator.plane import Plane
from tools.gke_emulator.pools import Pools
from tools.gke_emulator.record import Record
from tools.gke_emulator.refusal import Refusal

SERVICE = "google.container.v1.ClusterManager"
BETA = "google.container.v1beta1.ClusterManager"
BETA_METHODS = ("CreateNodePool", "GetNodePool")  # v1beta1 has a field of node pools that v1 lacks
_THREADS = 64
Handler = Callable[[Any], Any]


def handlers(plane: Plane) -> dict[str, tuple[str, Handler]]:
    """Return the handler of each method: the name of the request's type, and a function of the request."""
    pools = Pools(plane)
    clusters = Clusters(plane, pools)
    operations = plane.operations
    some_clusters, some_pools = container_v1.ListClustersResponse.pb(), container_v1.ListNodePoolsResponse.pb()
    return {
        "GetServerConfig": ("GetServerConfigRequest", clusters.server_config),
        "ListClusters": ("ListClustersRequest", lambda asked: some_clusters(clusters=clusters.list(asked))),
        "GetCluster": ("GetClusterRequest", clusters.get),
        "CreateCluster": ("CreateClusterRequest", clusters.create),
        "UpdateCluster": ("UpdateClusterRequest", clusters.update),
        "DeleteCluster": ("DeleteClusterRequest", clusters.delete),
        "ListNodePools": ("ListNodePoolsRequest", lambda asked: some_pools(node_pools=pools.list(asked))),
        "GetNodePool": ("GetNodePoolRequest", pools.get),
        "CreateNodePool": ("CreateNodePoolRequest", pools.create),
        "UpdateNodePool": ("UpdateNodePoolRequest", pools.update),
        "DeleteNodePool": ("DeleteNodePoolRequest", pools.delete),
        "SetNodePoolSize": ("SetNodePoolSizeRequest", pools.set_size),
        "SetNodePoolAutoscaling": ("SetNodePoolAutoscalingRequest", pools.set_autoscaling),
        "SetNodePoolManagement": ("SetNodePoolManagementRequest", pools.set_management),
        "ListOperations": ("ListOperationsRequest", lambda asked: _list(plane, asked)),
        "GetOperation": (
            "GetOperationRequest", lambda asked: operations.find(target_of(asked, "project", "location", "operation"))
        ),
        "CancelOperation": ("CancelOperationRequest", lambda asked: _cancel(plane, asked)),
    }  # fmt: skip


def _list(plane: Plane, request: Any) -> Any:
    target = target_of(request, "project", "location")
    return container_v1.ListOperationsResponse.pb()(operations=plane.operations.all(target.project, target.location))


def _cancel(plane: Plane, request: Any) -> Any:
    plane.operations.cancel(target_of(request, "project", "location", "operation"))
    return empty_pb2.Empty()


class Service:
    """The gRPC server."""

    def __init__(self, plane: Plane, record: Record) -> None:
        self._plane, self._record = plane, record
        known = handlers(plane)
        every = {name: self._method(container_v1, name, *item) for name, item in known.items()}
        beta = {name: self._method(container_v1beta1, name, *known[name]) for name in BETA_METHODS}
        self._server = grpc.server(ThreadPoolExecutor(_THREADS, "gke-call"), options=[("grpc.so_reuseport", 0)])
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE, every), grpc.method_handlers_generic_handler(BETA, beta))
        )
        self.port: int = self._server.add_insecure_port(f"127.0.0.1:{plane.options.port}")
        if not self.port:
            raise OSError(f"port {plane.options.port} is taken")

    def start(self) -> None:
        """Start to serve."""
        self._server.start()

    def stop(self) -> None:
        """Stop; running calls get a second."""
        self._server.stop(1.0).wait()

    def _method(self, types: Any, name: str, request_type: str, handler: Handler) -> Any:
        kept = getattr(container_v1, request_type).pb()  # fields that only v1beta1 has are kept as unknown fields

        def answer(request: Any, context: grpc.ServicerContext) -> Any:
            operations = self._plane.operations.running()
            with self._record.call(name, MessageToDict(request, preserving_proto_field_name=True), operations) as call:
                try:
                    return self._answer(name, handler, kept.FromString(request.SerializeToString()))
                except Refusal as refusal:
                    call.code = refusal.code
                    refusal.abort(context)
                except Exception:
                    call.code = "UNKNOWN"  # a fault of the emulator itself: gRPC reports it
                    raise

        return grpc.unary_unary_rpc_method_handler(
            answer,
            request_deserializer=getattr(types, request_type).pb().FromString,
            response_serializer=lambda message: message.SerializeToString(),
        )

    def _answer(self, name: str, handler: Handler, request: Any) -> Any:
        plane = self._plane
        fault = plane.faults.call(name)
        if fault and not fault.applied:
            raise Refusal(fault.code, fault.message)
        if plane.options.latency:
            time.sleep(plane.options.latency / plane.options.speed)
        with plane.store.together():
            answered = handler(request)
            copy = type(answered)()
            copy.CopyFrom(answered)  # the stored object continues to change
            plane.store.tick(plane.clock.now())
        if fault:
            raise Refusal(fault.code, fault.message)
        return copy
