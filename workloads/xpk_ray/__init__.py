"""Ray over the hosts of a workload: `xpk workload create --launcher ray` (docs/ray.md).

For programs of one's own: `slices()` gives the slices as placement groups, `each_host()` runs a function on all
hosts at once. Both need `ray.init()` first.
"""

from xpk_ray.slices import HostError, Slice, each_host, slices

__all__ = ["HostError", "Slice", "each_host", "slices"]
