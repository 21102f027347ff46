"""Order of the collectives of a compiled program, where it follows from the program's data.

XLA on CPU runs two collectives in the order of its schedule. A deserialized program keeps that order among the
collectives of one computation, but not between a collective and a loop with collectives inside (jaxlib 0.10.2,
docs/adr/0007-kept-programs.md): hosts may then start them in different orders, and hang. Such a program may be loaded
only if one of the two depends on the data of the other.
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
    """Instructions of a computation by name, and their data dependencies."""

    def __init__(self, program: "_Program") -> None:
        self.program, self.root = program, ""
        self.instructions: dict[str, _Instruction] = {}

    def writers(self, name: str, index: int | None = None) -> set[str]:
        """Return the instructions that write a value, or an element of it, without those that only forward it."""
        instruction = self.instructions[name]
        if instruction.operation == "get-tuple-element":
            return self.writers(instruction.operands[0], instruction.index)
        if instruction.operation in ("bitcast", "opt-barrier"):
            return self.writers(instruction.operands[0], index)
        if instruction.operation == "tuple":
            chosen = instruction.operands if index is None else instruction.operands[index : index + 1]
            return set().union(*map(self.writers, chosen))
        if instruction.operation == "while" and index is not None and not self.program[instruction.body].changes(index):
            return self.writers(instruction.operands[0], index)
        return {name}

    def dependencies_of(self, name: str) -> set[str]:
        """Return the instructions whose data an instruction reads."""
        instruction = self.instructions[name]
        state = self.instructions[instruction.operands[0]] if instruction.operation == "while" else None
        if state is not None and state.operation == "tuple":
            used = [n for n in range(len(state.operands)) if any(self.program[c].uses(n) for c in instruction.called)]
            return set().union(*(self.writers(state.operands[n]) for n in used))
        return set().union(*map(self.writers, instruction.operands))

    def changes(self, index: int) -> bool:
        """Return whether a loop's body returns an element of its state changed."""
        root = self.instructions[self.root]
        if root.operation != "tuple":
            return True
        last = self.instructions[root.operands[index]]
        is_own = last.operation == "get-tuple-element" and self.instructions[last.operands[0]].operation == "parameter"
        return not (is_own and last.index == index)

    def uses(self, index: int) -> bool:
        """Return whether a loop's body or condition reads an element of its state, or returns it as another element."""
        for name, instruction in self.instructions.items():
            if instruction.operation != "get-tuple-element" or instruction.index != index:
                continue
            if self.instructions[instruction.operands[0]].operation == "parameter":
                users = [user for user, other in self.instructions.items() if name in other.operands]
                if users != [self.root] or self.changes(index):
                    return True
        return False

    def unordered_pairs(self) -> list[tuple[str, str]]:
        """Return the unordered pairs of a loop or call with collectives inside and another collective."""
        kinds = {name: self.program.collective_kind(instruction) for name, instruction in self.instructions.items()}
        before: dict[str, set[str]] = {}
        for name, instruction in self.instructions.items():  # operands come before their users
            dependencies_of = self.dependencies_of(name) if instruction.operands else set()
            before[name] = dependencies_of.union(*(before[other] for other in dependencies_of))
        return [
            (instruction, other)
            for instruction, other in itertools.combinations([name for name, kind in kinds.items() if kind], 2)
            if "inside" in (kinds[instruction], kinds[other]) and instruction not in before[other]
        ]


class _Program(dict[str, _Computation]):
    def collective_kind(self, instruction: _Instruction) -> str:
        """Return "itself" for a collective, "inside" for an instruction that runs one, otherwise ""."""
        if _COLLECTIVE.match(instruction.operation):
            return "itself"
        called = (inner for name in instruction.called if name in self for inner in self[name].instructions.values())
        return "inside" if any(map(self.collective_kind, called)) else ""


def find_unordered(hlo: str) -> list[tuple[str, str]]:
    """Return the pairs of a compiled program's instructions with collectives whose order does not follow from data.

    Raises ValueError for HLO text that cannot be parsed.
    """
    return [pair for computation in _parsed(hlo).values() for pair in computation.unordered_pairs()]


def _parsed(hlo: str) -> Mapping[str, _Computation]:
    program, current = _Program(), None
    for line in hlo.splitlines():
        if begun := _COMPUTATION.match(line):
            current = program[begun[1]] = _Computation(program)
        elif current is not None and (named := _NAMED.match(line)):
            match = _INSTRUCTION.match(line)
            if not match and " constant(" not in line:  # a constant may have several lines
                raise ValueError(f"unknown form of an HLO instruction: {line.strip()[:60]}")
            current.instructions[named[2]] = _Instruction(*match.group(1, 2, 3) if match else ("constant", "", ""))
            current.root = named[2] if named[1] else current.root
    if not program:
        raise ValueError("no HLO computation")
    return program
