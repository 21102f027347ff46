"""The emulator of a Google Cloud project: its gRPC and HTTP servers, started and stopped together."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from tools.gke_emulator.faults import Fault
from tools.gke_emulator.options import Options
from tools.gke_emulator.plane import Nodes, NoNodes, Plane
from tools.gke_emulator.record import Call, Record
from tools.gke_emulator.rest import Rest
from tools.gke_emulator.service import Service


class GkeEmulator:
    """A GKE control plane on this machine; knobs are those of `Options`, `nodes` where the nodes of pools appear.

    with GkeEmulator(speed=1000) as gke:
        channel = grpc.insecure_channel(gke.grpc_target)
    """

    def __init__(self, options: Options | None = None, *, nodes: Nodes | None = None, **knobs: Any) -> None:
        self.options = options or Options(**knobs)
        self.record = Record()
        if nodes is None:
            nodes = NoNodes()
        if self.options.api_server:
            # Imported here, because the emulator alone does not need the Kubernetes client.
            from tools.gke_emulator.cluster import ApiServerNodes

            nodes = ApiServerNodes(self.options.api_server, kwok=self.options.kwok)
        self.token = nodes.token()
        self.plane = Plane(self.options, nodes)
        self._service = Service(self.plane, self.record)
        self._rest = Rest(self.plane, self.record)

    def __enter__(self) -> GkeEmulator:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start to serve, and continue operations of an earlier process."""
        with self.plane.store.lock:
            self.plane.operations.resume()
        self._service.start()
        self._rest.start()

    def stop(self) -> None:
        """Stop the servers; the state stays in its folder, if it has one."""
        self._service.stop()
        self._rest.stop()
        self.plane.close()

    @property
    def grpc_target(self) -> str:
        """The address of ClusterManager: host:port, without TLS."""
        return f"127.0.0.1:{self._service.port}"

    @property
    def http_url(self) -> str:
        """The address of Compute Engine (`/compute/v1/projects/...`) and the Cloud Quotas API (`/v1/projects/...`)."""
        return f"http://127.0.0.1:{self._rest.port}"

    @property
    def calls(self) -> list[Call]:
        """The calls so far, in order of arrival."""
        return list(self.record.calls)

    def add_fault(self, fault: Fault) -> None:
        """Inject a fault from now on."""
        self.plane.faults.add(fault)

    def clear_faults(self) -> None:
        """Remove all faults. Running operations keep the fault that they have met."""
        self.plane.faults.clear()

    def add_resource(self, path: str, kind: str, **fields: Any) -> None:
        """Store a resource of Compute Engine at a path such as projects/P/zones/Z/reservations/R."""
        with self.plane.store.lock:
            self.plane.compute.put(path, kind, fields)

    def add_reservation(
        self, name: str, *, project: str, zone: str, machine_type: str, count: int, dense: bool = False
    ) -> None:
        """Give a project a reservation of `count` machines that are used by name only; `dense`: Cluster Director's."""
        kind = {"deploymentType": "DENSE"} if dense else {}
        self.add_resource(
            f"projects/{project}/zones/{zone}/reservations/{name}", "compute#reservation", zone=zone, status="READY",
            specificReservationRequired=True,
            specificReservation={"count": str(count), "instanceProperties": {"machineType": machine_type}}, **kind,
        )  # fmt: skip
