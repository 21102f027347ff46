"""The machine of a measurement."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from typing import Any


def machine() -> dict[str, Any]:
    """Return what the figures depend on, and nothing that tells whose machine it is."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "load_average_15_min": round(os.getloadavg()[2], 1),  # ours included
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        **{package: metadata.version(package) for package in ("jax", "jaxlib", "orbax-checkpoint")},
    }
