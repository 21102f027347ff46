"""Known-answer checks of this host's chips: matrix products, and a pattern in their memory."""

# mypy: disallow-untyped-calls=False

import functools
import os
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from trainer.preflight.checks import Check, Result

PERIOD = 251  # of the factors' rows and columns
_MAX_FACTOR = {Check.BF16: 63, Check.INT8: 127}  # largest absolute value of a factor
_PERIODS, _WIDTH = 16, 4096
_PERIODS_ON_CPU, _WIDTH_ON_CPU = 1, 256
_RUNS, _PRODUCTS = 3, 10  # the fastest of so many runs of so many products counts
_FREE_SHARE, _MAX_BYTES, _MAX_BYTES_ON_CPU = 0.5, 8 << 30, 4 << 20  # memory of a chip to check
_LANES = 1024  # words in a row of the pattern
_MULTIPLIER, _SALT = 2654435761, 0x5A5A5A5A  # 2^32 / golden ratio: neighboring words differ in half of their bits

Factors = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]


def factors(check: Check, width: int, periods: int) -> Factors:
    """Return integer matrices A_IK and B_KJ, and their exact product C_IJ, where K = periods x 251.

    A[i, k] = f[(i + k) mod 251] and B[k, j] = g[(k + j) mod 251] for random vectors f and g. So C[i, j] depends on
    (i - j) mod 251 only: it is the circular correlation of f and g, times the number of periods. For bf16, the sum of
    the absolute values of all terms is below 2^24, so products summed in float32 are exact in any order.
    """
    most = _MAX_FACTOR[check]
    f, g = np.random.default_rng(most).integers(-most, most + 1, (2, PERIOD), np.int32)
    n = np.arange(PERIOD)
    correlation = periods * np.array([f[(shift + n) % PERIOD] @ g for shift in range(PERIOD)])
    rows, depth = np.arange(width, dtype=np.int32), np.arange(periods * PERIOD, dtype=np.int32)
    a_IK, b_KJ = f[(rows[:, None] + depth) % PERIOD], g[(depth[:, None] + rows) % PERIOD]
    return a_IK, b_KJ, correlation[(rows[:, None] - rows) % PERIOD]


def multiply(a_DIK: jax.Array, b_DKJ: jax.Array) -> jax.Array:
    """Multiply on each chip D: sums are float32, or int32 for int8."""
    product: jax.Array = _multiply_on(a_DIK.sharding)(a_DIK, b_DKJ)
    return product


@functools.lru_cache
def _multiply_on(sharding: Any) -> Any:
    def product(a_DIK: jax.Array, b_DKJ: jax.Array) -> jax.Array:
        dtype = jnp.int32 if a_DIK.dtype == jnp.int8 else jnp.float32
        return jnp.einsum("dik,dkj->dij", a_DIK, b_DKJ, preferred_element_type=dtype)

    return jax.jit(product, out_shardings=sharding)


def check_products(check: Check, multiply: Callable[[jax.Array, jax.Array], jax.Array] = multiply) -> Result:
    """Return whether every chip's product is exact, and the seconds of several products on the slowest."""
    is_cpu = jax.local_devices()[0].platform == "cpu"
    width, periods = (_WIDTH_ON_CPU, _PERIODS_ON_CPU) if is_cpu else (_WIDTH, _PERIODS)
    a_IK, b_KJ, expected_IJ = factors(check, width, periods)
    dtype = np.int8 if check is Check.INT8 else jnp.bfloat16
    a_DIK, b_DKJ = _on_each_chip(a_IK.astype(dtype)), _on_each_chip(b_KJ.astype(dtype))
    c_DIJ = multiply(a_DIK, b_DKJ)
    problems = []
    for chip, part in enumerate(_parts(c_DIJ)):
        if wrong := int(np.count_nonzero(part != expected_IJ)):
            problems.append(f"chip {chip}: {wrong:,} of {part.size:,} values are wrong")
    seconds = min(_time(lambda: multiply(a_DIK, b_DKJ)) for _ in range(_RUNS))
    detail = f"{_PRODUCTS} products of {width} x {periods * PERIOD} x {width} on {len(jax.local_devices())} chips"
    return Result(check=check, problem="; ".join(problems), value=round(seconds, 7), unit="s", detail=detail)


def _time(run: Callable[[], jax.Array]) -> float:
    """Return the seconds of several products in a row, long enough to be compared."""
    began = time.perf_counter()
    jax.block_until_ready([run() for _ in range(_PRODUCTS)])
    return time.perf_counter() - began


def _pattern(rows: int, salt: jax.Array) -> jax.Array:
    index = jax.lax.broadcasted_iota(jnp.uint32, (rows, _LANES), 0) * _LANES
    index += jax.lax.broadcasted_iota(jnp.uint32, (rows, _LANES), 1)
    pattern: jax.Array = (index * jnp.uint32(_MULTIPLIER)) ^ salt
    return pattern


def write_pattern(rows: int, salt: int) -> jax.Array:
    """Write a pattern of 32-bit words into the memory of each chip, in `rows` rows of 4 KiB."""
    mesh = _mesh()
    write = jax.jit(
        lambda salt: jnp.broadcast_to(_pattern(rows, salt), (mesh.size, rows, _LANES)),
        out_shardings=NamedSharding(mesh, P("chip")),
    )
    pattern: jax.Array = jax.block_until_ready(write(np.uint32(salt)))
    return pattern


def check_memory(write: Callable[[int, int], jax.Array] = write_pattern) -> Result:
    """Return whether each chip's memory keeps a pattern and its complement, and the seconds of both."""
    rows = max(1, _bytes_to_check() // (4 * _LANES))
    count = jax.jit(
        lambda x_DRL, salt: jnp.sum(x_DRL != _pattern(rows, salt), (1, 2), dtype=jnp.uint32),
        out_shardings=NamedSharding(_mesh(), P("chip")),
    )
    began, wrong = time.monotonic(), np.zeros(len(jax.local_devices()), np.int64)
    for salt in (_SALT, ~_SALT & 0xFFFFFFFF):  # every bit is once 0 and once 1
        pattern = write(rows, salt)
        wrong += np.array(_parts(count(pattern, np.uint32(salt))))
        pattern.delete()
    problems = [f"chip {chip}: {words:,} words of 4 bytes are wrong" for chip, words in enumerate(wrong) if words]
    detail = f"{rows * 4 * _LANES / (1 << 30):.3g} GiB of each of {len(wrong)} chips"
    seconds = round(time.monotonic() - began, 4)
    return Result(check=Check.MEMORY, problem="; ".join(problems), value=seconds, unit="s", detail=detail)


def _bytes_to_check() -> int:
    """Return half of the free memory of the fullest chip, at most 8 GiB; 4 MiB at most on CPUs."""
    devices, free = jax.local_devices(), []
    for device in devices:
        stats = device.memory_stats() or {}
        if "bytes_limit" in stats:
            free.append(stats["bytes_limit"] - stats.get("bytes_in_use", 0))
    if free:
        return int(min(_FREE_SHARE * min(free), _MAX_BYTES))
    machine = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return int(min(_FREE_SHARE * machine / len(devices), _MAX_BYTES_ON_CPU))


def _mesh() -> Mesh:
    return Mesh(np.array(jax.local_devices()), ("chip",))


def _on_each_chip(array: np.ndarray[Any, Any]) -> jax.Array:
    """Return an array whose part on each chip, along its first axis, is this one."""
    mesh = _mesh()
    shape, placed = (mesh.size, *array.shape), NamedSharding(mesh, P("chip"))
    return jax.make_array_from_callback(shape, placed, lambda _: array[None])


def _parts(array: jax.Array) -> list[np.ndarray[Any, Any]]:
    """Return each chip's part of an array that is split along its first axis."""
    shards = sorted(array.addressable_shards, key=lambda shard: shard.index[0].start or 0)
    return [np.asarray(shard.data)[0] for shard in shards]
