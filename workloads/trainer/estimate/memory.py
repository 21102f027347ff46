"""Peak memory of one chip during a training step, in bytes. Dimensions are those of models/decoder.py."""

import dataclasses

from trainer.config import MOMENTUM_OPTIMIZERS, Config, Model
from trainer.models.mfu import parameters
from trainer.parallel.layout import Layout


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes of one chip, by purpose."""

    state: float  # parameters and moments, in float32
    gradients: float  # in float32
    vectors: float  # of elastic slices: the gradients on their way to the other slices
    copies: float  # of the layers' parameters in the compute dtype, which XLA makes once per step
    saved: float  # activations that the forward pass saves for the backward pass
    working: float  # of the current layer, or of the loss, whichever is larger

    @property
    def activations(self) -> float:
        """Bytes that depend on the batch."""
        return self.saved + self.working

    @property
    def peak(self) -> float:
        """Total bytes; the vectors exist only when the activations are no longer needed."""
        return self.state + self.gradients + max(self.vectors, self.copies + self.saved + self.working)


def memory(config: Config, sizes: Layout, *, is_elastic: bool = False) -> Memory:
    """Return the memory of each chip for `config`; that of one slice if slices are elastic."""
    model = config.model
    width = 2 if model.compute_dtype == "bfloat16" else 4
    gains = (2 * model.layers + 1) * model.embed / sizes.stages
    table = model.vocab * model.embed
    layers = (parameters(model) - table) / sizes.stages - gains
    matrices = (layers + table) / (sizes.fsdp * sizes.tp)
    params, rows = 4.0 * (matrices + gains), sizes.global_batch / (sizes.dp * sizes.fsdp)
    moments = moment_width(config) / (sizes.dp if "dp" in config.optim.axes else 1)
    tokens = rows / config.optim.grad_accum_steps * model.seq_len
    return Memory(
        state=params + moments * (matrices + gains),
        vectors=vector_width(config) * (matrices + gains) if is_elastic else 0.0,
        gradients=params * (1 if config.optim.grad_accum_steps == 1 else 2),
        copies=width * layers / (sizes.fsdp * sizes.tp) if width < 4 else 0.0,
        saved=saved_bytes(model, sizes, tokens, width),
        working=max(
            _layer_bytes(model, sizes, tokens / sizes.microbatches, width)
            + _pending_loss_bytes(model, sizes, tokens, width),
            _loss_bytes(model, sizes, tokens),
        ),
    )


def vector_width(config: Config) -> int:
    """Return the bytes of a number of the vectors that elastic slices exchange (step/shares.py)."""
    return 2 if config.mesh.sums_in_bfloat16 else 4


def moment_width(config: Config) -> int:
    """Return the bytes of the optimizer's state for one parameter."""
    first = 2 if config.optim.moment_dtype == "bfloat16" else 4
    return first if config.optim.name in MOMENTUM_OPTIMIZERS else first + 4


def saved_bytes(model: Model, sizes: Layout, tokens: float, width: int) -> float:
    """Return the bytes of all layers' activations that are saved for the backward pass.

    A pipeline keeps them for every tick, and it has more ticks than microbatches.
    """
    heads, stream, hidden = model.heads * model.head_dim / sizes.tp, model.embed / sizes.tp, model.mlp / sizes.tp
    qkv = heads + 2 * _key_width(model, sizes)
    products = qkv + model.mlp_input_matrices * hidden + 2 * stream
    kernel = heads if model.fused_attention else 0  # the output of attention, which its backward pass needs
    if model.remat == "full":
        numbers = stream
    elif model.remat == "attention":
        numbers = stream + qkv + kernel + stream
    elif model.remat == "dots":
        numbers = stream + products + kernel
    else:  # outputs of norms, rotary embedding, gelu and attention
        repeated = 0 if model.fused_attention else heads - (qkv - heads) / 2  # values, for the queries of a group
        numbers = 3 * stream + products + 3 * heads + repeated + model.mlp_input_matrices * hidden
    scores = 0.0
    if model.remat == "none" and not model.attention_chunk and not model.fused_attention:
        scores = tokens * model.seq_len * model.heads / sizes.tp * (4 + width)
    ticks = (sizes.microbatches + sizes.stages - 1) / sizes.microbatches
    kept = tokens * numbers * width + scores + mask_bytes(model, sizes, tokens)
    return model.layers / sizes.stages * ticks * kept


def mask_bytes(model: Model, sizes: Layout, tokens: float) -> float:
    """Return the bytes of dropout's masks that a layer keeps: those of both its outputs and of attention's weights.

    A number is a byte. Masks that are recomputed are not kept, and neither are those of attention in chunks.
    """
    if not model.dropout or model.remat != "none":
        return 0.0
    weights = 0 if model.attention_chunk else model.seq_len * model.heads
    return tokens * (2 * model.embed + weights) / sizes.tp


def _layer_bytes(model: Model, sizes: Layout, tokens: float, width: int) -> float:
    """Return the peak bytes of one layer's backward pass, in the MLP or in attention.

    The complete layer is recomputed before it: queries, keys, values and attention's output are live, some of them in
    two layouts, while the MLP is processed.
    """
    heads, hidden = model.heads * model.head_dim / sizes.tp, model.mlp / sizes.tp
    keys = 0 if model.fused_attention else model.attention_chunk or model.seq_len  # with scores in memory, of a token
    scores = tokens * keys * model.heads / sizes.tp
    # The weights of a product are gathered, and for the MLP their gradient is as well.
    inputs, qkv = model.mlp_input_matrices, heads + 2 * _key_width(model, sizes)
    mlp = model.embed * (2 * inputs * hidden + heads + qkv) + tokens * (
        2 * inputs * hidden + 6 * heads + 3 * model.embed
    )
    stream = model.embed / sizes.tp
    attention = model.embed * qkv + tokens * (2 * inputs * hidden + 8 * heads + 4 * stream)
    return max(width * mlp, width * attention + scores * (4 + width))


def _key_width(model: Model, sizes: Layout) -> float:
    """Return the width of all keys, or values, of a token on a chip."""
    return model.key_heads * model.head_dim / sizes.tp


def _pending_loss_bytes(model: Model, sizes: Layout, tokens: float, width: int) -> float:
    """Return the bytes of the loss that stay allocated until the layers are done.

    They are the output projection's gradient, not yet sharded over fsdp. Over several slices XLA also schedules the
    inputs of the table's gradients after the first layer of the backward pass.
    """
    table = width * model.vocab * model.embed / sizes.tp
    if sizes.dp_slices == 1:
        return table
    if not model.loss_chunk:
        return table + 4 * tokens * model.vocab / sizes.tp
    return 2 * table + 4 * tokens * model.embed / sizes.tp


def _loss_bytes(model: Model, sizes: Layout, tokens: float) -> float:
    """Return the bytes of the logits and their gradient, in float32."""
    chunk_share = (model.loss_chunk or model.seq_len) / model.seq_len
    return 2 * 4 * tokens * chunk_share / sizes.stages * model.vocab / sizes.tp
