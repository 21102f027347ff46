"""A layer of long short-term memory (Hochreiter and Schmidhuber, 1997) whose weight gradients are computed once.

Dimensions are the suffix of a name:
    B batch   T time   D width of the input   E width of the layer   G = 4 gates: input, forget, new, output
The input's product with its weights is that of all time steps at once; the loop has only the product with the state.
Differentiating such a loop adds the gradient of its weights step by step, and over the chips in each step. Here the
backward loop returns the gradients of the gates, and one product over all time steps gives those of the weights, which
are added over the chips once.
"""

# mypy: disallow-untyped-calls=False

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import PartitionSpec as P

from trainer.models.family import Params
from trainer.parallel.partitioning import MLP_PRODUCT, Execution

WEIGHT = P("fsdp", None, "tp")  # sharding of both matrices
Residuals = tuple[Array, ...]


def shapes(inputs: int, width: int) -> Params:
    """Return the shapes of a layer's parameters."""
    return {"input": (inputs, 4, width), "state": (width, 4, width), "gates_bias": (4, width)}


def layer(execution: Execution, x_BTD: Array, w: Params, real_BT: Array, *, backwards: bool = False) -> Array:
    """Return the outputs of all time steps [B, T, E], zeros in padding; `backwards` begins with the last step.

    Padding leaves the state zero, so a sentence that is read backwards begins at its end.
    """
    dtype = x_BTD.dtype
    gates_BTGE = execution.product(MLP_PRODUCT, x_BTD, w["input"].astype(dtype), WEIGHT, 1, None)
    gates_BTGE = execution.shard(gates_BTGE + w["gates_bias"].astype(dtype), execution.batch, None, None, "tp")
    real_BT1 = real_BT[..., None].astype(jnp.float32)
    if backwards:
        gates_BTGE, real_BT1 = gates_BTGE[:, ::-1], real_BT1[:, ::-1]
    h_BTE = _recur(execution, gates_BTGE, w["state"].astype(dtype), real_BT1)
    return h_BTE[:, ::-1] if backwards else h_BTE


def cell(gates_BGE: Array, c_BE: Array) -> tuple[Array, Array, Array]:
    """Return (output, new state, activated gates) of a step, in float32, given the sums that enter the gates."""
    gates_BGE = gates_BGE.astype(jnp.float32)
    i, f, o = (jax.nn.sigmoid(gates_BGE[..., n, :]) for n in (0, 1, 3))
    g = jnp.tanh(gates_BGE[..., 2, :])
    c_BE = f * c_BE + i * g
    return o * jnp.tanh(c_BE), c_BE, jnp.stack([i, f, g, o], axis=-2)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _recur(execution: Execution, gates_BTGE: Array, w_EGE: Array, real_BT1: Array) -> Array:
    return _forward(execution, gates_BTGE, w_EGE, real_BT1)[0]


def _forward(execution: Execution, gates_BTGE: Array, w_EGE: Array, real_BT1: Array) -> tuple[Array, Residuals]:
    dtype, batch = gates_BTGE.dtype, execution.batch
    whole_EGE = execution.weight(WEIGHT).gather(w_EGE)  # once, not in every step

    def step(state: tuple[Array, Array], inputs: tuple[Array, Array]) -> tuple[Any, Any]:
        (h_BE, c_BE), (gates_BGE, real_B1) = state, inputs
        sums_BGE = gates_BGE + jnp.einsum("BE,EGF->BGF", h_BE, whole_EGE, preferred_element_type=jnp.float32)
        h_BE, c_BE, active_BGE = cell(sums_BGE, c_BE)
        state = (h_BE * real_B1).astype(dtype), c_BE * real_B1
        return state, (*state, active_BGE.astype(dtype))

    B, E = gates_BTGE.shape[0], gates_BTGE.shape[-1]
    zeros = execution.shard(jnp.zeros((B, E), dtype), batch, "tp"), execution.shard(jnp.zeros((B, E)), batch, "tp")
    _, (h_TBE, c_TBE, active_TBGE) = jax.lax.scan(step, zeros, (_by_time(gates_BTGE), _by_time(real_BT1)))
    return _by_time(h_TBE), (h_TBE, c_TBE, active_TBGE, w_EGE, real_BT1)


def _backward(execution: Execution, residuals: Residuals, d_BTE: Array) -> tuple[Array, Array, Array]:
    h_TBE, c_TBE, active_TBGE, w_EGE, real_BT1 = residuals
    weight = execution.weight(WEIGHT)
    whole_EGE = weight.gather(w_EGE)
    before_c_TBE, before_h_TBE = (jnp.concatenate([jnp.zeros_like(x[:1]), x[:-1]]) for x in (c_TBE, h_TBE))

    def step(later: tuple[Array, Array], inputs: tuple[Array, ...]) -> tuple[Any, Array]:
        (dh_BE, dc_BE), (d_BE, active_BGE, c_BE, real_B1) = later, inputs
        i, f, g, o = jnp.moveaxis(active_BGE.astype(jnp.float32), -2, 0)
        tanh_BE = jnp.tanh(f * c_BE + i * g)
        dh_BE = (d_BE.astype(jnp.float32) + dh_BE) * real_B1
        dc_BE = dh_BE * o * (1 - tanh_BE**2) + dc_BE * real_B1
        parts = (
            dc_BE * g * i * (1 - i),
            dc_BE * c_BE * f * (1 - f),
            dc_BE * i * (1 - g**2),
            dh_BE * tanh_BE * o * (1 - o),
        )
        dgates_BGE = jnp.stack(parts, axis=-2).astype(d_BE.dtype)
        dh_BE = jnp.einsum("BGF,EGF->BE", dgates_BGE, whole_EGE, preferred_element_type=jnp.float32)
        return (dh_BE, dc_BE * f), dgates_BGE

    zeros_BE = execution.shard(jnp.zeros(c_TBE.shape[1:]), execution.batch, "tp")
    inputs = _by_time(d_BTE), active_TBGE, before_c_TBE, _by_time(real_BT1)
    _, dgates_TBGE = jax.lax.scan(step, (zeros_BE, zeros_BE), inputs, reverse=True)
    dgates_BTGE = _by_time(dgates_TBGE)
    shares = weight.split(_by_time(before_h_TBE)), weight.split(dgates_BTGE)
    parts_SEGE = jnp.einsum("SBTE,SBTGF->SEGF", *shares, preferred_element_type=w_EGE.dtype)
    return dgates_BTGE, weight.add(parts_SEGE), jnp.zeros_like(real_BT1)


_recur.defvjp(_forward, _backward)


def _by_time(x_BT: Array) -> Array:
    return jnp.swapaxes(x_BT, 0, 1)
