"""Elastic slices in the objects of a workload: JobSet restarts single Jobs, and the other slices continue."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.jobs.objects import ADMITTED, NOW, ROOTS, RUNNING, Obj, at, exited, jobset
from tests.jobs.report.elastic_runs import ElasticWriter
from tests.jobs.status.elastic_objects import elastic, job_restarted, restarted_jobs, slice_pod
from xpk.jobs.status.fields import Snapshot, when
from xpk.jobs.status.in_place import with_restarts_in_place
from xpk.jobs.status.reader import read
from xpk.jobs.status.restarts import restarts, with_output
from xpk.model.status import Phase, WorkloadStatus
from xpk_shared.supervisor.names import RECORD

PENDING = {"phase": "Pending"}


def status(made: Obj, *pods: Obj, events: tuple[Obj, ...] = ()) -> WorkloadStatus:
    """Return the status of a JobSet with these pods."""
    return read(made, Snapshot(jobsets=[], workloads=[ADMITTED], pods=list(pods), events=list(events)))


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (elastic(2), 2),
        (elastic(None), 1),
        (jobset(), None),
        (elastic(10**6), 1),
        (jobset() | {"spec": {"replicatedJobs": [], "failurePolicy": {"rules": None}}}, None),
    ],
    ids=["in the environment", "by the rules only", "not elastic", "beyond the limit", "without rules"],
)
def test_elastic_slices_are_recognized_by_the_jobset(made: Obj, expected: int | None) -> None:
    assert status(made).min_slices == expected


def test_a_workload_runs_while_a_slice_is_recreated() -> None:
    made = elastic(1, replicatedJobsStatus=restarted_jobs(0, 1))
    result = status(made, slice_pod(0, RUNNING), slice_pod(1, PENDING, attempt=1))
    assert (result.phase, result.reason) == (Phase.RUNNING, "1 of 2 slices running")
    assert (result.restarts, result.restarts_counted, result.max_restarts) == (1, 1, 5)


def test_a_workload_with_too_few_slices_waits_for_them() -> None:
    made = elastic(2, 4, replicatedJobsStatus=restarted_jobs(0, 1, 1, 1))
    result = status(made, slice_pod(0, RUNNING), *(slice_pod(number, PENDING, attempt=1) for number in (1, 2, 3)))
    assert (result.phase, result.reason) == (
        Phase.RESTARTING,
        "waiting for slices: 1 of 4 active, requires 2",
    )


@pytest.mark.parametrize(
    ("running", "phase"), [(1, Phase.STARTING), (2, Phase.RUNNING)], ids=["too few slices", "enough slices"]
)
def test_a_workload_starts_with_enough_slices(running: int, phase: Phase) -> None:
    pods = [slice_pod(number, RUNNING if number < running else PENDING) for number in range(3)]
    assert status(elastic(2, 3), *pods).phase is phase


def test_the_pod_of_a_recreated_slice_replaces_the_former_one() -> None:
    """The former pod may have been created later by the clock of another API server."""
    made = elastic(1, replicatedJobsStatus=restarted_jobs(0, 1))
    failed = {"phase": "Failed", "containerStatuses": [{"state": {"terminated": {"exitCode": 137}}}]}
    former = slice_pod(1, failed, created=at(50))
    result = status(made, slice_pod(0, RUNNING), slice_pod(1, RUNNING, attempt=1), former)
    assert (result.phase, result.hosts[1].phase) == (Phase.RUNNING, "Running")


def test_other_workloads_restart_as_a_whole() -> None:
    result = status(jobset(restarts=1), slice_pod(0, RUNNING), slice_pod(1, PENDING))
    assert (result.phase, result.min_slices) == (Phase.RESTARTING, None)


def test_the_restart_of_a_slice_has_its_cause() -> None:
    (result,) = restarts([exited(1, 137, 12), job_restarted(1, 12)], "u", 1)
    assert result.cause == "host s1/h0 ended with exit code 137 (SIGKILL); slice 1 restarted"
    assert (result.attempt, result.slice, result.host, result.exit_code) == (0, 1, 0, 137)


def test_restarts_of_two_slices_at_once_have_causes_of_their_own() -> None:
    events = [exited(1, 3, 12), exited(0, 4, 12), job_restarted(1, 12), job_restarted(0, 13)]
    assert [(item.slice, item.exit_code) for item in restarts(events, "u", 2)] == [(1, 3), (0, 4)]


def test_repeated_restarts_of_a_slice_are_separated() -> None:
    series = {"series": {"count": 3, "lastObservedTime": "2026-01-31T12:02:00.500000Z"}}
    events = [exited(1, 3, 30), exited(1, 4, 70), exited(1, 5, 120), exited(0, 9, 75), job_restarted(0, 75)]
    history = restarts([*events, job_restarted(1, 30, more=series)], "u", 4)
    assert [(item.attempt, item.exit_code) for item in history] == [(0, 3), (1, 4), (2, 9), (3, 5)]


def test_a_slice_whose_cause_is_unknown_is_named() -> None:
    (result,) = restarts([job_restarted(1, 12, "RestartJobAndIgnoreMaxRestarts")], "u", 1)
    assert (result.slice, result.host) == (1, None)
    assert result.cause.endswith("slice 1 restarted")


def test_restarts_that_do_not_count_are_separated() -> None:
    made = elastic(1, replicatedJobsStatus=restarted_jobs(2, 1, counted=(0, 1)), restarts=1)
    result = status(made, slice_pod(0, RUNNING), slice_pod(1, RUNNING))
    assert (result.restarts, result.restarts_counted) == (4, 1)


def test_the_last_failure_is_that_of_the_slice_without_restarts() -> None:
    message = "jobset failed due to reaching max number of restarts (first failed job: w-slice-job-1)"
    failed = {"type": "Failed", "status": "True", "reason": "ReachedMaxRestarts", "message": message}
    made = elastic(1, conditions=[failed | {"lastTransitionTime": at(31)}])
    result = status(made, events=(exited(0, 5, 30), job_restarted(0, 30), exited(1, 3, 31)))
    assert result.reason == "host s1/h0 ended with exit code 3, and no restart is left"


def test_the_trainers_records_explain_the_restart_of_a_slice(tmp_path: Path) -> None:
    run = ElasticWriter(tmp_path, slices=2, now=when(NOW).timestamp())
    run.begin()
    run.train_steps(10)
    run.of(1, "fail", reason="OSError: disk full")
    run.lose(1)
    run.start(1)
    run.train_steps(10)
    run.join(1)
    run.write()
    made = elastic(1, output=str(tmp_path), replicatedJobsStatus=restarted_jobs(0, 1))
    (result,) = with_output(status(made), ROOTS).restart_history
    assert result.cause == "host s1/h0: OSError: disk full; slice 1 restarted"
    assert (result.attempt, result.slice, result.host) == (0, 1, 0)
    (tmp_path / RECORD).write_bytes(record(when(result.time).timestamp() - when(NOW).timestamp(), 1, attempt=1))
    assert with_output(status(made), ROOTS).restart_history == (), "the slice was restarted in place"


def record(second: float, number: int, **facts: Any) -> bytes:
    """Return a line of the record of restarts in place."""
    common = {"time": when(NOW).timestamp() + second, "job": "u", "slice": number, "host": 0, "exit_code": 137}
    return json.dumps(common | facts).encode() + b"\n"


def test_restarts_in_place_name_the_slice(tmp_path: Path) -> None:
    (tmp_path / RECORD).write_bytes(record(5, 1, attempt=1) + record(6, 0, attempt=1))
    result = with_restarts_in_place(status(elastic(1, output=str(tmp_path))), ROOTS)
    assert (result.restarts, result.restarts_in_place) == (2, 2)
    assert result.restart_history[0].cause == (
        "host s1/h0 ended with exit code 137 (SIGKILL); slice 1 restarted in place"
    )


@pytest.mark.parametrize(("minimum", "phase"), [(1, Phase.RUNNING), (2, Phase.RESTARTING)])
def test_the_crash_loop_of_a_slice_stops_others_only_if_too_few_are_left(
    tmp_path: Path, minimum: int, phase: Phase
) -> None:
    pause = record(20, 1, pause_seconds=8.0, short_attempts=4)
    (tmp_path / RECORD).write_bytes(pause + record(21, 0, attempt=1))
    running = replace(status(elastic(minimum, output=str(tmp_path))), phase=Phase.RUNNING, reason="all 2 hosts running")
    result = with_restarts_in_place(running, ROOTS, lambda: when(NOW).timestamp() + 22)
    assert result.phase is phase
    assert "slice 1: crash loop: 4 attempts in a row ended within 5 s" in result.reason
