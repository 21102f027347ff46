"""A decoder-only language model as functions over plain pytrees.

Dimensions are the suffix of a name:
    B batch   T time   E embed   H heads   Q head_dim   M mlp   V vocab   L layers
Parameters are float32 and cast to the compute type where they are used; norms, softmax and loss are
summed in float32.
"""

# mypy: disallow-untyped-calls=False

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from trainer.config import Model
from trainer.mesh import BATCH

Params = dict[str, Any]

RESIDUAL = P(BATCH, "tp", None)  # time over "tp" between the products (Korthikanti et al., 2022)
LOGIT_STD = 0.2  # of the fresh model's logits, whatever its width: its loss starts at ln(vocab)


def shapes(model: Model) -> Params:
    """Return the shape of every parameter."""
    L, E, H, Q, M = model.layers, model.embed, model.heads, model.head_dim, model.mlp
    layers = {
        "attention_norm": (L, E),
        "qkv": (L, E, 3, H, Q),
        "out": (L, H, Q, E),
        "mlp_norm": (L, E),
        "up": (L, E, M),
        "down": (L, M, E),
    }
    return {"embed": (model.vocab, E), "layers": layers, "final_norm": (E,)}


def specs() -> Params:
    """Return how every parameter is spread: matrices over "fsdp" and "tp", norm gains on every chip."""
    layers = {
        "attention_norm": P(None, None),
        "qkv": P(None, "fsdp", None, "tp", None),
        "out": P(None, "tp", None, "fsdp"),
        "mlp_norm": P(None, None),
        "up": P(None, "fsdp", "tp"),
        "down": P(None, "tp", "fsdp"),
    }
    return {"embed": P("tp", "fsdp"), "layers": layers, "final_norm": P(None)}


def is_gain(path: tuple[Any, ...]) -> bool:
    """Whether the parameter at a tree path is a norm's gain (starts at one, is not decayed)."""
    return str(path[-1].key).endswith("norm")


def init(model: Model, key: Array) -> Params:
    """Return fresh parameters; the same whatever the mesh, for a partitionable random generator."""
    fan_in = {"embed": model.embed / LOGIT_STD**2, "qkv": model.embed, "up": model.embed}
    # Each layer adds to the residual stream twice: scaled down so that the sum starts near one.
    fan_in |= {"out": model.heads * model.head_dim * 2 * model.layers, "down": model.mlp * 2 * model.layers}
    leaves, tree = jax.tree_util.tree_flatten_with_path(shapes(model), is_leaf=lambda x: isinstance(x, tuple))
    keys = jax.random.split(key, len(leaves))

    def leaf(key: Array, path: tuple[Any, ...], shape: tuple[int, ...]) -> Array:
        if is_gain(path):
            return jnp.ones(shape)
        return jax.random.normal(key, shape) / math.sqrt(fan_in[path[-1].key])

    params: Params = jax.tree.unflatten(
        tree, [leaf(k, path, shape) for k, (path, shape) in zip(keys, leaves, strict=True)]
    )
    return params


def rms_norm(x_BTE: Array, gain_E: Array) -> Array:
    """Root mean square norm (Zhang and Sennrich, 2019), in float32."""
    f_BTE = x_BTE.astype(jnp.float32)
    scale_BT1 = jax.lax.rsqrt(jnp.mean(f_BTE * f_BTE, axis=-1, keepdims=True) + 1e-6)
    return (f_BTE * scale_BT1 * gain_E).astype(x_BTE.dtype)


def rotate(x_BTHQ: Array) -> Array:
    """Rotary position embedding (Su et al., RoFormer, 2021)."""
    T, Q = x_BTHQ.shape[1], x_BTHQ.shape[-1]
    frequency_q = 10_000.0 ** (-jnp.arange(0, Q, 2) / Q)
    angle_T1q = (jnp.arange(T)[:, None] * frequency_q)[:, None, :]
    sin_T1q, cos_T1q = jnp.sin(angle_T1q), jnp.cos(angle_T1q)
    a_BTHq, b_BTHq = jnp.split(x_BTHQ.astype(jnp.float32), 2, axis=-1)
    turned = [a_BTHq * cos_T1q - b_BTHq * sin_T1q, b_BTHq * cos_T1q + a_BTHq * sin_T1q]
    return jnp.concatenate(turned, axis=-1).astype(x_BTHQ.dtype)


def attention(q_BTHQ: Array, k_BTHQ: Array, v_BTHQ: Array) -> Array:
    """Causal softmax attention; scores and softmax in float32."""
    T, Q = q_BTHQ.shape[1], q_BTHQ.shape[-1]
    score_BHTT = jnp.einsum("BTHQ,BSHQ->BHTS", q_BTHQ, k_BTHQ, preferred_element_type=jnp.float32)
    past_TT = jnp.tril(jnp.ones((T, T), bool))
    weight_BHTT = jax.nn.softmax(jnp.where(past_TT, score_BHTT / math.sqrt(Q), -jnp.inf), axis=-1)
    return jnp.einsum("BHTS,BSHQ->BTHQ", weight_BHTT.astype(v_BTHQ.dtype), v_BTHQ)


def logits(model: Model, mesh: Mesh, params: Params, tokens_BT: Array) -> Array:
    """Return float32 logits [B, T, V] for the token after each position."""
    dtype = jnp.dtype(model.compute_dtype)

    def place(x: Array, *axes: Any) -> Array:
        placed: Array = jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P(*axes)))
        return placed

    def layer(x_BTE: Array, w: Params) -> tuple[Array, None]:
        qkv, out, up, down = (w[name].astype(dtype) for name in ("qkv", "out", "up", "down"))
        y_BTE = rms_norm(x_BTE, w["attention_norm"])
        qkv_3BTHQ = place(jnp.einsum("BTE,EcHQ->cBTHQ", y_BTE, qkv), None, BATCH, None, "tp", None)
        y_BTHQ = attention(rotate(qkv_3BTHQ[0]), rotate(qkv_3BTHQ[1]), qkv_3BTHQ[2])
        x_BTE = place(x_BTE + jnp.einsum("BTHQ,HQE->BTE", y_BTHQ, out), *RESIDUAL)
        y_BTE = rms_norm(x_BTE, w["mlp_norm"])
        y_BTM = jax.nn.gelu(place(jnp.einsum("BTE,EM->BTM", y_BTE, up), BATCH, None, "tp"))
        return place(x_BTE + jnp.einsum("BTM,ME->BTE", y_BTM, down), *RESIDUAL), None

    # Gathered over "fsdp" like any weight; a lookup in a table split along E would move activations instead.
    embed_VE = place(params["embed"].astype(dtype), "tp", None)
    x_BTE = place(embed_VE[tokens_BT] * math.sqrt(model.embed), *RESIDUAL).astype(dtype)
    body = jax.checkpoint(layer, prevent_cse=False) if model.remat else layer
    x_BTE, _ = jax.lax.scan(body, x_BTE, params["layers"])
    y_BTE = rms_norm(x_BTE, params["final_norm"])
    logits_BTV = jnp.einsum("BTE,VE->BTV", y_BTE, embed_VE, preferred_element_type=jnp.float32)
    return place(logits_BTV, BATCH, None, "tp")


def loss_sums(model: Model, mesh: Mesh, params: Params, tokens_BS: Array, weight_B: Array) -> tuple[Array, Array]:
    """Return (sum of the weighted cross entropies in nats, sum of the weights), over all tokens.

    `tokens_BS` has S = T + 1 tokens, of which the last T are the targets. Both sums are global, so their
    quotient is the mean over real tokens however padding is spread over chips.
    """
    logits_BTV = logits(model, mesh, params, tokens_BS[:, :-1])
    target_BTV = jax.nn.one_hot(tokens_BS[:, 1:], model.vocab, dtype=logits_BTV.dtype)
    loss_BT = jax.nn.logsumexp(logits_BTV, axis=-1) - jnp.sum(logits_BTV * target_BTV, axis=-1)
    weight_BT = jnp.broadcast_to(weight_B[:, None], loss_BT.shape)
    return jnp.sum(loss_BT * weight_BT), jnp.sum(weight_BT)
