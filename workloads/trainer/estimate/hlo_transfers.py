"""Transfers of a compiled program, read from its HLO text: over DCN, and inside a slice over ICI.

XLA sends over DCN with `send` instructions for the Megascale runtime, which name their collective. Inside a slice it
has collectives of three forms: synchronous ones; pairs of a start and a done; and asynchronous fusions, in which the
collective appears in the computation that starts it, in those that compute meanwhile, and in the one that ends it.
"""

import collections
import dataclasses
import math
import re
from collections.abc import Mapping

from trainer.estimate.hlo_program import array_bytes, parse

_SENT = re.compile(
    r'\((?P<dtype>[a-z]+\d+)\[(?P<shape>[\d,]*)\].* send\(.*_xla_megascale_transfer_type="(?P<kind>\w+)"'
)
_COLLECTIVE = re.compile(
    r"(?P<types>.*?) (?P<kind>all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(?P<start>-start)?\("
)
_SHAPE = re.compile(r"([a-z]+\d*)\[([\d,]*)\]")
_SCATTERED = "all-reduce-scatter"  # XLA's name for a computation whose all-reduce is scattered
_FUSED = "async_collective_fusion"  # XLA's name for a computation that runs while a collective does


@dataclasses.dataclass(frozen=True, slots=True)
class Transfer:
    """All data of one dtype that a chip passes to one kind of collective over slices, in a step."""

    kind: str  # ALL_REDUCE, ALL_GATHER, ALL_TO_ALL, ONE_TO_ONE, ...
    dtype: str
    count: int
    bytes: int

    def sent(self, slices: int) -> float:
        """Return the bytes that a chip sends in this transfer, over `slices` including its own.

        An all-reduce is a reduce-scatter and an all-gather, each of (S - 1) / S of the bytes; an all-gather is sent to
        each of the other slices, everything else once.
        """
        passes = {"ALL_REDUCE": 2 * (slices - 1) / slices, "ALL_GATHER": slices - 1}
        return self.bytes * passes.get(self.kind, 1)


@dataclasses.dataclass(frozen=True, slots=True)
class Collectives:
    """All collectives of one kind inside a slice, in a step."""

    kind: str  # all-gather, reduce-scatter, all-reduce, all-to-all, collective-permute
    asynchronous: bool  # whether the chip computes while the data is sent
    count: int
    bytes: int  # that a chip sends


def transfers(hlo: str) -> list[Transfer]:
    """Return a program's transfers to other slices in one run, largest first."""
    computations, runs = parse(hlo)
    counts: collections.Counter[tuple[str, str]] = collections.Counter()
    sizes: collections.Counter[tuple[str, str]] = collections.Counter()
    for name, times in runs.items():
        for rest in computations[name].values():
            if sent := _SENT.match(rest):
                key = sent["kind"], sent["dtype"]
                counts[key] += times
                sizes[key] += times * array_bytes(sent["dtype"], sent["shape"])
    result = [Transfer(kind, dtype, counts[kind, dtype], size) for (kind, dtype), size in sizes.items()]
    return sorted(result, key=lambda transfer: (-transfer.bytes, transfer.kind, transfer.dtype))


def slice_collectives(hlo: str) -> list[Collectives]:
    """Return a program's collectives inside a slice in one run, largest first."""
    computations, runs = parse(hlo)
    counts: collections.Counter[tuple[str, bool]] = collections.Counter()
    sizes: collections.Counter[tuple[str, bool]] = collections.Counter()
    for name, times in runs.items():
        instructions = computations[name]
        if name.startswith(_FUSED) or _has(instructions, "AsyncCollectiveDone"):
            continue  # counted where it starts
        is_fused = _has(instructions, "AsyncCollectiveStart")
        for rest in instructions.values():
            if match := _COLLECTIVE.match(rest):
                kind = "reduce-scatter" if name.startswith(_SCATTERED) else match["kind"]
                key = kind, is_fused or bool(match["start"])
                counts[key] += times
                sizes[key] += times * _sent(match, rest, name)
    result = [Collectives(kind, is_async, counts[kind, is_async], size) for (kind, is_async), size in sizes.items()]
    return sorted(result, key=lambda one: (-one.bytes, one.kind))


def unscattered_shapes(hlo: str) -> set[tuple[int, ...]]:
    """Return the shapes of arrays that a program all-reduces in full on every chip, rather than scattering."""
    shapes = set()
    for name, instructions in parse(hlo)[0].items():
        for rest in () if name.startswith(_SCATTERED) else instructions.values():
            match = _COLLECTIVE.match(rest)
            if match and match["kind"] == "all-reduce":
                shapes |= {tuple(map(int, filter(None, s.split(",")))) for _, s in _SHAPE.findall(match["types"])}
    return shapes


def _has(instructions: Mapping[str, str], target: str) -> bool:
    return any(f'custom_call_target="{target}"' in rest for rest in instructions.values())


def _sent(match: re.Match[str], rest: str, computation: str) -> int:
    """Return the bytes that a chip sends in a collective of n chips, on rings or a torus without duplicates."""
    shapes = _SHAPE.findall(match["types"])
    if match["start"] and match["kind"] in ("all-gather", "collective-permute"):
        shapes = shapes[1:2]  # (operand, result, ...)
    size, n = sum(array_bytes(*shape) for shape in shapes), _group_size(rest)
    if match["kind"] == "collective-permute":
        return size
    if match["kind"] == "reduce-scatter":
        return size * (n - 1)  # of its result
    times = 2 if match["kind"] == "all-reduce" and not computation.startswith(_SCATTERED) else 1
    return times * size * (n - 1) // n


def _group_size(rest: str) -> int:
    """Return the number of chips in a group, in any of the forms that XLA prints."""
    if listed := re.search(r"replica_groups=\{\{([\d,]+)\}", rest):
        return listed[1].count(",") + 1
    if iota := re.search(r"replica_groups=\[\d+,(\d+)\]<=", rest):
        return int(iota[1])
    if named := re.search(r"replica_groups=mesh\[(.*?)\].*? \{(.*?)\}", rest):
        sizes = {name: int(size) for name, size in re.findall(r"'(\w+)'=(\d+)", named[1])}
        return math.prod(sizes[name] for name in re.findall(r"'(\w+)'", named[2]))
    return 1
