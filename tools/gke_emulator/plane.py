"""State that all calls share: options, time, storage, operations, and the nodes of the pools."""

from __future__ import annotations

from typing import Any, Protocol

from tools.gke_emulator.capacity import Capacity
from tools.gke_emulator.clock import Clock, Schedule
from tools.gke_emulator.compute import Compute
from tools.gke_emulator.faults import Faults
from tools.gke_emulator.names import Target
from tools.gke_emulator.operations import Operations
from tools.gke_emulator.options import Options
from tools.gke_emulator.refusal import Refusal
from tools.gke_emulator.store import Store


class Nodes(Protocol):
    """The cluster in which the nodes of pools appear."""

    server: str
    authority: bytes

    def add(self, cluster: Any, target: Target, pool: Any, names: list[str], *, provision_only: bool = False) -> None:
        """Ensure that nodes with these names exist; `provision_only`: their chips are not connected."""

    def remove(self, target: Target, names: list[str]) -> None:
        """Delete nodes."""

    def token(self) -> str:
        """Return the bearer token of an administrator."""

    def close(self) -> None:
        """Stop everything that runs."""


# The certificate of an unknown key: clients can read it, then find that no server answers.
_NOBODY = b"""\
-----BEGIN CERTIFICATE-----
MIIBezCCASGgAwIBAgIUJtPVirayGTwAkFM0dA9vWyXuq+owCgYIKoZIzj0EAwIw
EjEQMA4GA1UEAwwHbm90aGluZzAgFw0yNjExMjExODAyNDJaGA8yMTI2MTAyODE4
MDI0MlowEjEQMA4GA1UEAwwHbm90aGluZzBZMBMGByqGSM49AgEGCCqGSM49AwEH
A0IABIHUdmMg8C8BnJKHNkNRZAOJjMFx6s5ugcOJB7l+mb4n+3B81en4efrPNF7j
Jt/lmyNxRXE61Cv1XcA26Xsy7qWjUzBRMB0GA1UdDgQWBBScj5fOg8WjIWKwohra
rSJ5ayK0/TAfBgNVHSMEGDAWgBScj5fOg8WjIWKwohrarSJ5ayK0/TAPBgNVHRMB
Af8EBTADAQH/MAoGCCqGSM49BAMCA0gAMEUCIQD18frtUC9F/5RZQQRS895TmLop
dwTGy+n6o3173OlqjgIgZ9CTT9/hKWzhfdX3ydg2rTNuVLSxoE/G5yo3wTHKdpE=
-----END CERTIFICATE-----
"""


class NoNodes:
    """No API server for the clusters: connections to their address fail immediately."""

    server = "127.0.0.1:9"
    authority = _NOBODY

    def add(self, cluster: Any, target: Target, pool: Any, names: list[str], *, provision_only: bool = False) -> None:
        """Do nothing."""

    def remove(self, target: Target, names: list[str]) -> None:
        """Do nothing."""

    def token(self) -> str:
        """Return none."""
        return ""

    def close(self) -> None:
        """Do nothing."""


class Plane:
    """The parts of one emulator."""

    def __init__(self, options: Options, nodes: Nodes) -> None:
        self.options, self.nodes = options, nodes
        self.store = Store(options.state)
        self.clock = Clock(options.speed, self.store.latest or None)
        self.schedule = Schedule(self.clock)
        self.faults = Faults(list(options.faults), options.seed)
        self.operations = Operations(options, self.clock, self.store, self.schedule, self.faults)
        self.capacity = Capacity(options, self.store)
        self.compute = Compute(options, self.store, self.capacity)

    def cluster(self, target: Target) -> Any:
        """Return the cluster that a target names or belongs to; reject a missing one."""
        cluster = self.store.clusters.get(target.of_cluster.path)
        if cluster is None:
            raise Refusal.not_found(target.of_cluster.path)
        return cluster

    def close(self) -> None:
        """Stop everything and keep the state."""
        self.schedule.stop()
        self.operations.stop()
        self.nodes.close()
        with self.store.lock:
            self.store.tick(self.clock.now())
        self.store.close()
