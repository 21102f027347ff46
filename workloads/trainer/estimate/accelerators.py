"""TPU types: chips and topology of their slices, peaks and bandwidths of a chip. Does not need JAX.

Speeds are from the vendor's pages on system architecture; a chip's share of its host's network card is from Austin et
al., How to Scale Your Model, 2025. The memory is that available to a program, less than the chip's, as XLA's compiler
reports it for programs that are too large.
"""

import dataclasses
import difflib
import functools
import math

from trainer.errors import FatalError, Problem

_CUBE = 4  # chips along each side of the cube that large 3D slices are wired from
_MAX_CUBES = 144  # in one slice


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Chip:
    """Properties of one chip."""

    generation: str  # libtpu's name
    cores: int  # cores per chip in a type's name
    dimensions: int  # of the torus
    hbm_gib: float
    peak_bf16: float  # FLOP/s
    peak_int8: float  # OP/s
    hbm_bandwidth: float  # bytes/s
    ici_bandwidth: float  # bytes/s of one link, in one direction
    dcn_bandwidth: float  # bytes/s in one direction: the host's, divided by its chips


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """One slice of a TPU type; `topology` has its sides in chips, such as (16, 16)."""

    name: str
    chip: Chip
    topology: tuple[int, ...]

    @property
    def chips(self) -> int:
        """Number of chips in the slice."""
        return math.prod(self.topology)

    @property
    def chips_per_host(self) -> int:
        """Number of chips of one host."""
        return 1 if self.chips == 1 else 4

    @property
    def hosts(self) -> int:
        """Number of hosts in the slice."""
        return self.chips // self.chips_per_host


_V5E = Chip(
    generation="v5e",
    cores=1,
    dimensions=2,
    hbm_gib=15.75,
    peak_bf16=197e12,
    peak_int8=393e12,
    hbm_bandwidth=819e9,
    ici_bandwidth=50e9,
    dcn_bandwidth=3.125e9,
)
CHIPS = {
    "v4": Chip(
        generation="v4",
        cores=2,
        dimensions=3,
        hbm_gib=30.5,
        peak_bf16=275e12,
        peak_int8=275e12,
        hbm_bandwidth=1228e9,
        ici_bandwidth=50e9,
        dcn_bandwidth=6.25e9,
    ),
    "v5litepod": _V5E,
    "v5e": _V5E,
    "v5p": Chip(
        generation="v5p",
        cores=2,
        dimensions=3,
        hbm_gib=95.74,
        peak_bf16=459e12,
        peak_int8=918e12,
        hbm_bandwidth=2765e9,
        ici_bandwidth=100e9,
        dcn_bandwidth=6.25e9,
    ),
    "v6e": Chip(
        generation="v6e",
        cores=1,
        dimensions=2,
        hbm_gib=31.25,
        peak_bf16=918e12,
        peak_int8=1836e12,
        hbm_bandwidth=1640e9,
        ici_bandwidth=100e9,
        dcn_bandwidth=12.5e9,
    ),
}


def find_slice(tpu_type: str) -> Slice:
    """Return the slice of a type such as v5litepod-256 or v5p-4x4x4. Raises FatalError if there is none."""
    family, _, size = tpu_type.rpartition("-")
    chip = CHIPS.get(family)
    if chip is None:
        near = difflib.get_close_matches(family, CHIPS, n=1, cutoff=0.4)
        hint = f"Did you mean {near[0]}-{size}? " if near and size else ""
        raise FatalError(Problem(f"unknown TPU type {tpu_type!r}", f"{hint}Families are {', '.join(CHIPS)}"))
    fits = [sides for sides in _topologies(chip.dimensions) if size in _sizes(chip.cores, sides)]
    if not fits:
        numbers = sorted({math.prod(sides) * chip.cores for sides in _topologies(chip.dimensions)})
        close = sorted(numbers, key=lambda n: abs(n - int(size)))[:4] if size.isdecimal() else numbers[-4:]
        examples = ", ".join(f"{family}-{n}" for n in sorted(close))
        raise FatalError(Problem(f"unknown TPU type {tpu_type!r}", f"Valid types include {examples}"))
    # Of the topologies with this many chips the most cubic one, as in Google's names.
    return Slice(name=tpu_type, chip=chip, topology=min(fits, key=lambda sides: (max(sides), sides)))


@functools.cache
def _sizes(cores: int, sides: tuple[int, ...]) -> tuple[str, str]:
    """Return the valid sizes after the family name: the number of cores, or the topology."""
    return str(math.prod(sides) * cores), "x".join(map(str, sides))


@functools.cache
def _topologies(dimensions: int) -> tuple[tuple[int, ...], ...]:
    """Return the valid topologies of slices."""
    if dimensions == 2:
        return (1, 1), (2, 2), (2, 4), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16)
    boxes = [
        (a * _CUBE, b * _CUBE, c * _CUBE)
        for a in range(1, _MAX_CUBES + 1)
        for b in range(1, _MAX_CUBES // a + 1)
        for c in range(1, _MAX_CUBES // (a * b) + 1)
    ]
    return (2, 2, 1), (2, 2, 2), (2, 2, 4), (2, 4, 4), *boxes
