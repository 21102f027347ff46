"""Changes of a module, and a random draw of them: at most one for each place, so that no line dominates."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names

from tools.mutation.operators import OWN

# Of each comparison: its boundary and its opposite. Other pairs fail at once, or are the same for numbers and enums.
_COMPARISONS = (
    "Eq_NotEq", "NotEq_Eq", "Lt_LtE", "Lt_GtE", "LtE_Lt", "LtE_Gt", "Gt_GtE", "Gt_LtE", "GtE_Gt", "GtE_Lt",
    "Is_IsNot", "IsNot_Is",
)  # fmt: skip
_ARITHMETIC = (
    "Add_Sub", "Sub_Add", "Mul_Div", "Div_Mul", "FloorDiv_Mul", "Mod_Mul", "Pow_Mul", "BitOr_BitAnd", "BitAnd_BitOr",
)  # fmt: skip
_UNARY = ("Delete_Not", "USub_UAdd")
_OTHERS = (
    "AddNot", "ReplaceTrueWithFalse", "ReplaceFalseWithTrue", "ReplaceAndWithOr", "ReplaceOrWithAnd",
    "ReplaceBreakWithContinue", "ReplaceContinueWithBreak", "ExceptionReplacer", "NumberReplacer",
    "ZeroIterationForLoop",
)  # fmt: skip
_CHOSEN = re.compile(
    rf"core/(ReplaceComparisonOperator_({'|'.join(_COMPARISONS)})|ReplaceBinaryOperator_({'|'.join(_ARITHMETIC)})"
    rf"|ReplaceUnaryOperator_({'|'.join(_UNARY)})|{'|'.join(_OTHERS)})"
)


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of a module: the line before and after it, both without indentation, and the module's new code."""

    operator: str
    line: int
    old: str
    new: str
    code: str


def draw(source: str, functions: Collection[str], most: int | None, seed: str) -> tuple[list[Mutant], int]:
    """Return at most `most` changes of a module in the order of their lines, and the number of places to change.

    `functions`: those that are changed; all code if empty. The draw is determined by the seed and the source. Changes
    of annotations are left out.
    """
    rng, places = Random(seed), _places(source, functions)
    candidates = list(places.values())
    rng.shuffle(candidates)
    drawn, meanings = list[Mutant](), {_meaning(source)}
    for place in candidates:
        if len(drawn) == most:
            break
        rng.shuffle(place)
        for name, operator, occurrence in place:
            code = mutate_code(source, operator, occurrence) or source
            if (meaning := _meaning(code)) and meaning not in meanings:
                meanings.add(meaning)
                drawn.append(_mutant(name, source, code))
                break
    return sorted(drawn, key=lambda mutant: mutant.line), len(places)


def _places(source: str, functions: Collection[str]) -> dict[object, list[tuple[str, Any, int]]]:
    """Return the possible changes by their place: (name of the operator, operator, occurrence)."""
    nodes, places = list(ast_nodes(get_ast(source))), dict[object, list[tuple[str, Any, int]]]()
    for name, operator in _operators():
        positions = [(node, place) for node in nodes for place in operator.mutation_positions(node)]
        for occurrence, (node, place) in enumerate(positions):
            if _is_changed(node, functions):
                places.setdefault(place, []).append((name, operator, occurrence))
    return places


def _operators() -> Iterator[tuple[str, Any]]:
    for name in sorted(operator_names()):
        if _CHOSEN.fullmatch(name):
            yield name.partition("/")[2], get_operator(name)()
    for name, kind in OWN.items():
        yield name, kind()


def _is_changed(node: Any, functions: Collection[str]) -> bool:
    """Return whether a node is in one of the functions, if any are named, and no part of a declaration."""
    is_chosen = not functions
    if node.parent and node.parent.type == "parameters":  # the `*` before keywords
        return False
    while node:
        if node.type in ("decorator", "import_from", "import_name"):
            return False
        is_chosen = is_chosen or (node.type == "funcdef" and node.name.value in functions)
        node = node.parent
    return is_chosen


def _mutant(operator: str, source: str, code: str) -> Mutant:
    before, after = source.splitlines(), code.splitlines()
    line = next(n for n, pair in enumerate(zip(before, after, strict=False)) if pair[0] != pair[1])
    joined = len(before) - len(after)  # lines of a statement that was removed
    old = " ".join(text.strip() for text in before[line : line + joined + 1])
    new = after[line].strip()
    begin = next((n for n, pair in enumerate(zip(old, new, strict=False)) if pair[0] != pair[1]), len(old))
    if operator == "NumberReplacer" and new[begin] == " ":  # that cosmic-ray adds
        new = new[:begin] + new[begin + 1 :]
    return Mutant(operator, line + 1, old, new, code)


def _meaning(code: str) -> str:
    """Return the syntax tree of a module without annotations, which are not evaluated; "" if its syntax is invalid."""
    try:
        tree = ast.parse(code)
    except SyntaxError:
        return ""
    for node in ast.walk(tree):
        if isinstance(node, ast.arg | ast.AnnAssign):
            node.annotation = ast.Constant(None)
        elif isinstance(node, ast.FunctionDef):
            node.returns = None
    return ast.dump(tree)
