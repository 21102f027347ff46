"""DCN transfers of a compiled program, read from its HLO text.

XLA sends over DCN with `send` instructions for the Megascale runtime, which name their collective. An instruction in a
loop counts once per trip; the trip count is read from the loop's condition.
"""

import collections
import dataclasses
import math
import re
from collections.abc import Iterator, Mapping

_COMPUTATION = re.compile(r"(ENTRY )?%?(?P<name>[\w.-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"  (?:ROOT )?%?(?P<name>[\w.-]+) = (?P<rest>.*)")
_WHILE = re.compile(r"while\(%?(?P<state>[\w.-]+)\), condition=%?(?P<condition>[\w.-]+), body=%?(?P<body>[\w.-]+)")
_CALLED = re.compile(r"(?:calls|to_apply)=%?([\w.-]+)")
_COMPARED = re.compile(r"compare\(%?(?P<index>[\w.-]+), %?(?P<limit>[\w.-]+)\), direction=LT")
_SENT = re.compile(
    r'\((?P<dtype>[a-z]+\d+)\[(?P<shape>[\d,]*)\].* send\(.*_xla_megascale_transfer_type="(?P<kind>\w+)"'
)

_REDUCED = re.compile(r"(?P<types>.*?) all-reduce(?:-start)?\(")
_SHAPE = re.compile(r"[a-z]+\d+\[(?P<shape>[\d,]*)\]")
_SCATTERED = "all-reduce-scatter"  # XLA's name for a computation whose all-reduce is scattered


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


def transfers(hlo: str) -> list[Transfer]:
    """Return a program's transfers to other slices in one run, largest first."""
    computations, entry = _computations(hlo)
    counts: collections.Counter[tuple[str, str]] = collections.Counter()
    sizes: collections.Counter[tuple[str, str]] = collections.Counter()
    for name, times in _runs(computations, entry).items():
        for rest in computations[name].values():
            if sent := _SENT.match(rest):
                key = sent["kind"], sent["dtype"]
                counts[key] += times
                sizes[key] += times * _bytes(sent["dtype"], sent["shape"])
    result = [Transfer(kind, dtype, counts[kind, dtype], size) for (kind, dtype), size in sizes.items()]
    return sorted(result, key=lambda transfer: (-transfer.bytes, transfer.kind, transfer.dtype))


def unscattered_shapes(hlo: str) -> set[tuple[int, ...]]:
    """Return the shapes of arrays that a program all-reduces in full on every chip, rather than scattering."""
    shapes = set()
    for name, instructions in _computations(hlo)[0].items():
        for rest in () if name.startswith(_SCATTERED) else instructions.values():
            if reduced := _REDUCED.match(rest):
                shapes |= {tuple(map(int, filter(None, s.split(",")))) for s in _SHAPE.findall(reduced["types"])}
    return shapes


def _computations(hlo: str) -> tuple[dict[str, dict[str, str]], str]:
    """Return every computation's instructions by name, and the name of the entry computation."""
    computations: dict[str, dict[str, str]] = {}
    entry = current = ""
    for line in hlo.splitlines():
        if begun := _COMPUTATION.match(line):
            current = begun["name"]
            computations[current] = {}
            entry = current if begun[1] else entry
        elif current and (instruction := _INSTRUCTION.match(line)):
            computations[current][instruction["name"]] = instruction["rest"]
    return computations, entry


def _runs(computations: Mapping[str, Mapping[str, str]], entry: str) -> dict[str, int]:
    """Return the number of times that each computation runs."""
    runs: collections.Counter[str] = collections.Counter()
    stack = [(entry, 1)]
    while stack:
        name, times = stack.pop()
        runs[name] += times
        stack += [(called, times * trips) for called, trips in _calls(computations, name) if called in computations]
    return runs


def _calls(computations: Mapping[str, Mapping[str, str]], name: str) -> Iterator[tuple[str, int]]:
    for rest in computations[name].values():
        if loop := _WHILE.search(rest):
            yield loop["body"], _trips(computations, name, loop["state"], loop["condition"])
        elif called := _CALLED.search(rest):
            yield called[1], 1


def _trips(computations: Mapping[str, Mapping[str, str]], caller: str, state: str, condition: str) -> int:
    """Return the trip count of a loop that counts by one, from a constant to below another; else 1."""
    instructions = computations.get(condition, {})
    for rest in instructions.values():
        if compared := _COMPARED.search(rest):
            limit = _constant(instructions, compared["limit"])
            position = re.search(r"index=(\d+)", instructions.get(compared["index"], ""))
            operands = re.findall(r"%([\w.-]+)", computations[caller].get(state, "").partition(" tuple(")[2])
            place = int(position[1]) if position else 0
            first = _constant(computations[caller], operands[place]) if place < len(operands) else None
            if limit is not None:
                return max(0, limit - (first or 0))
    return 1


def _constant(instructions: Mapping[str, str], name: str) -> int | None:
    """Return the integer that an instruction computes, through copies of it."""
    rest = instructions.get(name, "")
    if number := re.search(r" constant\((-?\d+)\)", rest):
        return int(number[1])
    copied = re.search(r" (?:copy|bitcast)\(%?([\w.-]+)\)", rest)
    return _constant(instructions, copied[1]) if copied else None


def _bytes(dtype: str, shape: str) -> int:
    bits = int(re.findall(r"\d+", dtype)[0])
    return math.prod(int(side) for side in shape.split(",") if side) * bits // 8
