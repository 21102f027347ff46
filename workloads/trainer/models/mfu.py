"""Model FLOPs utilization (MFU), and the parameters and FLOPs of the decoder that it is computed from."""

from collections.abc import Mapping

from trainer.config import Model


def parameters(model: Model) -> int:
    """Return the number of parameters; the embedding table is also the output projection and counts once."""
    layer = attention_parameters(model) + (1 + model.mlp_input_matrices) * model.embed * model.mlp + 2 * model.embed
    return model.vocab * model.embed + model.layers * layer + model.embed


def attention_parameters(model: Model) -> int:
    """Return the parameters of a layer's matrices of attention: queries, keys, values and the output."""
    return 2 * model.embed * (model.heads + model.key_heads) * model.head_dim


def flops_per_token(model: Model) -> float:
    """Return the model FLOPs of a training step per token: 6 N + 12 L H Q T.

    Chowdhery et al., PaLM, appendix B: N parameters used in matrix products (norm gains are not, the tied embedding is,
    as the output projection), L layers, H heads of width Q, T tokens of context. Forward and backward pass;
    recomputation (remat) is not counted, and the causal mask is not subtracted.
    """
    gains = (2 * model.layers + 1) * model.embed
    return 6.0 * (parameters(model) - gains) + attention_flops_per_token(model)


def attention_flops_per_token(model: Model) -> float:
    """Return the FLOPs of a training step per token that are products of queries with keys, and weights with values."""
    return 12.0 * model.layers * model.heads * model.head_dim * model.seq_len


def mfu(
    flops_per_item: float,
    items_per_second: float,
    chips: int,
    peak_flops: float | None,
    int8_share: float = 0.0,
    peak_int8: float | None = None,
) -> float | None:
    """Return the model FLOPs utilization, 0 to 1: the time of the products at the chips' peaks, over the actual time.

    `int8_share` of the FLOPs run at the int8 peak. Omit it for the effective utilization (EMFU), which relates all
    FLOPs to the bf16 peak and can exceed 1. Return None if a required peak is unknown.
    """
    if not peak_flops or (int8_share and not peak_int8):
        return None
    seconds = (1 - int8_share) / peak_flops + (int8_share / peak_int8 if int8_share and peak_int8 else 0.0)
    return flops_per_item * items_per_second * seconds / chips


def peak(environ: Mapping[str, str], name: str) -> float | None:
    """Return a chip's peak from XPK_PEAK_FLOPS (bf16, FLOP/s) or XPK_PEAK_INT8_OPS; None unless a positive number."""
    try:
        value = float(environ.get(name, ""))
    except ValueError:
        return None
    return value if 0 < value < float("inf") else None
