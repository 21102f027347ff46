"""Mesh sizes and divisibility checks of a configuration for given chips, without JAX."""

import dataclasses
import math
import typing
from collections.abc import Iterator

from trainer import attention_settings, image_settings, pair_lengths, rate_settings
from trainer.config import (
    DETECTION_FAMILIES,
    IMAGE_FAMILIES,
    MOMENTUM_OPTIMIZERS,
    TRANSLATION_FAMILIES,
    Config,
    sections,
)
from trainer.errors import Problem
from trainer.parallel import table_placement
from trainer.telemetry import mllog

_CHOICES = {
    "model.family": ("decoder", "bert", "resnet", *DETECTION_FAMILIES, *TRANSLATION_FAMILIES, "dlrm"),
    "model.compute_dtype": ("bfloat16", "float32"),
    "model.remat": ("none", "dots", "attention", "full"),
    "model.activation": ("gelu", "swiglu"),
    "model.block": ("bottleneck", "basic"),
    "model.pooling": ("gather", "one_hot"),
    "data.click_ids": ("numbered", "exact"),
    "data.shuffle": ("records", "files", "none"),
    "mesh.grad_reduction": ("automatic", "explicit"),
    "mesh.grad_reduction_dtype": ("bfloat16", "float32"),
    "optim.name": ("adamw", "lamb", *MOMENTUM_OPTIMIZERS),
    "optim.schedule": ("cosine", "polynomial", "constant", "piecewise"),
    "optim.momentum_form": ("unscaled", "scaled"),
    "optim.moment_dtype": ("float32", "bfloat16"),
    "quant.rounding": ("stochastic", "nearest"),
    "quant.scale": ("channel", "tensor"),
}
MIN_SEGMENTS = 8  # tokens of a pair of segments
MAX_INT8_SUMMED = (2**31 - 1) // 127**2  # products of two int8 numbers whose sum always fits an int32
_MAY_BE_ZERO = {
    *("model.kv_heads", "model.unroll", "model.attention_chunk", "model.loss_chunk", "model.norm_examples"),
    *("model.beam", "model.length_penalty", "model.mask", "model.detections", "model.dropout"),
    *("model.image_width", "model.short_side", "model.long_side", "model.frozen_stages"),
    *("model.dense_features", "model.rows_per_exchange", "model.mask_token"),
    *("mesh.dp", "mesh.microbatches"),
    *("data.max_bytes", "data.global_batch", "data.loader_hosts", "data.seed"),
    "data.shuffle_window",
    *("data.eval_fraction", "optim.warmup", "optim.final_fraction", "optim.weight_decay"),
    *("optim.b1", "optim.b2", "optim.momentum", "optim.grad_clip_norm", "run.eval_every", "run.seed"),
    *("run.target_accuracy", "run.target_mask_accuracy", "optim.warmup_factor"),
    "checkpoint.local_every",
    *("observe.hang_seconds", "observe.straggler_check_every", "observe.checksum_every", "observe.profile_start"),
}
_BELOW_ONE = {
    *("model.mask_rate", "model.dropout", "data.eval_fraction", "optim.b1", "optim.b2", "optim.momentum"),
    *("checkpoint.auto_max_share", "run.target_accuracy", "run.target_mask_accuracy"),
    *("optim.warmup_factor", "optim.decay_factor"),
}
_LARGEST = {  # of the others: the largest int32
    **{"run.seed": 2**32 - 1, "data.seed": 2**32 - 1, "data.max_bytes": 2**63 - 1},
    "observe.profile_steps": 200,  # JAX keeps a profile in memory until it ends, some MB a step
}


@dataclasses.dataclass(frozen=True, slots=True)
class Chips:
    """Slices, hosts and chips of a job."""

    num_slices: int
    hosts_per_slice: int
    chips_per_host: int

    @property
    def hosts(self) -> int:
        """Number of hosts in the job."""
        return self.num_slices * self.hosts_per_slice

    @property
    def total(self) -> int:
        """Number of chips in the job."""
        return self.hosts * self.chips_per_host


@dataclasses.dataclass(frozen=True, slots=True)
class Layout:
    """Sizes of the mesh axes and of the global batch."""

    num_slices: int
    dp: int
    stages: int
    fsdp: int
    tp: int
    global_batch: int
    microbatches: int
    loader_hosts: int

    @property
    def stage_slices(self) -> int:
        """Slices that the pipeline's stages span; stages span slices before dp does, because they send less."""
        return math.gcd(self.stages, self.num_slices)

    @property
    def dp_slices(self) -> int:
        """Slices that the replicas of one stage span."""
        return self.num_slices // self.stage_slices


def layout(config: Config, chips: Chips) -> Layout:
    """Return the mesh and batch sizes of `config` on `chips`; meaningful only if `check` finds no problem."""
    stages = config.mesh.stages
    dp = config.mesh.dp or chips.num_slices // math.gcd(stages, chips.num_slices)
    return Layout(
        num_slices=chips.num_slices,
        dp=dp,
        stages=stages,
        fsdp=max(1, chips.total // (dp * stages * config.mesh.tp)),
        tp=config.mesh.tp,
        global_batch=config.data.global_batch or config.data.batch_per_chip * chips.total,
        microbatches=(config.mesh.microbatches or 4 * stages) if stages > 1 else 1,
        loader_hosts=config.data.loader_hosts or chips.hosts,
    )


def one_slice(config: Config, replicas: int) -> Config:
    """Return the configuration of one slice of a run of elastic slices, which has one share of the batch."""
    data, mesh = config.data, config.mesh
    return dataclasses.replace(
        config,
        data=dataclasses.replace(
            data, global_batch=data.global_batch // replicas, loader_hosts=-(-data.loader_hosts // replicas)
        ),
        mesh=dataclasses.replace(mesh, dp=mesh.dp // replicas),
    )


def check(config: Config, chips: Chips, replicas: int = 1) -> list[Problem]:
    """Return all problems that prevent `config` from running on `chips`.

    With elastic slices, of which there are `replicas`, the chips are those of one slice.
    """
    problems = list(range_problems(config))
    if not problems and replicas > 1:
        problems = list(_elastic_problems(config, replicas))
    return problems or size_problems(one_slice(config, replicas), chips)


def size_problems(config: Config, chips: Chips) -> list[Problem]:
    """Return the problems of a configuration without range_problems on `chips`."""
    mesh = layout(config, chips)
    problems = list(_mesh_problems(config, chips, mesh))
    if problems:
        return problems
    problems += _division_problems(config, mesh)
    problems += _int8_problems(config, mesh)
    if chips.hosts % mesh.loader_hosts:
        fits = [str(n) for n in range(1, chips.hosts + 1) if chips.hosts % n == 0]
        problems.append(
            Problem(
                f"data.loader_hosts = {mesh.loader_hosts} does not divide the {chips.hosts} hosts",
                f"Valid values: {', '.join(fits)}",
            )
        )
    elif config.data.shards > 1:
        problems += _shard_problems(config, chips, mesh)
    return problems


def _elastic_problems(config: Config, replicas: int) -> Iterator[Problem]:
    """Yield the settings that prevent each slice from computing one share of the batch by itself."""
    for key, value in (("data.global_batch", config.data.global_batch), ("mesh.dp", config.mesh.dp)):
        if value % replicas:
            message = f"{key} = {value} is not divisible by the {replicas} elastic slices"
            yield Problem(message, f"Nearest valid values: {_nearest(value, replicas)}")
    if config.data.shards > 1:
        message = f"data.shards = {config.data.shards} is not supported by elastic slices, which may compute any share"
        yield Problem(message, "Omit data.shards")
    if config.checkpoint.local_every:
        message = "checkpoint.local_every is not supported by elastic slices, each of which holds the whole state"
        yield Problem(message, "Omit checkpoint.local_every")
    is_set = {"run.target_accuracy": config.run.target_accuracy > 0, "observe.mllog": bool(config.observe.mllog)}
    for key in (key for key, is_used in is_set.items() if is_used):
        yield Problem(f"{key} is not supported by elastic slices", f"Omit {key}")
    if config.mesh.stages > 1 and not config.mesh.dp and config.mesh.stages % replicas == 0:
        message = f"mesh.stages = {config.mesh.stages} would lie in each of the elastic slices, not across them"
        yield Problem(message, "Set mesh.dp, or omit mesh.stages")


def _shard_problems(config: Config, chips: Chips, mesh: Layout) -> Iterator[Problem]:
    """Yield the problems that prevent hosts from reading only their own shards."""
    shards, readers = config.data.shards, mesh.loader_hosts * chips.chips_per_host
    if shards % mesh.loader_hosts:
        message = f"data.shards = {shards} is not divisible by the {mesh.loader_hosts} hosts that load"
        yield Problem(message, f"Nearest valid values: {_nearest(shards, mesh.loader_hosts)}")
    for name, by in (("data.shards", shards), ("the chips of the hosts that load", readers)):
        if mesh.global_batch % by:
            message = f"the global batch = {mesh.global_batch} is not divisible by {name} = {by}"
            yield Problem(message, f"Nearest valid values: {_nearest(mesh.global_batch, by)}")


def _division_problems(config: Config, mesh: Layout) -> Iterator[Problem]:
    """Yield every size that cannot be divided evenly."""
    shares = {"dp": mesh.dp, "fsdp": mesh.fsdp} | ({"microbatches": mesh.microbatches} if mesh.stages > 1 else {})
    if config.optim.grad_accum_steps > 1:
        shares["optim.grad_accum_steps"] = config.optim.grad_accum_steps
    times = {"mesh.stages": mesh.stages, "mesh.tp": mesh.tp} if mesh.stages > 1 else {"mesh.tp": mesh.tp}
    model = config.model
    sizes = [("the global batch", mesh.global_batch, shares)]
    if model.family in IMAGE_FAMILIES and model.norm_examples:
        divisors = {"dp": mesh.dp} if config.mesh.grad_reduction == "explicit" else {}
        parts = divisors | {"optim.grad_accum_steps": config.optim.grad_accum_steps}
        groups = {name: size for name, size in parts.items() if size > 1} | {"model.norm_examples": model.norm_examples}
        sizes.append(("the global batch", mesh.global_batch, groups))
    if model.family not in (*IMAGE_FAMILIES, "dlrm"):
        sizes += [
            ("model.embed", model.embed, {"fsdp": mesh.fsdp}),
            ("model.layers", model.layers, {"mesh.stages": mesh.stages}),
            ("model.heads", model.heads, {"mesh.tp": mesh.tp}),
            ("model.heads", model.heads, {"model.kv_heads": model.key_heads}),
            ("model.kv_heads", model.kv_heads, {"mesh.tp": mesh.tp}),
            ("model.mlp", model.mlp, {"mesh.tp": mesh.tp}),
            ("model.vocab", model.vocab, {"mesh.tp": mesh.tp}),
            ("model.seq_len", model.seq_len, times),
            ("model.seq_len", model.seq_len, {"model.attention_chunk": model.attention_chunk or 1}),
            ("model.seq_len", model.seq_len, {"model.loss_chunk": model.loss_chunk or 1}),
            ("model.loss_chunk", model.loss_chunk, times),
        ]
    if model.family in ("bert", "gnmt"):
        sizes.append(("model.embed", model.embed, {"mesh.tp": mesh.tp}))  # the width of its head's dense layer
    if model.family == "dlrm":
        yield from table_placement.problems(model, mesh.fsdp)
    for name, value, by in sizes:
        if value % math.prod(by.values()):
            size = f"{' x '.join(by)} = {' x '.join(map(str, by.values()))}"
            hint = f"Nearest valid values: {_nearest(value, math.prod(by.values()))}"
            yield Problem(f"{name} = {value} is not divisible by {size}", hint)


def _int8_problems(config: Config, mesh: Layout) -> Iterator[Problem]:
    """Yield the quantized products whose int32 sum could overflow."""
    model = config.model
    # Sums are those of a part of the batch; the gradients of parts are added in float32.
    rows = mesh.global_batch // (mesh.dp * mesh.fsdp * mesh.microbatches * config.optim.grad_accum_steps)
    sizes = {
        "forward": (
            "model.mlp, model.embed or heads x head_dim",
            [model.mlp, model.embed, model.heads * model.head_dim],
        ),
        "dgrad": (
            "model.mlp, model.embed or the width of queries, keys and values",
            [
                model.mlp_input_matrices * model.mlp,
                model.embed,
                (model.heads + 2 * model.key_heads) * model.head_dim,
            ],
        ),
        "wgrad": ("the tokens of a chip's part of a batch", [rows * model.seq_len]),
    }
    for name in config.quant.products:
        dimension, summed = sizes[name]
        if max(summed) > MAX_INT8_SUMMED:
            message = (
                f"quant.matmuls has {name}, and {dimension} = {max(summed)} int8 products may overflow an int32 sum"
            )
            yield Problem(message, f"Remove {name}, or use at most {MAX_INT8_SUMMED}")


def _mesh_problems(config: Config, chips: Chips, mesh: Layout) -> Iterator[Problem]:
    per_slice = chips.total // chips.num_slices
    slices = mesh.dp_slices
    inside = {
        "mesh.tp": mesh.tp,
        "mesh.dp per slice": mesh.dp // slices,
        "mesh.stages per slice": mesh.stages // mesh.stage_slices,
    }
    if mesh.dp % slices:
        slices_text = f"{slices} slices" if mesh.stage_slices == 1 else f"{slices} slices of a stage"
        yield Problem(
            f"mesh.dp = {mesh.dp} is not a multiple of the {slices_text}",
            f"Omit mesh.dp, or use {_nearest(mesh.dp, slices)}",
        )
    elif per_slice % math.prod(inside.values()):
        fits = [str(n) for n in range(1, per_slice + 1) if per_slice % n == 0]
        factors = [f"{name} = {size}" for name, size in inside.items() if size > 1]
        yield Problem(
            f"a slice's {per_slice} chips cannot be split into {' x '.join(factors)}",
            f"Values that divide {per_slice}: {', '.join(fits)}",
        )
    if mesh.stages == 1 and config.mesh.microbatches:
        yield Problem(
            f"mesh.microbatches = {config.mesh.microbatches} requires a pipeline, but mesh.stages is 1",
            "Omit mesh.microbatches, or set mesh.stages",
        )
    if config.data.global_batch and config.data.batch_per_chip != 1:
        yield Problem(
            "data.global_batch and data.batch_per_chip are both set",
            "Set data.global_batch=0 to use batch_per_chip, or leave batch_per_chip at 1",
        )


def _nearest(value: int, by: int) -> str:
    below = value // by * by
    return f"{below} or {below + by}" if below else str(by)


def range_problems(config: Config) -> Iterator[Problem]:
    """Yield the settings that are invalid for any chips."""
    for section, kind in sections().items():
        for field in dataclasses.fields(typing.cast(typing.Any, kind)):
            key, value = f"{section}.{field.name}", getattr(getattr(config, section), field.name)
            if key in _CHOICES and value not in _CHOICES[key]:
                yield Problem(f"{key} = {value!r} is invalid", f"Use {' or '.join(_CHOICES[key])}")
            if isinstance(value, (str, bool)):
                continue
            if not 0 <= value < float("inf") or (value == 0 and key not in _MAY_BE_ZERO):
                hint = "Use 0 or more" if key in _MAY_BE_ZERO else "Use a value above 0"
                yield Problem(f"{key} = {value} is out of range", hint)
            elif isinstance(value, int) and value > (limit := _LARGEST.get(key, 2**31 - 1)):
                yield Problem(f"{key} = {value} is out of range", f"Use {limit} or less")
            elif key in _BELOW_ONE and value >= 1:
                yield Problem(f"{key} = {value} is out of range", "Use a value below 1")
    yield from _model_problems(config)
    yield from rate_settings.problems(config.optim)
    yield from mllog.problems(config)
    path = config.checkpoint.local_path
    if (config.checkpoint.local_every and not path) or "://" in path:
        message = f"checkpoint.local_path = {path!r} is not a folder on the hosts"
        yield Problem(message, "Use a folder that outlives the process, such as /dev/shm or a disk of the node")
    hosts = [name.strip() for name in config.observe.profile_hosts.split(",")]
    if any(name != "all" and not name.isdecimal() for name in hosts):
        message = f"observe.profile_hosts = {config.observe.profile_hosts!r} is not a list of process ids"
        yield Problem(message, "Use process ids, such as 0,4, or all")
    if not all(name and value for name, value in config.run.compiler_options.items()):
        message = f"run.tpu_options = {config.run.tpu_options!r} is not a list of options"
        yield Problem(message, "Use options of XLA, such as NAME=true,OTHER_NAME=3")
    unknown = [axis for axis in config.optim.axes if axis not in ("fsdp", "dp")]
    if unknown:
        yield Problem(f"optim.update_axes = {config.optim.update_axes!r} has an unknown axis", "Use fsdp, dp or both")
    if unknown := [name for name in config.quant.products if name not in ("forward", "dgrad", "wgrad")]:
        yield Problem(
            f"quant.matmuls has {unknown[0]!r}, which is not a product", "Use any of forward, dgrad and wgrad"
        )


def _model_problems(config: Config) -> Iterator[Problem]:
    """Yield the settings that the model family does not support."""
    model = config.model
    if model.family == "decoder" and model.head_dim % 2:
        yield Problem(
            f"model.head_dim = {model.head_dim} is odd", "Use an even number, as rotary embeddings rotate pairs"
        )
    if model.family != "decoder" and (model.kv_heads or model.activation != "gelu"):
        message = f"model.kv_heads and model.activation are not supported by {model.family}"
        yield Problem(message, "Omit them")
    if model.fused_attention:
        yield from attention_settings.problems(model)
    if model.dropout and model.family in (*IMAGE_FAMILIES, "dlrm"):
        yield Problem(f"model.dropout = {model.dropout} is not supported by {model.family}", "Omit model.dropout")
    if model.family == "bert" and model.loss_chunk:
        message = f"model.loss_chunk = {model.loss_chunk} is not supported by bert: only masked tokens have logits"
        yield Problem(message, "Omit model.loss_chunk")
    if model.next_sentence and (model.family != "bert" or model.packed or model.seq_len < MIN_SEGMENTS):
        message = (
            "model.next_sentence requires model.family=bert without model.packed, and a model.seq_len of 8 or more"
        )
        yield Problem(message, "Omit model.next_sentence, or change them")
    if model.mask_token >= model.vocab:
        message = f"model.mask_token = {model.mask_token} is not below model.vocab = {model.vocab}"
        yield Problem(message, f"Use {model.vocab - 1} or less")
    if model.family in TRANSLATION_FAMILIES:
        yield from pair_lengths.problems(config)
    elif model.batch_lengths:
        yield Problem(f"model.batch_lengths is not supported by {model.family}, which reads no pairs", "Omit it")
    if model.family == "dlrm":
        yield from table_placement.setting_problems(config)
    if config.checkpoint.trunk_path and model.family not in DETECTION_FAMILIES:
        message = f"checkpoint.trunk_path is not supported by {model.family}, which has no trunk"
        yield Problem(message, "Omit checkpoint.trunk_path")
    if model.family in IMAGE_FAMILIES:
        yield from image_settings.problems(config)
