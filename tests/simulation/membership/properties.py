"""Properties of the membership of simulated slices; docs/simulation.md lists them for readers."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from tests.simulation.properties import Violated
from trainer.elastic.reduction import Result
from trainer.hosts.membership import TRAIN, Peer, Seq

if TYPE_CHECKING:
    from tests.simulation.membership.trainer import Trainer
    from tests.simulation.membership.world import World

REGISTRY: Peer = (-1, "registry")  # for the times of its faults
SILENT_SECONDS = 30.0  # after a fault, in which it may be the cause of what happens to a slice
STALE_SECONDS = 1.0  # after a freeze, until a slice has read what it was sent meanwhile
MOST_REFUSALS = 3
PROGRESS_SECONDS = 3.0  # for the others to go on after a fault, beside the time for two steps


@dataclasses.dataclass
class _Step:
    """A finished step: the slices that had it, by the set of slices that made it."""

    finishers: dict[frozenset[Peer], list[Trainer]] = dataclasses.field(default_factory=dict)


class Properties:
    """The steps that slices have finished."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._steps: dict[tuple[int, int], _Step] = {}  # by start of the run and number
        self._seen: dict[str, Seq] = {}  # newest result of each incarnation
        self._member_at: dict[str, int] = {}  # newest step of whose set an incarnation was
        self._left_out: dict[str, int] = {}  # first step without an incarnation that was in the sets before
        self._refusals: dict[int, int] = {}  # in a row, of starts of a slice without the state
        self._required: list[Peer] = []  # slices of which one must finish a step
        self._required_since = 0.0
        self.completed_at, self.steps = -1.0, 0

    def require(self, holds: bool, what: str) -> None:
        """Raise Violated unless it holds."""
        if not holds:
            raise Violated(f"after {self._world.clock.now:.3f} s: {what}")

    def on_result(self, trainer: Trainer, seq: Seq, result: Result) -> None:
        """Check the result of a reduction when a slice has it."""
        if self._seen.get(trainer.own[1]) == seq:
            return
        self._seen[trainer.own[1]] = seq
        if seq.phase != TRAIN:
            return
        is_right = np.array_equal(result.vector, self._world.total(seq.step))
        self.require(is_right, f"{trainer.own} has a wrong sum of step {seq.step}")
        self.steps += 1
        self.completed_at = self._world.clock.now
        self._check_set(trainer, seq.step, frozenset((n, name) for n, name in result.flags["set"]))

    def _check_set(self, trainer: Trainer, number: int, members: frozenset[Peer]) -> None:
        """Check that one group of slices trains, which a slice that it has dropped does not enter again."""
        is_newest = not self._world.has_newer(trainer) or self._world.was_faulty(trainer.own, SILENT_SECONDS)
        self.require(is_newest, f"{trainer.own} finishes step {number} of a start of the run that was given up")
        step = self._steps.setdefault((trainer.epoch, number), _Step())
        for other, finishers in step.finishers.items():
            is_stale = self._world.was_faulty(trainer.own, STALE_SECONDS)  # it has not read yet that it was dropped
            is_one_group = bool(other & members) or is_stale or not any(map(self._counts, finishers))
            self.require(is_one_group, f"{sorted(other)} and {sorted(members)} have finished step {number}")
        step.finishers.setdefault(members, []).append(trainer)
        for _, incarnation in members:
            left_at = self._left_out.get(incarnation, number)
            lacks_sums = incarnation not in self._seen or self._seen[incarnation].step < number - 1
            returns = left_at < number and self._has_left_out(incarnation, self._steps[trainer.epoch, left_at])
            what = f"{incarnation} was left out of step {left_at}, but takes part in step {number}"
            self.require(not (returns and lacks_sums), what)
            self._member_at[incarnation] = max(number, self._member_at.get(incarnation, 0))
        names = {incarnation for _, incarnation in members}
        for incarnation, newest in self._member_at.items():
            if incarnation not in names and newest < number:
                self._left_out.setdefault(incarnation, number)

    def _has_left_out(self, incarnation: str, step: _Step) -> bool:
        """Return whether a slice that is still active has finished a step without another one."""
        return any(
            self._counts(each)
            for members, finishers in step.finishers.items()
            for each in finishers
            if incarnation not in dict(members).values()
        )

    def _counts(self, trainer: Trainer) -> bool:
        """Return whether a slice keeps its steps, which one that was lost with the registry may not."""
        was_lost = all(self._world.was_faulty(peer, SILENT_SECONDS) for peer in (trainer.own, REGISTRY))
        return trainer.is_active and not was_lost

    def on_found(self, founder: Trainer) -> None:
        """Check that no slice has the state when another one reads it from storage."""
        for other in self._world.trainers.values():
            undoes = other is not founder and other.is_active and not self._world.was_faulty(other.own, SILENT_SECONDS)
            self.require(not undoes, f"{founder.own} undoes steps that {other.own} has finished")

    def on_end(self, trainer: Trainer, reason: str) -> None:
        """Check that a slice with the state that ends because it was dropped was silent."""
        is_dropped, number = "continue without" in reason, trainer.own[0]
        self._refusals[number] = self._refusals.get(number, 0) + 1 if is_dropped and not trainer.is_joined else 0
        self.require(self._refusals[number] <= MOST_REFUSALS, f"slice {number} is refused again and again")
        seconds = 2 * SILENT_SECONDS  # the registry may have been frozen, too
        was_silent = self._world.was_faulty(trainer.own, seconds) or self._world.was_cut_off(trainer.own, seconds)
        was_silent |= self._world.was_split(seconds)  # the slices on the other side may have been more
        self.require(
            not (is_dropped and trainer.is_joined) or was_silent, f"{trainer.own} was dropped, but never silent"
        )

    def on_fault(self) -> None:
        """Note which slices are not affected by a fault: if they are enough, they go on in a short time."""
        world = self._world
        self._required_since = world.clock.now
        healthy = [
            trainer.own
            for trainer in world.trainers.values()
            if trainer.is_active and not (world.was_faulty(trainer.own, 0.0) or world.was_cut_off(trainer.own, 0.0))
        ]
        sets = {frozenset(world.trainers[n].membership.active) for n, _ in healthy}
        is_one_group = len(sets) == 1 and all(peer in members for members in sets for peer in healthy)
        is_held = any(world.trainers[n].is_held for n, _ in healthy)
        self._required = healthy if is_one_group and not is_held and len(healthy) >= world.quorum else []

    def check_progress(self) -> None:
        """Check that slices that were not affected by the newest faults have finished a step since."""
        world, now = self._world, self._world.clock.now
        seconds = PROGRESS_SECONDS + 2 * world.step_seconds * world.num_slices
        if not self._required or now < self._required_since + seconds:
            return
        what = f"{self._required} finish no step after the fault at {self._required_since:.3f} s"
        self.require(self.completed_at > self._required_since + world.step_seconds, what)
        self._required = []
