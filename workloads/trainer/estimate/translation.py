"""Closed-form estimate for models that translate: state, gradients, activations, FLOPs and traffic of a step.

A step is one whose pairs are as long as records. Dimensions are those of models/transformer.py and models/gnmt.py.
"""

import math
from typing import Any

import jax
from jax.sharding import PartitionSpec as P

from trainer.config import Config, Model
from trainer.estimate.accelerators import Slice
from trainer.estimate.fields import Work, memory_fields, size_fields, work_fields
from trainer.estimate.memory import Memory, moment_width, vector_width
from trainer.estimate.traffic import Traffic
from trainer.models import registry
from trainer.parallel import layout
from trainer.parallel.layout import Layout


def estimate(config: Config, slice_: Slice, num_slices: int, *, is_elastic: bool = False) -> dict[str, Any]:
    """Return the estimate of `config`, with the fields of `closed_form.estimate`; sizes in GiB of one chip.

    The bound of the time has FLOPs at a chip's peak, weights gathered and gradients scattered inside a slice, and
    gradients sent between slices, all at the same time. The loop of GNMT over time steps is slower; no expected time is
    known, so it equals the bound.
    """
    replicas = num_slices if is_elastic else 1
    chips = layout.Chips(num_slices // replicas, slice_.hosts, slice_.chips_per_host)
    sizes, all_chips = layout.layout(layout.one_slice(config, replicas), chips), chips.total * replicas
    of_chip, global_batch = memory(config, sizes, is_elastic=is_elastic), sizes.global_batch * replicas
    flops = registry.flops_per_record(config.model) * global_batch
    slices, params = replicas if is_elastic else sizes.dp_slices, _on_a_chip(config, sizes)
    # Left to XLA, gradients are sent for every part of an accumulated batch, as those inside a slice are.
    is_explicit, parts = config.mesh.grad_reduction == "explicit", config.optim.grad_accum_steps
    width = vector_width(config) if is_elastic or is_explicit else parts * _width(config.model)
    # Replicas of a slice divide its gradients; an update that is sharded over dp gathers the others' new parameters.
    dcn = 2 * (slices - 1) / slices * width * params / (1 if is_elastic else sizes.dp // slices)
    if "dp" in config.optim.axes and not is_elastic:
        dcn += (slices - 1) * 4 * params / sizes.dp
    sent = Traffic(fsdp=parts * 3 * _width(config.model) * params * (sizes.fsdp - 1), tp=0.0, dcn=dcn)
    is_recomputed = config.model.remat == "full"
    products = global_batch * _layer_products(config.model)  # in each of the three passes
    int8_passes = len(config.quant.products)
    work = Work(
        items=global_batch * config.model.seq_len,
        flops=flops,
        computed_flops=flops * (4 / 3 if is_recomputed else 1),
        ici=sent.fsdp,
        ici_seconds=sent.ici_seconds(slice_, sizes),
        dcn=dcn,
        int8_flops=int8_passes * products,
        computed_int8_flops=(int8_passes + (is_recomputed and "forward" in config.quant.products)) * products,
    )
    return {
        **size_fields(config, slice_, num_slices, sizes, chips=all_chips, parameters=registry.parameters(config.model)),
        "global_batch": global_batch,
        **memory_fields(of_chip, slice_.chip),
        **work_fields(work, of_chip, slice_.chip, all_chips, is_hidden=True),
    }


def _layer_products(model: Model) -> float:
    """Return the FLOPs of a pair's products with the Transformer's weights of layers, in one of the three passes."""
    width = model.heads * model.head_dim
    return 2.0 * model.seq_len * model.layers * (12 * model.embed * width + 4 * model.embed * model.mlp)


def memory(config: Config, sizes: Layout, *, is_elastic: bool = False) -> Memory:
    """Return the memory of each chip for `config`; that of one slice if slices are elastic."""
    model, params = config.model, _on_a_chip(config, sizes)
    moments = moment_width(config) / (sizes.dp if "dp" in config.optim.axes else 1)
    pairs = sizes.global_batch / (sizes.dp * sizes.fsdp) / config.optim.grad_accum_steps
    tokens = pairs * model.seq_len
    saved, working = (_transformer if model.family == "transformer" else _gnmt)(model, sizes, tokens)
    chunk = model.loss_chunk or model.seq_len
    logits = 2 * 4 * tokens * chunk / model.seq_len * model.vocab / sizes.tp
    return Memory(
        state=(4 + moments) * params,
        gradients=4 * params * (1 if config.optim.grad_accum_steps == 1 else 2),
        vectors=vector_width(config) * params if is_elastic else 0.0,
        copies=_width(model) * params if _width(model) < 4 else 0.0,
        saved=saved,
        working=max(working, logits) + _width(model) * model.vocab * model.embed / sizes.tp,
    )


def _on_a_chip(config: Config, sizes: Layout) -> float:
    """Return the number of parameters on a chip."""
    family, axes = registry.family(config.model), {"fsdp": sizes.fsdp, "tp": sizes.tp}
    shapes = jax.tree.leaves(family.shapes(config.model), is_leaf=lambda x: isinstance(x, tuple))
    specs = jax.tree.leaves(family.specs(config.model), is_leaf=lambda x: isinstance(x, P))
    parts = (math.prod(axes.get(axis, 1) for axis in spec) for spec in specs)
    return float(sum(math.prod(shape) / part for shape, part in zip(shapes, parts, strict=True)))


def _width(model: Model) -> int:
    return 2 if model.compute_dtype == "bfloat16" else 4


def _transformer(model: Model, sizes: Layout, tokens: float) -> tuple[float, float]:
    """Return the bytes of the saved activations, and of one decoder layer's backward pass."""
    E, W, M = model.embed / sizes.tp, model.heads * model.head_dim / sizes.tp, model.mlp / sizes.tp
    products = {"none": 1, "dots": 1, "attention": 1, "full": 0}[model.remat]
    attention = products * (3 * W + E), products * (6 * W + 2 * E)  # of the encoder's and the decoder's layer
    mlp = M + E if model.remat in ("none", "dots") else 0.0
    others = (4 * E + W + M, 5 * E + 2 * W + M) if model.remat == "none" else (0.0, 0.0)
    numbers = sum(E + part + mlp + other for part, other in zip(attention, others, strict=True))
    scores = tokens * (model.attention_chunk or model.seq_len) * model.heads / sizes.tp * (4 + _width(model))
    kept = 3 * scores if model.remat == "none" and not model.attention_chunk else 0.0
    if model.dropout and model.remat == "none":  # masks of a byte a number
        weights = 0 if model.attention_chunk else model.seq_len * model.heads / sizes.tp
        kept += tokens * (3 * weights + 5 * E + 2 * M)
    layer = _width(model) * tokens * (2 * M + 8 * W + 4 * E) + 2 * scores
    return model.layers * (_width(model) * tokens * numbers + kept) + 2 * _width(model) * tokens * model.embed, layer


def _gnmt(model: Model, sizes: Layout, tokens: float) -> tuple[float, float]:
    """Return the bytes of the saved activations, and of a layer's backward pass.

    A layer saves its input, outputs and activated gates, and states in float32, or with rematerialization its input.
    Sums of queries and keys are not in memory: XLA computes them where it adds them up.
    """
    width, E = _width(model), model.embed / sizes.tp
    layers = 2 * model.layers + 1
    inputs = tokens * width * model.embed * (layers + 1 + model.layers)  # of 2 E after the first layers
    gates = tokens * (width * 5 * E + 4 * E)
    if model.dropout:  # masks of a byte a number; those of the loops over layers are recomputed with rematerialization
        inputs += tokens * E * (4 if model.remat != "none" else 3 * model.layers)
    saved = inputs + (layers * gates if model.remat == "none" else 0.0)
    return saved, 2 * gates + 2 * width * 4 * E * tokens
