"""The schedule of a run: fixed intervals, and those that the hosts agree on."""

from __future__ import annotations

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from trainer.config import Checkpoint, Config
from trainer.schedule import Action, RunSchedule, Schedule

STEPS = st.integers(1, 300)


def dues(schedule: Schedule, last: int = 1000) -> list[int]:
    return [step for step in range(1, last + 1) if schedule.is_due(step)]


@given(STEPS, STEPS)
def test_a_fixed_interval_is_due_at_its_multiples(every: int, step: int) -> None:
    assert Schedule(every).is_due(step) == (step % every == 0)


@given(STEPS, STEPS, STEPS)
def test_another_interval_counts_from_the_newest_save(every: int, at: int, other: int) -> None:
    former = Schedule(every)
    changed = former.changed(other, at=at)
    newest = at - at % every
    following = [step for step in dues(changed, 2000) if step > at]
    assert changed.is_due(at) == former.is_due(at)
    if newest:
        assert following[0] == max(at + 1, newest + other)
    assert following[1] - following[0] == other


@given(STEPS, st.lists(st.tuples(st.integers(1, 40), STEPS), max_size=8))
def test_the_time_between_saves_is_at_most_the_longer_of_two_intervals(
    every: int, changes: list[tuple[int, int]]
) -> None:
    schedule, saved, at, longest = Schedule(every), 0, 0, every
    for pause, other in changes:
        for step in range(at + 1, at + pause + 1):
            if schedule.is_due(step):
                assert step - saved <= longest
                saved, longest = step, schedule.every
        at += pause
        schedule, longest = schedule.changed(other, at=at), max(longest, other)
    assert next(step for step in dues(schedule, 2000) if step > at) - saved <= max(longest, at + 1 - saved)


def test_an_interval_begins_where_it_is_chosen_first() -> None:
    assert dues(Schedule(0).changed(30, at=100), 200) == [130, 160, 190]


def test_without_an_agreement_automatic_saves_come_only_at_the_end() -> None:
    config = Config(checkpoint=Checkpoint(every="auto", local_every="auto"))
    schedule = RunSchedule(config, evaluates=False)
    saves = [step for step in range(1, 101) if schedule.actions(step) & (Action.SAVE | Action.SAVE_LOCALLY)]
    assert saves == [config.run.steps] == [100]
    schedule.replace(Action.SAVE, dataclasses.replace(schedule.of(Action.SAVE), every=40, first=25))
    assert [step for step in range(1, 101) if Action.SAVE in schedule.actions(step)] == [25, 65, 100]
