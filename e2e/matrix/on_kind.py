"""The cluster of a cell on kind, commands in its nodes, and lost packets."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

from e2e.harness import DrillError
from e2e.kind_cluster import KindLab, Place
from e2e.matrix.cell import Cell

AWAY_SECONDS, FROZEN_SECONDS = 30.0, 10.0


def place_of_cell(cell: Cell) -> Place:
    """Return the cluster of a cell. Raises DrillError on local hosts."""
    if not isinstance(cell.lab, KindLab):
        raise DrillError("only on kind")
    return Place(cell.lab)


def in_node(node: str, *argv: str) -> str:
    """Run a command in a node; return its output. Raises DrillError if it fails: its fault was not injected."""
    done = subprocess.run(["docker", "exec", node, *argv], check=False, capture_output=True, text=True)
    if done.returncode:
        raise DrillError(f"{node}: {' '.join(argv)}: {done.stderr.strip() or done.returncode}")
    return done.stdout


def dropping(node: str, chain: str, *rules: list[str]) -> tuple[Callable[[], None], Callable[[], None]]:
    """Return what makes a node drop packets, and what ends that."""
    present = list[list[str]]()

    def begin() -> None:
        for rule in rules:
            in_node(node, "iptables", "-I", chain, *rule, "-j", "DROP")
            present.append(rule)

    def end() -> None:
        while present:
            in_node(node, "iptables", "-D", chain, *present.pop(), "-j", "DROP")

    return begin, end
