"""Waiting for a workload detects every change, also between a read and the following watch."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.jobs.objects import ADMITTED, RUNNING, Obj, jobset, pod
from tests.jobs.status.elastic_objects import elastic, waiting
from xpk.api.base import Change
from xpk.api.timing import seconds_left
from xpk.jobs import lifecycle
from xpk.model.errors import NotFoundError, TimedOutError
from xpk.model.status import Phase
from xpk.testing import FakeApi

COMPLETED = {"type": "Completed", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}


class Quick(FakeApi):
    """The workload ends before the watch begins, without later events."""

    def watch(
        self,
        kind: str,
        namespace: str | None = "default",
        selector: Mapping[str, str] | None = None,
        *,
        timeout: float | None = None,
    ) -> Iterator[tuple[Change, Obj]]:
        """Yield the ended workload, then wait for the timeout."""
        self.patch("JobSet", "w", {"status": {"conditions": [COMPLETED]}})
        yield "ADDED", self.get("JobSet", "w")
        time.sleep(timeout or 60.0)


def test_an_end_before_the_watch_is_detected_immediately() -> None:
    api: Any = Quick([jobset() | {"kind": "JobSet"}])
    began = time.monotonic()
    assert lifecycle.wait(api, "w", "default", timeout=30).phase is Phase.SUCCEEDED
    assert time.monotonic() - began < 5


class Limited(FakeApi):
    """An API server of which each request ends with an error once its time limit has passed."""

    def list(self, *arguments: Any, **options: Any) -> list[Obj]:
        """Return the objects, or raise TimedOutError."""
        if seconds_left() <= 0.0:
            raise TimedOutError("no answer")
        return super().list(*arguments, **options)


def test_without_time_to_wait_the_status_is_read_once() -> None:
    api: Any = Limited([jobset() | {"kind": "JobSet"}])
    with pytest.raises(TimedOutError, match=r"^timed out after 0 s: workload 'w' is "):
        lifecycle.wait(api, "w", "default", timeout=0.0)
    with pytest.raises(TimedOutError, match=r"^timed out after 60 s: "):
        lifecycle.wait(api, "w", "default", timeout=0.0, stated_timeout=60.0)
    with pytest.raises(NotFoundError):
        lifecycle.wait(api, "x", "default", timeout=0.0)
    api.patch("JobSet", "w", {"status": {"conditions": [COMPLETED]}})
    assert lifecycle.wait(api, "w", "default", timeout=0.0).phase is Phase.SUCCEEDED


class SliceFails(FakeApi):
    """The Job of one of two slices fails and is recreated before the workload ends."""

    reads = 0

    def list(self, kind: str, *arguments: Any, **options: Any) -> list[Obj]:
        """Return the objects; each read of pods finds the next state."""
        result = super().list(kind, *arguments, **options)
        if kind == "Pod":
            self.reads += 1
            if self.reads == 1:
                parts = [{"name": "slice-job", "jobRestarts": [0, 1], "jobRestartsCountTowardsMax": [0, 1]}]
                self.patch("JobSet", "w", {"status": {"replicatedJobsStatus": parts}})
                self.delete("Pod", "w-slice-job-1-0-abcde", "default")
            elif self.reads == 2:
                self.patch("JobSet", "w", {"status": {"conditions": [COMPLETED]}})
        return result


@pytest.mark.parametrize(
    ("made", "meanwhile"),
    [
        (elastic(), (Phase.RUNNING, "1 of 2 slices running")),
        (waiting(), (Phase.RESTARTING, "1 of 2 hosts running")),
    ],
    ids=["elastic", "waiting"],
)
def test_only_elastic_slices_run_while_one_is_recreated(made: Obj, meanwhile: tuple[Phase, str]) -> None:
    made = made | {"kind": "JobSet"}
    pods = [pod(number, RUNNING) | {"kind": "Pod"} for number in (0, 1)]
    for one in pods:
        one["metadata"]["namespace"] = "default"
        one["metadata"]["labels"]["jobset.sigs.k8s.io/jobset-name"] = "w"
    api: Any = SliceFails([made, *pods, ADMITTED | {"kind": "Workload"}])
    phases = list[tuple[Phase, str]]()
    lifecycle.wait(api, "w", "default", timeout=30, tell=lambda status: phases.append((status.phase, status.reason)))
    assert phases == [
        (Phase.RUNNING, "all 2 hosts running"),
        meanwhile,
        (Phase.SUCCEEDED, "all hosts finished"),
    ]


class Brief(FakeApi):
    """The workload is deleted while it is watched, with the conditions `end`."""

    end: tuple[Obj, ...] = ()

    def watch(
        self,
        kind: str,
        namespace: str | None = "default",
        selector: Mapping[str, str] | None = None,
        *,
        timeout: float | None = None,
    ) -> Iterator[tuple[Change, Obj]]:
        """Yield the existing workload and its deletion."""
        yield "ADDED", self.get("JobSet", "w")
        last = self.patch("JobSet", "w", {"status": {"conditions": [*self.end]}})
        self.delete("JobSet", "w")
        yield "DELETED", last


@pytest.mark.parametrize(("end", "phase"), [((COMPLETED,), Phase.SUCCEEDED), ((), None)])
def test_the_end_of_a_workload_that_is_deleted_at_once_is_known(end: tuple[Obj, ...], phase: Phase | None) -> None:
    api = Brief([jobset() | {"kind": "JobSet"}])
    api.end = end
    with lifecycle.EndWatch(api, "w", "default") as watched:
        status = watched.last_status()
    assert (status and status.phase) is phase
