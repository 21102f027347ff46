"""Closed-form estimate without JAX: memory of a chip, FLOPs, traffic, and time of a step.

The memory model follows the program that XLA's TPU compiler makes of step/programs.py; docs/results.md compares both.
The bound of a step's time has FLOPs at a chip's peak, transfers at the links' peak, and both at the same time; the
expected time (step_time.py) adds what is not hidden. Dimensions are those of models/decoder.py.
"""

from typing import Any

from trainer import attention_settings
from trainer.config import Config, Model
from trainer.estimate.accelerators import Chip, Slice
from trainer.estimate.fields import memory_fields, significant, size_fields
from trainer.estimate.memory import memory
from trainer.estimate.step_time import step_terms
from trainer.estimate.traffic import traffic
from trainer.models.mfu import attention_flops_per_token, flops_per_token, mfu, parameters
from trainer.parallel import layout
from trainer.parallel.layout import Layout

_GIB = 2**30


def estimate(config: Config, slice_: Slice, num_slices: int, *, is_elastic: bool = False) -> dict[str, Any]:
    """Return the estimate of `config`, which must pass layout.check; sizes in GiB of one chip.

    Elastic slices compute one share of the batch each, and the hosts add the gradients between two programs.
    """
    replicas = num_slices if is_elastic else 1
    chips = layout.Chips(num_slices // replicas, slice_.hosts, slice_.chips_per_host)
    own_config, all_chips = layout.one_slice(config, replicas), chips.total * replicas
    sizes = layout.layout(own_config, chips)
    global_batch = sizes.global_batch * replicas
    tokens = global_batch * config.model.seq_len
    flops = flops_per_token(config.model) * tokens
    chip_memory = memory(own_config, sizes, is_elastic=is_elastic)
    sent = traffic(own_config, sizes, replicas)
    arithmetic = compute_seconds(config, sizes, slice_.chip) * tokens / all_chips
    seconds = {
        "compute": arithmetic,
        "ici": sent.ici_seconds(slice_, sizes),
        "dcn": sent.dcn / slice_.chip.dcn_bandwidth,
    }
    bound_by = max(seconds, key=lambda resource: seconds[resource])
    # The update reads and writes the whole state, while nothing else runs.
    step_seconds = seconds[bound_by] + 2 * chip_memory.state / slice_.chip.hbm_bandwidth
    expected_seconds = step_terms(own_config, sizes, slice_, arithmetic, sent).seconds()
    share = layer_products(config.model) * len(config.quant.products) / flops_per_token(config.model)

    def utilization(seconds: float, int8_share: float = 0.0) -> float | None:
        rate, chip = tokens / seconds, slice_.chip
        return mfu(flops / tokens, rate, all_chips, chip.peak_bf16, int8_share, chip.peak_int8)

    return {
        **size_fields(config, slice_, num_slices, sizes, chips=all_chips, parameters=parameters(config.model)),
        "global_batch": global_batch,
        **memory_fields(chip_memory, slice_.chip),
        "flops_per_step": flops,
        "computed_flops_per_step": computed_flops_per_token(config.model) * tokens,
        "dcn_gib_per_step": round(sent.dcn / _GIB, 4),
        "ici_gib_per_step": round((sent.fsdp + sent.tp) / _GIB, 3),
        "step_seconds": significant(step_seconds),
        "bound_by": bound_by,
        "tokens_per_second": round(tokens / step_seconds),
        "mfu_bound": utilization(step_seconds, share),
        "emfu_bound": utilization(step_seconds),
        "expected_step_seconds": significant(expected_seconds),
        "expected_mfu": utilization(expected_seconds, share),
        "expected_emfu": utilization(expected_seconds),
    }


def computed_flops_per_token(model: Model) -> float:
    """Return the FLOPs computed per token: those of the model, and those of the recomputation.

    Without saved activations a layer is recomputed, except its last product, whose result is not needed. Scores and
    logits are recomputed once more if they are computed in chunks.
    """
    attention, table = attention_flops_per_token(model), 2.0 * model.vocab * model.embed
    layers = flops_per_token(model) - attention + _recomputed_share(model) * layer_products(model)
    return layers + _attention_products(model) * attention / 6 + (table if model.loss_chunk else 0.0)


def _attention_products(model: Model) -> float:
    """Return how many products of all queries with all keys attention computes, forward and backward.

    Two forward and four backward; scores are recomputed with the layer, and if they are computed in chunks. The kernel
    on TPUs computes three for the gradient of queries and four for those of keys and values. It skips blocks of keys
    that are all in the future.
    """
    if not model.fused_attention:
        return 6 + 2 * (model.remat != "none") + 2 * bool(model.attention_chunk)
    block = attention_settings.block(model.seq_len)
    return (9 + 2 * (model.remat == "full")) * (1 + block / model.seq_len) / 2


def compute_seconds(config: Config, sizes: Layout, chip: Chip) -> float:
    """Return the seconds that one chip computes per token at its peaks, int8 products at the peak of int8.

    A stage of the pipeline computes in M of M + S - 1 ticks (parallel/pipeline.py).
    """
    passes = {"forward": 1 + _recomputed_share(config.model), "dgrad": 1, "wgrad": 1}
    int8 = layer_products(config.model) * sum(passes[name] for name in config.quant.products)
    seconds = (computed_flops_per_token(config.model) - int8) / chip.peak_bf16 + int8 / chip.peak_int8
    return seconds * (sizes.microbatches + sizes.stages - 1) / sizes.microbatches


def _recomputed_share(model: Model) -> float:
    """Return the share of the products with a layer's weights that are recomputed; never the last, `down`."""
    width = 2.0 * model.layers * model.embed * model.mlp
    recomputed = {
        "none": 0.0,
        "dots": 0.0,
        "attention": model.mlp_input_matrices * width,
        "full": layer_products(model) - width,
    }
    return recomputed[model.remat] / layer_products(model)


def layer_products(model: Model) -> float:
    """Return the FLOPs per token of all products with layers' weights, in one of the three passes."""
    gains, table = (2 * model.layers + 1) * model.embed, model.vocab * model.embed
    return 2.0 * (parameters(model) - table - gains)
