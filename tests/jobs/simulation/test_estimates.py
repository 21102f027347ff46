"""Estimated starts of queued workloads."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from tests.jobs.simulation.queues import NOW, cluster, cluster_queue, stamp, workload
from xpk.api.base import Obj
from xpk.jobs.output.folder import Progress
from xpk.jobs.simulation.durations import Duration, Sources, duration_of, read_all
from xpk.jobs.simulation.estimates import Estimates
from xpk.jobs.simulation.scenario import Objects, scenario_of
from xpk.jobs.simulation.what_if import WhatIf, apply
from xpk.model import names
from xpk.model.errors import UsageError, XpkError
from xpk.model.forecast import PendingForecast, QueueForecast

HOUR = 3600.0
RED: dict[str, Any] = {"namespace": "team-red", "queue": "red", "place": "red"}


def forecast(objects: Objects, sources: Sources | None = None, changes: WhatIf | None = None) -> QueueForecast:
    scenario, added = apply(scenario_of(objects, NOW), changes or WhatIf())
    sources = sources or Sources()
    return Estimates.of(scenario, replace(sources, stated={**sources.stated, **added})).forecast()


def only(result: QueueForecast) -> PendingForecast:
    (pending,) = result.pending
    return pending


def test_a_start_rests_on_the_end_of_a_run_of_assumed_duration() -> None:
    objects = cluster(workload("big", 4, admitted=-HOUR), workload("next", 1))
    start = only(forecast(objects, Sources(assumed=4 * HOUR)))
    assert (start.earliest, start.expected, start.latest) == (stamp(HOUR), stamp(3 * HOUR), stamp(7 * HOUR))
    assert start.rests_on == ("starts when default/big ends in 3h (4h in all, assumed)",)
    assert (start.namespace, start.name, start.queue, start.preempts) == ("default", "next", names.QUEUE, ())


def test_the_pace_of_a_run_gives_its_end() -> None:
    objects = cluster(workload("big", 4, admitted=-HOUR), workload("next", 1))
    progress = {"uid-big": Progress(step=40, loss=1.0, total_steps=100, eta_seconds=1000.0)}
    start = only(forecast(objects, Sources(progress=progress)))
    assert (start.earliest, start.expected, start.latest) == (stamp(800), stamp(1000), stamp(1250))
    assert start.rests_on == ("starts when default/big ends in 16m40s (16m40s left at the pace of step 40 of 100)",)


def test_a_workload_that_takes_its_own_quota_back_starts_after_the_borrower_has_stopped() -> None:
    result = forecast(cluster(workload("big", 4, admitted=-HOUR), workload("mine", 1, **RED)))
    start = only(result)
    assert (start.expected, start.preempts) == (stamp(30), ("default/big",))
    (preemption,) = result.preemptions
    assert (preemption.workload, preemption.by, preemption.time) == ("default/big", "team-red/mine", stamp(0))
    assert preemption.resumes == stamp(30 + 24 * HOUR)


def test_a_workload_larger_than_its_queue_can_ever_be_does_not_start() -> None:
    start = only(forecast(cluster(workload("giant", 5))))
    assert (start.expected, start.latest) == (None, None)
    assert start.reason == "needs 40 google.com/tpu in flavor v5litepod-8, and its queue can have at most 32"


def test_finished_inactive_and_unknown_workloads_do_not_count() -> None:
    done = workload("done", 4, admitted=-HOUR)
    done["status"]["conditions"].append({"type": "Finished", "status": "True"})
    others = [done, workload("off", 4, active=False), workload("lost", 4, queue="nowhere")]
    assert only(forecast(cluster(*others, workload("next", 4)))).expected == stamp(0)


def test_an_evicted_workload_holds_its_quota_until_it_has_stopped() -> None:
    leaving = workload("leaving", 4, admitted=-HOUR)
    leaving["status"]["conditions"].append({"type": "Evicted", "status": "True", "reason": "Preempted"})
    first, second = forecast(cluster(leaving, workload("next", 4, priority=750), own=4)).pending
    assert (first.name, first.expected, second.name) == ("next", stamp(30), "leaving")


def test_time_limits_bound_a_duration() -> None:
    limited = workload("big", 4, admitted=-HOUR, maximumExecutionTimeSeconds=7200)
    start = only(forecast(cluster(limited, workload("next", 1))))
    assert (start.earliest, start.expected, start.latest) == (stamp(0), stamp(HOUR), stamp(HOUR))
    assert "time limit of 2h" in start.rests_on[0]
    progress = Progress(step=1, loss=None, total_steps=2, eta_seconds=9999.0)
    assert duration_of("u", "n", 0.0, 100.0, Sources(progress={"u": progress})).high == 100.0


def test_stated_durations_are_exact_and_long_runs_take_as_long_again() -> None:
    stated = duration_of("u", "a/b", 10.0, None, Sources(stated={"a/b": 60.0}))
    assert stated == Duration(50.0, 50.0, 50.0, "1m in all, as given")
    late = duration_of("u", "a/b", 100.0, None, Sources(assumed=60.0))
    assert (late.low, late.expected) == (0.0, 60.0) and "it has run for 1m40s already" in late.words


def test_progress_that_does_not_come_in_time_counts_as_unknown() -> None:
    progress = Progress(step=1, loss=None)

    def broken() -> Progress | None:
        raise XpkError("no bucket")

    progress_by_uid, late = read_all({"fast": lambda: progress, "slow": lambda: time.sleep(5), "bad": broken}, 0.5)
    assert (progress_by_uid, list(late)) == ({"fast": progress}, ["slow"])


def test_quota_comes_from_the_own_queue_and_slices_are_added() -> None:
    objects = cluster(workload("mine", 3, **RED), workload("big", 2, admitted=-HOUR, priority=750))
    assert only(forecast(objects)).expected == stamp(24 * HOUR - HOUR)
    moved = forecast(objects, changes=WhatIf(quota=("red=3",)))
    assert (only(moved).expected, only(moved).preempts) == (stamp(30), ("default/big",))
    assert moved.changes == (
        "quota of red: 2 -> 3 slices of v5litepod-8",
        "quota of multislice-queue: 2 -> 1 slices of v5litepod-8",
    )
    assert only(forecast(objects, changes=WhatIf(add_slices=("red=1",)))).expected == stamp(0)


def test_an_added_workload_is_queued_with_the_others() -> None:
    added = "name=extra,slices=4,priority=high,duration=1h"
    first, second = forecast(cluster(workload("next", 4)), changes=WhatIf(workloads=(added,))).pending
    assert (first.name, first.namespace, first.expected) == ("extra", "", stamp(0))
    assert (second.name, second.expected) == ("next", stamp(HOUR))


def test_all_problems_of_changes_are_reported_together() -> None:
    changes = WhatIf(
        quota=("rad=1", "red=9", "red", f"{names.QUEUE}=1"),
        add_slices=("red=x",),
        workloads=("slices=1", "name=a,slices=0", "name=b,slices=1,color=red", "name=c,slices=1,queue=blue"),
    )
    with pytest.raises(UsageError) as refused:
        apply(scenario_of(cluster(), NOW), changes)
    problems = refused.value.problems
    assert len(problems) == 9
    assert problems[0] == "--quota: queue 'rad' not found; choose from red"
    assert "has 2 slices of v5litepod-8 left, 7 more are needed" in problems[1]


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (
            {"admissionChecksStrategy": {"admissionChecks": [{"name": "dws-prov"}]}},
            "it uses admission checks (dws-prov)",
        ),
        ({"stopPolicy": "Hold"}, "it is stopped (Hold)"),
        ({"queueingStrategy": "StrictFIFO"}, "its queueing strategy is StrictFIFO"),
        ({"admissionScope": {"admissionMode": "UsageBasedAdmissionFairSharing"}}, "it uses fair sharing"),
        (
            {"preemption": {"withinClusterQueue": "LowerOrNewerEqualPriority"}},
            "its preemption policy is LowerOrNewerEqualPriority",
        ),
        (
            {"preemption": {"borrowWithinCohort": {"policy": "LowerPriority", "maxPriorityThreshold": 1}}},
            "its preemption while borrowing has a priority threshold",
        ),
    ],
)
def test_a_queue_that_cannot_be_simulated_is_named_with_its_cohort(spec: Obj, reason: str) -> None:
    strange, neighbor = cluster_queue("strange", 1, cohort="c", **spec), cluster_queue("neighbor", 1, cohort="c")
    result = forecast(cluster(workload("next", 1), more=(strange, neighbor)))
    assert result.refused == (
        "queue 'neighbor' is not simulated: it shares a cohort with 'strange'",
        f"queue 'strange' is not simulated: {reason}",
    )
    assert only(result).expected == stamp(0)


def test_workloads_and_flavors_with_topologies_and_trees_of_cohorts_are_refused() -> None:
    placed = workload("placed", 1)
    placed["spec"]["podSets"][0]["topologyRequest"] = {"required": "rack"}
    assert "requests a topology" in scenario_of(cluster(placed), NOW).refused[names.CLUSTER_QUEUE]
    flavor = {"metadata": {"name": "v5litepod-8"}, "spec": {"topologyName": "racks"}}
    assert "by topology" in scenario_of(cluster(flavors=[flavor]), NOW).refused["red"]
    tree = {"metadata": {"name": names.COHORT}, "spec": {"parentName": "root"}}
    assert "is part of cohort 'root'" in scenario_of(cluster(cohorts=[tree]), NOW).refused["red"]
