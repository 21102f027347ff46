"""All kinds of faults, in the order of docs/chaos.md."""

from e2e.matrix import bucket, commands, exits, moments, network, nodes, signals, storage
from e2e.matrix.fault import FAULTS as REGISTERED

_MODULES = [module.__name__ for module in (signals, moments, exits, commands, storage, bucket, network, nodes)]
FAULTS = dict(sorted(REGISTERED.items(), key=lambda item: _MODULES.index(item[1].inject.__module__)))
