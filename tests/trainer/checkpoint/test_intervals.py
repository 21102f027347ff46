"""Plans of saves, and the agreement of several hosts on them."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.trainer.checkpoint.tiers import a_job
from tests.trainer.hosts.connections import connected, together
from trainer.checkpoint.intervals import IntervalTuner, Plan, Planner, largest_costs, own_costs
from trainer.config import Checkpoint, Config
from trainer.hosts.measurements import Measurements
from trainer.hosts.run_record import Tally
from trainer.schedule import Action, RunSchedule, Schedule

NO_PLAN = Plan(Schedule(0), Schedule(0, last=999), next=0)
COSTS = {"save": [1.0, 4.0], "local_save": [0.1, 0.5]}
UNKNOWN: dict[str, list[float] | None] = {"save": None, "local_save": None}


def planner(**changes: Any) -> Planner:
    settings: dict[str, Any] = {"every": "auto", "mtbf_chip_hours": 16.0} | changes
    return Planner(settings=Checkpoint(**settings), chips=16, has_copies=True)


def plan(planner: Planner, former: Plan, at: int, costs: Any = COSTS, seconds: float = 1.0, **tally: Any) -> Plan:
    known = Tally(**({"run_seconds": 1e5} | tally))
    return planner.plan(former, at, step_seconds=seconds, costs=costs, recovery=30.0, tally=known)


def test_the_first_save_comes_once_a_step_is_known_and_measures_its_cost() -> None:
    one = planner()
    waiting = plan(one, NO_PLAN, 0, UNKNOWN, seconds=0.0)
    assert (waiting.save, waiting.next) == (Schedule(0), 10)
    first = plan(one, waiting, 10, UNKNOWN)
    assert first.save.is_due(11) and not first.save.is_due(10) and first.next == 20
    planned = plan(one, first, 20, failures=28)  # in 100,000 seconds
    assert planned.save.first == 11 + planned.save.every
    assert 60 < planned.save.every < 110  # sqrt(2 x 1 s x an hour) = 85 s
    assert planned.next == 50  # half a minute later


def test_both_tiers_are_measured_one_after_the_other() -> None:
    one = planner(local_every="auto")
    first = plan(one, NO_PLAN, 10, UNKNOWN)
    assert (first.save.first, first.local.first, first.local.last) == (11, 12, 999)
    unsaved = plan(one, first, 20, UNKNOWN)
    assert (unsaved.save, unsaved.local, unsaved.next) == (first.save, first.local, 30)
    partly = plan(one, first, 20, UNKNOWN | {"save": [1.0, 4.0]})
    assert (partly.local, partly.next) == (first.local, 30) and partly.save != first.save
    planned = plan(one, partly, 30)
    assert 0 < planned.local.every < planned.save.every


def test_a_fixed_interval_is_never_changed() -> None:
    one = planner(every=50, local_every="auto")
    former = dataclasses.replace(NO_PLAN, save=Schedule(50))
    planned = plan(one, plan(one, former, 10, UNKNOWN), 20)
    assert planned.save == Schedule(50) and planned.local.every > 0
    assert not planner(every=50).is_on


def test_failures_shorten_the_interval() -> None:
    one = planner(mtbf_chip_hours=50_000.0)
    rare = plan(one, NO_PLAN, 10)
    frequent = plan(one, NO_PLAN, 10, failures=10, run_seconds=6000.0)
    assert frequent.save.every < 50 < rare.save.every


def test_no_interval_is_longer_than_the_run() -> None:
    one = planner(mtbf_chip_hours=50_000.0)
    lengths = [plan(one, NO_PLAN, 10, run_seconds=seconds).save.every for seconds in (0.0, 40.0, 70.0, 1e4)]
    assert lengths[:3] == [4, 32, 64] and lengths[3] > 500  # a share of a fifth has precedence


def test_elastic_slices_save_every_hour_whatever_the_age_of_the_run() -> None:
    one = dataclasses.replace(planner(), is_elastic=True)
    planned = plan(one, NO_PLAN, 10, UNKNOWN, run_seconds=5.0)
    assert planned.save == Schedule(3600, first=3610)
    assert planned.basis == {"step_seconds": 1.0, "failures": 0}  # never all slices were lost


def test_elastic_slices_save_more_often_once_all_of_them_were_lost() -> None:
    one = dataclasses.replace(planner(), is_elastic=True)
    first = plan(one, NO_PLAN, 10, UNKNOWN, run_seconds=1800.0, failures=1)
    assert first.save.first == 11, "the lost run has never saved: the next step measures what a save costs"
    planned = plan(one, first, 20, run_seconds=1800.0, failures=1)
    assert 50 < planned.save.every < 70  # sqrt(2 x 1 s x half an hour) = 60 s
    assert planned.basis["mtbf_seconds"] == 1800.0
    calm = plan(one, planned, 90_000, run_seconds=90_000.0, failures=1)
    assert calm.save.every > 6 * planned.save.every, "it grows with the time in which nothing is lost"


def test_a_plan_survives_json() -> None:
    planned = plan(planner(local_every="auto"), NO_PLAN, 10)
    assert Plan.of_json(dataclasses.asdict(planned)) == planned


def test_the_slowest_host_counts() -> None:
    reports: list[Any] = [COSTS, {"save": [2.0, 1.0], "local_save": None}, UNKNOWN]
    assert largest_costs(reports) == {"save": [2.0, 4.0], "local_save": [0.1, 0.5]}
    assert largest_costs([UNKNOWN]) == UNKNOWN


def test_a_save_costs_what_steps_wait_and_its_commit_is_the_rest() -> None:
    measured = Measurements()
    for blocked, whole in ((0.2, 1.0), (0.1, 0.9), (5.0, 6.5)):
        measured.take_event("save", whole, {"blocked": blocked})
    assert own_costs(measured) == {"save": [0.2, pytest.approx(0.8)], "local_save": None}


def test_all_hosts_follow_the_plan_of_process_0_from_the_same_step_on(tmp_path: Path) -> None:
    config = Config(checkpoint=Checkpoint(every="auto", mtbf_chip_hours=0.05))
    schedules, tuners = [], []
    for process, peers in enumerate(connected(3)[0]):
        job: Any = a_job(tmp_path, peers=peers)
        job.measurements.take_event("save", 2.0, {"blocked": 0.5 + process})
        for seconds in [0.5 + process] * 30:  # only process 0 tells how long a step takes
            job.measurements.record_step(seconds)
        schedules.append(RunSchedule(config, evaluates=False))
        record: Any = SimpleNamespace(tally=lambda: Tally(failures=3, run_seconds=60.0))
        one = Planner(settings=config.checkpoint, chips=2)
        tuners.append(IntervalTuner(job, record, schedules[-1], one))
    for at in (0, 7):
        together([functools.partial(tuner.agree, at) for tuner in tuners])
    saves = [schedule.of(Action.SAVE) for schedule in schedules]
    assert saves[0] == saves[1] == saves[2]
    assert saves[0].every * 0.5 >= 2.5 * 4  # the slowest host's saves take a fifth of the time at most
    events = [(tmp_path / f"events-{process}").read_text() for process in range(3)]
    assert ['"event": "intervals"' in text for text in events] == [True, False, False]


def test_no_host_sends_anything_with_fixed_intervals(tmp_path: Path) -> None:
    job: Any = a_job(tmp_path)
    job.peers.report = None
    schedule = RunSchedule(Config(), evaluates=False)
    record: Any = SimpleNamespace()
    tuner = IntervalTuner(job, record, schedule, Planner(settings=Checkpoint(), chips=2))
    tuner.agree(0)
    assert tuner.decide(0) is None
    tuner.adopt(None, 0)
    assert schedule.of(Action.SAVE) == Schedule(50)
