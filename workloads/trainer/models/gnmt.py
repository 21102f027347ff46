"""GNMT (Wu et al., 2016) for translation, in MLPerf's form: stacks of LSTM layers with attention between them.

Dimensions are the suffix of a name:
    B batch   T time   E embed   V vocab   L layers   K beam   G gates
The encoder's first layer reads in both directions; from the third layer of each stack on, a layer's input is added to
its output. The first layer of the decoder asks for the context that all later ones get. One table embeds both
languages. Dropout is applied to the input of each layer. Parameters are float32; gates, states, softmax and loss are
computed in float32.
"""

# mypy: disallow-untyped-calls=False

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import PartitionSpec as P

from trainer.config import Model
from trainer.models import beam_search, lstm, pairs
from trainer.models.bert import is_gain
from trainer.models.decoder import rematerialize
from trainer.models.dropout import Dropout, Site
from trainer.models.family import Context, Params, Sums
from trainer.models.vocabulary import TABLE, Vocabulary
from trainer.parallel.partitioning import ATTENTION_PRODUCT, Execution

_LIMIT = 0.1  # of the initial weights, which are uniform; narrow layers have larger ones, so that signals do not fade
_SPECS = {
    **{"embed": TABLE, "dense": P("fsdp", "tp"), "query": P("fsdp", "tp"), "key": P("fsdp", "tp")},
    **{"input": lstm.WEIGHT, "state": lstm.WEIGHT},
}


def shapes(model: Model) -> Params:
    """Return the shape of every parameter; the layers after the second of each stack are stacked."""
    L, E, V = model.layers, model.embed, model.vocab

    def stack(count: int, layer: Params) -> Params:
        return {name: (count, *shape) for name, shape in layer.items()}

    one, two = lstm.shapes(E, E), lstm.shapes(2 * E, E)
    encoder = {"first": one, "backwards": one, "second": two} | ({"later": stack(L - 2, one)} if L > 2 else {})
    attention = {"query": (E, E), "key": (E, E), "sum_bias": (E,), "vector": (E,), "score_gain": (1,)}
    return {
        "embed": (V, E),
        "encoder": encoder,
        "attention": attention,
        "decoder": {"first": one, "later": stack(L - 1, two)},
        "head": {"dense": (E, V), "vocab_bias": (V,)},
    }


def specs(model: Model) -> Params:
    """Return the sharding of every parameter: matrices over "fsdp" and "tp", the others replicated."""

    def leaf(path: tuple[Any, ...], shape: tuple[int, ...]) -> P:
        spec = _SPECS.get(path[-1].key, P())
        return P(None, *spec) if layer_axes(path) else spec

    sharded: Params = jax.tree_util.tree_map_with_path(leaf, shapes(model), is_leaf=lambda x: isinstance(x, tuple))
    return sharded


def layer_axes(path: tuple[Any, ...]) -> tuple[int, ...]:
    """Return the axes along which a parameter stacks tensors of several layers."""
    return (0,) if any(entry.key == "later" for entry in path) else ()


def init(model: Model, key: Array) -> Params:
    """Return fresh parameters; forget gates begin open (Jozefowicz et al., 2015).

    Embeddings and the score's gain begin larger than in MLPerf's reference: a narrow model, whose signals would fade
    from layer to layer, would long ignore the sentence.
    """
    leaves, tree = jax.tree_util.tree_flatten_with_path(shapes(model), is_leaf=lambda x: isinstance(x, tuple))
    keys, limit = jax.random.split(key, len(leaves)), max(_LIMIT, math.sqrt(3 / model.embed))

    def leaf(key: Array, path: tuple[Any, ...], shape: tuple[int, ...]) -> Array:
        name = path[-1].key
        if name == "gates_bias":
            return jnp.zeros(shape).at[..., 1, :].set(1.0)
        if name == "score_gain":
            return jnp.ones(shape)
        if is_gain(path):
            return jnp.zeros(shape)
        most = 1.0 if name == "embed" else limit
        return jax.random.uniform(key, shape, minval=-most, maxval=most)

    params: Params = jax.tree.unflatten(
        tree, [leaf(key, path, shape) for key, (path, shape) in zip(keys, leaves, strict=True)]
    )
    return params


class Network:
    """The model with its parameters."""

    def __init__(self, model: Model, execution: Execution, params: Params, example_key_B: Array | None = None) -> None:
        """Gather the table. The keys of the examples are for dropout; without them nothing is dropped."""
        self.model, self.execution, self.params = model, execution, params
        dropout = Dropout(execution, model.dropout, example_key_B)
        self.encoder_dropout, self.decoder_dropout = dropout.part(0), dropout.part(1)
        self.dtype = jnp.dtype(model.compute_dtype)
        self.table = Vocabulary(execution, params["embed"].astype(self.dtype))

    def encode(self, source_BT: Array) -> Array:
        """Return the encoder's output [B, T, E], zeros in padding."""
        real_BT, w, dropout = pairs.is_real(source_BT), self.params["encoder"], self.encoder_dropout
        x_BTE = _drop(dropout, 0, self._embedded(source_BT))
        both = self._layer(x_BTE, w["first"], real_BT), self._layer(x_BTE, w["backwards"], real_BT, backwards=True)
        x_BTE = self._layer(_drop(dropout, 1, jnp.concatenate(both, axis=-1)), w["second"], real_BT)
        if "later" not in w:
            return x_BTE

        def scan_body(x_BTE: Array, layer: tuple[Params, Array]) -> tuple[Array, None]:
            w, number = layer
            return x_BTE + lstm.layer(self.execution, _drop(dropout, number, x_BTE), w, real_BT), None

        body = rematerialize(self.model.remat, scan_body)
        return jax.lax.scan(body, x_BTE, (w["later"], self._numbers(dropout, 2)))[0]

    def decode(self, memory_BTE: Array, source_BT: Array, input_BT: Array) -> Array:
        """Return the decoder's output [B, T, E] for complete inputs."""
        w, every_BT, dropout = self.params["decoder"], jnp.ones(input_BT.shape, bool), self.decoder_dropout
        y_BTE = self._layer(_drop(dropout, 0, self._embedded(input_BT)), w["first"], every_BT)
        context_BTE = self.attend(y_BTE, self.keys(memory_BTE), memory_BTE, pairs.is_real(source_BT))

        def scan_body(x_BTE: Array, layer: tuple[Params, Array, Array]) -> tuple[Array, None]:
            w, is_added, number = layer
            input_BTE = _drop(dropout, number, jnp.concatenate([x_BTE, context_BTE], axis=-1))
            return lstm.layer(self.execution, input_BTE, w, every_BT) + x_BTE * is_added, None

        body = rematerialize(self.model.remat, scan_body)
        return jax.lax.scan(body, y_BTE, (w["later"], self._added(), self._numbers(dropout, 1)))[0]

    def keys(self, memory_BTE: Array) -> Array:
        """Return the keys [B, T, E] of the encoder's output."""
        return self._attention_product(memory_BTE, "key")

    def attend(self, y_BCE: Array, key_BTE: Array, memory_BTE: Array, real_BT: Array) -> Array:
        """Return the contexts [B, C, E] of C queries: normalized additive attention (Bahdanau et al., 2015).

        The sums of queries and keys [B, C, T, E] are recomputed in the backward pass.
        """
        w, shard, batch = self.params["attention"], self.execution.shard, self.execution.batch

        def scores(query_BCE: Array, key_BTE: Array, vector_E: Array, bias_E: Array) -> Array:
            sum_BCTE = jnp.tanh(query_BCE[:, :, None] + key_BTE[:, None] + bias_E)
            return jnp.einsum("BCTE,E->BCT", sum_BCTE, vector_E, preferred_element_type=jnp.float32)

        query_BCE = shard(self._attention_product(y_BCE, "query"), batch, None, "tp")
        vector_E = w["score_gain"] * w["vector"] * jax.lax.rsqrt(jnp.sum(w["vector"] ** 2))
        score_BCT = jax.checkpoint(scores)(
            query_BCE, shard(key_BTE, batch, None, "tp"), vector_E.astype(self.dtype), w["sum_bias"].astype(self.dtype)
        )
        weight_BCT = jax.nn.softmax(jnp.where(real_BT[:, None], score_BCT, -jnp.inf), axis=-1).astype(self.dtype)
        return shard(jnp.einsum("BCT,BTE->BCE", weight_BCT, memory_BTE), batch, None, None)

    def project(self, y_BTE: Array) -> Array:
        """Return float32 logits [B, T, V]."""
        head = self.params["head"]
        logits_BTV = jnp.einsum(
            "BTE,EV->BTV", y_BTE, head["dense"].astype(self.dtype), preferred_element_type=jnp.float32
        )
        return self.execution.shard(logits_BTV + head["vocab_bias"], self.execution.batch, None, "tp")

    def step(self, memory_BTE: Array, real_BT: Array) -> beam_search.Step:
        """Return the decoder of one more number. The state is outputs and states of all layers, [B, K, L, E]."""
        key_BTE, w, added_L = self.keys(memory_BTE), self.params["decoder"], self._added()

        def decode_next(state: tuple[Array, Array], number_BK: Array, time: Array) -> tuple[Array, tuple[Array, Array]]:
            y_BKE, after = self._cell(self.table.whole_VE[number_BK], w["first"], state, 0)
            context_BKE = self.attend(y_BKE, key_BTE, memory_BTE, real_BT)
            for n in range(1, self.model.layers):
                later = jax.tree.map(lambda w, n=n: w[n - 1], w["later"])
                x_BKE, (y_BKE, after) = y_BKE, self._cell(jnp.concatenate([y_BKE, context_BKE], -1), later, after, n)
                y_BKE = y_BKE + x_BKE * added_L[n - 1]
            return self.project(y_BKE), after

        return decode_next

    def _cell(self, x_BKD: Array, w: Params, state: tuple[Array, Array], n: int) -> tuple[Array, tuple[Array, Array]]:
        """Return (output, new state) of layer n in one step."""
        h_BKLE, c_BKLE = state
        bias_GE, dtype = w["gates_bias"].astype(self.dtype), self.dtype
        gates_BKGE = jnp.einsum("BKD,DGE->BKGE", x_BKD, w["input"].astype(dtype)) + bias_GE
        h_BKE, w_EGE = h_BKLE[:, :, n], w["state"].astype(dtype)
        gates_BKGE = gates_BKGE + jnp.einsum("BKE,EGF->BKGF", h_BKE, w_EGE, preferred_element_type=jnp.float32)
        h_BKE, c_BKE, _ = lstm.cell(gates_BKGE, c_BKLE[:, :, n])
        h_BKE = h_BKE.astype(self.dtype)
        return h_BKE, (h_BKLE.at[:, :, n].set(h_BKE), c_BKLE.at[:, :, n].set(c_BKE))

    def _layer(self, x_BTE: Array, w: Params, real_BT: Array, *, backwards: bool = False) -> Array:
        def apply(x_BTE: Array, w: Params) -> Array:
            return lstm.layer(self.execution, x_BTE, w, real_BT, backwards=backwards)

        remade: Any = rematerialize(self.model.remat, apply, looped=False)  # type: ignore[arg-type]
        y_BTE: Array = remade(x_BTE, w)
        return y_BTE

    def _numbers(self, dropout: Dropout, first: int) -> Array | None:
        """Return the numbers of a stack's layers from `first` on, which dropout needs."""
        return None if dropout.key_B is None else jnp.arange(first, self.model.layers)

    def _added(self) -> Array:
        """Return 1.0 for each of the decoder's later layers whose input is added to its output, or 0.0."""
        return (jnp.arange(self.model.layers - 1) > 0).astype(self.dtype)

    def _attention_product(self, x_BTE: Array, name: str) -> Array:
        w = self.params["attention"][name].astype(self.dtype)
        return self.execution.product(ATTENTION_PRODUCT, x_BTE, w, _SPECS[name], 1, None)

    def _embedded(self, number_BT: Array) -> Array:
        return self.execution.shard(self.table.look_up(number_BT), self.execution.batch, None, None)


def sums(
    model: Model, execution: Execution, params: Params, context: Context, record_BS: Array, weight_B: Array
) -> Sums:
    """Return the sums over the tokens of translations. Targets are smoothed in training only."""

    def of_pairs(params: Params, shared: tuple[Context, Array], source_BT: Array, target_BT: Array) -> Sums:
        context, weight_B = shared
        network = Network(model, execution, params, context.example_key_B)
        y_BTE = network.decode(network.encode(source_BT), source_BT, pairs.shifted(target_BT))
        return pairs.loss_sums(model, execution, network.project, y_BTE, target_BT, weight_B, context)

    return pairs.padded_sums(model, execution, of_pairs, params, specs(model), (context, weight_B), record_BS)


def translate(model: Model, execution: Execution, params: Params, source_BT: Array, weight_B: Array) -> Array:
    """Return the best translations [B, T] that beam search finds, as in records."""
    network, shape = Network(model, execution, params), (source_BT.shape[0], model.layers, model.embed)
    state = jnp.zeros(shape, network.dtype), jnp.zeros(shape)
    state = execution.shard(state[0], execution.batch), execution.shard(state[1], execution.batch)
    step = network.step(network.encode(source_BT), pairs.is_real(source_BT))
    return beam_search.search(step, state, source_BT, weight_B, model.beam, model.length_penalty)


def flops_per_item(model: Model) -> float:
    """Return the model FLOPs of a training step for a pair of seq_len tokens each.

    6 per weight and token, 2 E for each pair of positions of the score and 2 E of the context, three times.
    """
    E, T = model.embed, model.seq_len
    encoder = 16 + 12 + 8 * (model.layers - 2)
    decoder = 8 + 12 * (model.layers - 1)
    weights = (encoder + decoder + 2) * E * E + E * model.vocab
    return 6.0 * weights * T + 12.0 * T * T * E


def _drop(dropout: Dropout, layer: int | Array, x_BTD: Array) -> Array:
    """Return the input of a layer of a stack, dropped; the chips of "tp" each draw a part of the masks."""
    return dropout.part(layer)(Site.INPUT, x_BTD, None, "tp")
