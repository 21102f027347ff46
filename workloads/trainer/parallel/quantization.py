"""Int8 matrix products, forward and backward (AQT: Abdolrashidi et al., 2021; Lew et al., 2022).

A product of int8 numbers with an int32 sum is exact; precision is lost only when its operands are scaled and rounded.
Each operand is scaled for each product by the largest magnitude along the dimensions that are summed over, so that the
scales are factors of the result. They are not differentiated: the gradient is that of the unrounded product
(straight-through), itself computed in int8 if configured.

This is our own implementation: the library aqtp depends on Flax, and its main user (MaxText) is about to remove it.
"""

# mypy: disallow-untyped-calls=False

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from trainer.config import Quant
from trainer.parallel.shared_weight import SharedWeight

_MAX_INT8 = 127  # symmetric: -128 is not used
_MIN_MAGNITUDE = 1e-30  # an operand with only smaller values counts as zero: its scale may not be a normal float32

Dims = tuple[tuple[tuple[int, ...], tuple[int, ...]], tuple[tuple[int, ...], tuple[int, ...]]]


def product(quant: Quant, x: Array, w: Array, summed: int, weight: SharedWeight, key: Array | None = None) -> Array:
    """Return the sum over the last `summed` dimensions of x [B, ..., *K] times the first of w [*K, *N]: [B, ..., *N].

    Each share of the examples [B] quantizes its own part of the weight's gradient, and the parts are added in x's type,
    as an int32 sum over all chips would overflow and be twice as large to send. `key` is for stochastic rounding of
    gradients; without one they are rounded to the nearest.
    """
    if not quant.products and (weight.shares == 1 or not weight.sides):
        return _plain(x, w, _forward_dims(x, summed))
    return _product(quant, summed, weight, x, w, key)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _product(quant: Quant, summed: int, weight: SharedWeight, x: Array, w: Array, key: Array | None) -> Array:
    return _dot(quant, "forward", x, _operand(quant, "forward", weight, w), _forward_dims(x, summed))


def _forward(quant: Quant, summed: int, weight: SharedWeight, x: Array, w: Array, key: Array | None) -> Any:
    return _product(quant, summed, weight, x, w, key), (x, w, key)


def _backward(quant: Quant, summed: int, weight: SharedWeight, residuals: Any, g: Array) -> tuple[Array, Array, None]:
    x, w, key = residuals
    keys = jax.random.split(key) if key is not None and quant.rounding == "stochastic" else (None, None)
    columns, free = tuple(range(summed, w.ndim)), x.ndim - summed
    dims = ((tuple(range(free, g.ndim)), columns), ((), ()))
    dx = _dot(quant, "dgrad", g, _operand(quant, "dgrad", weight, w), dims, keys[0])
    rows = tuple(range(1, free + 1))
    parts_S = _dot(quant, "wgrad", weight.split(x), weight.split(g), ((rows, rows), ((0,), (0,))), None, keys[1])
    return dx, weight.add(parts_S).astype(w.dtype), None


_product.defvjp(_forward, _backward)


def _operand(quant: Quant, name: str, weight: SharedWeight, w: Array) -> Array:
    """Return a weight as an operand: gathered explicitly, so that a layer's products share it, or else quantized first.

    XLA gathers int8 numbers, which are half as large.
    """
    return w if name in quant.products else weight.gather(w)


def quantize(x: Array, axes: tuple[int, ...], key: Array | None = None) -> tuple[Array, Array]:
    """Return (int8 numbers, float32 scale with `axes` of size 1); their product approximates x.

    The largest magnitude along `axes` becomes 127. Zeros stay zeros, and a NaN makes its scale NaN. With a key, numbers
    are rounded up with the probability of their fraction, so that the mean error is zero.
    """
    f = x.astype(jnp.float32)
    largest = jnp.max(jnp.abs(f), axis=axes, keepdims=True)
    scale = jnp.where(largest < _MIN_MAGNITUDE, 1.0, largest / _MAX_INT8)
    scaled = f / scale
    rounded = jnp.round(scaled) if key is None else jnp.floor(scaled + jax.random.uniform(key, x.shape))
    return jnp.clip(rounded, -_MAX_INT8, _MAX_INT8).astype(jnp.int8), scale


def _dot(
    quant: Quant, name: str, a: Array, b: Array, dims: Dims, key_a: Array | None = None, key_b: Array | None = None
) -> Array:
    """Multiply in int8 if the product of this name is quantized, else in the operands' type; return the latter type."""
    if name not in quant.products:
        return _plain(a, b, dims)
    (summed_a, summed_b), (shared_a, shared_b) = dims
    is_per_tensor = quant.scale == "tensor"
    a8, scale_a = quantize(a, _unshared(a, shared_a) if is_per_tensor else summed_a, key_a)
    b8, scale_b = quantize(b, _unshared(b, shared_b) if is_per_tensor else summed_b, key_b)
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
