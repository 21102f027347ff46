"""A compiled program's instructions, read from its HLO text, and how often each computation runs.

An instruction in a loop runs once per trip; the trip count is read from the loop's condition. Of the branches of a
conditional the last one runs: that of the longest pairs (models/pairs.py).
"""

import collections
import math
import re
from collections.abc import Iterator, Mapping

_COMPUTATION = re.compile(r"(ENTRY )?%?(?P<name>[\w.-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"  (?:ROOT )?%?(?P<name>[\w.-]+) = (?P<rest>.*)")
_WHILE = re.compile(r"while\(%?(?P<state>[\w.-]+)\), condition=%?(?P<condition>[\w.-]+), body=%?(?P<body>[\w.-]+)")
_BRANCHES = re.compile(r"branch_computations=\{.*?%?([\w.-]+)\}")
_CALLED = re.compile(r"(?:calls|to_apply)=%?([\w.-]+)")
_COMPARED = re.compile(r"compare\(%?(?P<index>[\w.-]+), %?(?P<limit>[\w.-]+)\), direction=LT")

Computations = dict[str, dict[str, str]]  # instructions of each computation: name -> text after the "="


def parse(hlo: str) -> tuple[Computations, dict[str, int]]:
    """Return the computations of a program, and how often each runs."""
    computations, entry = _computations(hlo)
    return computations, _runs(computations, entry)


def array_bytes(dtype: str, shape: str) -> int:
    """Return the bytes of an array, given as in HLO: "bf16", "8,128"."""
    digits = re.findall(r"\d+", dtype)
    bits = int(digits[0]) if digits else 8  # pred
    return math.prod(int(side) for side in shape.split(",") if side) * bits // 8


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
        elif called := _BRANCHES.search(rest) or _CALLED.search(rest):
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
