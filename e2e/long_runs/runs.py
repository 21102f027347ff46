"""The long runs: a command each, and the lines of its output that are its result."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

_CELL = r"^\d+/\d+ (.*failed.*|.*not run.*)$"  # the others are in docs/chaos.md
_PYTEST = r"^=+ (.*(?:passed|failed|error).*?) =+$"


@dataclass(frozen=True, slots=True)
class LongRun:
    """A command, and a pattern whose first group is the result in each line that matches."""

    name: str
    title: str
    command: tuple[str, ...]
    result: str
    minutes: int  # on two cores, roughly
    parts: str = ""  # the page with the last result of each part, which can be run alone

    def results_in(self, lines: Iterable[str]) -> list[str]:
        """Return the results in the lines of the command's output."""
        matches = (re.search(self.result, line.rstrip("\n")) for line in lines)
        return [match[1] for match in matches if match]


def _python(*arguments: str) -> tuple[str, ...]:
    return ("python", "-m", *arguments)


RUNS = (
    LongRun("drills", "All drills, and all slow tests", ("make", "SELECTED=", "e2e"), _PYTEST, 50),
    LongRun("chaos", "Every kind of fault on local hosts", ("make", "chaos"), _CELL, 60, "chaos.md#on-local"),
    LongRun(
        "chaos-kind",
        "Every kind of fault on kind",
        _python("e2e.matrix", "--platform", "kind"),
        _CELL,
        90,
        "chaos.md#on-kind",
    ),
    LongRun(
        "soak",
        "500 random faults in one local run",
        _python("e2e.soak", "--faults", "500"),
        r"^(\d+ of \d+ faults survived.*)$",
        120,
    ),
    LongRun(
        "soak-elastic",
        "200 random faults in a local run of elastic slices",
        _python("e2e.soak", "--min-slices", "3", "--faults", "200"),
        r"^(\d+ of \d+ faults survived.*|stall: .*)$",
        60,
    ),
    LongRun(
        "soak-kind",
        "50 random faults in one run on kind",
        _python("e2e.soak.on_kind"),
        r"^(\d+ of \d+ faults survived.*|in place: .*)$",
        60,
    ),
    LongRun("fuzz", "Hostile inputs", ("make", "fuzz"), _PYTEST, 15),
    LongRun(
        "simulation",
        "Simulated clusters",
        _python("tests.simulation", "--hours", "1000000"),
        r"^([\d,]+ worlds, .*|world .* fails.*)$",
        60,
    ),
    LongRun(
        "simulated-checkpoints",
        "Simulated checkpoints of a job",
        _python("tests.simulation.checkpoints", "--lives", "20000"),
        r"^([\d,]+ lives, .*|life .* fails.*)$",
        10,
    ),
    LongRun(
        "simulated-slices",
        "Simulated elastic slices",
        _python("tests.simulation.membership", "--lives", "10000"),
        r"^([\d,]+ lives, .*|life .* fails.*)$",
        10,
    ),
    LongRun(
        "queue-traces",
        "The simulated queue next to Kueue",
        _python("e2e.queue_traces"),
        r"^([\d,]+ of [\d,]+ admissions and preemptions are equal .*)$",
        25,
    ),
    LongRun(
        "mutation",
        "Random changes that tests must notice",
        ("make", "mutation"),
        r"^  (\d+ of \d+ noticed.*)$",
        120,
        "correctness.md#random-mutations",
    ),
    LongRun(
        "simulated-bugs",
        "Bugs that the simulation must find",
        _python("tests.simulation.mutants"),
        r"^(\S+ +[\d.]+ s  .*)$",
        3,
    ),
)
