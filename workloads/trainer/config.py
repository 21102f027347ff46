"""The whole configuration: one frozen dataclass a section, and how it is read and changed.

Never imports JAX: `python -m trainer check` and tools that only read a config must be quick.
"""

import dataclasses
import difflib
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from trainer.errors import FatalError, Problem

CONFIG_FOLDER = Path(__file__).parent / "configs"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """The model; docs/models.md tells which settings a family takes."""

    family: str = "decoder"  # decoder (a language model), bert or resnet
    embed: int = 128  # width of the residual stream
    heads: int = 4  # attention heads
    head_dim: int = 32  # width of a head; even, for the rotary embedding
    mlp: int = 512  # hidden width of the MLP
    layers: int = 2
    vocab: int = 256  # 256 is enough for bytes
    seq_len: int = 128  # tokens in a training example
    compute_dtype: str = "bfloat16"  # of matrix products; parameters and sums are always float32
    remat: str = "full"  # what a layer computes again in the backward pass: none, dots (all but products) or full
    unroll: int = 1  # layers written out in each trip of the loop over them: quicker on CPUs and GPUs; 0 = all, no loop
    attention_chunk: int = 0  # queries whose scores are in memory at a time; divides seq_len; 0 = all of them
    loss_chunk: int = 0  # positions of each example whose logits are in memory at a time; divides seq_len; 0 = all
    packed: bool = False  # examples are whole documents that see only themselves; false: text runs on through examples
    masked: float = 0.15  # bert: part of the tokens that it has to guess
    image: int = 224  # resnet: height and width of the images in pixels
    classes: int = 1000  # resnet: kinds of images
    width: int = 64  # resnet: channels of the first stage; each stage has twice as many as the one before it
    blocks: str = "3,4,6,3"  # resnet: blocks of each stage; these make ResNet-50
    norm_examples: int = 0  # resnet: examples that batch norm takes together; 0 = the whole batch

    @property
    def block_counts(self) -> tuple[int, ...]:
        """The numbers of `blocks`; empty if they are none."""
        counts = [text.strip() for text in self.blocks.split(",")]
        return tuple(int(text) for text in counts) if all(text.isdecimal() and int(text) for text in counts) else ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """How the chips are laid out; `fsdp` takes what `dp`, `stages` and `tp` leave."""

    dp: int = 0  # data parallel over slices (DCN); 0 = the slices that stages leave
    tp: int = 1  # tensor parallel inside a slice (ICI)
    stages: int = 1  # of a pipeline of layers, over slices first (DCN), for links too slow for gradients
    microbatches: int = 0  # parts that a batch goes through the pipeline in; 0 = 4 a stage
    reduction: str = "automatic"  # of gradients over dp: automatic (XLA's own), or explicit: hierarchical, once a step
    reduction_dtype: str = "bfloat16"  # explicit: of the gradients that replicas send each other


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Quant:
    """Products of activations and a layer's weights in int8 (AQT); attention and logits stay as they are."""

    dots: str = ""  # which of them, comma separated: forward, dgrad (gradient of activations), wgrad (of weights)
    rounding: str = "stochastic"  # of gradients: stochastic (no bias) or nearest
    scale: str = "channel"  # one for every row and column of a product (channel), or for all of it (tensor)

    @property
    def products(self) -> tuple[str, ...]:
        """The names in `dots`."""
        return tuple(name.strip() for name in self.dots.split(",") if name.strip())


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """What is read, and by whom."""

    path: str = ""  # a folder of text, here or gs://; a prepared data set; "stdlib": Python's library; "drawn": images
    suffixes: str = ""  # comma separated, such as ".py,.md"; empty = every text file
    max_bytes: int = 0  # stop after this much text; 0 = all of it
    tokenizer: str = (
        ""  # a SentencePiece model, here or gs://; empty = bytes, or what a prepared data set was made with
    )
    global_batch: int = 0  # examples a step over all chips; 0 = batch_per_chip x chips
    batch_per_chip: int = 1
    eval_fraction: float = 0.01  # the last part of the records is held out
    loader_hosts: int = 0  # hosts that read for all of them; 0 = every host reads its own rows
    shards: int = (
        1  # parts of the data that batches take equally from; a multiple of loader_hosts: none reads another's
    )
    shuffle: str = "records"  # all of a shard's records; files: those, and the records in each; none
    shuffle_window: int = 0  # files: records that are shuffled together; 0 = all of a file
    prefetch: int = 2  # batches made ready ahead of the step
    seed: int = 0  # of the order of the records


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Optim:
    """The optimizer, its learning rate, and over which chips its state and update are spread."""

    name: str = "adamw"  # adamw; lamb and lars take a norm of every layer, for large batches
    lr: float = 1e-3  # at the end of the warm-up, which is linear
    warmup: int = 20  # steps
    schedule: str = "cosine"  # after the warm-up: cosine, polynomial or constant
    power: float = 1.0  # of the polynomial: 1 is a straight line, 2 what LARS is usually run with
    final_fraction: float = 0.1  # of lr, at the last step
    weight_decay: float = 0.1  # on matrices only
    b1: float = 0.9  # adamw, lamb: decay of the first moment
    b2: float = 0.95  # adamw, lamb: decay of the second moment
    eps: float = 1e-8  # adamw, lamb: added to the root of the second moment
    momentum: float = 0.9  # lars
    momentum_form: str = "unscaled"  # lars: unscaled as You et al. have it; scaled as MLPerf's reference has it
    trust: float = 0.001  # lars: trust coefficient
    moment_dtype: str = "float32"  # of the first moment or momentum as stored: float32 or bfloat16
    clip: float = 1.0  # largest global norm of the gradient; 0 = any
    accumulate: int = 1  # parts that a batch is computed in, one after the other; their gradients are added
    update_axes: str = ""  # mesh axes that state and update are spread over beyond the parameters': fsdp, dp or fsdp,dp

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes of `update_axes`."""
        return tuple(axis.strip() for axis in self.update_axes.split(",") if axis.strip())

    def state_notes(self) -> dict[str, str]:
        """Return the settings that give a saved state its meaning: another run's must be equal to go on from it."""
        keys = ("name", "moment_dtype", *(("momentum_form",) if self.name == "lars" else ()))
        return {key: getattr(self, key) for key in keys}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """When the state is saved, and how much is kept."""

    every: int = 50  # steps; the last step is always saved
    keep: int = 3  # newest committed checkpoints
    local_every: int = 0  # steps; every host keeps the state of its own chips in local_path; 0 = none does
    hang_seconds: float = 1800.0  # that hosts may wait for a save or a restore before the job ends and restarts
    local_path: str = ""  # a folder of each host's own that outlives its process: a RAM disk, or a disk of its node


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Observe:
    """What is watched while it trains (docs/observability.md)."""

    hang_seconds: float = 300.0  # that a host may wait for its data or for a step before it ends; 0 = without limit
    compile_hang_seconds: float = 7200.0  # that compiling a program may take before the job ends and restarts
    data_hang_seconds: float = 43200.0  # that making the data set, or copying it to a host, may take at set-up
    hang_factor: float = 20.0  # recent steps' median that it may wait for in any case
    pace_every: int = 100  # steps after which hosts are compared, to name the slow ones; 0 = never
    checksum_every: int = 0  # steps, and before each checkpoint: do all copies of the state hold the same? 0 = never
    profile_start: int = 0  # first step of a profile (JAX's profiler), counted over the whole run; 0 = none
    profile_steps: int = 3  # steps that it has, at most 200: it is kept in memory
    profile_hosts: str = "0"  # process ids, comma separated, or all
    tensorboard: bool = False  # write event files for TensorBoard, beside metrics.jsonl

    def profiles(self, process_id: int) -> bool:
        """Whether a process is asked for a profile."""
        named = {name.strip() for name in self.profile_hosts.split(",")}
        return self.profile_start > 0 and bool(named & {"all", str(process_id)})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The run as a whole."""

    steps: int = 100
    eval_every: int = 50  # steps; 0 = only at the end
    log_every: int = 10  # steps
    seed: int = 0  # of the initial parameters
    keep_programs: bool = True  # compiled ones, for the next attempt of the workload; not where chips are emulated
    output_dir: str = ""  # a folder or gs://BUCKET/NAME; empty = $XPK_OUTPUT_DIR, or ./output/<config> without it


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """All sections, and the name the configuration was asked for by."""

    name: str = "default"
    model: Model = Model()
    mesh: Mesh = Mesh()
    quant: Quant = Quant()
    data: Data = Data()
    optim: Optim = Optim()
    checkpoint: Checkpoint = Checkpoint()
    observe: Observe = Observe()
    run: Run = Run()


def sections() -> dict[str, type]:
    """Section name -> its dataclass."""
    return {f.name: typing.cast(type, f.type) for f in dataclasses.fields(Config) if f.name != "name"}


def load(name_or_path: str, overrides: Sequence[str] = ()) -> Config:
    """Read a named or user-written YAML file and apply `section.key=value` overrides.

    Raises FatalError with every problem found, not just the first.
    """
    values, problems = _read(name_or_path)
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals:
            problems.append(Problem(f"--set {override!r} has no value", "Write --set section.key=value"))
            continue
        values[key.strip()] = text if _fields().get(key.strip()) is str else _scalar(text)
    built: dict[str, dict[str, Any]] = {section: {} for section in sections()}
    for key, value in values.items():
        outcome = _typed(key, value)
        if isinstance(outcome, Problem):
            problems.append(outcome)
        else:
            section, field = key.split(".")
            built[section][field] = outcome
    if problems:
        raise FatalError(*problems)
    made = {section: kind(**built[section]) for section, kind in sections().items()}
    return Config(name=Path(name_or_path).stem, **made)


def _read(name_or_path: str) -> tuple[dict[str, Any], list[Problem]]:
    """Return the file's values keyed `section.key`, and what was wrong with it."""
    known = sorted(path.stem for path in CONFIG_FOLDER.glob("*.yaml"))
    path = CONFIG_FOLDER / f"{name_or_path}.yaml" if name_or_path in known else Path(name_or_path)
    if path.name == name_or_path and not path.suffix and not path.exists():
        guess = _closest(name_or_path, known) or f"Use one of {', '.join(known)} or the path of a YAML file"
        return {}, [Problem(f"unknown config {name_or_path!r}", guess)]
    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        hint = f"Use one of {', '.join(known)} or the path of a YAML file"
        return {}, [Problem(f"config {name_or_path!r} cannot be read: {reason}", hint)]
    except yaml.YAMLError as error:
        where = str(error).replace("\n", " ")
        return {}, [Problem(f"config {name_or_path!r} is not YAML: {where}", "Correct the file")]
    if not isinstance(tree, dict):
        return {}, [Problem(f"config {name_or_path!r} is not a mapping", "Write sections such as `model:`")]
    return dict(_flatten(tree)), []


def _fields() -> dict[str, Any]:
    """`section.key` -> the type of that setting."""
    return {f"{s}.{f.name}": f.type for s, kind in sections().items() for f in dataclasses.fields(kind)}


def _flatten(tree: Mapping[Any, Any]) -> Iterator[tuple[str, Any]]:
    for section, body in tree.items():
        if isinstance(body, dict):
            yield from ((f"{section}.{key}", value) for key, value in body.items())
        elif body is not None:
            yield str(section), body


def _scalar(text: str) -> Any:
    """Read one value the way YAML would, but let 3e-4 be a number as everyone expects."""
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        return text
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _typed(key: str, value: Any) -> Any:
    """Return `value` as the type of the field `key`, or the Problem with it."""
    fields = _fields()
    if key not in fields:
        guess = _closest(key, list(fields)) or f"Sections are {', '.join(sections())}"
        return Problem(f"unknown setting {key!r}", guess)
    wanted = fields[key]
    if wanted is bool and isinstance(value, bool):
        return value
    if wanted is str:
        return "" if value is None else str(value)
    if wanted is int and type(value) is int:
        return value
    if wanted in (int, float) and not isinstance(value, bool):
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            number = None
        if number is not None and (wanted is float or number.is_integer()):
            return wanted(number) if wanted is float else int(number)
    words = {int: "a whole number", float: "a number", bool: "true or false"}
    return Problem(f"{key}={value!r} is not {words[typing.cast(type, wanted)]}", f"Write --set {key}=VALUE")


def _closest(word: str, known: Sequence[str]) -> str:
    """Return "Did you mean ...?" or nothing."""
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    if not near:
        near = [name for name in known if name.split(".")[-1] == word.split(".")[-1]][:1]
    return f"Did you mean {near[0]!r}?" if near else ""
