"""Causes of restarts, from the remaining objects after the pods are deleted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.jobs.objects import ADMITTED, ROOTS, Obj, at, event, exited, jobset, restarted
from tests.jobs.status.host_events import write_events
from xpk.jobs.status.fields import Snapshot
from xpk.jobs.status.reader import read
from xpk.jobs.status.restarts import restarts, with_output
from xpk.model.status import Restart, WorkloadStatus, exit_words


def history(*events: Obj, count: int = 1) -> list[tuple[int | None, str]]:
    """Return the restarts in events as (attempt, cause)."""
    return [(item.attempt, item.cause) for item in restarts(events, "u", count)]


def status(count: int, *events: Obj, output: Path | None = None, **more: Any) -> WorkloadStatus:
    """Return the status of a restarted workload."""
    annotations = {"xpk.dev/output-dir": str(output)} if output else {}
    return read(
        jobset(annotations=annotations, restarts=count, **more),
        Snapshot(jobsets=[], workloads=[ADMITTED], events=list(events)),
    )


def test_the_host_and_its_exit_code_are_named() -> None:
    (result,) = restarts([exited(1, 3, 12), restarted(1, 12.288)], "u", 1)
    assert result == Restart(
        time="2026-01-31T12:00:12.288000Z",
        cause="host s1/h0 ended with exit code 3",
        attempt=0,
        slice=1,
        host=0,
        exit_code=3,
    )


def test_a_jobs_event_may_follow_the_restart_that_it_caused() -> None:
    assert history(restarted(1, 12.9), exited(1, 137, 13)) == [(0, "host s1/h0 ended with exit code 137 (SIGKILL)")]


def test_hosts_that_only_lost_a_peer_are_not_blamed() -> None:
    events = [exited(0, 75, 10), exited(1, 137, 11, host=1), restarted(0, 11.5)]
    assert history(*events) == [(0, "host s1/h1 ended with exit code 137 (SIGKILL)")]


def test_aggregated_restart_events_of_one_slice_are_separated() -> None:
    series = {"series": {"count": 3, "lastObservedTime": "2026-01-31T12:02:00.500000Z"}}
    events = [exited(1, 3, 30), exited(1, 4, 70), exited(1, 5, 120), restarted(1, 30.5, **series)]
    assert [cause[-1] for _, cause in history(*events, count=3)] == ["3", "4", "5"]
    assert [attempt for attempt, _ in history(*events, count=3)] == [0, 1, 2]


def test_with_expired_events_the_newest_restarts_keep_their_numbers() -> None:
    assert history(exited(0, 1, 50), restarted(0, 50.1), count=7) == [(6, "host s0/h0 ended with exit code 1")]


def test_a_host_on_a_lost_node_is_named() -> None:
    name = "w-slice-job-0-0-fghij"
    message = f"Pod default/{name} has condition DisruptionTarget matching FailJob rule at index 0"
    events = [
        event("Pod", name, "Scheduled", f"Successfully assigned default/{name} to node-2", 1, type="Normal"),
        event("Pod", name, "TaintManagerEviction", "Marking for deletion", 20),
        event("Job", "w-slice-job-0", "PodFailurePolicy", message, 25),
        restarted(0, 25.2),
    ]
    assert history(*events) == [(0, "host s0/h0 was on node node-2, which was lost or drained")]


def test_an_unnamed_failed_host_is_the_one_that_was_not_deleted() -> None:
    def about_job(reason: str, pod: str) -> Obj:
        message = f"{'Created' if reason == 'SuccessfulCreate' else 'Deleted'} pod: {pod}"
        return event("Job", "w-slice-job-1", reason, message, 5, type="Normal")

    events = [
        about_job("SuccessfulCreate", "w-slice-job-1-0-aaaaa"),
        about_job("SuccessfulCreate", "w-slice-job-1-1-bbbbb"),
        about_job("SuccessfulDelete", "w-slice-job-1-0-aaaaa"),
        event("Job", "w-slice-job-1", "BackoffLimitExceeded", "Job has reached the specified backoff limit", 9),
        restarted(1, 9.5),
    ]
    assert history(*events) == [(0, "host s1/h1 failed")]
    assert history(*events[3:]) == [(0, "slice 1: Job has reached the specified backoff limit")]


def test_a_restart_known_only_from_the_jobset_is_listed() -> None:
    assert history(restarted(1, 9.5)) == [
        (0, "applying RestartJobSet failure policy action (first failed job: w-slice-job-1)")
    ]


def test_the_final_failure_is_not_a_restart() -> None:
    failed = {"type": "Failed", "status": "True", "reason": "ReachedMaxRestarts", "lastTransitionTime": at(90)}
    events = [exited(1, 3, 30), restarted(1, 30.5), exited(0, 4, 89)]
    result = status(1, *events, conditions=[failed])
    assert [item.exit_code for item in result.restart_history] == [3]
    assert result.reason == "host s0/h0 ended with exit code 4, and no restart is left"


def test_the_trainers_records_replace_expired_events(tmp_path: Path) -> None:
    write_events(
        tmp_path,
        (0, 1, "start", {}), (1, 1, "start", {}), (0, 20, "fail", {"reason": "OSError: disk full"}),
        (1, 20.1, "peer_lost", {"peer": 0}), (0, 40, "start", {"attempt": 1}), (1, 40, "start", {"attempt": 1}),
    )  # fmt: skip
    (result,) = with_output(status(1, output=tmp_path), ROOTS).restart_history
    assert (result.attempt, result.slice, result.host) == (0, 0, 0)
    assert result.cause == "host s0/h0: OSError: disk full" and result.time == at(20)


def test_unreadable_output_changes_nothing(tmp_path: Path) -> None:
    before = status(2, restarted(1, 30.5), output=tmp_path / "nowhere")
    assert with_output(before, ROOTS) == before


def test_exit_codes_are_explained() -> None:
    assert [exit_words(code) for code in (3, 137, 143, 255, 75)] == [
        "exit code 3",
        "exit code 137 (SIGKILL)",
        "exit code 143 (SIGTERM)",
        "exit code 255",
        "exit code 75 (lost a peer)",
    ]
