"""A plan: named, idempotent steps, shown before any of them runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from xpk.capacity.plan.executor import Activity, PlanExecutor, Step
from xpk.model.errors import UsageError, XpkError

__all__ = ["Plan", "Progress", "Step"]

Progress = Callable[[str], None]
Live = Callable[[Mapping[str, str]], None]


def _with_others(tell: Progress) -> AbstractContextManager[None]:
    return nullcontext()


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps from the present to the requested state. `summary` describes the result.

    `at_once`: maximum number of parallel steps.
    `notes`: lines of text after the summary; `facts`: structured data for `-o json`.
    `refusal`: why it is not carried out; it is shown nevertheless.
    `lacking`: missing options without which it is not carried out, one line each.
    `roll_back`: after a failure, undo completed steps.
    `question`: the prompt before it runs, if it is irreversible.
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
        """Run the steps in order; report each one when it is done, `live` progress, and `warn` of steps that may fail.

        `alone` prevents concurrent changes of the same cluster; it calls `warn` while it waits for another command,
        and raises ConflictError if the cluster was changed since the plan was made.
        """
        if self.lacking:
            raise UsageError(self.lacking[0], problems=self.lacking, hint="--dry-run shows the plan")
        if self.refusal:
            raise self.refusal
        with self.alone(warn):
            if self.at_once > 1:
                executor = PlanExecutor(self.steps, self.at_once, self.activity, progress, live)
                if ignored := executor.run(roll_back=self.roll_back):
                    warn(ignored.message)
                return
            self.activity.listener = live
            for step in self.steps:
                step.act()
                progress(step.title)

    def stages(self) -> list[int]:
        """Return each step's stage number; the steps of one stage run in parallel."""
        if self.at_once == 1:
            return list(range(1, len(self.steps) + 1))
        stages: dict[str, int] = {}
        for step in self.steps:
            stages[step.key] = 1 + max((stages.get(key, 0) for key in step.after), default=0)
        return [stages[step.key] for step in self.steps]
