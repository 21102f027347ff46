"""Benchmark of this host's chips: fixed matrix products without communication, which make hosts comparable."""

# mypy: disallow-untyped-calls=False

import statistics
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

_WIDTH, _WIDTH_ON_CPU = 4096, 256
_PRODUCTS = 4
_RUNS = 5


def chip_benchmark() -> Callable[[], float]:
    """Return the function that returns the seconds of the products on the slowest of this host's chips.

    They are the mean of several runs, so that an intermittently slow machine counts as slow.
    """
    devices = jax.local_devices()
    is_cpu = devices[0].platform == "cpu"
    width, dtype = (_WIDTH_ON_CPU, jnp.float32) if is_cpu else (_WIDTH, jnp.bfloat16)
    mesh = Mesh(np.array(devices), ("chip",))
    placed = NamedSharding(mesh, P("chip"))

    def products(x_DWW: jax.Array) -> jax.Array:
        for _ in range(_PRODUCTS):
            x_DWW = jnp.einsum("dij,djk->dik", x_DWW, x_DWW, preferred_element_type=dtype) / width
        return x_DWW

    shape = (len(devices), width, width)
    x_DWW = jax.jit(lambda: jnp.ones(shape, dtype), out_shardings=placed)()
    compiled = jax.jit(products, in_shardings=placed, out_shardings=placed).lower(x_DWW).compile()

    def measure() -> float:
        began = time.perf_counter()
        jax.block_until_ready(compiled(x_DWW))
        return time.perf_counter() - began

    return lambda: statistics.fmean(measure() for _ in range(_RUNS))
