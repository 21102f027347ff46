"""All kinds of faults, in the order of docs/chaos.md."""

from e2e.matrix import bucket, clock, commands, control_plane, exits, moments, network, nodes, signals, storage
from e2e.matrix.fault import FAULTS as REGISTERED

_FAULTS = (signals, moments, exits, commands, clock, storage, bucket, network, nodes, control_plane)
_MODULES = [module.__name__ for module in _FAULTS]
FAULTS = dict(sorted(REGISTERED.items(), key=lambda item: _MODULES.index(item[1].inject.__module__)))
