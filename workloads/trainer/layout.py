"""How a configuration fits the chips it is given: sizes and divisibility, without JAX."""

import dataclasses
import typing
from collections.abc import Iterator

from trainer.config import Config, sections
from trainer.errors import Problem

_LARGEST = {"run.seed": 2**32 - 1, "data.seed": 2**32 - 1, "data.max_bytes": 2**63 - 1}  # others: an int32


@dataclasses.dataclass(frozen=True, slots=True)
class Chips:
    """The chips of a job."""

    num_slices: int
    hosts_per_slice: int
    chips_per_host: int

    @property
    def hosts(self) -> int:
        """Hosts of the whole job."""
        return self.num_slices * self.hosts_per_slice

    @property
    def total(self) -> int:
        """Chips of the whole job."""
        return self.hosts * self.chips_per_host


@dataclasses.dataclass(frozen=True, slots=True)
class Layout:
    """Sizes of the mesh axes and of the global batch."""

    dp: int
    fsdp: int
    tp: int
    global_batch: int
    loader_hosts: int


def layout(config: Config, chips: Chips) -> Layout:
    """Return the sizes that `config` comes to on `chips`; meaningful if `check` finds nothing."""
    dp = config.mesh.dp or chips.num_slices
    return Layout(
        dp=dp,
        fsdp=max(1, chips.total // (dp * config.mesh.tp)),
        tp=config.mesh.tp,
        global_batch=config.data.global_batch or config.data.batch_per_chip * chips.total,
        loader_hosts=config.data.loader_hosts or chips.hosts,
    )


def check(config: Config, chips: Chips) -> list[Problem]:
    """Return everything that keeps `config` from running on `chips`, in plain words."""
    problems = list(_ranges(config))
    if problems:
        return problems
    mesh = layout(config, chips)
    problems += _mesh_problems(config, chips, mesh)
    if problems:
        return problems
    problems += [
        _indivisible(name, value, by, by_name)
        for name, value, by, by_name in (
            (
                "the global batch",
                mesh.global_batch,
                mesh.dp * mesh.fsdp,
                f"dp x fsdp = {mesh.dp} x {mesh.fsdp}",
            ),
            ("model.embed", config.model.embed, mesh.fsdp, "fsdp"),
            ("model.heads", config.model.heads, mesh.tp, "mesh.tp"),
            ("model.mlp", config.model.mlp, mesh.tp, "mesh.tp"),
            ("model.vocab", config.model.vocab, mesh.tp, "mesh.tp"),
            ("model.seq_len", config.model.seq_len, mesh.tp, "mesh.tp"),
        )
        if value % by
    ]
    if chips.hosts % mesh.loader_hosts:
        fits = [str(n) for n in range(1, chips.hosts + 1) if chips.hosts % n == 0]
        problems.append(
            Problem(
                f"data.loader_hosts = {mesh.loader_hosts} does not divide the {chips.hosts} hosts",
                f"Values that work: {', '.join(fits)}",
            )
        )
    return problems


def _mesh_problems(config: Config, chips: Chips, mesh: Layout) -> Iterator[Problem]:
    per_slice = chips.total // chips.num_slices
    if mesh.dp % chips.num_slices:
        yield Problem(
            f"mesh.dp = {mesh.dp} is not a multiple of the {chips.num_slices} slices",
            f"Leave it out, or use {_nearest(mesh.dp, chips.num_slices)}",
        )
    elif per_slice % (mesh.tp * (mesh.dp // chips.num_slices)):
        fits = [str(n) for n in range(1, per_slice + 1) if per_slice % n == 0]
        yield Problem(
            f"a slice's {per_slice} chips cannot be split into mesh.tp = {mesh.tp}"
            + (f" x {mesh.dp // chips.num_slices} (mesh.dp per slice)" if mesh.dp > chips.num_slices else ""),
            f"Values that divide {per_slice}: {', '.join(fits)}",
        )
    if config.data.global_batch and config.data.batch_per_chip != 1:
        yield Problem(
            "data.global_batch and data.batch_per_chip are both set",
            "Set data.global_batch=0 to use batch_per_chip, or leave batch_per_chip at 1",
        )


def _indivisible(name: str, value: int, by: int, by_name: str) -> Problem:
    size = by_name if "=" in by_name else f"{by_name} = {by}"
    return Problem(f"{name} = {value} is not divisible by {size}", f"Nearest that work: {_nearest(value, by)}")


def _nearest(value: int, by: int) -> str:
    below = value // by * by
    return f"{below} or {below + by}" if below else str(by)


def _ranges(config: Config) -> Iterator[Problem]:
    """Yield the settings that make no sense on any machine."""
    may_be_zero = {
        *("mesh.dp", "data.max_bytes", "data.global_batch", "data.loader_hosts", "data.seed"),
        *("data.eval_fraction", "optim.warmup", "optim.final_fraction", "optim.weight_decay"),
        *("optim.b1", "optim.b2", "run.eval_every", "run.seed"),
    }
    below_one = {"data.eval_fraction", "optim.b1", "optim.b2"}
    for section, kind in sections().items():
        for field in dataclasses.fields(typing.cast(typing.Any, kind)):
            key, value = f"{section}.{field.name}", getattr(getattr(config, section), field.name)
            if isinstance(value, (str, bool)):
                continue
            if not 0 <= value < float("inf") or (value == 0 and key not in may_be_zero):
                hint = "Use 0 or more" if key in may_be_zero else "Use more than 0"
                yield Problem(f"{key} = {value} is out of range", hint)
            elif isinstance(value, int) and value > (most := _LARGEST.get(key, 2**31 - 1)):
                yield Problem(f"{key} = {value} is out of range", f"Use {most} or less")
            elif key in below_one and value >= 1:
                yield Problem(f"{key} = {value} is out of range", "It must be below 1")
    if config.model.head_dim % 2:
        yield Problem(f"model.head_dim = {config.model.head_dim} is odd", "The rotary embedding needs pairs")
    if config.model.compute_dtype not in ("bfloat16", "float32"):
        yield Problem(f"model.compute_dtype = {config.model.compute_dtype!r} is unknown", "Use bfloat16 or float32")
