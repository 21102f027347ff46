"""BERT (Devlin et al., 2019): an encoder that learns to predict masked tokens, as in MLPerf.

Dimensions are the suffix of a name:
    B batch   T time   E embed   H heads   Q head_dim   M mlp   V vocab   L layers   G predicted positions
With `next_sentence`, examples are pairs of segments (data/segment_pairs.py), and a second task predicts whether the
second follows the first. `mask_token` is by default the last token of the vocabulary; in text of bytes that is 255,
which UTF-8 never contains. Parameters are float32; norms, softmax and loss are summed in float32.
"""

# mypy: disallow-untyped-calls=False

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import PartitionSpec as P

from trainer.config import Model
from trainer.data.records import SEGMENT_NUMBERS
from trainer.models.attention import attention
from trainer.models.decoder import MATRICES, apply_layers
from trainer.models.document_masks import Documents, documents, unpack
from trainer.models.dropout import Dropout, Site
from trainer.models.family import Context, Params, Sums
from trainer.models.mfu import attention_flops_per_token
from trainer.models.vocabulary import TABLE, Vocabulary
from trainer.parallel.partitioning import ATTENTION_PRODUCT, MLP_PRODUCT, Execution

_DEVIATION = 0.02  # standard deviation of the initial weights
_MASK_SEED = 0xBE27  # seed of the choice of masked positions


def shapes(model: Model) -> Params:
    """Return the shape of every parameter."""
    L, E, H, Q, M = model.layers, model.embed, model.heads, model.head_dim, model.mlp
    layers = {
        "qkv": (L, E, 3, H, Q),
        "qkv_bias": (L, 3, H, Q),
        "out": (L, H, Q, E),
        "out_bias": (L, E),
        "attention_gain": (L, E),
        "attention_bias": (L, E),
        "up": (L, E, M),
        "up_bias": (L, M),
        "down": (L, M, E),
        "down_bias": (L, E),
        "mlp_gain": (L, E),
        "mlp_bias": (L, E),
    }
    head = {"dense": (E, E), "dense_bias": (E,), "gain": (E,), "bias": (E,), "vocab_bias": (model.vocab,)}
    inputs = {"embed": (model.vocab, E), "position": (model.seq_len, E), "gain": (E,), "bias": (E,)}
    if model.next_sentence:
        inputs["segment"] = (2, E)
        head |= {"pool": (E, E), "pool_bias": (E,), "next": (E, 2), "next_bias": (2,)}
    return {"inputs": inputs, "layers": layers, "head": head}


def specs(model: Model) -> Params:
    """Return the sharding of every parameter: matrices over "fsdp" and "tp", gains and biases replicated."""
    sharded = {
        **{name: P("stage", *spec) for name, spec in MATRICES.items()},
        "embed": TABLE,
        "position": P(None, "fsdp"),
        "dense": P("fsdp", "tp"),
        "segment": P(None, "fsdp"),
        "pool": P("fsdp", "tp"),
        "next": P("fsdp", None),
    }
    replicated = {"layers": P("stage")}
    return {
        part: {name: sharded.get(name, replicated.get(part, P())) for name in below}
        for part, below in shapes(model).items()
    }


def is_gain(path: tuple[Any, ...]) -> bool:
    """Return whether the parameter at a tree path is a norm's gain or a bias."""
    return str(path[-1].key).endswith(("gain", "bias"))


def layer_axes(path: tuple[Any, ...]) -> tuple[int, ...]:
    """Return the axes along which a parameter stacks tensors of several layers; q, k and v count as three."""
    if path[0].key != "layers":
        return ()
    return (0, 2) if path[-1].key == "qkv" else (0,)


def init(model: Model, key: Array) -> Params:
    """Return fresh parameters."""
    leaves, tree = jax.tree_util.tree_flatten_with_path(shapes(model), is_leaf=lambda x: isinstance(x, tuple))
    keys = jax.random.split(key, len(leaves))

    def leaf(key: Array, path: tuple[Any, ...], shape: tuple[int, ...]) -> Array:
        if is_gain(path):
            return jnp.full(shape, float(str(path[-1].key).endswith("gain")))
        return _DEVIATION * jax.random.normal(key, shape)

    leaf_values = [leaf(key, path, shape) for key, (path, shape) in zip(keys, leaves, strict=True)]
    params: Params = jax.tree.unflatten(tree, leaf_values)
    return params


class Pairs(NamedTuple):
    """Pairs of segments, without masks."""

    tokens_BT: Array
    segment_BT: Array  # 0 or 1; of padding it is 1
    real_BT: Array  # False in padding
    maskable_BT: Array  # True for tokens of the segments, without [CLS] and [SEP]
    is_next_B: Array  # 1 if the second segment follows the first


def read_pairs(record_BS: Array) -> Pairs:
    """Return the pairs of records (data/records.py)."""
    T = record_BS.shape[1] - SEGMENT_NUMBERS
    time_T, first_B1, second_B1 = jnp.arange(T), record_BS[:, T : T + 1], record_BS[:, T + 1 : T + 2]
    special_BT = (time_T == 0) | (time_T == first_B1 - 1) | (time_T == second_B1 - 1)
    real_BT = time_T < second_B1
    segment_BT = (time_T >= first_B1).astype(jnp.int32)
    return Pairs(record_BS[:, :T], segment_BT, real_BT, real_BT & ~special_BT, record_BS[:, T + 2])


def mask_tokens(
    model: Model, tokens_BT: Array, step: Array | None, real_BT: Array | None = None
) -> tuple[Array, Array, Array]:
    """Return (tokens [B, T] with masks, positions [B, G] to predict, whether each position counts [B, G]).

    G is mask_rate x T in every example. With `real_BT`, which marks the tokens that may be predicted, the same fraction
    of those counts. Of the predicted tokens 80 % are masked, 10 % are replaced by a random token and 10 % are kept. The
    choice depends on the tokens and the step alone, so it is the same on every mesh; without a step (an evaluation) it
    is always the same.
    """
    B, T = tokens_BT.shape
    predicted = max(1, round(model.mask_rate * T))
    base = jax.random.fold_in(jax.random.key(_MASK_SEED), 0 if step is None else step + 1)
    factor_T = jnp.arange(1, 2 * T, 2, dtype=jnp.uint32) * jnp.uint32(2654435761)
    digest_B = jnp.sum(tokens_BT.astype(jnp.uint32) * factor_T, axis=1, dtype=jnp.uint32)

    def choose(digest: Array, real_T: Array) -> tuple[Array, Array, Array]:
        position_key, draw_key, token_key = jax.random.split(jax.random.fold_in(base, digest), 3)
        _, position_G = jax.lax.top_k(jnp.where(real_T, jax.random.uniform(position_key, (T,)), -1.0), predicted)
        return (
            position_G,
            jax.random.uniform(draw_key, (predicted,)),
            jax.random.randint(token_key, (predicted,), 0, model.vocab - 1),
        )

    all_BT = jnp.ones((B, T), bool)
    position_BG, draw_BG, token_BG = jax.vmap(choose)(digest_B, all_BT if real_BT is None else real_BT)
    counted_BG = all_BT[:, :predicted]
    if real_BT is not None:
        count_B1 = jnp.maximum(1, jnp.round(model.mask_rate * jnp.sum(real_BT, axis=1, keepdims=True)))
        counted_BG = (jnp.arange(predicted) < count_B1) & jnp.take_along_axis(real_BT, position_BG, axis=1)
    original_BG = jnp.take_along_axis(tokens_BT, position_BG, axis=1)
    new_BG = jnp.where(
        draw_BG < 0.8, model.mask_token or model.vocab - 1, jnp.where(draw_BG < 0.9, token_BG, original_BG)
    )
    new_BG = jnp.where(counted_BG, new_BG, original_BG)
    return tokens_BT.at[jnp.arange(B)[:, None], position_BG].set(new_BG), position_BG, counted_BG


def layer_norm(x_BTE: Array, gain_E: Array, bias_E: Array) -> Array:
    """Layer norm (Ba et al., 2016), in float32."""
    f_BTE = x_BTE.astype(jnp.float32)
    f_BTE = f_BTE - jnp.mean(f_BTE, axis=-1, keepdims=True)
    scale_BT1 = jax.lax.rsqrt(jnp.mean(f_BTE * f_BTE, axis=-1, keepdims=True) + 1e-12)
    return (f_BTE * scale_BT1 * gain_E + bias_E).astype(x_BTE.dtype)


def layer(
    model: Model,
    execution: Execution,
    x_BTE: Array,
    w: Params,
    key: Array | None = None,
    packed: Documents | None = None,
    dropout: Dropout | None = None,
) -> Array:
    """Apply one layer: attention, then the MLP, each added to its input and normalized; sharded as in decoder.py."""
    keys = [None] * 4 if key is None else jax.random.split(key, 4)
    dropout = dropout or Dropout(execution)
    dtype, shard, batch = jnp.dtype(model.compute_dtype), execution.shard, execution.batch
    qkv, out, up, down = (w[name].astype(dtype) for name in ("qkv", "out", "up", "down"))
    bias = {name: w[f"{name}_bias"].astype(dtype) for name in ("qkv", "out", "up", "down")}
    qkv_BT3HQ = execution.product(ATTENTION_PRODUCT, x_BTE, qkv, MATRICES["qkv"], 1, keys[0]) + bias["qkv"]
    q_BTHQ, k_BTHQ, v_BTHQ = shard(jnp.moveaxis(qkv_BT3HQ, 2, 0), None, batch, None, "tp", None)
    masks: dict[str, Any] = {"causal": False, "document_BT": packed.number_BT if packed else None}
    drop = dropout.of_weights(Site.ATTENTION_WEIGHTS)
    y_BTHQ = attention(shard, batch, q_BTHQ, k_BTHQ, v_BTHQ, model.attention_chunk, **masks, drop=drop)
    y_BTE = execution.product(ATTENTION_PRODUCT, y_BTHQ, out, MATRICES["out"], 2, keys[1]) + bias["out"]
    y_BTE = dropout(Site.ATTENTION, y_BTE, "tp", None)
    x_BTE = shard(layer_norm(x_BTE + y_BTE, w["attention_gain"], w["attention_bias"]), batch, "tp", None)
    y_BTM = execution.product(MLP_PRODUCT, x_BTE, up, MATRICES["up"], 1, keys[2])
    y_BTM = jax.nn.gelu(shard(y_BTM, batch, None, "tp") + bias["up"])
    y_BTE = execution.product(MLP_PRODUCT, y_BTM, down, MATRICES["down"], 1, keys[3]) + bias["down"]
    y_BTE = dropout(Site.MLP, y_BTE, "tp", None)
    return shard(layer_norm(x_BTE + y_BTE, w["mlp_gain"], w["mlp_bias"]), batch, "tp", None)


def vocabulary(model: Model, execution: Execution, params: Params) -> Vocabulary:
    """Return the table of embeddings, which the logits of tokens are products with, too."""
    return Vocabulary(execution, params["inputs"]["embed"].astype(jnp.dtype(model.compute_dtype)))


def encode(
    model: Model,
    execution: Execution,
    params: Params,
    tokens_BT: Array,
    key: Array | None = None,
    packed: Documents | None = None,
    segment_BT: Array | None = None,
    table: Vocabulary | None = None,
    dropout: Dropout | None = None,
) -> Array:
    """Return the encoder's output [B, T, E]. The key is for stochastic rounding; the table is gathered if not given."""
    dtype, inputs = jnp.dtype(model.compute_dtype), params["inputs"]
    table = table or vocabulary(model, execution, params)
    position_TE = execution.shard(inputs["position"].astype(dtype), None, None)
    x_BTE = table.look_up(tokens_BT) + (position_TE if packed is None else position_TE[packed.position_BT])
    if segment_BT is not None:
        x_BTE += inputs["segment"].astype(dtype)[segment_BT]
    x_BTE = execution.shard(layer_norm(x_BTE, inputs["gain"], inputs["bias"]), execution.batch, "tp", None)
    x_BTE = (dropout or Dropout(execution))(Site.INPUT, x_BTE, "tp", None)
    return apply_layers(model, execution, layer, params["layers"], x_BTE, key, packed, dropout)


def sums(
    model: Model, execution: Execution, params: Params, context: Context, record_BS: Array, weight_B: Array
) -> Sums:
    """Return the sums over predicted tokens.

    The loss of an example's next-sentence prediction counts once for each of its predicted tokens, so that the quotient
    of the sums is the sum of both tasks' means.
    """
    pairs = read_pairs(record_BS) if model.next_sentence else None
    number_BT: Array | None
    maskable_BT: Array | None
    if pairs is not None:
        tokens_BT, maskable_BT, number_BT = pairs.tokens_BT, pairs.maskable_BT, pairs.real_BT.astype(jnp.int32)
    else:
        tokens_BT, number_BT = unpack(record_BS, packed=model.packed)
        maskable_BT = None if number_BT is None else number_BT > 0
    input_BT, position_BG, counted_BG = mask_tokens(model, tokens_BT, context.step, maskable_BT)
    segment_BT = None if pairs is None else pairs.segment_BT
    table = vocabulary(model, execution, params)
    dropout = Dropout(execution, model.dropout, context.example_key_B)
    x_BTE = encode(model, execution, params, input_BT, context.key, documents(number_BT), segment_BT, table, dropout)
    logits_BGV = token_logits(params, table, x_BTE, position_BG)
    target_BG = jnp.take_along_axis(tokens_BT, position_BG, axis=1)
    weight_BG = weight_B[:, None] * counted_BG
    loss = jnp.sum(_cross_entropy(logits_BGV, target_BG) * weight_BG)
    if pairs is not None:
        next_loss_B = _cross_entropy(next_logits(params, x_BTE), pairs.is_next_B)
        loss += jnp.sum(next_loss_B * jnp.sum(weight_BG, axis=1))
    correct_BG = jnp.argmax(logits_BGV, axis=-1) == target_BG
    return Sums(loss, jnp.sum(weight_BG), jnp.sum(correct_BG * weight_BG), context.averages)


def token_logits(params: Params, table: Vocabulary, x_BTE: Array, position_BG: Array) -> Array:
    """Return the float32 logits [B, G, V] of the tokens at these positions."""
    dtype, head = x_BTE.dtype, params["head"]
    x_BGE = jnp.take_along_axis(x_BTE, position_BG[..., None], axis=1)
    x_BGE = jax.nn.gelu(x_BGE @ head["dense"].astype(dtype) + head["dense_bias"].astype(dtype))
    x_BGE = layer_norm(x_BGE, head["gain"], head["bias"])
    return jnp.add(table.project(x_BGE), head["vocab_bias"])


def next_logits(params: Params, x_BTE: Array) -> Array:
    """Return the float32 logits [B, 2] of the second segment being of another document, or following the first."""
    dtype, head = x_BTE.dtype, params["head"]
    x_BE = jnp.tanh(x_BTE[:, 0] @ head["pool"].astype(dtype) + head["pool_bias"].astype(dtype))
    return jnp.asarray(x_BE.astype(jnp.float32) @ head["next"] + head["next_bias"])


def _cross_entropy(logits: Array, target: Array) -> Array:
    correct = jax.nn.one_hot(target, logits.shape[-1], dtype=logits.dtype)
    return jax.nn.logsumexp(logits, axis=-1) - jnp.sum(logits * correct, axis=-1)


def flops_per_item(model: Model) -> float:
    """Return the model FLOPs of a training step per token: 6 per weight it is multiplied with, and 12 L H Q T.

    As for the decoder (models/mfu.py), but the head sees the predicted tokens only.
    """
    layer = 4 * model.embed * model.heads * model.head_dim + 2 * model.embed * model.mlp
    head = model.embed * (model.embed + model.vocab) * max(1, round(model.mask_rate * model.seq_len)) / model.seq_len
    if model.next_sentence:
        head += model.embed * (model.embed + 2) / model.seq_len
    return 6.0 * (model.layers * layer + head) + attention_flops_per_token(model)
