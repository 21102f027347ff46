"""The Transformer (Vaswani et al., 2017) for translation, in MLPerf's form: norms before the layers, one shared table.

Dimensions are the suffix of a name:
    B batch   T time   E embed   H heads   Q head_dim   M mlp   V vocab   L layers   K beam
Sentences and translations are padded to the same length T, or several are packed (data/pair_records.py). The table
embeds both and is the output projection. Dropout is applied to embeddings, attention's weights, the MLP's hidden
activations and what layers add to their input. Parameters are float32; norms, softmax and loss are summed in float32.
"""

# mypy: disallow-untyped-calls=False

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import PartitionSpec as P

from trainer.config import Model
from trainer.models import beam_search, pairs
from trainer.models.attention import attention
from trainer.models.bert import is_gain, layer_norm
from trainer.models.decoder import MATRICES, apply_layers
from trainer.models.document_masks import Documents
from trainer.models.dropout import Dropout, Site
from trainer.models.family import Context, Params, Sums
from trainer.models.vocabulary import TABLE, Vocabulary
from trainer.parallel.partitioning import ATTENTION_PRODUCT, MLP_PRODUCT, Execution

_MATRICES = MATRICES | {
    "query": P("fsdp", "tp", None),
    "key_value": P("fsdp", None, "tp", None),
    "cross_out": P("tp", None, "fsdp"),
}
_STACKED = {"qkv": (0, 2), "key_value": (0, 2)}  # axes of several tensors; of others, the layers


def shapes(model: Model) -> Params:
    """Return the shape of every parameter."""
    L, E, H, Q, M = model.layers, model.embed, model.heads, model.head_dim, model.mlp
    encoder = {
        **{"attention_gain": (L, E), "attention_bias": (L, E), "qkv": (L, E, 3, H, Q), "out": (L, H, Q, E)},
        **{"mlp_gain": (L, E), "mlp_bias": (L, E)},
        **{"up": (L, E, M), "up_bias": (L, M), "down": (L, M, E), "down_bias": (L, E)},
    }
    cross = {
        **{"cross_gain": (L, E), "cross_bias": (L, E)},
        **{"query": (L, E, H, Q), "key_value": (L, E, 2, H, Q), "cross_out": (L, H, Q, E)},
    }
    final = {"encoder_gain": (E,), "encoder_bias": (E,), "decoder_gain": (E,), "decoder_bias": (E,)}
    return {"embed": (model.vocab, E), "encoder": encoder, "decoder": encoder | cross, "final": final}


def specs(model: Model) -> Params:
    """Return the sharding of every parameter: matrices over "fsdp" and "tp", gains and biases replicated."""
    stacks = {
        part: {name: P("stage", *_MATRICES[name]) if name in _MATRICES else P("stage") for name in shapes(model)[part]}
        for part in ("encoder", "decoder")
    }
    return stacks | {"embed": TABLE, "final": dict.fromkeys(shapes(model)["final"], P())}


def layer_axes(path: tuple[Any, ...]) -> tuple[int, ...]:
    """Return the axes along which a parameter stacks tensors of several layers; q, k and v count as three."""
    if path[0].key not in ("encoder", "decoder"):
        return ()
    return _STACKED.get(path[-1].key, (0,))


def init(model: Model, key: Array) -> Params:
    """Return fresh parameters (Glorot and Bengio, 2010, uniform); the table is normal with deviation E ** -0.5."""
    width = model.heads * model.head_dim
    fans = {"up": model.embed + model.mlp, "down": model.embed + model.mlp}  # inputs and outputs of a matrix
    leaves, tree = jax.tree_util.tree_flatten_with_path(shapes(model), is_leaf=lambda x: isinstance(x, tuple))
    keys = jax.random.split(key, len(leaves))

    def leaf(key: Array, path: tuple[Any, ...], shape: tuple[int, ...]) -> Array:
        name = str(path[-1].key)
        if is_gain(path):
            return jnp.full(shape, float(name.endswith("gain")))
        if name == "embed":
            return jax.random.normal(key, shape) / math.sqrt(model.embed)
        limit = math.sqrt(6 / fans.get(name, model.embed + width))
        return jax.random.uniform(key, shape, minval=-limit, maxval=limit)

    params: Params = jax.tree.unflatten(
        tree, [leaf(key, path, shape) for key, (path, shape) in zip(keys, leaves, strict=True)]
    )
    return params


def positions(length: int, embed: int) -> Array:
    """Return the sinusoidal positions [T, E]: sines, then cosines."""
    frequency_e = 10_000.0 ** -(jnp.arange(embed // 2) / max(1, embed // 2 - 1))
    angle_Te = jnp.arange(length)[:, None] * frequency_e
    return jnp.concatenate([jnp.sin(angle_Te), jnp.cos(angle_Te)], axis=1)


class Network:
    """The model with its parameters."""

    def __init__(self, model: Model, execution: Execution, params: Params, example_key_B: Array | None = None) -> None:
        """Gather the table. The keys of the examples are for dropout; without them nothing is dropped."""
        self.model, self.execution, self.params = model, execution, params
        dropout = Dropout(execution, model.dropout, example_key_B)
        self.encoder_dropout, self.decoder_dropout = dropout.part(0), dropout.part(1)
        self.dtype = jnp.dtype(model.compute_dtype)
        self.table = Vocabulary(execution, params["embed"].astype(self.dtype))
        self.position_TE = positions(model.seq_len, model.embed)

    def encode(self, source_BT: Array, key: Array | None = None) -> Array:
        """Return the encoder's output [B, T, E]. The key is for stochastic rounding."""
        packed = pairs.packed_sources(source_BT) if self.model.packed else None
        number_BT = packed.number_BT if packed else pairs.is_real(source_BT).astype(jnp.int32)

        def layer(
            model: Model, execution: Execution, x_BTE: Array, w: Params, key: Array | None, _: Any, dropout: Dropout
        ) -> Array:
            keys = _keys(key, 4)
            x_BTE = self._self_attention(x_BTE, w, keys[:2], dropout, causal=False, document_BT=number_BT)
            return self._mlp(x_BTE, w, keys[2:], dropout)

        dropout = self.encoder_dropout
        x_BTE = self._embedded(source_BT, packed, dropout)
        x_BTE = apply_layers(self.model, self.execution, layer, self.params["encoder"], x_BTE, key, dropout=dropout)
        return self._final_norm(x_BTE, "encoder")

    def decode(self, memory_BTE: Array, source_BT: Array, input_BT: Array, key: Array | None = None) -> Array:
        """Return the decoder's output [B, T, E] for complete inputs."""
        number_BS, number_BT, packed = pairs.is_real(source_BT).astype(jnp.int32), None, None
        if self.model.packed:
            source = pairs.packed_sources(source_BT)
            packed = pairs.packed_inputs(input_BT, source)
            number_BS, number_BT = source.number_BT, packed.number_BT

        def layer(
            model: Model, execution: Execution, x_BTE: Array, w: Params, key: Array | None, _: Any, dropout: Dropout
        ) -> Array:
            keys = _keys(key, 7)
            x_BTE = self._self_attention(x_BTE, w, keys[:2], dropout, causal=True, document_BT=number_BT)
            x_BTE = self._cross_attention(x_BTE, memory_BTE, (number_BT, number_BS), w, keys[2:5], dropout)
            return self._mlp(x_BTE, w, keys[5:], dropout)

        dropout = self.decoder_dropout
        x_BTE = self._embedded(input_BT, packed, dropout)
        x_BTE = apply_layers(self.model, self.execution, layer, self.params["decoder"], x_BTE, key, dropout=dropout)
        return self._final_norm(x_BTE, "decoder")

    def project(self, y_BTE: Array) -> Array:
        """Return float32 logits [B, T, V]."""
        return self.execution.shard(self.table.project(y_BTE), self.execution.batch, None, "tp")

    def step(self, memory_LBTHQ: tuple[Array, Array], real_BT: Array) -> beam_search.Step:
        """Return the decoder of one more number, given all layers' keys and values of the encoder's output.

        The state is the keys and values of the numbers before, [B, K, L, T, H, Q].
        """

        def decode_next(state: tuple[Array, Array], number_BK: Array, time: Array) -> tuple[Array, tuple[Array, Array]]:
            x_BKE = self.table.whole_VE[number_BK] * math.sqrt(self.model.embed) + self.position_TE[time]
            x_BKE, (k_BKLTHQ, v_BKLTHQ) = x_BKE.astype(self.dtype), state
            is_past_T = jnp.arange(self.model.seq_len) <= time
            for n in range(self.model.layers):
                w = jax.tree.map(lambda w, n=n: w[n], self.params["decoder"])
                y_BKE = layer_norm(x_BKE, w["attention_gain"], w["attention_bias"])
                q_BKHQ, k_BKHQ, v_BKHQ = jnp.moveaxis(self._product(y_BKE, w, "qkv", 1), 2, 0)
                k_BKLTHQ = k_BKLTHQ.at[:, :, n, time].set(k_BKHQ)
                v_BKLTHQ = v_BKLTHQ.at[:, :, n, time].set(v_BKHQ)
                y_BKHQ = _attend("BKHQ,BKTHQ->BKHT", q_BKHQ, k_BKLTHQ[:, :, n], v_BKLTHQ[:, :, n], is_past_T)
                x_BKE = x_BKE + self._product(y_BKHQ, w, "out", 2)
                y_BKE = layer_norm(x_BKE, w["cross_gain"], w["cross_bias"])
                q_BKHQ = self._product(y_BKE, w, "query", 1)
                k_BTHQ, v_BTHQ = memory_LBTHQ[0][n], memory_LBTHQ[1][n]
                y_BKHQ = _attend("BKHQ,BTHQ->BKHT", q_BKHQ, k_BTHQ, v_BTHQ, real_BT[:, None, None])
                x_BKE = x_BKE + self._product(y_BKHQ, w, "cross_out", 2)
                x_BKE = self._mlp(x_BKE, w, _keys(None, 2), Dropout(self.execution))
            return self.project(self._final_norm(x_BKE, "decoder")), (k_BKLTHQ, v_BKLTHQ)

        return decode_next

    def memory(self, x_BTE: Array) -> tuple[Array, Array]:
        """Return all layers' keys and values [L, B, T, H, Q] of the encoder's output."""
        kv_LBT2HQ = jax.vmap(lambda w: self._product(x_BTE, {"key_value": w}, "key_value", 1))(
            self.params["decoder"]["key_value"]
        )
        return kv_LBT2HQ[:, :, :, 0], kv_LBT2HQ[:, :, :, 1]

    def _product(self, x: Array, w: Params, name: str, summed: int, key: Array | None = None) -> Array:
        saved_as = MLP_PRODUCT if name in ("up", "down") else ATTENTION_PRODUCT
        return self.execution.product(saved_as, x, w[name].astype(self.dtype), _MATRICES[name], summed, key)

    def _embedded(self, number_BT: Array, packed: Documents | None, dropout: Dropout) -> Array:
        x_BTE = self.table.look_up(number_BT) * math.sqrt(self.model.embed)
        x_BTE = x_BTE + self.position_TE[packed.position_BT if packed else slice(number_BT.shape[1])]
        x_BTE = self.execution.shard(x_BTE.astype(self.dtype), self.execution.batch, "tp", None)
        return dropout(Site.INPUT, x_BTE, "tp", None)

    def _final_norm(self, x_BTE: Array, part: str) -> Array:
        final = self.params["final"]
        return layer_norm(x_BTE, final[f"{part}_gain"], final[f"{part}_bias"])

    def _self_attention(self, x_BTE: Array, w: Params, keys: Any, dropout: Dropout, **mask: Any) -> Array:
        shard, batch = self.execution.shard, self.execution.batch
        y_BTE = layer_norm(x_BTE, w["attention_gain"], w["attention_bias"])
        qkv_BT3HQ = self._product(y_BTE, w, "qkv", 1, keys[0])
        q_BTHQ, k_BTHQ, v_BTHQ = shard(jnp.moveaxis(qkv_BT3HQ, 2, 0), None, batch, None, "tp", None)
        drop = dropout.of_weights(Site.ATTENTION_WEIGHTS)
        y_BTHQ = attention(shard, batch, q_BTHQ, k_BTHQ, v_BTHQ, self._chunk(x_BTE), **mask, drop=drop)
        y_BTE = dropout(Site.ATTENTION, self._product(y_BTHQ, w, "out", 2, keys[1]), "tp", None)
        return shard(x_BTE + y_BTE, batch, "tp", None)

    def _cross_attention(
        self,
        x_BTE: Array,
        memory_BTE: Array,
        documents: tuple[Array | None, Array],
        w: Params,
        keys: Any,
        dropout: Dropout,
    ) -> Array:
        shard, batch = self.execution.shard, self.execution.batch
        y_BTE = layer_norm(x_BTE, w["cross_gain"], w["cross_bias"])
        q_BTHQ = shard(self._product(y_BTE, w, "query", 1, keys[0]), batch, None, "tp", None)
        kv_BT2HQ = self._product(memory_BTE, w, "key_value", 1, keys[1])
        k_BTHQ, v_BTHQ = shard(jnp.moveaxis(kv_BT2HQ, 2, 0), None, batch, None, "tp", None)
        number_BT, number_BS = documents
        number_BT = jnp.ones_like(number_BS) if number_BT is None else number_BT
        masks: dict[str, Any] = {"causal": False, "document_BT": number_BT, "key_document_BS": number_BS}
        drop = dropout.of_weights(Site.CROSS_WEIGHTS)
        y_BTHQ = attention(shard, batch, q_BTHQ, k_BTHQ, v_BTHQ, self._chunk(x_BTE), **masks, drop=drop)
        y_BTE = dropout(Site.CROSS, self._product(y_BTHQ, w, "cross_out", 2, keys[2]), "tp", None)
        return shard(x_BTE + y_BTE, batch, "tp", None)

    def _mlp(self, x_BTE: Array, w: Params, keys: Any, dropout: Dropout) -> Array:
        shard, batch = self.execution.shard, self.execution.batch
        y_BTE = layer_norm(x_BTE, w["mlp_gain"], w["mlp_bias"])
        y_BTM = shard(self._product(y_BTE, w, "up", 1, keys[0]), batch, None, "tp")
        y_BTM = dropout(Site.HIDDEN, jax.nn.relu(y_BTM + w["up_bias"].astype(self.dtype)), None, "tp")
        y_BTE = self._product(y_BTM, w, "down", 1, keys[1]) + w["down_bias"].astype(self.dtype)
        return shard(x_BTE + dropout(Site.MLP, y_BTE, "tp", None), batch, "tp", None)

    def _chunk(self, x_BTE: Array) -> int:
        """Return the queries to process at a time; a batch that is shorter or not divisible is processed whole."""
        return pairs.chunk(self.model.attention_chunk, x_BTE.shape[1])


def sums(
    model: Model, execution: Execution, params: Params, context: Context, record_BS: Array, weight_B: Array
) -> Sums:
    """Return the sums over the tokens of translations. Targets are smoothed in training only."""

    def of_pairs(params: Params, shared: tuple[Context, Array], source_BT: Array, target_BT: Array) -> Sums:
        context, weight_B = shared
        network = Network(model, execution, params, context.example_key_B)
        keys = _keys(context.key, 2)
        memory_BTE = network.encode(source_BT, keys[0])
        y_BTE = network.decode(memory_BTE, source_BT, pairs.shifted(target_BT), keys[1])
        return pairs.loss_sums(model, execution, network.project, y_BTE, target_BT, weight_B, context)

    return pairs.padded_sums(model, execution, of_pairs, params, specs(model), (context, weight_B), record_BS)


def translate(model: Model, execution: Execution, params: Params, source_BT: Array, weight_B: Array) -> Array:
    """Return the best translations [B, T] that beam search finds, as in records."""
    network, (B, T) = Network(model, execution, params), source_BT.shape
    memory_LBTHQ = network.memory(network.encode(source_BT))
    past = execution.shard(jnp.zeros((B, model.layers, T, model.heads, model.head_dim), network.dtype), execution.batch)
    step = network.step(memory_LBTHQ, pairs.is_real(source_BT))
    return beam_search.search(step, (past, past), source_BT, weight_B, model.beam, model.length_penalty)


def flops_per_item(model: Model) -> float:
    """Return the model FLOPs of a training step for a pair of seq_len tokens each.

    6 per weight and token, as for the decoder (models/mfu.py), and 12 L H Q T per token for each of three attentions.
    """
    width = model.heads * model.head_dim
    layers = model.layers * (12 * model.embed * width + 4 * model.embed * model.mlp)
    attentions = 3 * 12 * model.layers * width * model.seq_len
    return model.seq_len * (6.0 * (layers + model.vocab * model.embed) + attentions)


def _keys(key: Array | None, count: int) -> Any:
    return [None] * count if key is None else jax.random.split(key, count)


def _attend(form: str, q_BKHQ: Array, k: Array, v: Array, is_seen: Array) -> Array:
    """Return attention of one query for each partial translation, to the positions T that it sees."""
    score_BKHT = jnp.einsum(form, q_BKHQ, k, preferred_element_type=jnp.float32) / math.sqrt(q_BKHQ.shape[-1])
    weight_BKHT = jax.nn.softmax(jnp.where(is_seen, score_BKHT, -jnp.inf), axis=-1).astype(v.dtype)
    _, values = form.split("->")[0].split(",")
    return jnp.einsum(f"BKHT,{values}->BKHQ", weight_BKHT, v)
