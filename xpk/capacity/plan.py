"""A plan: named steps, shown before any is taken. Taking them again changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Step:
    """One change: what it does, in words, and the doing."""

    title: str
    act: Callable[[], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps from what there is to what is wanted. `summary` says what the result will be."""

    summary: str
    steps: list[Step] = field(default_factory=list)
    alone: Callable[[], AbstractContextManager[None]] = nullcontext

    def carry_out(self, progress: Progress) -> None:
        """Take the steps in order, telling of each as it is done.

        `alone` keeps others from changing the same cluster meanwhile; it raises ConflictError if one has since
        the plan was made.
        """
        with self.alone():
            for step in self.steps:
                step.act()
                progress(step.title)
