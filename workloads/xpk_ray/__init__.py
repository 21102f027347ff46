"""Ray over the hosts of a workload: `xpk workload create --launcher ray` (docs/ray.md).

For user programs, `slices()` returns the slices as placement groups and `each_host()` runs a function on all hosts in
parallel. Both require `ray.init()` first.
"""

from xpk_ray.slices import HostError, Slice, each_host, slices

__all__ = ["HostError", "Slice", "each_host", "slices"]
