"""Schedule of a run: the actions after each step, a function of the step and of the hosts' agreements.

With `checkpoint.every=auto` the hosts agree on other intervals during the run (checkpoint/intervals.py).
"""

import dataclasses
import enum

from trainer.config import AUTO, Auto, Config


class Action(enum.Flag):
    """Actions after a step."""

    NONE = 0
    SAVE = enum.auto()
    SAVE_LOCALLY = enum.auto()  # to the local tier
    EVALUATE = enum.auto()
    CHECK_REPLICAS = enum.auto()  # of the state
    COMPARE_HOSTS = enum.auto()  # to find stragglers


ANY_SAVE = Action.SAVE | Action.SAVE_LOCALLY  # the state must be finite
STEP_ENDING = ANY_SAVE | Action.EVALUATE | Action.COMPARE_HOSTS  # the next step is dispatched after them


@dataclasses.dataclass(frozen=True, slots=True)
class Schedule:
    """Steps after which an action is due: every `every` steps from `first`, up to `last`; never if `every` is 0.

    No action needs an offset: those of one step share its end, for which the next step is not dispatched early. Saves
    have one once the hosts have agreed on another interval.
    """

    every: int
    last: int | None = None
    first: int = 0

    def is_due(self, step: int) -> bool:
        """Return whether the action is due after `step`."""
        is_within = self.first <= step and (self.last is None or step <= self.last)
        return self.every > 0 and (step - self.first) % self.every == 0 and is_within

    def changed(self, every: int, *, at: int) -> "Schedule":
        """Return the schedule after step `at` with another interval, from the newest step that was due, or from `at`.

        The action after step `at` stays due, or not due.
        """
        if self.is_due(at):
            return dataclasses.replace(self, every=every, first=at)
        newest = at - (at - self.first) % self.every if self.every else at
        return dataclasses.replace(self, every=every, first=max(at + 1, newest + every))


class RunSchedule:
    """Schedules of all actions of a run; without evaluations if `evaluates` is False."""

    def __init__(self, config: Config, *, evaluates: bool) -> None:
        self._final_step = config.run.steps
        last_before_end = config.run.steps - 1  # the end clears the local tier, and evaluates in any case
        self._schedules = {
            Action.SAVE: Schedule(_fixed(config.checkpoint.every)),
            Action.SAVE_LOCALLY: Schedule(_fixed(config.checkpoint.local_every), last=last_before_end),
            Action.EVALUATE: Schedule(config.run.eval_every if evaluates else 0, last=last_before_end),
            Action.CHECK_REPLICAS: Schedule(config.observe.checksum_every),
            Action.COMPARE_HOSTS: Schedule(config.observe.straggler_check_every),
        }

    def actions(self, step: int) -> Action:
        """Return the actions after `step`. The final state is saved in any case, and any saved state is checked."""
        actions = Action.SAVE if step == self._final_step else Action.NONE
        for action, schedule in self._schedules.items():
            actions |= action if schedule.is_due(step) else Action.NONE
        checks = self._schedules[Action.CHECK_REPLICAS].every > 0
        return actions | (Action.CHECK_REPLICAS if checks and actions & ANY_SAVE else Action.NONE)

    def of(self, action: Action) -> Schedule:
        """Return the schedule of an action."""
        return self._schedules[action]

    def replace(self, action: Action, schedule: Schedule) -> None:
        """Follow another schedule of an action, on which all hosts have agreed."""
        self._schedules[action] = schedule


def _fixed(every: int | Auto) -> int:
    """Return a configured interval; 0 if the hosts have yet to agree on one."""
    return 0 if every == AUTO else every
