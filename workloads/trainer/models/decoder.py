"""A decoder-only language model as functions over plain pytrees.

Dimensions are the suffix of a name:
    B batch   T time   E embed   H heads   Q head_dim   M mlp   V vocab   L layers
    K heads of keys and values   G queries' heads for each of them   J = G + 2, the queries of a group, key and value
Parameters are float32 and cast to the compute type where they are used; norms, softmax and loss are
summed in float32.
"""

# mypy: disallow-untyped-calls=False

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import PartitionSpec as P

from trainer.config import Model
from trainer.models.attention import attention
from trainer.models.attention_kernels import apply_kernel, kernel_of
from trainer.models.document_masks import Documents, documents, next_token_weights, unpack
from trainer.models.dropout import Dropout, Site
from trainer.models.loss import Project, cross_entropies
from trainer.models.vocabulary import TABLE, Vocabulary
from trainer.parallel.partitioning import ATTENTION_PRODUCT, MLP_PRODUCT, Execution
from trainer.parallel.pipeline import apply_pipeline

Params = dict[str, Any]
Layer = Callable[[Array, Any], tuple[Array, None]]  # residual stream, a layer's parameters and key -> residual stream

LOGIT_STD = 0.2  # of the initial model's logits, for any width, so that the loss starts at ln(vocab)


def shapes(model: Model) -> Params:
    """Return the shape of every parameter."""
    L, E, H, Q, M = model.layers, model.embed, model.heads, model.head_dim, model.mlp
    K = model.key_heads
    layers = {
        "attention_norm": (L, E),
        "qkv": (L, E, H // K + 2, K, Q),
        "out": (L, H, Q, E),
        "mlp_norm": (L, E),
        **({"up": (L, E, M)} if model.mlp_input_matrices == 1 else {"gate_up": (L, E, 2, M)}),
        "down": (L, M, E),
    }
    return {"embed": (model.vocab, E), "layers": layers, "final_norm": (E,)}


MATRICES = {  # sharding of a layer's matrices
    "qkv": P("fsdp", None, "tp", None),
    "out": P("tp", None, "fsdp"),
    "up": P("fsdp", "tp"),
    "down": P("tp", "fsdp"),
}
GATED = {"gate_up": P("fsdp", None, "tp")}  # instead of "up"


def matrices(model: Model) -> dict[str, P]:
    """Return the sharding of a layer's matrices."""
    specs = MATRICES if model.mlp_input_matrices == 1 else MATRICES | GATED
    return {name: specs[name] for name in shapes(model)["layers"] if name in specs}


def specs(model: Model) -> Params:
    """Return the sharding of every parameter: layers over "stage", their matrices also over "fsdp" and "tp"."""
    norms = dict.fromkeys(("attention_norm", "mlp_norm"), P("stage", None))
    layers = norms | {name: P("stage", *spec) for name, spec in matrices(model).items()}
    return {"embed": TABLE, "layers": layers, "final_norm": P(None)}


def is_gain(path: tuple[Any, ...]) -> bool:
    """Return whether the parameter at a tree path is a norm's gain (starts at one, is not decayed)."""
    return str(path[-1].key).endswith("norm")


def layer_axes(path: tuple[Any, ...]) -> tuple[int, ...]:
    """Return the axes along which a parameter stacks tensors of several layers.

    Queries, keys and values count as three (with G heads of queries in a group as G + 2), a gate and its input as two.
    """
    if path[0].key != "layers":
        return ()
    return (0, 2) if path[-1].key in ("qkv", "gate_up") else (0,)


def init(model: Model, key: Array) -> Params:
    """Return fresh parameters; the same on every mesh, given a partitionable random generator."""
    fan_in = {"embed": model.embed / LOGIT_STD**2, **dict.fromkeys(("qkv", "up", "gate_up"), model.embed)}
    # Each layer adds to the residual stream twice; scale down so that the sum starts near one.
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


def rotate(x_BTHQ: Array, position_BT: Array | None = None) -> Array:
    """Apply the rotary position embedding (Su et al., RoFormer, 2021); positions default to 0 to T - 1."""
    T, Q = x_BTHQ.shape[1], x_BTHQ.shape[-1]
    frequency_q = 10_000.0 ** (-jnp.arange(0, Q, 2) / Q)
    position_bT = jnp.arange(T) if position_BT is None else position_BT  # b: 1, or B
    angle_bT1q = (position_bT[..., None] * frequency_q)[..., None, :]
    sin_bT1q, cos_bT1q = jnp.sin(angle_bT1q), jnp.cos(angle_bT1q)
    a_BTHq, b_BTHq = jnp.split(x_BTHQ.astype(jnp.float32), 2, axis=-1)
    turned = [a_BTHq * cos_bT1q - b_BTHq * sin_bT1q, b_BTHq * cos_bT1q + a_BTHq * sin_bT1q]
    return jnp.concatenate(turned, axis=-1).astype(x_BTHQ.dtype)


def rematerialize(policy: str, layer: Layer, *, looped: bool = True) -> Layer:
    """Return `layer` with rematerialization: it saves the activations of `policy` and recomputes the rest.

    full: saves only the input. attention: also saves the products with attention's weights. dots: also those with the
    MLP's weights, but not attention's scores. none: saves everything. Layers that are not `looped` must be protected
    from XLA's common subexpression elimination, which would otherwise merge the recomputation with the forward pass and
    save everything.
    """
    if policy == "none":
        return layer
    saved = {"full": (), "attention": (ATTENTION_PRODUCT,), "dots": (ATTENTION_PRODUCT, MLP_PRODUCT)}[policy]
    policy_fn = jax.checkpoint_policies.save_only_these_names(*saved) if saved else None
    rematerialized: Layer = jax.checkpoint(layer, policy=policy_fn, prevent_cse=not looped)
    return rematerialized


def layer(
    model: Model,
    execution: Execution,
    x_BTE: Array,
    w: Params,
    key: Array | None = None,
    packed: Documents | None = None,
    dropout: Dropout | None = None,
) -> Array:
    """Apply one layer: attention and MLP, each added to the residual stream. The key is for stochastic rounding.

    Several heads of queries may share one of keys and values (Ainslie et al., GQA, 2023), and the MLP may be gated
    (Shazeer, GLU Variants Improve Transformer, 2020).

    Between the products, time is sharded over "tp" (Korthikanti et al., 2022); within them, heads and width are.
    """
    keys = [None] * 4 if key is None else jax.random.split(key, 4)
    dtype, shard, batch, specs = jnp.dtype(model.compute_dtype), execution.shard, execution.batch, matrices(model)
    dropout = dropout or Dropout(execution)

    def product(x: Array, name: str, summed: int, key: Array | None) -> Array:
        saved_as = ATTENTION_PRODUCT if name in ("qkv", "out") else MLP_PRODUCT
        return execution.product(saved_as, x, w[name].astype(dtype), specs[name], summed, key)

    y_BTE = rms_norm(x_BTE, w["attention_norm"])
    qkv_JBTKQ = shard(jnp.moveaxis(product(y_BTE, "qkv", 1, keys[0]), 2, 0), None, batch, None, "tp", None)
    y_BTHQ = _attend(model, execution, qkv_JBTKQ, packed, dropout)
    y_BTE = dropout(Site.ATTENTION, product(y_BTHQ, "out", 2, keys[1]), "tp", None)
    x_BTE = shard(x_BTE + y_BTE, batch, "tp", None)
    y_BTE = rms_norm(x_BTE, w["mlp_norm"])
    if model.mlp_input_matrices == 1:
        y_BTM = jax.nn.gelu(shard(product(y_BTE, "up", 1, keys[2]), batch, None, "tp"))
    else:
        y_BT2M = shard(product(y_BTE, "gate_up", 1, keys[2]), batch, None, None, "tp")
        y_BTM = jax.nn.silu(y_BT2M[:, :, 0]) * y_BT2M[:, :, 1]
    y_BTE = dropout(Site.MLP, product(y_BTM, "down", 1, keys[3]), "tp", None)
    return shard(x_BTE + y_BTE, batch, "tp", None)


def _attend(model: Model, execution: Execution, qkv_JBTKQ: Array, packed: Documents | None, dropout: Dropout) -> Array:
    """Return attention [B, T, H, Q] over the past, in one kernel if the model has one and the chips do."""
    number_BT, position_BT = packed or (None, None)
    q_BTHQ, k_BTKQ, v_BTKQ = _heads(qkv_JBTKQ, position_BT)
    kernel = kernel_of(execution) if model.fused_attention else None
    if kernel is not None:
        return apply_kernel(kernel, execution, q_BTHQ, k_BTKQ, v_BTKQ, number_BT)
    G, drop = len(qkv_JBTKQ) - 2, dropout.of_weights(Site.ATTENTION_WEIGHTS)
    k_BTHQ, v_BTHQ = (x if G == 1 else jnp.repeat(x, G, axis=2) for x in (k_BTKQ, v_BTKQ))
    shard, batch = execution.shard, execution.batch
    return attention(shard, batch, q_BTHQ, k_BTHQ, v_BTHQ, model.attention_chunk, document_BT=number_BT, drop=drop)


def _heads(qkv_JBTKQ: Array, position_BT: Array | None) -> tuple[Array, Array, Array]:
    """Return rotated queries [B, T, H, Q], rotated keys and values [B, T, K, Q]."""
    G, (B, T, K, Q) = qkv_JBTKQ.shape[0] - 2, qkv_JBTKQ.shape[1:]
    q_BTHQ = qkv_JBTKQ[0] if G == 1 else jnp.moveaxis(qkv_JBTKQ[:G], 0, 3).reshape(B, T, K * G, Q)
    return rotate(q_BTHQ, position_BT), rotate(qkv_JBTKQ[G], position_BT), qkv_JBTKQ[G + 1]


def apply_layers(
    model: Model,
    execution: Execution,
    layer: Callable[..., Array],
    layers: Params,
    x_BTE: Array,
    key: Array | None,
    packed: Documents | None = None,
    dropout: Dropout | None = None,
) -> Array:
    """Return the residual stream [B, T, E] after all layers, stage by stage if the mesh has stages.

    `layer(model, execution, x_BTE, parameters, key, packed, dropout)` is one of them, `layers` holds the parameters of
    all layers [L, ...].
    """
    dropout = dropout or Dropout(execution)

    def stack(x_BTE: Array, layers: Any, examples: tuple[Documents | None, Array | None]) -> Array:
        packed, of_stack = examples[0], dataclasses.replace(dropout, key_B=examples[1])

        def apply_layer(x_BTE: Array, one: tuple[Params, Array | None, Array]) -> tuple[Array, None]:
            w, key, number = one
            return layer(model, execution, x_BTE, w, key, packed, of_stack.part(number)), None

        body = rematerialize(model.remat, apply_layer, looped=model.unroll == 1)
        if model.unroll:
            return jax.lax.scan(body, x_BTE, layers, unroll=model.unroll)[0]
        for one in _unstack(layers):  # a scan would stack what the backward pass needs of each layer, even if unrolled
            x_BTE, _ = body(x_BTE, one)
        return x_BTE

    keys_L = None if key is None else jax.random.split(key, model.layers)
    numbers_L = None if dropout.key_B is None else jnp.arange(model.layers)
    return apply_pipeline(execution, stack, x_BTE, (layers, keys_L, numbers_L), (packed, dropout.key_B))


def _unstack(layers: Any) -> list[Any]:
    """Return the parameters of every layer, of arrays [L, ...]; their gradients are concatenated, not added."""
    leaves, tree = jax.tree.flatten(layers)
    parts = [jax.lax.split(leaf, (1,) * len(leaf)) for leaf in leaves]
    of_layers = ([jnp.squeeze(part, 0) for part in of_layer] for of_layer in zip(*parts, strict=True))
    return [jax.tree.unflatten(tree, of_layer) for of_layer in of_layers]


def hidden(
    model: Model,
    execution: Execution,
    params: Params,
    tokens_BT: Array,
    key: Array | None = None,
    packed: Documents | None = None,
    dropout: Dropout | None = None,
) -> tuple[Array, Project]:
    """Return (output of the layers [B, T, E], function that projects it to float32 logits)."""
    dtype = jnp.dtype(model.compute_dtype)
    table = Vocabulary(execution, params["embed"].astype(dtype))
    x_BTE = table.look_up(tokens_BT) * math.sqrt(model.embed)
    x_BTE = execution.shard(x_BTE, execution.batch, "tp", None).astype(dtype)
    x_BTE = (dropout or Dropout(execution))(Site.INPUT, x_BTE, "tp", None)
    x_BTE = apply_layers(model, execution, layer, params["layers"], x_BTE, key, packed, dropout)

    def project(y_BTE: Array) -> Array:
        return execution.shard(table.project(y_BTE), execution.batch, "stage", "tp")

    return rms_norm(x_BTE, params["final_norm"]), project


def logits(model: Model, execution: Execution, params: Params, tokens_BT: Array, key: Array | None = None) -> Array:
    """Return float32 logits [B, T, V] for the token after each position."""
    y_BTE, project = hidden(model, execution, params, tokens_BT, key)
    return project(y_BTE)


def loss_sums(
    model: Model,
    execution: Execution,
    params: Params,
    record_BS: Array,
    weight_B: Array,
    key: Array | None = None,
    dropout: Dropout | None = None,
) -> tuple[Array, Array]:
    """Return (sum of the weighted cross entropies in nats, sum of the weights), over all tokens.

    Records have T + 1 tokens, of which the last T are the targets; packed ones have more (data/records.py). Both sums
    are global, so their quotient is the mean over real tokens however padding is distributed over chips.
    """
    tokens, number_BS = unpack(record_BS, packed=model.packed)
    packed = None if number_BS is None else documents(number_BS[:, :-1])
    y_BTE, project = hidden(model, execution, params, tokens[:, :-1], key, packed, dropout)
    if number_BS is None:
        loss_B = cross_entropies(execution, project, y_BTE, tokens[:, 1:], model.loss_chunk)
        return jnp.sum(loss_B * weight_B), jnp.sum(weight_B) * y_BTE.shape[1]
    weight_BT = weight_B[:, None] * next_token_weights(number_BS)
    loss_B = cross_entropies(execution, project, y_BTE, tokens[:, 1:], model.loss_chunk, weight_BT)
    return jnp.sum(loss_B), jnp.sum(weight_BT)
