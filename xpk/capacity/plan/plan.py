"""A plan: named steps, shown before any is taken. Taking them again changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from xpk.capacity.plan.executor import Activity, Crew, Step
from xpk.model.errors import UsageError, XpkError

__all__ = ["Plan", "Progress", "Step"]

Progress = Callable[[str], None]
Live = Callable[[Mapping[str, str]], None]


def _with_others(tell: Progress) -> AbstractContextManager[None]:
    return nullcontext()


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps from what there is to what is wanted. `summary` says what the result will be.

    `at_once`: how many steps that do not wait for each other are taken at the same time. `notes` are lines that
    belong to the summary, `facts` what a program reads of it beside the steps. `refusal`: why it is not carried
    out; it is shown all the same. `lacking`: what has to be said before it is carried out, one line each. `roll_back`:
    after a failure, undo what has been done. `question`: what a person is asked first, since it cannot be taken back.
    """

    summary: str
    steps: list[Step] = field(default_factory=list)
    alone: Callable[[Progress], AbstractContextManager[None]] = _with_others
    at_once: int = 1
    notes: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    refusal: XpkError | None = None
    lacking: tuple[str, ...] = ()
    roll_back: bool = False
    question: str = ""
    activity: Activity = field(default_factory=Activity)

    def carry_out(
        self, progress: Progress, live: Live = lambda states: None, warn: Progress = lambda text: None
    ) -> None:
        """Take the steps in order, telling of each as it is done, `live` of those that go on, `warn` of what may fail.

        `alone` keeps others from changing the same cluster meanwhile; it tells `warn` of one that it waits for, and
        raises ConflictError if one has since the plan was made.
        """
        if self.lacking:
            raise UsageError(self.lacking[0], problems=self.lacking, hint="--dry-run shows the plan all the same")
        if self.refusal:
            raise self.refusal
        with self.alone(warn):
            if self.at_once > 1:
                crew = Crew(self.steps, self.at_once, self.activity, progress, live)
                if ignored := crew.work(roll_back=self.roll_back):
                    warn(ignored.message)
                return
            self.activity.listener = live
            for step in self.steps:
                step.act()
                progress(step.title)

    def stages(self) -> list[int]:
        """Return for each step the number of the stage it belongs to; the steps of one stage go on at once."""
        if self.at_once == 1:
            return list(range(1, len(self.steps) + 1))
        found: dict[str, int] = {}
        for step in self.steps:
            found[step.key] = 1 + max((found.get(key, 0) for key in step.after), default=0)
        return [found[step.key] for step in self.steps]
