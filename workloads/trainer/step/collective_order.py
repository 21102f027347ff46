"""Order of the collectives of a compiled program, where it follows from the program's data.

XLA on CPU runs two collectives in the order of its schedule. A program that is read back keeps that order among the
collectives of one computation, but not between a collective and a loop with collectives inside (jaxlib 0.10.2,
docs/adr/0007-kept-programs.md): hosts may then start them in different orders, and hang. Such a program may be loaded
only if the data of the one comes from the other.
"""

import itertools
import re
from collections.abc import Mapping

_COMPUTATION = re.compile(r"(?:ENTRY )?%?([\w.-]+) \(.*\{$")
_NAMED = re.compile(r"  (ROOT )?%?([\w.-]+) = ")
_INSTRUCTION = re.compile(r"  (?:ROOT )?%?[\w.-]+ = (?:\(.*?\)|\S+) ([\w-]+)\((.*?)\)(?=,|$)(.*)")
_CALLED = re.compile(
    r"(?:body|condition|to_apply|calls|branch_computations|(?:true|false)_computation)=(%[\w.-]+|\{[^}]*\})"
)
_NAME = re.compile(r"%([\w.-]+)")
_INDEX = re.compile(r"index=(\d+)")
_COLLECTIVE = re.compile(r"(all-|reduce-scatter|collective-|ragged-all-)")


class _Instruction:
    def __init__(self, operation: str, operands: str, rest: str) -> None:
        self.operation = operation
        self.operands = _NAME.findall(operands)
        self.called = [name for names in _CALLED.findall(rest) for name in _NAME.findall(names)]
        index = _INDEX.search(rest)
        self.index = int(index[1]) if index else None
        body = re.search(r"body=%([\w.-]+)", rest)
        self.body = body[1] if body else ""


class _Computation:
    """Instructions by name, and which of them wait for which others' data."""

    def __init__(self, program: "_Program") -> None:
        self.program, self.root = program, ""
        self.instructions: dict[str, _Instruction] = {}

    def writers(self, name: str, index: int | None = None) -> set[str]:
        """Return the instructions that write a value, or an element of it: not those that only pass it on."""
        one = self.instructions[name]
        if one.operation == "get-tuple-element":
            return self.writers(one.operands[0], one.index)
        if one.operation in ("bitcast", "opt-barrier"):
            return self.writers(one.operands[0], index)
        if one.operation == "tuple":
            chosen = one.operands if index is None else one.operands[index : index + 1]
            return set().union(*map(self.writers, chosen))
        if one.operation == "while" and index is not None and not self.program[one.body].changes(index):
            return self.writers(one.operands[0], index)
        return {name}

    def awaited(self, name: str) -> set[str]:
        """Return the instructions whose data an instruction reads."""
        one = self.instructions[name]
        state = self.instructions[one.operands[0]] if one.operation == "while" else None
        if state is not None and state.operation == "tuple":
            used = [n for n in range(len(state.operands)) if any(self.program[c].uses(n) for c in one.called)]
            return set().union(*(self.writers(state.operands[n]) for n in used))
        return set().union(*map(self.writers, one.operands))

    def changes(self, index: int) -> bool:
        """Return whether a loop's body returns another value for an element of its state than it was given."""
        root = self.instructions[self.root]
        if root.operation != "tuple":
            return True
        last = self.instructions[root.operands[index]]
        is_own = last.operation == "get-tuple-element" and self.instructions[last.operands[0]].operation == "parameter"
        return not (is_own and last.index == index)

    def uses(self, index: int) -> bool:
        """Return whether a loop's body or condition reads an element of its state, or returns it as another one."""
        for name, one in self.instructions.items():
            if one.operation != "get-tuple-element" or one.index != index:
                continue
            if self.instructions[one.operands[0]].operation == "parameter":
                users = [user for user, other in self.instructions.items() if name in other.operands]
                if users != [self.root] or self.changes(index):
                    return True
        return False

    def free_pairs(self) -> list[tuple[str, str]]:
        """Return the pairs of a loop or call with collectives inside and another collective, without order."""
        meeting = {name: self.program.meets(one) for name, one in self.instructions.items()}
        before: dict[str, set[str]] = {}
        for name, one in self.instructions.items():  # operands come before their users
            awaited = self.awaited(name) if one.operands else set()
            before[name] = awaited.union(*(before[other] for other in awaited))
        return [
            (one, other)
            for one, other in itertools.combinations([name for name, kind in meeting.items() if kind], 2)
            if "inside" in (meeting[one], meeting[other]) and one not in before[other]
        ]


class _Program(dict[str, _Computation]):
    def meets(self, one: _Instruction) -> str:
        """Return "itself" for a collective, "inside" for an instruction that runs one, otherwise ""."""
        if _COLLECTIVE.match(one.operation):
            return "itself"
        called = (inner for name in one.called if name in self for inner in self[name].instructions.values())
        return "inside" if any(map(self.meets, called)) else ""


def unordered(hlo: str) -> list[tuple[str, str]]:
    """Return the pairs of instructions with collectives of a compiled program that no data puts into an order.

    Raises ValueError for text that is not understood.
    """
    return [pair for computation in _parsed(hlo).values() for pair in computation.free_pairs()]


def _parsed(hlo: str) -> Mapping[str, _Computation]:
    program, inside = _Program(), None
    for line in hlo.splitlines():
        if begun := _COMPUTATION.match(line):
            inside = program[begun[1]] = _Computation(program)
        elif inside is not None and (named := _NAMED.match(line)):
            match = _INSTRUCTION.match(line)
            if not match and " constant(" not in line:  # a constant may have several lines
                raise ValueError(f"unknown form of an HLO instruction: {line.strip()[:60]}")
            inside.instructions[named[2]] = _Instruction(*match.group(1, 2, 3) if match else ("constant", "", ""))
            inside.root = named[2] if named[1] else inside.root
    if not program:
        raise ValueError("no HLO computation")
    return program
