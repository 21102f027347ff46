"""Expected time of a training step: arithmetic at the chip's peaks, and what is not hidden behind it.

The terms follow from the model, the mesh and the compiled program. Four factors, one for each effect, are fitted to 25
published measurements of the decoder on TPU v5e; docs/results.md has the fit and its errors. No run of this trainer on
a TPU has confirmed them.
"""

import dataclasses

from trainer.config import Config
from trainer.estimate.accelerators import Slice
from trainer.estimate.memory import memory
from trainer.estimate.traffic import Traffic
from trainer.models.mfu import attention_parameters, parameters
from trainer.parallel.layout import Layout

_SYNCHRONOUS_TP = 9 / 12  # of a layer's transfers over tp, by the compiled programs


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Factors:
    """Fitted factors of the terms of a step's time."""

    score_bytes: float = (
        76.5  # HBM traffic of one attention score: some four float32 reads or writes in each of 5 passes
    )
    ici_exposed: float = 0.663  # of the time of synchronous collectives at the links' speed
    dcn_slowdown: float = 1.72  # of a chip's share of the host's network card
    hop_seconds: float = 119e-6  # of a message to the next slice, of a ring over all slices


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StepTerms:
    """Seconds of one chip in a step, unless another unit is given."""

    arithmetic: float  # at the chip's peaks
    update: float  # of the state, at the peak of HBM
    scores: float  # per byte of HBM traffic of each attention score
    ici: float  # of synchronous collectives inside the slice, at the links' speed
    dcn: float  # of gradients, at the speed of the chip's share of the network card
    hops: float  # messages that wait for each other, between slices

    def seconds(self, factors: Factors | None = None) -> float:
        """Return the expected time of the step."""
        by = factors or Factors()
        hidden = by.score_bytes * self.scores + by.ici_exposed * self.ici
        return self.arithmetic + self.update + hidden + by.dcn_slowdown * self.dcn + by.hop_seconds * self.hops


def step_terms(config: Config, sizes: Layout, slice_: Slice, arithmetic: float, sent: Traffic) -> StepTerms:
    """Return the terms of a step on slices of this type, of which each chip sends this traffic.

    A pass over the scores of attention is bound by HBM, not by arithmetic. Gradients are reduced over slices along a
    ring: a reduce-scatter and an all-gather, each of S - 1 messages, for each of the four matrices of a layer.
    """
    model, chip = config.model, slice_.chip
    tokens = sizes.global_batch / (sizes.dp * sizes.fsdp) * model.seq_len
    scores = tokens * model.seq_len * model.heads / sizes.tp * model.layers / sizes.stages
    if model.fused_attention:
        scores = 0.0  # they stay in the chip's fast memory
    messages = 4 * model.layers / sizes.stages + 2
    if config.mesh.grad_reduction == "explicit":
        messages = 6
    ticks = 2 * (sizes.microbatches + sizes.stages - 1) if sizes.stage_slices > 1 else 0
    return StepTerms(
        arithmetic=arithmetic,
        update=2 * memory(config, sizes).state / chip.hbm_bandwidth,
        scores=scores / chip.hbm_bandwidth,
        ici=_synchronous_seconds(config, sizes, slice_, sent),
        dcn=sent.dcn / chip.dcn_bandwidth,
        hops=2 * (sizes.dp_slices - 1) * messages + ticks,
    )


def _synchronous_seconds(config: Config, sizes: Layout, slice_: Slice, sent: Traffic) -> float:
    """Return the seconds of the collectives during which a chip does not compute, by the compiled programs.

    They are the scatters of gradients, the gathers of the weights of attention, with which a layer and its
    recomputation begin, and three of four transfers over tp. A ring along one side of the torus is two links wide; a
    part of a side is a line, of one. Gathers over all chips of a slice use all sides, the phases of a scatter one at a
    time.
    """
    model, ring = config.model, 2 * slice_.chip.ici_bandwidth
    matrices = parameters(model) - model.vocab * model.embed - (2 * model.layers + 1) * model.embed
    attention = model.layers * attention_parameters(model) / matrices
    # Of all weights: gathered twice, scattered once (traffic.py).
    scattered, gathered = sent.fsdp / 3, 2 * sent.fsdp / 3 * attention
    sides = slice_.chip.dimensions if sizes.tp == 1 else 1
    line = ring if sizes.tp >= max(slice_.topology) else ring / 2
    return scattered / ring + gathered / (ring * sides) + _SYNCHRONOUS_TP * sent.tp / line
