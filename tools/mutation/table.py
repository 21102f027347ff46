"""Table of mutation testing, modules.yaml: modules, the tests that must notice changes of them, and equivalent ones."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import yaml

TABLE = Path(__file__).with_name("modules.yaml")


@dataclass(frozen=True, slots=True)
class Equivalent:
    """A change after which the module behaves the same: `old` and `new` are lines without indentation."""

    old: str
    new: str
    why: str


@dataclass(frozen=True, slots=True)
class Target:
    """A module, the tests that must notice changes of it, and changes that nobody can notice.

    `tests`: pytest's arguments, for one run after the other. `functions`: those that are changed, by default all code.
    """

    name: str
    module: str
    tests: tuple[str, ...]
    functions: tuple[str, ...] = ()
    equivalent: tuple[Equivalent, ...] = ()

    def reason(self, old: str, new: str) -> str:
        """Return why a change is equivalent, or "" if it is not listed."""
        return next((item.why for item in self.equivalent if (item.old, item.new) == (old, new)), "")


def read_targets() -> tuple[Target, ...]:
    """Return the targets in the order of the table."""
    entries = yaml.safe_load(TABLE.read_text(encoding="utf-8"))
    return tuple(
        Target(
            entry["name"],
            entry["module"],
            tuple(entry["tests"]),
            tuple(entry.get("functions", ())),
            tuple(Equivalent(**item) for item in entry.get("equivalent", ())),
        )
        for entry in entries
    )
