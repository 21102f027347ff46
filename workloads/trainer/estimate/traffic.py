"""Traffic of a chip in a training step, in bytes: within its slice (ICI) and to other slices (DCN)."""

import dataclasses
import math

from trainer.config import Config
from trainer.estimate.accelerators import Slice
from trainer.models.mfu import parameters
from trainer.parallel.layout import Layout

_MANY = 64  # chips of a slice: on 4 gradients are scattered, on 256 they are not; between them it depends on the weight


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

    Weights are gathered in the compute dtype for the forward pass and, if a layer is recomputed, for that, those of
    queries, keys and values once more for the backward pass; their gradients are scattered once: all that for each part
    of an accumulated batch. What is reduced over all of a slice's chips, if they are many, XLA does not scatter, but
    all-reduces whole: the gradients of the table, and without tp those of all weights. Between its products a layer's
    activations are gathered and scattered over tp, two times each way and pass. Over slices go the remaining gradients,
    each chip's own part, of which XLA sends tiles of 8 rows: in the compute dtype, but the gains in float32, and the
    output projection's unless it is summed in chunks. If the reduction is explicit, all of them go in its dtype, once,
    and replicas of one slice share them. Stages of a pipeline pass on each token's activations and receive their
    gradients.
    """
    model, parts = config.model, config.optim.grad_accum_steps
    width = 2 if model.compute_dtype == "bfloat16" else 4
    table, gains = model.vocab * model.embed, (2 * model.layers + 1) * model.embed
    matrices = (parameters(model) - table - gains) / sizes.stages
    spread = sizes.fsdp * sizes.tp
    passes = 2 if model.remat == "none" else 3
    stream = sizes.global_batch / (sizes.dp * sizes.fsdp) * model.seq_len * model.embed * width
    rows = model.embed / sizes.fsdp
    padded, projection = math.ceil(rows / 8) * 8 / rows, width if model.loss_chunk else 4
    handed = parts * (padded * (matrices * width + table * (projection + width)) / spread + 4 * gains)
    if config.mesh.grad_reduction == "explicit":
        handed = ((matrices + table) / spread + gains) * (2 if config.mesh.grad_reduction_dtype == "bfloat16" else 4)
        handed /= sizes.dp // sizes.dp_slices  # scattered inside a slice first
    again = 3 * model.layers * model.embed * model.heads * model.head_dim / sizes.stages if model.remat == "full" else 0
    moved = (
        (passes - 1) * (matrices + table)
        + again
        + (2 if sizes.tp == 1 and sizes.fsdp >= _MANY else 1) * matrices
        + 2 * table
    )
    between = 2 * stream / sizes.tp * _others(sizes.stage_slices)
    return Traffic(
        fsdp=_others(sizes.fsdp) * parts * width * moved / sizes.tp,
        tp=_others(sizes.tp) * passes * 4 * model.layers / sizes.stages * stream,
        dcn=2 * _others(sizes.dp_slices) * handed + between,
    )


def _others(size: int) -> float:
    """Return the fraction of an array that crosses an axis when it is gathered along it, or scattered."""
    return (size - 1) / size
