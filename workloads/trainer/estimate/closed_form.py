"""Closed-form estimate without JAX: memory of a chip, FLOPs, traffic, and time of a step.

The memory model follows the program that XLA's TPU compiler makes of step/programs.py; docs/results.md compares both.
Times are lower bounds: FLOPs at a chip's peak, transfers at the links' peak, and both at the same time. Dimensions are
those of models/decoder.py.
"""

from typing import Any

from trainer.config import Config, Model
from trainer.estimate.accelerators import Chip, Slice
from trainer.estimate.memory import memory
from trainer.estimate.traffic import traffic
from trainer.models.mfu import flops_per_token, mfu, parameters
from trainer.parallel import layout
from trainer.parallel.layout import Layout

_GIB = 2**30


def estimate(config: Config, slice_: Slice, num_slices: int) -> dict[str, Any]:
    """Return the estimate of `config`, which must pass layout.check; sizes in GiB of one chip."""
    chips = layout.Chips(num_slices, slice_.hosts, slice_.chips_per_host)
    sizes = layout.layout(config, chips)
    tokens = sizes.global_batch * config.model.seq_len
    flops = flops_per_token(config.model) * tokens
    chip_memory, sent = memory(config, sizes), traffic(config, sizes)
    seconds = {
        "compute": compute_seconds(config, sizes, slice_.chip) * tokens / chips.total,
        "ici": sent.ici_seconds(slice_, sizes),
        "dcn": sent.dcn / slice_.chip.dcn_bandwidth,
    }
    bound_by = max(seconds, key=lambda resource: seconds[resource])
    # The update reads and writes the whole state, while nothing else runs.
    step_seconds = seconds[bound_by] + 2 * chip_memory.state / slice_.chip.hbm_bandwidth
    utilization_inputs = (flops / tokens, tokens / step_seconds, chips.total, slice_.chip.peak_bf16)
    share = layer_products(config.model) * len(config.quant.products) / flops_per_token(config.model)
    return {
        "config": config.name,
        "tpu_type": slice_.name,
        "num_slices": num_slices,
        "chips": chips.total,
        "mesh": {axis: getattr(sizes, axis) for axis in ("dp", "stages", "fsdp", "tp")},
        "parameters": parameters(config.model),
        "global_batch": sizes.global_batch,
        "hbm_gib": slice_.chip.hbm_gib,
        "fits": chip_memory.peak <= slice_.chip.hbm_gib * _GIB,
        "peak_gib": round(chip_memory.peak / _GIB, 3),
        "state_gib": round(chip_memory.state / _GIB, 3),
        "activations_gib": round(chip_memory.activations / _GIB, 3),
        "flops_per_step": flops,
        "dcn_gib_per_step": round(sent.dcn / _GIB, 4),
        "ici_gib_per_step": round((sent.fsdp + sent.tp) / _GIB, 3),
        "step_seconds": round(step_seconds, 4),
        "bound_by": bound_by,
        "tokens_per_second": round(tokens / step_seconds),
        "mfu_bound": mfu(*utilization_inputs, share, slice_.chip.peak_int8),
        "emfu_bound": mfu(*utilization_inputs),
    }


def computed_flops_per_token(model: Model) -> float:
    """Return the FLOPs computed per token: those of the model, and those of the recomputation.

    The forward pass is a third of the model's. Without saved activations a complete layer is recomputed; scores and
    logits are recomputed once more if they are computed in chunks.
    """
    scores = 4.0 * model.layers * model.heads * model.head_dim * model.seq_len
    table = 2.0 * model.vocab * model.embed
    model_flops = flops_per_token(model)
    recomputed = {"none": 0.0, "dots": scores, "full": model_flops / 3 - table}[model.remat]
    return model_flops + recomputed + (scores if model.attention_chunk else 0.0) + (table if model.loss_chunk else 0.0)


def compute_seconds(config: Config, sizes: Layout, chip: Chip) -> float:
    """Return the seconds that one chip computes per token at its peaks, int8 products at the peak of int8.

    A stage of the pipeline computes in M of M + S - 1 ticks (parallel/pipeline.py).
    """
    passes = {"forward": 2 if config.model.remat == "full" else 1, "dgrad": 1, "wgrad": 1}
    int8 = layer_products(config.model) * sum(passes[name] for name in config.quant.products)
    seconds = (computed_flops_per_token(config.model) - int8) / chip.peak_bf16 + int8 / chip.peak_int8
    return seconds * (sizes.microbatches + sizes.stages - 1) / sizes.microbatches


def layer_products(model: Model) -> float:
    """Return the FLOPs per token of all products with layers' weights, in one of the three passes."""
    gains, table = (2 * model.layers + 1) * model.embed, model.vocab * model.embed
    return 2.0 * (parameters(model) - table - gains)
