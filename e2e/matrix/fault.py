"""Kinds of faults."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from e2e.matrix.cell import Cell

LOCAL, KIND = "local", "kind"
PLATFORMS = (LOCAL, KIND)
TRAINER, PLAIN, RAY = "trainer", "plain", "ray"
PROGRAMS = (TRAINER, PLAIN, RAY)


class Holds(StrEnum):
    """Conditions that have to hold after a fault."""

    CONTINUES = "no host restarts, no step is lost"
    RESTARTS = "all hosts run again; only steps since the newest checkpoint are lost"
    SAVES = "the state is saved first: no step is lost, and the restart is not counted"
    REFUSED = "the workload or the command fails at once and names the cause"


@dataclass(frozen=True, slots=True)
class Fault:
    """A kind of fault. `inject` starts a run, injects the fault, and checks what is special about it.

    `inapplicable` has the reason for each program, or "program on platform", to which it does not apply.
    """

    name: str
    description: str
    holds: Holds
    platforms: tuple[str, ...]
    inapplicable: Mapping[str, str]
    inject: Callable[[Cell], None]

    def why_not(self, platform: str, program: str) -> str:
        """Return why the fault does not apply to a cell, or ""."""
        if platform not in self.platforms:
            return f"only on {' and '.join(self.platforms)}"
        return self.inapplicable.get(program, "") or self.inapplicable.get(f"{program} on {platform}", "")


FAULTS: dict[str, Fault] = {}


def fault(
    name: str, description: str, holds: Holds, *, platforms: tuple[str, ...] = PLATFORMS, **inapplicable: str
) -> Callable[[Callable[[Cell], None]], Callable[[Cell], None]]:
    """Return a decorator that registers a function as a kind of fault."""

    def register(inject: Callable[[Cell], None]) -> Callable[[Cell], None]:
        FAULTS[name] = Fault(name, description, holds, platforms, inapplicable, inject)
        return inject

    return register
