"""Traffic of a chip in a training step, in bytes: within its slice (ICI) and to other slices (DCN)."""

import dataclasses
import math

from trainer.config import Config
from trainer.estimate.accelerators import Slice
from trainer.models.mfu import parameters
from trainer.parallel.layout import Layout

_MIN_UNSCATTERED = 64  # chips of a slice; gradients are scattered on 4, not on 256; between, it depends on the weight


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Bytes that one chip sends in a step, by mesh axis."""

    fsdp: float  # weights gathered, gradients scattered
    tp: float  # activations between the products
    dcn: float  # gradients, all-reduced over slices

    def ici_seconds(self, slice_: Slice, sizes: Layout) -> float:
        """Return the minimum seconds that the links inside a slice are busy.

        An axis of the torus is two links, one for each direction (Austin et al., How to Scale Your Model, 2025, on
        collectives). fsdp and tp share the torus' axes by the logarithms of their sizes.
        """
        axes = slice_.chip.dimensions / math.log(slice_.chips) if slice_.chips > 1 else 0.0
        speed = 2 * slice_.chip.ici_bandwidth
        sent = ((self.fsdp, sizes.fsdp), (self.tp, sizes.tp))
        return max(bytes_ / (speed * axes * math.log(size)) if size > 1 else 0.0 for bytes_, size in sent)


def traffic(config: Config, sizes: Layout) -> Traffic:
    """Return the traffic of the step of step/programs.py.

    fsdp: for each part of an accumulated batch, weights are gathered in the compute dtype for the forward pass and, if
    a layer is recomputed, for the recomputation; those of queries, keys and values are gathered once more for the
    backward pass, and the gradients are scattered once. Gradients that are reduced over all chips of a large slice are
    not scattered by XLA, but all-reduced in full: those of the table, and without tp those of all weights.

    tp: between its products a layer's activations are gathered and scattered, two times in each direction and pass.

    dcn: each chip sends its part of the gradients to the other slices, in tiles of 8 rows, in the compute dtype; gains,
    and the output projection unless it is summed in chunks, are sent in float32. If the reduction is explicit, all
    gradients are sent once, in its dtype, and the replicas of one slice divide them. The stages of a pipeline send each
    token's activations and receive their gradients.
    """
    model, parts = config.model, config.optim.grad_accum_steps
    width = 2 if model.compute_dtype == "bfloat16" else 4
    table, gains = model.vocab * model.embed, (2 * model.layers + 1) * model.embed
    matrices = (parameters(model) - table - gains) / sizes.stages
    shards = sizes.fsdp * sizes.tp
    passes = 2 if model.remat == "none" else 3
    stream = sizes.global_batch / (sizes.dp * sizes.fsdp) * model.seq_len * model.embed * width
    rows = model.embed / sizes.fsdp
    padded, projection = math.ceil(rows / 8) * 8 / rows, width if model.loss_chunk else 4
    gradients = parts * (padded * (matrices * width + table * (projection + width)) / shards + 4 * gains)
    if config.mesh.grad_reduction == "explicit":
        gradients = ((matrices + table) / shards + gains) * (2 if config.mesh.grad_reduction_dtype == "bfloat16" else 4)
        gradients /= sizes.dp // sizes.dp_slices  # scattered inside a slice first
    recomputed = (
        3 * model.layers * model.embed * model.heads * model.head_dim / sizes.stages if model.remat == "full" else 0
    )
    weights = (
        (passes - 1) * (matrices + table)
        + recomputed
        + (2 if sizes.tp == 1 and sizes.fsdp >= _MIN_UNSCATTERED else 1) * matrices
        + 2 * table
    )
    activations = 2 * stream / sizes.tp * _others(sizes.stage_slices)
    return Traffic(
        fsdp=_others(sizes.fsdp) * parts * width * weights / sizes.tp,
        tp=_others(sizes.tp) * passes * 4 * model.layers / sizes.stages * stream,
        dcn=2 * _others(sizes.dp_slices) * gradients + activations,
    )


def _others(size: int) -> float:
    """Return the fraction of an array that crosses an axis when it is gathered along it, or scattered."""
    return (size - 1) / size
