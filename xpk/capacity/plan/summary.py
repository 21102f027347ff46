"""The size of a cluster in one line, as plans show it."""

from __future__ import annotations

from xpk.api.text import counted
from xpk.model.specs import ClusterSpec


def cluster_summary(spec: ClusterSpec, *, where: str = "", spare_slices: int = 0) -> str:
    """Return `cluster 'dev': 2 x v5litepod-8 = 4 hosts, 16 chips`; `where` follows the name."""
    spare = f" and {spare_slices} spare" if spare_slices else ""
    size = f"{counted(spec.num_hosts, 'host')}, {counted(spec.num_chips, 'chip')}"
    return f"cluster '{spec.name}'{where}: {spec.num_slices} x {spec.shape.name}{spare} = {size}"
