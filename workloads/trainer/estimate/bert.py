"""Closed-form estimate of BERT without JAX: parameters, memory of a chip, FLOPs, traffic, and bound of a step's time.

The terms are those of models/bert.py, whose layers are applied, sharded and recomputed as the decoder's are.
"""

from typing import Any, NamedTuple

from trainer.config import Config, Model
from trainer.estimate.accelerators import Slice
from trainer.estimate.closed_form import layer_products
from trainer.estimate.fields import Work, memory_fields, size_fields, work_fields
from trainer.estimate.memory import Memory, mask_bytes, moment_width, saved_bytes, vector_width
from trainer.estimate.traffic import Traffic, sent_fraction
from trainer.parallel import layout
from trainer.parallel.layout import Layout

_ROWS = 8  # of a tile, in which XLA's TPU compiler lays out arrays


class Numbers(NamedTuple):
    """Numbers of the parameters, by the way that chips hold them."""

    layers: int  # of the layers' matrices, sharded over fsdp and tp
    tables: int  # of the vocabulary and the head's matrices, sharded over fsdp and tp
    positions: int  # of positions, segments and the second task, sharded over fsdp
    layer_biases: int  # and gains; replicated
    biases: int  # and gains, of everything but the layers; replicated

    def on_a_chip(self, sizes: Layout) -> tuple[float, float]:
        """Return the numbers of matrices on a chip, and those of gains and biases."""
        shards = sizes.fsdp * sizes.tp
        matrices = self.layers / sizes.stages / shards + self.tables / shards + self.positions / sizes.fsdp
        return matrices, self.layer_biases / sizes.stages + self.biases


def estimate(config: Config, slice_: Slice, num_slices: int, *, is_elastic: bool = False) -> dict[str, Any]:
    """Return the fields of closed_form.estimate for BERT; no expected time is known, so it equals the bound."""
    replicas = num_slices if is_elastic else 1
    chips = layout.Chips(num_slices // replicas, slice_.hosts, slice_.chips_per_host)
    own_config, all_chips = layout.one_slice(config, replicas), chips.total * replicas
    sizes = layout.layout(own_config, chips)
    tokens = sizes.global_batch * replicas * config.model.seq_len
    of_chip, sent = memory(own_config, sizes, is_elastic=is_elastic), traffic(own_config, sizes, replicas)
    work = Work(
        items=tokens,
        flops=flops_per_token(config.model) * tokens,
        computed_flops=computed_flops_per_token(config.model) * tokens,
        ici=sent.fsdp + sent.tp,
        ici_seconds=sent.ici_seconds(slice_, sizes),
        dcn=sent.dcn,
        int8_flops=len(config.quant.products) * layer_products(config.model) * tokens,
        computed_int8_flops=_int8_flops_per_token(config) * tokens,
    )
    parameters = sum(numbers(config.model))
    return {
        **size_fields(config, slice_, num_slices, sizes, chips=all_chips, parameters=parameters),
        "global_batch": sizes.global_batch * replicas,
        **memory_fields(of_chip, slice_.chip),
        **work_fields(work, of_chip, slice_.chip, all_chips, is_hidden=True),
    }


def numbers(model: Model) -> Numbers:
    """Return the numbers of the parameters."""
    E, M, width = model.embed, model.mlp, model.heads * model.head_dim
    pairs = 1 if model.next_sentence else 0
    return Numbers(
        layers=model.layers * (4 * E * width + 2 * E * M),
        tables=model.vocab * E + (1 + pairs) * E * E,
        positions=model.seq_len * E + pairs * 4 * E,
        layer_biases=model.layers * (3 * width + M + 6 * E),
        biases=model.vocab + 5 * E + pairs * (E + 2),
    )


def flops_per_token(model: Model) -> float:
    """Return the model FLOPs of a training step per token, as models/bert.py does."""
    head = model.embed * (model.embed + model.vocab) * _predicted(model) / model.seq_len
    if model.next_sentence:
        head += model.embed * (model.embed + 2) / model.seq_len
    return 3 * layer_products(model) + 6 * head + 3 * _score_flops(model)


def computed_flops_per_token(model: Model) -> float:
    """Return the FLOPs computed per token: those of the model, and those of the recomputation.

    As of the decoder, but a layer's last product is recomputed too: the norm after it needs the result.
    """
    passes = (1 if model.remat != "none" else 0) + (1 if model.attention_chunk else 0)
    return flops_per_token(model) + _recomputed_products(model) + passes * _score_flops(model)


def _recomputed_products(model: Model) -> float:
    """Return the FLOPs per token of the products with a layer's weights that are recomputed."""
    mlp = 4.0 * model.layers * model.embed * model.mlp
    return {"none": 0.0, "dots": 0.0, "attention": mlp, "full": layer_products(model)}[model.remat]


def _int8_flops_per_token(config: Config) -> float:
    """Return the FLOPs computed per token in int8; recomputed products are those of the forward pass."""
    again = _recomputed_products(config.model) if "forward" in config.quant.products else 0.0
    return len(config.quant.products) * layer_products(config.model) + again


def _score_flops(model: Model) -> float:
    """Return the FLOPs per token of attention's scores and of their products with the values, in one pass."""
    return 4.0 * model.layers * model.heads * model.head_dim * model.seq_len


def _predicted(model: Model) -> int:
    """Return the number of predicted tokens of an example."""
    return max(1, round(model.mask_rate * model.seq_len))


def memory(config: Config, sizes: Layout, *, is_elastic: bool = False) -> Memory:
    """Return the memory of each chip for `config`; that of one slice if slices are elastic."""
    model, held = config.model, numbers(config.model)
    width = 2 if model.compute_dtype == "bfloat16" else 4
    matrices, biases = held.on_a_chip(sizes)
    over_dp = sizes.dp if "dp" in config.optim.axes else 1
    examples = sizes.global_batch / (sizes.dp * sizes.fsdp) / config.optim.grad_accum_steps
    tokens = examples * model.seq_len
    table = width * held.tables / sizes.tp
    layer = _layer_bytes(model, sizes, tokens / sizes.microbatches, width)
    return Memory(
        state=4 * (matrices + biases) + moment_width(config) * (matrices / over_dp + biases),
        gradients=4 * (matrices + biases) * (1 if config.optim.grad_accum_steps == 1 else 2),
        vectors=vector_width(config) * (matrices + biases) if is_elastic else 0.0,
        copies=width * held.layers / sizes.stages / (sizes.fsdp * sizes.tp) if width < 4 else 0.0,
        saved=_saved_bytes(model, sizes, tokens, width),
        working=max(layer, 2 * 4 * examples * _predicted(model) * model.vocab / sizes.tp) + 2 * table,
    )


def _saved_bytes(model: Model, sizes: Layout, tokens: float, width: int) -> float:
    """Return the bytes of all layers' saved activations.

    Those without rematerialization are the ones that the compiled program holds: also the steps of the activation and
    of the two norms, which are computed in float32.
    """
    if model.remat != "none":
        return saved_bytes(model, sizes, tokens, width)
    heads, hidden, stream = (size / sizes.tp for size in (model.heads * model.head_dim, model.mlp, model.embed))
    numbers = width * (5 * hidden + 4 * heads + 3 * stream) + 4 * 5 * stream
    scores = 0.0 if model.attention_chunk else model.seq_len * model.heads / sizes.tp * (4 + width)
    ticks = (sizes.microbatches + sizes.stages - 1) / sizes.microbatches
    return model.layers / sizes.stages * ticks * (tokens * (numbers + scores) + mask_bytes(model, sizes, tokens))


def _layer_bytes(model: Model, sizes: Layout, tokens: float, width: int) -> float:
    """Return the peak bytes of one layer's backward pass, in the MLP or in attention, whose layers end with a norm."""
    heads, hidden, stream = (size / sizes.tp for size in (model.heads * model.head_dim, model.mlp, model.embed))
    scores = tokens * (model.attention_chunk or model.seq_len) * model.heads / sizes.tp
    mlp = 2 * model.embed * hidden + tokens * (2 * hidden + 3 * heads + 3 * stream)
    attention = 3 * model.embed * heads + tokens * (hidden + 3 * heads + 4 * stream)
    return max(width * mlp, width * attention + scores * (4 + width))


def traffic(config: Config, sizes: Layout, replicas: int = 1) -> Traffic:
    """Return the traffic of a step; with `replicas` elastic slices, `sizes` are those of one.

    fsdp: as of the decoder. If a chip has no more rows of a weight than a tile, XLA makes an all-reduce of its
    gather, which sends twice as much. tp: activations, as of the decoder. dcn: gradients in the compute dtype; if the
    update is sharded over dp, each slice then gathers the others' new parameters in float32.
    """
    model, held, parts = config.model, numbers(config.model), config.optim.grad_accum_steps
    width = 2 if model.compute_dtype == "bfloat16" else 4
    matrices, biases = held.on_a_chip(sizes)
    layers, others = held.layers / sizes.stages, held.tables + sizes.tp * held.positions
    gathers = 2 if model.embed / sizes.fsdp <= _ROWS else 1
    stream = sizes.global_batch / (sizes.dp * sizes.fsdp) * model.seq_len * model.embed * width
    passes = 2 if model.remat == "none" else 3
    dp, slices = sizes.dp, sizes.dp_slices
    dcn = 2 * sent_fraction(slices) * parts * width * (matrices / (dp // slices) + biases)
    if config.mesh.grad_reduction == "explicit":
        dcn = 2 * sent_fraction(slices) * vector_width(config) * (matrices + biases) / (dp // slices)
    if "dp" in config.optim.axes:
        dcn += (slices - 1) * 4 * matrices / dp
    dcn += 2 * sent_fraction(replicas) * vector_width(config) * (matrices + biases)
    weights = (2 * gathers + 1) * layers + (gathers + 1) * others
    return Traffic(
        fsdp=sent_fraction(sizes.fsdp) * parts * width * weights / sizes.tp,
        tp=sent_fraction(sizes.tp) * stream * (passes * 4 * model.layers / sizes.stages + 2),
        dcn=dcn + 2 * stream / sizes.tp * sent_fraction(sizes.stage_slices),
    )
