"""Operators that cosmic-ray lacks, with its interface: `mutation_positions` and `mutate`, on trees of parso."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import parso
from parso.python.tree import Keyword, Operator

Position = tuple[tuple[int, int], tuple[int, int]]


class RemoveStatement:
    """Replaces a statement that has an effect by `pass`: a call, a return, a raise, or an assignment to a part."""

    def mutation_positions(self, node: Any) -> Iterator[Position]:
        """Yield the position of a statement that can be removed."""
        if node.type == "simple_stmt" and _has_effect(node.children[0]):
            yield node.children[0].start_pos, node.children[0].end_pos

    def mutate(self, node: Any, index: int) -> Any:
        """Return the node with `pass`."""
        first = node.get_first_leaf()
        node.children[0] = Keyword("pass", first.start_pos, first.prefix)
        return node


class NegateMembership:
    """Replaces `in` by `not in`, and the reverse."""

    def mutation_positions(self, node: Any) -> Iterator[Position]:
        """Yield the positions of the operators of a comparison."""
        for operator in self._operators(node):
            yield operator.start_pos, operator.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        """Return the node with another operator."""
        operator = self._operators(node)[index]
        word = "in" if _words(operator) == "not in" else "not in"
        node.children[node.children.index(operator)] = Operator(word, operator.start_pos, " ")
        return node

    @staticmethod
    def _operators(node: Any) -> list[Any]:
        return [item for item in node.children[1::2] if _words(item) in ("in", "not in")] if _compares(node) else []


class NegateFilter:
    """Negates the condition of a comprehension."""

    def mutation_positions(self, node: Any) -> Iterator[Position]:
        """Yield the position of a comprehension's condition."""
        if node.type == "comp_if":
            yield node.children[1].start_pos, node.children[1].end_pos

    def mutate(self, node: Any, index: int) -> Any:
        """Return the node with the opposite condition."""
        node.children[1] = parso.parse(f" not ({node.children[1].get_code().strip()})")
        return node


OWN = {operator.__name__: operator for operator in (RemoveStatement, NegateMembership, NegateFilter)}


def _compares(node: Any) -> bool:
    return bool(node.type == "comparison")


def _words(node: Any) -> str:
    return " ".join(node.get_code().split())


def _has_effect(node: Any) -> bool:
    """Return whether a statement is one to remove; without a plain assignment, no later line would run."""
    if node.type in ("return_stmt", "raise_stmt"):
        return True
    if node.type in ("atom_expr", "power"):
        return bool(node.children[-1].type == "trailer" and node.children[-1].children[0].value == "(")
    if node.type != "expr_stmt" or node.children[1].type == "annassign":
        return False
    return node.children[0].type in ("atom_expr", "power") or node.children[1].get_code().strip() != "="
