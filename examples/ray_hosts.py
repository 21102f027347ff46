"""Run a JAX function on all hosts of all slices from one Ray driver.

xpk workload create rays --num-slices 2 --launcher ray --script-dir examples --command 'python ray_hosts.py'
"""

# mypy: disallow-untyped-calls=False

from __future__ import annotations

import os

import ray

import xpk_ray


def mean_of_chips(scale: float) -> str:
    """Return the mean over all chips of the job of a value that each chip has."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    hosts = int(os.environ["XPK_HOSTS_PER_SLICE"])
    slice_id, host = int(os.environ["MEGASCALE_SLICE_ID"]), int(os.environ["TPU_WORKER_ID"])
    jax.distributed.initialize(
        os.environ["XPK_COORDINATOR_ADDRESS"],
        num_processes=int(os.environ["MEGASCALE_NUM_SLICES"]) * hosts,
        process_id=slice_id * hosts + host,
    )
    mesh = Mesh(np.array(jax.devices()), ("data",))
    own = np.full(jax.local_device_count(), scale * jax.process_index(), np.float32)
    values = jax.make_array_from_process_local_data(NamedSharding(mesh, P("data")), own)
    mean = jax.jit(jnp.mean, out_shardings=NamedSharding(mesh, P()))(values)
    return f"slice {slice_id} host {host}: mean {float(mean)} over {jax.device_count()} chips"


def main() -> None:
    """Connect to the workload's Ray and print what each host returns."""
    ray.init()
    print("\n".join(xpk_ray.each_host(mean_of_chips, 2.0)), flush=True)


if __name__ == "__main__":
    main()
