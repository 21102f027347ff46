"""An emulator of the GKE control plane, for tests and experiments; see docs/gke-emulator.md."""

from tools.gke_emulator.emulator import GkeEmulator
from tools.gke_emulator.faults import CallFault, OperationFault, PoolFault
from tools.gke_emulator.options import Options

__all__ = ["CallFault", "GkeEmulator", "OperationFault", "Options", "PoolFault"]
