"""Memory in use by this process and its accelerator chips, in GiB."""

import resource
import sys
from pathlib import Path

import jax

_GIB = 1 << 30


def memory_in_use() -> dict[str, float | None]:
    """Return `chip_gib`, the peak memory in use of any local chip, and `host_gib`, the process's resident memory.

    `chip_gib` is None if JAX's backend does not report it, as on CPUs.
    """
    device_stats = [stats for device in jax.local_devices() if (stats := device.memory_stats())]
    peaks = [stats["peak_bytes_in_use"] for stats in device_stats if "peak_bytes_in_use" in stats]
    return {
        "chip_gib": round(max(peaks) / _GIB, 4) if peaks else None,
        "host_gib": round(_resident_bytes() / _GIB, 4),
    }


def _resident_bytes() -> int:
    if sys.platform == "linux":
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # the peak; bytes on macOS
