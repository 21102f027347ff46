"""Traffic of a chip in a training step, in bytes: within its slice (ICI) and to other slices (DCN)."""

import dataclasses
import math

from trainer.config import Config
from trainer.estimate.accelerators import Slice
from trainer.estimate.memory import vector_width
from trainer.models.mfu import parameters
from trainer.parallel.layout import Layout


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


def traffic(config: Config, sizes: Layout, replicas: int = 1) -> Traffic:
    """Return the traffic of the step of step/programs.py; with `replicas` elastic slices, `sizes` are those of one.

    fsdp: for each part of an accumulated batch, weights are gathered in the compute dtype for the forward pass and
    again for the backward pass, and their gradients are scattered once. The table is gathered once.

    tp: between its products a layer's activations are gathered and scattered, two times in each direction and pass;
    those of the table are scattered after the lookup, gathered for the logits (twice if those are recomputed), and the
    reverse for the gradients, that of the logits' input in float32.

    dcn: each chip sends its part of the gradients to the other slices, in tiles of 8 rows, in the compute dtype; gains
    are sent in float32. If the reduction is explicit, all gradients are sent once, in its dtype, and the replicas of
    one slice divide them. The stages of a pipeline send each token's activations and receive their gradients. Hosts of
    elastic slices send each number of the vectors of step/shares.py twice.
    """
    model, parts = config.model, config.optim.grad_accum_steps
    width = 2 if model.compute_dtype == "bfloat16" else 4
    table, gains = model.vocab * model.embed, (2 * model.layers + 1) * model.embed
    matrices = (parameters(model) - table - gains) / sizes.stages
    shards = sizes.fsdp * sizes.tp
    passes, logits = 2 if model.remat == "none" else 3, 2 if model.loss_chunk else 1
    stream = sizes.global_batch / (sizes.dp * sizes.fsdp) * model.seq_len * model.embed * width
    rows = model.embed / sizes.fsdp
    padded = math.ceil(rows / 8) * 8 / rows
    gradients = parts * (padded * width * (matrices + table) / shards + 4 * gains)
    if config.mesh.grad_reduction == "explicit":
        gradients = ((matrices + table) / shards + gains) * (2 if config.mesh.grad_reduction_dtype == "bfloat16" else 4)
        gradients /= sizes.dp // sizes.dp_slices  # scattered inside a slice first
    vectors = 2 * sent_fraction(replicas) * vector_width(config) * ((matrices + table) / shards + gains)
    activations = 2 * stream / sizes.tp * sent_fraction(sizes.stage_slices)
    return Traffic(
        fsdp=sent_fraction(sizes.fsdp) * parts * width * (3 * matrices + 2 * table) / sizes.tp,
        tp=sent_fraction(sizes.tp) * stream * (passes * 4 * model.layers / sizes.stages + 2 + logits + 4 / width),
        dcn=2 * sent_fraction(sizes.dp_slices) * gradients + activations + vectors,
    )


def sent_fraction(size: int) -> float:
    """Return the fraction of an array that crosses an axis when it is gathered along it, or scattered."""
    return (size - 1) / size
