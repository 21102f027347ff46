"""An emulator of the GKE control plane, for tests and for trying out; see docs/gke-emulator.md."""

from e2e.gke.emulator import GkeEmulator
from e2e.gke.faults import CallFault, OperationFault, PoolFault
from e2e.gke.options import Options

__all__ = ["CallFault", "GkeEmulator", "OperationFault", "Options", "PoolFault"]
