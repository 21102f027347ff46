"""The trainer's configuration: a frozen dataclass for each section, read from YAML and `--set` options.

Never imports JAX, so that `python -m trainer check` and tools that only read a configuration start fast.
"""

import dataclasses
import sys
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal

import yaml

from trainer import setting_values
from trainer.errors import FatalError, Problem
from trainer.former_names import RENAMED, current_settings

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # in C, where there is one
CONFIG_FOLDER = Path(__file__).parent / "configs"
AUTO: Literal["auto"] = "auto"
Auto = Literal["auto"]
TRANSLATION_FAMILIES = ("transformer", "gnmt")  # models that translate
DETECTION_FAMILIES = ("ssd", "mask_rcnn")  # models that detect objects
IMAGE_FAMILIES = ("resnet", *DETECTION_FAMILIES)
MOMENTUM_OPTIMIZERS = ("lars", "sgd")  # with one moment
CROP_ATTEMPTS = 50  # of SSD, to find a crop for one choice of its overlap with the objects


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """The model. docs/models.md lists the settings that each family takes."""

    family: str = "decoder"  # decoder, bert, resnet, ssd, mask_rcnn, transformer, gnmt or dlrm (docs/models.md)
    embed: int = 128  # width of the residual stream
    heads: int = 4  # number of attention heads
    kv_heads: int = 0  # decoder: heads of keys and values, each for heads / kv_heads heads of queries (GQA); 0 = heads
    head_dim: int = 32  # width of an attention head; even, as rotary embeddings require
    mlp: int = 512  # hidden width of the MLP
    activation: str = "gelu"  # decoder: activation of the MLP: gelu, or swiglu, whose gate is a third matrix
    layers: int = 2  # number of layers
    vocab: int = 256  # vocabulary size; 256 is enough for bytes
    seq_len: int = 128  # tokens in a training example
    compute_dtype: str = "bfloat16"  # dtype of matrix products; parameters and sums are always float32
    remat: str = "full"  # recomputed in the backward pass: none, dots (no products), attention (not its own) or full
    unroll: int = 1  # layers per iteration of the scan over layers; 0 = no scan: faster, but compiles longer
    fused_attention: bool = False  # decoder: attention in one kernel, without stored scores, on TPUs and GPUs
    attention_chunk: int = 0  # queries whose scores are in memory at a time; must divide seq_len; 0 = all
    loss_chunk: int = 0  # positions of an example whose logits are in memory at a time; must divide seq_len; 0 = all
    packed: bool = False  # pack whole documents, or pairs of sentences, which attend only to themselves
    dropout: float = 0.0  # decoder, bert, translation: fraction of activations that are dropped in training
    mask_rate: float = 0.15  # bert: fraction of the tokens to predict
    mask_token: int = 0  # bert: number of the mask token; 0 = the last of the vocabulary
    next_sentence: bool = False  # bert: train on pairs of segments, and predict whether the second follows the first
    image: int = 224  # resnet, detection: height and width of the images in pixels
    image_width: int = 0  # mask_rcnn: width of the images in pixels, whose height is model.image; 0 = square images
    short_side: int = 0  # mask_rcnn: pixels of a picture's shorter side, if it fits; 0 = the largest that fits
    long_side: int = 0  # mask_rcnn: most pixels of a picture's longer side; 0 = the most that fit
    classes: int = 1000  # resnet, detection: number of classes, without the background
    width: int = 64  # resnet, detection: channels of the first stage; each later one has twice those of the one before
    blocks: str = "3,4,6,3"  # resnet, detection: number of blocks in each stage; the default is ResNet-50
    block: str = "bottleneck"  # resnet: blocks of three convolutions (bottleneck), or of two (basic), as ResNet-34's
    space_to_depth: bool = False  # resnet, mask_rcnn: compute the first convolution on 2 x 2 pixels; same outputs
    norm_examples: int = 0  # resnet, detection: examples that batch norm normalizes together; 0 = the whole batch
    max_boxes: int = 100  # detection: most boxes of an image; of an image with more, the largest
    mask: int = 0  # detection: height and width of the bitmap that each box carries; 0 = boxes only
    detections: int = 200  # detection: most detections of an image in an evaluation; 0 = evaluate only the loss
    pyramid: int = 256  # mask_rcnn: channels of each level of the pyramid
    anchor_cells: int = 8  # mask_rcnn: side of a level's square anchor, in cells of the level
    anchor_samples: int = 256  # mask_rcnn: anchors of an image that the proposals are trained on
    candidates: int = 2000  # mask_rcnn: boxes of a level, and of an image's detections, before suppression
    proposals: int = 1000  # mask_rcnn: regions of an image that are proposed to the heads
    region_samples: int = 512  # mask_rcnn: regions of an image that the heads are trained on, a quarter with masks
    mask_layers: int = 4  # mask_rcnn: convolutions of the mask head before it enlarges its input
    pooling: str = "gather"  # mask_rcnn: computation of RoIAlign: gather, or one_hot (matrix products); same outputs
    frozen_norm: bool = False  # mask_rcnn: use the stored averages of batch norm in training, and train no norm
    frozen_stages: int = 0  # mask_rcnn: number of leading stages that are frozen together with the stem; 0 = none
    batch_lengths: str = ""  # translation: lengths below seq_len that batches are padded to, comma separated
    beam: int = 4  # translation: partial translations that the search keeps in an evaluation; 0 = no translation
    length_penalty: float = 0.6  # translation: exponent of the length in a translation's score; 0 = no penalty
    dense_features: int = 13  # dlrm: number of integers in an example
    tables: str = ""  # dlrm: rows of each embedding table, one for each categorical feature, of width embed
    hots: str = "1"  # dlrm: most ids of each categorical feature in an example; one number is that of all
    bottom_mlp: str = "512,256"  # dlrm: hidden widths of the MLP of the integers, whose output has width embed
    top_mlp: str = "1024,1024,512,256"  # dlrm: hidden widths of the MLP of the interactions, whose output is the logit
    placements: str = ""  # dlrm: replicated, columns or rows for each table, or one for all; empty = fewest bytes sent
    rows_per_exchange: int = 0  # dlrm: rows of a table that a chip requests of another at a time; 0 = by their number

    @property
    def key_heads(self) -> int:
        """Number of heads of keys and values."""
        return self.kv_heads or self.heads

    @property
    def mlp_input_matrices(self) -> int:
        """Number of matrices from the residual stream into the MLP: 2 if it is gated."""
        return 2 if self.activation == "swiglu" else 1

    @property
    def image_sides(self) -> tuple[int, int]:
        """Height and width of the images in pixels."""
        return self.image, self.image_width or self.image

    @property
    def block_counts(self) -> tuple[int, ...]:
        """The numbers in `blocks`; empty if one of them is not a positive integer."""
        return positive_integers(self.blocks)

    @property
    def table_rows(self) -> tuple[int, ...]:
        """The numbers in `tables`; empty if one of them is not a positive integer."""
        return positive_integers(self.tables)

    @property
    def table_hots(self) -> tuple[int, ...]:
        """The number in `hots` of each table; empty if they are not positive integers, or not as many as tables."""
        hots, count = positive_integers(self.hots), len(self.table_rows)
        hots = hots * count if len(hots) == 1 else hots
        return hots if len(hots) == count else ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """Sizes of the mesh axes. `fsdp` takes the chips that `dp`, `stages` and `tp` leave."""

    dp: int = 0  # data parallelism across slices (DCN); 0 = the slices that stages leave
    tp: int = 1  # tensor parallelism within a slice (ICI)
    stages: int = 1  # pipeline stages, across slices first; for DCN that is too slow for gradients
    microbatches: int = 0  # microbatches of a batch in the pipeline; 0 = 4 per stage
    grad_reduction: str = "automatic"  # of gradients over dp: automatic (XLA), or explicit (hierarchical, once a step)
    grad_reduction_dtype: str = "bfloat16"  # explicit: dtype of the gradients that replicas exchange

    @property
    def sums_in_bfloat16(self) -> bool:
        """True if an explicit reduction sends gradients in bfloat16."""
        return self.grad_reduction == "explicit" and self.grad_reduction_dtype == "bfloat16"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Quant:
    """Int8 products of activations and a layer's weights (AQT). Attention and logits are not quantized."""

    matmuls: str = ""  # products to quantize, comma separated: forward, dgrad (of activations), wgrad (of weights)
    rounding: str = "stochastic"  # of gradients: stochastic (unbiased) or nearest
    scale: str = "channel"  # one scale for each row and column of a product (channel), or for the whole (tensor)

    @property
    def products(self) -> tuple[str, ...]:
        """The names in `matmuls`."""
        return tuple(name.strip() for name in self.matmuls.split(",") if name.strip())


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """The training data and the hosts that read it."""

    path: str = ""  # folder of sources or prepared data set, local or gs://; stdlib: Python's library; or synthetic
    target: str = ""  # translation: file with the translations of the lines of path; empty = path has both
    suffixes: str = ""  # file suffixes to read, comma separated, such as ".py,.md"; empty = every text file
    click_ids: str = "numbered"  # dlrm: ids of a click log's categories: numbered as they appear, or exact
    max_bytes: int = 0  # bytes of text, or of images to train on; 0 = all
    expansion: float = (
        1.0  # detection: largest canvas, relative to the image, that half of the crops are from; 1 = none
    )
    color_jitter: bool = False  # detection: change brightness, contrast, saturation and hue of the images to train on
    tokenizer: str = ""  # SentencePiece model or vocab.txt; empty = bytes, or the prepared data set's tokenizer
    global_batch: int = 0  # examples in a step over all chips; 0 = batch_per_chip x chips
    batch_per_chip: int = 1  # examples in a step on each chip, if global_batch is 0
    eval_fraction: float = 0.01  # fraction of the records held out for evaluation, from the end
    loader_hosts: int = 0  # hosts that read the data for all; 0 = every host reads its own rows
    shards: int = (
        1  # data parts with equal shares of every batch; above 1, a multiple of loader_hosts, each of which has its own
    )
    shuffle: str = "records"  # records: all records of a shard; files: files, then the records in each; none
    shuffle_window: int = 0  # files: records that are shuffled together; 0 = all records of a file
    prefetch: int = 2  # batches prepared ahead of the step
    seed: int = 0  # seed of the record order


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Optim:
    """The optimizer, its learning rate, and the sharding of its state."""

    name: str = "adamw"  # adamw, lamb, lars or sgd; lamb and lars scale updates by norms of layers, for large batches
    lr: float = 1e-3  # peak learning rate, reached at the end of the linear warmup
    warmup: int = 20  # warmup steps
    warmup_factor: float = 0.0  # learning rate of the first warmup step, as a fraction of lr
    schedule: str = "cosine"  # learning rate after the warmup: cosine, polynomial, constant or piecewise (decay_steps)
    decay_steps: str = ""  # piecewise: finished steps at which the learning rate drops, comma separated
    decay_factor: float = 0.1  # piecewise: factor of the learning rate at each of these steps
    power: float = 1.0  # exponent of the polynomial schedule: 1 is linear, 2 is usual for LARS
    final_fraction: float = 0.1  # learning rate after the last step, as a fraction of lr
    weight_decay: float = 0.1  # weight decay, applied to matrices only
    b1: float = 0.9  # adamw, lamb: decay rate of the first moment
    b2: float = 0.95  # adamw, lamb: decay rate of the second moment
    eps: float = 1e-8  # adamw, lamb: added to the square root of the second moment
    momentum: float = 0.9  # lars, sgd: decay rate of the momentum
    momentum_form: str = "unscaled"  # lars: unscaled (You et al.) or scaled (MLPerf's reference)
    trust_coefficient: float = 0.001  # lars: trust coefficient of the layerwise learning rate
    moment_dtype: str = "float32"  # storage dtype of the first moment or momentum: float32 or bfloat16
    grad_clip_norm: float = 1.0  # maximum global norm of the gradients; 0 = no clipping
    grad_accum_steps: int = 1  # sequential parts of a batch whose gradients are summed
    update_axes: str = ""  # mesh axes to shard optimizer state over, beside the parameters' axes: fsdp, dp or fsdp,dp

    @property
    def decay_boundaries(self) -> tuple[int, ...]:
        """The numbers in `decay_steps`; empty if one of them is not a positive integer."""
        return positive_integers(self.decay_steps)

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes in `update_axes`."""
        return tuple(axis.strip() for axis in self.update_axes.split(",") if axis.strip())

    def state_notes(self) -> dict[str, str]:
        """Return the settings that define the format of the optimizer state; a resuming run must have the same."""
        keys = ("name", "moment_dtype", *(("momentum_form",) if self.name == "lars" else ()))
        return {key: getattr(self, key) for key in keys}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """Checkpoint intervals, retention and timeouts."""

    every: int | Auto = 50  # steps between checkpoints, or auto; the last step is always saved
    max_to_keep: int = 3  # number of newest committed checkpoints to keep
    local_every: int | Auto = 0  # steps between local checkpoints of each host's chips in local_path, or auto; 0 = none
    mtbf_chip_hours: float = 50_000.0  # auto: chip-hours for each failure, until the run has failed itself
    auto_max_seconds: float = 3600.0  # auto: maximum time between two checkpoints, in seconds
    auto_max_share: float = 0.2  # auto: maximum share of the time in which steps wait for the saves of a tier
    hang_seconds: float | Auto = "auto"  # timeout of a save or a restore, in seconds; the job then ends and restarts
    trunk_path: str = ""  # detection: output folder of a resnet, or its checkpoint, that the trunk starts from
    local_path: str = ""  # folder on each host that outlives the process: a RAM disk, or a disk of the node


def _pairs(text: str) -> dict[str, str]:
    """Return the pairs of NAME=VALUE, ...; a word without "=" has an empty value."""
    words = (word.partition("=") for word in text.split(",") if word.strip())
    return {name.strip(): value.strip() for name, _, value in words}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Observe:
    """Timeouts, checks and profiles (docs/observability.md)."""

    hang_seconds: float | Auto = "auto"  # timeout of a step or of waiting for data, in seconds; 0 = no watchdog
    min_hang_seconds: float = 180.0  # auto: minimum timeout of a step, in seconds
    compile_hang_seconds: float | Auto = "auto"  # timeout of compiling a program, in seconds; the job then restarts
    data_hang_seconds: float = 43200.0  # timeout of preparing the data set or copying it to a host, in seconds
    hang_factor: float = 20.0  # minimum timeout of a step, as a multiple of the recent steps' median; auto: at first
    straggler_check_every: int = 100  # steps between comparisons of hosts, which name the stragglers; 0 = never
    checksum_every: int = 0  # steps between comparisons of the state's replicas, also before each checkpoint; 0 = never
    profile_start: int = 0  # first step to profile (JAX profiler), counted over the whole run; 0 = no profile
    profile_steps: int = 3  # steps to profile; at most 200, as the profile is kept in memory
    profile_hosts: str = "0"  # process ids to profile, comma separated, or all
    tensorboard: bool = False  # write TensorBoard event files beside metrics.jsonl
    mllog: str = ""  # write MLPerf's log lines to mllog.txt, with org=NAME,platform=NAME,division=...,status=...

    @property
    def submission(self) -> dict[str, str]:
        """The submission that `mllog` describes, open research by default."""
        return {"division": "open", "status": "research"} | _pairs(self.mllog)

    def profiles(self, process_id: int) -> bool:
        """Return whether a process records a profile."""
        names = {name.strip() for name in self.profile_hosts.split(",")}
        return self.profile_start > 0 and bool(names & {"all", str(process_id)})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Length, logging, seed and output of the run."""

    steps: int = 100  # number of training steps
    eval_every: int = 50  # steps between evaluations; 0 = only at the end
    target_accuracy: float = 0.0  # accuracy, mAP, AUC or BLEU / 100 of an evaluation that ends the run; 0 = none
    target_mask_accuracy: float = 0.0  # mask_rcnn: mAP of masks that this evaluation must also have
    log_every: int = 10  # steps between log lines
    seed: int = 0  # seed of the initial parameters
    keep_programs: bool = True  # cache compiled programs for the workload's other hosts and its next attempt
    tpu_options: str = "xla_jf_spmd_threshold_for_windowed_einsum_mib=1000000"  # of XLA on TPUs: NAME=VALUE, ...
    output_dir: str = ""  # output folder or gs://BUCKET/NAME; empty = $XPK_OUTPUT_DIR, or ./output/<config> without it

    @property
    def compiler_options(self) -> dict[str, str]:
        """The options in `tpu_options`."""
        return _pairs(self.tpu_options)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """All sections, and the name of the configuration."""

    name: str = "default"
    model: Model = Model()
    mesh: Mesh = Mesh()
    quant: Quant = Quant()
    data: Data = Data()
    optim: Optim = Optim()
    checkpoint: Checkpoint = Checkpoint()
    observe: Observe = Observe()
    run: Run = Run()


def positive_integers(text: str) -> tuple[int, ...]:
    """Return a list of positive integers, comma separated; empty if one of them is not."""
    words = [word.strip() for word in text.split(",")]
    return tuple(map(int, words)) if all(word.isdecimal() and int(word) for word in words) else ()


def sections() -> dict[str, type]:
    """Return the dataclass of each section, by name."""
    return {f.name: typing.cast(type, f.type) for f in dataclasses.fields(Config) if f.name != "name"}


def warn(text: str) -> None:
    """Print a warning on stderr."""
    print(f"warning: {text}", file=sys.stderr, flush=True)


def load(name_or_path: str, overrides: Sequence[str] = (), warn: Callable[[str], None] = warn) -> Config:
    """Read a named or user-written YAML file and apply `section.key=value` overrides.

    Calls `warn` once for each former name of a setting. Raises FatalError with every problem found, not just the first.
    """
    settings, problems = _read(name_or_path)
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals:
            problems.append(Problem(f"--set {override!r} has no value", "Write --set section.key=value"))
            continue
        key = key.strip()
        settings.append((key, text if _fields().get(RENAMED.get(key, key)) is str else setting_values.scalar(text)))
    values, warnings = current_settings(settings)
    for warning in warnings:
        warn(warning)
    built: dict[str, dict[str, Any]] = {section: {} for section in sections()}
    for key, value in values.items():
        typed = setting_values.typed(key, value, _fields())
        if isinstance(typed, Problem):
            problems.append(typed)
        else:
            section, field = key.split(".")
            built[section][field] = typed
    if problems:
        raise FatalError(*problems)
    config = {section: kind(**built[section]) for section, kind in sections().items()}
    return Config(name=Path(name_or_path).stem, **config)


def _read(name_or_path: str) -> tuple[list[tuple[str, Any]], list[Problem]]:
    """Return the file's (`section.key`, value) pairs and its problems."""
    known = sorted(path.stem for path in CONFIG_FOLDER.glob("*.yaml"))
    path = CONFIG_FOLDER / f"{name_or_path}.yaml" if name_or_path in known else Path(name_or_path)
    if path.name == name_or_path and not path.suffix and not path.exists():
        hint = (
            setting_values.closest(name_or_path, known) or f"Use one of {', '.join(known)} or the path of a YAML file"
        )
        return [], [Problem(f"unknown config {name_or_path!r}", hint)]
    try:
        tree = yaml.load(path.read_text(encoding="utf-8"), Loader=_LOADER) or {}  # noqa: S506  # a safe loader
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        hint = f"Use one of {', '.join(known)} or the path of a YAML file"
        return [], [Problem(f"config {name_or_path!r} cannot be read: {reason}", hint)]
    except yaml.YAMLError as error:
        where = str(error).replace("\n", " ")
        return [], [Problem(f"config {name_or_path!r} is not valid YAML: {where}", "Fix the file")]
    if not isinstance(tree, dict):
        return [], [Problem(f"config {name_or_path!r} is not a mapping", "Write sections such as `model:`")]
    return list(_flatten(tree)), []


@cache
def _fields() -> Mapping[str, Any]:
    """Return the type of each setting, by `section.key`."""
    return {f"{s}.{f.name}": f.type for s, kind in sections().items() for f in dataclasses.fields(kind)}


def _flatten(tree: Mapping[Any, Any]) -> Iterator[tuple[str, Any]]:
    for section, body in tree.items():
        if isinstance(body, dict):
            yield from ((f"{section}.{key}", value) for key, value in body.items())
        elif body is not None:
            yield str(section), body
