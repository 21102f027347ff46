"""Workloads that need all slices, of which JobSet restarts single ones: they are not elastic."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.jobs.objects import ADMITTED, NOW, ROOTS, RUNNING, Obj, at, exited
from tests.jobs.status.elastic_objects import job_restarted, restarted_jobs, slice_pod, waiting
from tests.jobs.status.host_events import write_events
from xpk.jobs.status.fields import Snapshot, when
from xpk.jobs.status.in_place import with_restarts_in_place
from xpk.jobs.status.reader import inspect, read
from xpk.model.status import Phase, WorkloadStatus
from xpk.testing import FakeApi
from xpk_shared.supervisor.names import RECORD

PENDING = {"phase": "Pending"}
FAILED = {"phase": "Failed", "containerStatuses": [{"state": {"terminated": {"exitCode": 137}}}]}
LOST = {"reason": "OSError: disk full"}


def status(made: Obj, *pods: Obj, events: tuple[Obj, ...] = ()) -> WorkloadStatus:
    """Return the status of a JobSet with these pods."""
    return read(made, Snapshot(jobsets=[], workloads=[ADMITTED], pods=list(pods), events=list(events)))


def inspected(made: Obj, *events: Obj) -> WorkloadStatus:
    """Return the status of a JobSet, with restarts from its output."""
    objects = [{"kind": "JobSet", **made}, {"kind": "Workload", **ADMITTED}]
    for event in events:
        objects.append({"kind": "Event", **event, "metadata": {**event["metadata"], "namespace": "default"}})
    return inspect(FakeApi(objects), "w", "default", ROOTS)[0]


def test_a_workload_restarts_while_a_slice_is_replaced() -> None:
    made = waiting(replicatedJobsStatus=restarted_jobs(0, 1))
    result = status(made, slice_pod(0, RUNNING), slice_pod(1, PENDING, attempt=1))
    assert (result.phase, result.reason) == (Phase.RESTARTING, "1 of 2 hosts running")
    assert (result.restarts, result.restarts_counted, result.max_restarts) == (1, 1, 5)
    assert result.min_slices is None


def test_a_workload_starts_with_all_slices() -> None:
    result = status(waiting(), slice_pod(0, RUNNING), slice_pod(1, PENDING))
    assert (result.phase, result.reason) == (Phase.STARTING, "1 of 2 hosts running")


def test_the_pod_of_a_replaced_slice_is_its_host() -> None:
    """The former pod may have been created later by the clock of another API server."""
    made = waiting(replicatedJobsStatus=restarted_jobs(0, 1))
    result = status(made, slice_pod(0, RUNNING), slice_pod(1, RUNNING, attempt=1), slice_pod(1, FAILED, created=at(50)))
    assert (result.phase, result.reason) == (Phase.RUNNING, "all 2 hosts running")


def test_restarts_of_slices_are_counted_and_explained() -> None:
    made = waiting(replicatedJobsStatus=restarted_jobs(1, 2, counted=(1, 0)))
    result = status(made, events=(exited(1, 137, 12), job_restarted(1, 12, "RestartJobAndIgnoreMaxRestarts")))
    assert (result.restarts, result.restarts_counted) == (3, 1)
    (restart,) = result.restart_history
    assert restart.cause == "host s1/h0 ended with exit code 137 (SIGKILL); slice 1 restarted"
    assert (restart.attempt, restart.slice, restart.host) == (2, 1, 0)


def write_record(folder: Path, seconds: float) -> None:
    """Write the record of a restart in place, of slice 1."""
    row = {"time": when(NOW).timestamp() + seconds, "slice": 1, "host": 0, "exit_code": 1, "attempt": 1}
    (folder / RECORD).write_text(json.dumps(row) + "\n")


def test_restarts_in_place_are_those_of_the_whole_job(tmp_path: Path) -> None:
    write_record(tmp_path, 5)
    (restart,) = with_restarts_in_place(status(waiting(output=str(tmp_path))), ROOTS).restart_history
    assert restart.cause == "host s1/h0 ended with exit code 1; restarted in place"


def write_attempts(folder: Path) -> None:
    """Write a run whose slice 1 fails twice: it is restarted in place, then replaced."""
    write_events(
        folder,
        (0, 1, "start", {}), (0, 10, "fail", {"slice": 1, "reason": "ValueError: bad batch"}),
        (0, 12, "start", {"attempt": 1}), (0, 120, "fail", {"slice": 1, "attempt": 1, **LOST}),
        (0, 150, "start", {"attempt": 2}),
    )  # fmt: skip
    write_record(folder, 10)


@pytest.mark.parametrize("events", [(), (job_restarted(1, 121),)], ids=["without events", "with an event"])
def test_the_trainers_records_explain_the_loss_of_a_slice(tmp_path: Path, events: tuple[Obj, ...]) -> None:
    """Restarts in place have attempts of their own, so the number of a slice's restart is not that of an attempt."""
    write_attempts(tmp_path)
    result = inspected(waiting(output=str(tmp_path), replicatedJobsStatus=restarted_jobs(0, 1)), *events)
    assert [restart.cause for restart in result.restart_history] == [
        "host s1/h0 ended with exit code 1; restarted in place",
        "host s1/h0: OSError: disk full",
    ]
    assert (result.restarts, result.restarts_in_place) == (2, 1)


def test_the_failure_that_ended_a_workload_is_not_a_restart(tmp_path: Path) -> None:
    write_events(
        tmp_path,
        (0, 1, "start", {}), (0, 20, "fail", {"slice": 1, **LOST}),
        (0, 40, "start", {"attempt": 1}), (0, 200, "fail", {"attempt": 1, "reason": "ValueError: bad batch"}),
    )  # fmt: skip
    failed = {"type": "Failed", "status": "True", "reason": "ReachedMaxRestarts", "lastTransitionTime": at(203)}
    made = waiting(output=str(tmp_path), replicatedJobsStatus=restarted_jobs(0, 1), conditions=[failed])
    (restart,) = inspected(made).restart_history
    assert restart.cause == "host s1/h0: OSError: disk full"
