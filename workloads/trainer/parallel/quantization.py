"""Int8 matrix products, forward and backward (AQT: Abdolrashidi et al., 2021; Lew et al., 2022).

A product of int8 numbers with an int32 sum is exact; precision is lost only when its operands are scaled and rounded.
Each operand is scaled for each product by the largest magnitude along the dimensions that are summed over, so that the
scales are factors of the result. They are not differentiated: the gradient is that of the unrounded product
(straight-through), itself computed in int8 if configured.

Our own implementation rather than the library aqtp, which depends on Flax and which its main user (MaxText) is about to
remove.
"""

# mypy: disallow-untyped-calls=False

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from trainer.config import Quant

_STEPS = 127  # symmetric: -128 is not used
_NOTHING = 1e-30  # operands below it throughout count as zeros: their scale may not be a normal float32

Dims = tuple[tuple[tuple[int, ...], tuple[int, ...]], tuple[tuple[int, ...], tuple[int, ...]]]


def product(quant: Quant, x: Array, w: Array, summed: int, shares: int = 1, key: Array | None = None) -> Array:
    """Return the sum over the last `summed` dimensions of x [B, ..., *K] times the first of w [*K, *N]: [B, ..., *N].

    `shares` is the number of chips that the examples [B] are sharded over: each quantizes its own part of the weight's
    gradient, and the parts are added in x's type, as an int32 sum over all chips would overflow and be twice as large
    to send. `key` is for stochastic rounding of gradients; without one they are rounded to the nearest.
    """
    if not quant.products:
        return _plain(x, w, _forward_dims(x, summed))
    return _product(quant, summed, shares, x, w, key)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _product(quant: Quant, summed: int, shares: int, x: Array, w: Array, key: Array | None) -> Array:
    return _dot(quant, "forward", x, w, _forward_dims(x, summed))


def _forward(quant: Quant, summed: int, shares: int, x: Array, w: Array, key: Array | None) -> Any:
    return _product(quant, summed, shares, x, w, key), (x, w, key)


def _backward(quant: Quant, summed: int, shares: int, kept: Any, g: Array) -> tuple[Array, Array, None]:
    x, w, key = kept
    keys = jax.random.split(key) if key is not None and quant.rounding == "stochastic" else (None, None)
    columns, free = tuple(range(summed, w.ndim)), x.ndim - summed
    dims = ((tuple(range(free, g.ndim)), columns), ((), ()))
    dx = _dot(quant, "dgrad", g, w, dims, keys[0])
    # [B, ...] -> [shares, B / shares, ...]
    x, g = (a.reshape(shares, a.shape[0] // shares, *a.shape[1:]) for a in (x, g))
    rows = tuple(range(1, free + 1))
    parts = _dot(quant, "wgrad", x, g, ((rows, rows), ((0,), (0,))), None, keys[1])
    dw = jax.lax.reduce(parts, jnp.zeros((), parts.dtype), jax.lax.add, (0,))
    return dx, dw.astype(w.dtype), None


_product.defvjp(_forward, _backward)


def quantize(x: Array, axes: tuple[int, ...], key: Array | None = None) -> tuple[Array, Array]:
    """Return (int8 numbers, float32 scale with `axes` of size 1); x is about their product.

    The largest magnitude along `axes` becomes 127. Zeros stay zeros, and a NaN makes its scale NaN. With a key, numbers
    are rounded up with the probability of their fraction, so that the mean error is zero.
    """
    f = x.astype(jnp.float32)
    largest = jnp.max(jnp.abs(f), axis=axes, keepdims=True)
    scale = jnp.where(largest < _NOTHING, 1.0, largest / _STEPS)
    steps = f / scale
    rounded = jnp.round(steps) if key is None else jnp.floor(steps + jax.random.uniform(key, x.shape))
    return jnp.clip(rounded, -_STEPS, _STEPS).astype(jnp.int8), scale


def _dot(
    quant: Quant, name: str, a: Array, b: Array, dims: Dims, key_a: Array | None = None, key_b: Array | None = None
) -> Array:
    """Multiply in int8 if the product of this name is quantized, else in the operands' type, which the result has."""
    if name not in quant.products:
        return _plain(a, b, dims)
    (summed_a, summed_b), (shared_a, shared_b) = dims
    whole = quant.scale == "tensor"
    a8, scale_a = quantize(a, _unshared(a, shared_a) if whole else summed_a, key_a)
    b8, scale_b = quantize(b, _unshared(b, shared_b) if whole else summed_b, key_b)
    sums = jax.lax.dot_general(a8, b8, dims, preferred_element_type=jnp.int32)
    # The result's dimensions: those that a and b share, then a's own, then b's own.
    factor_a, factor_b, shared = jnp.squeeze(scale_a, summed_a), jnp.squeeze(scale_b, summed_b), len(shared_a)
    factor_a = jnp.expand_dims(factor_a, tuple(range(factor_a.ndim, sums.ndim)))
    factor_b = jnp.expand_dims(factor_b, tuple(range(shared, sums.ndim - factor_b.ndim + shared)))
    result: Array = (sums.astype(jnp.float32) * factor_a * factor_b).astype(a.dtype)
    return result


def _plain(a: Array, b: Array, dims: Dims) -> Array:
    return jax.lax.dot_general(a, b, dims)


def _forward_dims(x: Array, summed: int) -> Dims:
    return ((tuple(range(x.ndim - summed, x.ndim)), tuple(range(summed))), ((), ()))


def _unshared(x: Array, shared: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(axis for axis in range(x.ndim) if axis not in shared)
