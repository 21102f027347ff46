"""Logs of many hosts: what cannot be read, and how many are too many."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.jobs.objects import RUNNING, Obj, jobset, pod
from xpk.api.base import LogLine
from xpk.jobs.logs import Wanted, follow_logs, read_logs
from xpk.model.errors import AuthorizationError, NotFoundError, UsageError
from xpk.testing import FakeApi


def labelled(slice_id: int) -> Obj:
    """A pod that is found by its workload's name."""
    made = pod(slice_id, RUNNING)
    made["metadata"]["namespace"] = "default"
    made["metadata"]["labels"]["jobset.sigs.k8s.io/jobset-name"] = "w"
    return made | {"kind": "Pod"}


def sized(slices: int, hosts: int) -> Obj:
    """A JobSet of that many slices and hosts of each."""
    made = jobset()
    (job,) = made["spec"]["replicatedJobs"]
    job["replicas"], job["template"]["spec"]["parallelism"] = slices, hosts
    return made | {"kind": "JobSet"}


class OneFails(FakeApi):
    """The log of the second slice cannot be read; that of the first has one line, and goes on."""

    def __init__(self, objects: list[Obj], error: Exception) -> None:
        super().__init__(objects)
        self.error = error

    def logs(self, pod: Obj, **_: Any) -> Iterator[LogLine]:
        """Fail, or say one thing and stay."""
        if pod["metadata"]["uid"] == "pod-1":
            raise self.error
        yield LogLine(datetime(2026, 1, 1, tzinfo=UTC), "hello")
        threading.Event().wait(30)


@pytest.mark.parametrize(
    "error", [AuthorizationError("may not get pods/log"), UsageError("is not valid"), ValueError("no time")]
)
def test_a_log_that_cannot_be_read_ends_the_command(error: Exception) -> None:
    api = OneFails([sized(2, 1), labelled(0), labelled(1)], error)
    with pytest.raises(type(error), match=str(error)):
        list(follow_logs(api, "w", "default", Wanted()))


@pytest.mark.parametrize(
    ("slices", "hosts", "wanted", "count", "hint"),
    [
        (199, 64, Wanted(), 12736, "`xpk workload logs w --slice N` shows"),
        (199, 64, Wanted(host=0), 199, "`xpk workload logs w --slice N` shows"),
        (2, 3072, Wanted(), 6144, "`xpk workload logs w --slice N --host M` shows"),
        (2, 3072, Wanted(slice=1), 3072, "`xpk workload logs w --slice 1 --host M` shows"),
    ],
)
def test_too_many_hosts_are_not_read_at_once(slices: int, hosts: int, wanted: Wanted, count: int, hint: str) -> None:
    api = FakeApi([sized(slices, hosts)])
    for read in (read_logs, follow_logs):
        with pytest.raises(UsageError, match=f"the logs of {count} hosts of 'w' are too many") as error:
            list(read(api, "w", "default", wanted))
        assert hint in error.value.hint


def test_one_slice_of_a_large_workload_can_be_read() -> None:
    api = FakeApi([sized(199, 64), labelled(3)])
    assert list(read_logs(api, "w", "default", Wanted(slice=3))) == []


def test_a_former_attempt_that_is_not_kept() -> None:
    api = FakeApi([sized(2, 1), labelled(0)])
    with pytest.raises(NotFoundError, match="no log of an attempt before") as error:
        list(read_logs(api, "w", "default", Wanted(), previous=True))
    assert "deletes an attempt's pods" in error.value.hint
