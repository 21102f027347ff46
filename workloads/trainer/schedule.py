"""Schedule of a run: the actions after each step, a function of the step alone, so that all hosts agree."""

import dataclasses
import enum

from trainer.config import Config


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
    """Steps after which an action is due: every `every` steps, up to step `last`; never if `every` is 0.

    No action needs an offset: those of one step share its end, for which the next step is not dispatched early.
    """

    every: int
    last: int | None = None

    def is_due(self, step: int) -> bool:
        """Return whether the action is due after `step`."""
        return self.every > 0 and step % self.every == 0 and (self.last is None or step <= self.last)


class RunSchedule:
    """Schedules of all actions of a run; without evaluations if `evaluates` is False."""

    def __init__(self, config: Config, *, evaluates: bool) -> None:
        self._final_step = config.run.steps
        last_before_end = config.run.steps - 1  # the end clears the local tier, and evaluates in any case
        self._schedules = {
            Action.SAVE: Schedule(config.checkpoint.every),
            Action.SAVE_LOCALLY: Schedule(config.checkpoint.local_every, last=last_before_end),
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
