"""Logs of many hosts: unreadable logs, and limits."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.jobs.objects import RUNNING, Obj, at, jobset, pod
from xpk.api.base import LogLine
from xpk.api.server_errors import NotStartedError
from xpk.jobs.host_logs import LogQuery
from xpk.jobs.logs import follow_logs, read_logs
from xpk.model.errors import AuthorizationError, NotFoundError, UnavailableError, UsageError, XpkError
from xpk.testing import FakeApi


def labeled(slice_id: int) -> Obj:
    """Return a pod with its workload's label."""
    made = pod(slice_id, RUNNING)
    made["metadata"]["namespace"] = "default"
    made["metadata"]["labels"]["jobset.sigs.k8s.io/jobset-name"] = "w"
    return made | {"kind": "Pod"}


def sized(slices: int, hosts: int) -> Obj:
    """Return a JobSet with this number of slices and hosts per slice."""
    made = jobset()
    (job,) = made["spec"]["replicatedJobs"]
    job["replicas"], job["template"]["spec"]["parallelism"] = slices, hosts
    return made | {"kind": "JobSet"}


class OneFails(FakeApi):
    """The log of the second slice cannot be read; that of the first has one line and continues."""

    def __init__(self, objects: list[Obj], error: Exception) -> None:
        super().__init__(objects)
        self.error = error

    def logs(self, pod: Obj, **_: Any) -> Iterator[LogLine]:
        """Fail, or yield one line and wait."""
        if pod["metadata"]["uid"] == "pod-1":
            raise self.error
        yield LogLine(datetime(2026, 1, 1, tzinfo=UTC), "hello")
        threading.Event().wait(30)


@pytest.mark.parametrize(
    "error", [AuthorizationError("may not get pods/log"), UsageError("is not valid"), ValueError("no time")]
)
def test_an_unreadable_log_fails_the_command(error: Exception) -> None:
    api = OneFails([sized(2, 1), labeled(0), labeled(1)], error)
    with pytest.raises(type(error), match=str(error)):
        list(follow_logs(api, "w", "default", LogQuery(), pause=lambda seconds: None))


class Restarted(FakeApi):
    """A server whose roles are not loaded when the second host starts, but were when the first log was read."""

    def __init__(self, objects: list[Obj]) -> None:
        super().__init__(objects)
        self.refusals, self.first = 2, threading.Event()

    def logs(self, pod: Obj, **_: Any) -> Iterator[LogLine]:
        """Reject the second host's log twice, after the first host's was read."""
        second = pod["metadata"]["uid"] == "pod-1"
        if second:
            self.first.wait(30)
            self.refusals -= 1
            if self.refusals >= 0:
                raise AuthorizationError("may not get pods/log")
        yield LogLine(datetime(2026, 1, 1, tzinfo=UTC), pod["metadata"]["uid"])
        self.first.set()
        if second:
            self.patch("JobSet", "w", {"status": {"conditions": [{"type": "Completed", "status": "True"}]}})


def test_logs_retry_until_the_servers_roles_are_loaded() -> None:
    api = Restarted([sized(2, 1), labeled(0), labeled(1)])
    lines = follow_logs(api, "w", "default", LogQuery(), pause=lambda seconds: None)
    assert {line.text for line in lines} == {"pod-0", "pod-1"}


@pytest.mark.parametrize(
    ("slices", "hosts", "wanted", "count", "hint"),
    [
        (199, 64, LogQuery(), 12736, "`xpk workload logs w --slice N`"),
        (199, 64, LogQuery(host=0), 199, "`xpk workload logs w --slice N`"),
        (2, 3072, LogQuery(), 6144, "`xpk workload logs w --slice N --host M`"),
        (2, 3072, LogQuery(slice=1), 3072, "`xpk workload logs w --slice 1 --host M`"),
    ],
)
def test_logs_of_too_many_hosts_are_rejected(slices: int, hosts: int, wanted: LogQuery, count: int, hint: str) -> None:
    api = FakeApi([sized(slices, hosts)])
    for read in (read_logs, follow_logs):
        with pytest.raises(UsageError, match=f"cannot read the logs of {count} hosts of 'w'") as error:
            list(read(api, "w", "default", wanted))
        assert hint in error.value.hint


def test_one_slice_of_a_large_workload_can_be_read() -> None:
    api = FakeApi([sized(199, 64), labeled(3)])
    assert list(read_logs(api, "w", "default", LogQuery(slice=3))) == []


def test_a_previous_attempt_without_logs_is_reported() -> None:
    api = FakeApi([sized(2, 1), labeled(0)])
    with pytest.raises(NotFoundError, match="no logs of previous attempts") as error:
        list(read_logs(api, "w", "default", LogQuery(), previous=True))
    assert "deletes the pods of an attempt" in error.value.hint
    assert "before restarts in place" in error.value.hint


def waiting(slice_id: int, **state: Any) -> Obj:
    """Return a host whose container has not started; `state` is that of its pod."""
    made = labeled(slice_id)
    made["status"] = {"phase": "Pending", **state}
    return made


CREATING = {"containerStatuses": [{"name": "host", "state": {"waiting": {"reason": "ContainerCreating"}}}]}
NO_NODE = {
    "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}]
}


class Begins(FakeApi):
    """Running hosts have a line each; for others the kubelet has no log, and one without a node has an empty log."""

    def logs(self, pod: Obj, **_: Any) -> Iterator[LogLine]:
        """Respond like an API server."""
        if pod["status"] == RUNNING:
            yield LogLine(datetime(2026, 1, 1, tzinfo=UTC), f"hello of {pod['metadata']['uid']}")
        elif "containerStatuses" in pod["status"]:
            raise NotStartedError("Pod 'x' has no log yet: container is waiting to start")


def test_hosts_without_a_log_do_not_hide_other_logs() -> None:
    report: list[str] = []
    pods = [labeled(0), waiting(1, **CREATING), waiting(2, **NO_NODE), waiting(3, **CREATING), labeled(4)]
    lines = read_logs(Begins([sized(5, 1), *pods]), "w", "default", LogQuery(), tell=report.append)
    assert [line.text for line in lines] == ["hello of pod-0", "hello of pod-4"]
    assert report == ["no log yet of s1/h0, s3/h0 (ContainerCreating), s2/h0 (Unschedulable: 0/3 nodes)"]


def test_a_running_host_without_output_has_an_empty_log() -> None:
    report: list[str] = []
    assert list(read_logs(FakeApi([sized(1, 1), labeled(0)]), "w", "default", LogQuery(), tell=report.append)) == []
    assert report == []


def test_without_any_log_one_line_explains_why() -> None:
    api = Begins([sized(2, 1), waiting(0, **CREATING), waiting(1)])
    with pytest.raises(XpkError, match=r"no host of 'w' has a log yet: s0/h0 \(ContainerCreating\), s1/h0 \(") as error:
        list(read_logs(api, "w", "default", LogQuery()))
    assert error.value.exit_code == 1 and "xpk workload status w" in error.value.hint


def test_a_host_on_a_dead_node_does_not_hide_the_others() -> None:
    class Dead(FakeApi):
        def logs(self, pod: Obj, **_: Any) -> Iterator[LogLine]:
            if pod["metadata"]["uid"] == "pod-1":
                yield LogLine(datetime(2026, 1, 1, tzinfo=UTC), "the last word")
            if pod["metadata"]["uid"] != "pod-2":
                raise UnavailableError("dial tcp 10.0.0.2:10250: i/o timeout")
            yield LogLine(datetime(2026, 1, 2, tzinfo=UTC), "hello")

    report: list[str] = []
    pods = [labeled(index) for index in range(3)]
    lines = read_logs(Dead([sized(3, 1), *pods]), "w", "default", LogQuery(), tell=report.append)
    assert [line.text for line in lines] == ["the last word", "hello"]
    assert report == [
        "no log yet of s0/h0 (dial tcp 10.0.0.2:10250: i/o timeout)",
        "the log of s1/h0 is incomplete: dial tcp 10.0.0.2:10250: i/o timeout",
    ]


def test_a_concurrently_deleted_pod_does_not_hide_the_others() -> None:
    class Gone(FakeApi):
        def logs(self, pod: Obj, **_: Any) -> Iterator[LogLine]:
            if pod["metadata"]["uid"] == "pod-1":
                raise NotFoundError("Pod 'x' not found")
            yield LogLine(datetime(2026, 1, 1, tzinfo=UTC), "hello")

    report: list[str] = []
    lines = read_logs(Gone([sized(2, 1), labeled(0), labeled(1)]), "w", "default", LogQuery(), tell=report.append)
    assert [line.text for line in lines] == ["hello"] and report == ["no log yet of s1/h0 (its pod was deleted)"]


@pytest.mark.parametrize(("wanted", "says"), [(LogQuery(slice=2), "no slice 2"), (LogQuery(host=1), "no host 1")])
def test_follow_does_not_wait_for_hosts_that_will_not_start(wanted: LogQuery, says: str) -> None:
    with pytest.raises(NotFoundError, match=says):
        next(follow_logs(FakeApi([sized(2, 1), labeled(0)]), "w", "default", wanted))


class Unended(FakeApi):
    """A workload that has failed. The host of slice 1 has a last line, after some time or, for None, never."""

    def __init__(self, last_line_after: float | None, **spec: Any) -> None:
        failed = sized(2, 1)
        failed["status"] = {"conditions": [{"type": "Failed", "status": "True"}]}
        pods = [labeled(0), labeled(1)]
        pods[1]["spec"] |= spec
        super().__init__([failed, *pods])
        self.last_line_after = last_line_after

    def logs(self, pod: Obj, **_: Any) -> Iterator[LogLine]:
        """Yield one line."""
        if pod["metadata"]["uid"] == "pod-1":
            threading.Event().wait(60 if self.last_line_after is None else self.last_line_after)
        yield LogLine(datetime(2026, 1, 1, tzinfo=UTC), f"the last word of {pod['metadata']['uid']}")


def test_follow_ends_although_a_host_on_a_dead_node_never_does() -> None:
    report: list[str] = []
    lines = follow_logs(Unended(None), "w", "default", LogQuery(), tell=report.append, silence_seconds=2.0)
    assert [line.text for line in lines] == ["the last word of pod-0"]
    assert report == ["the log of s1/h0 is incomplete: not ended, and silent since the workload has ended"]


def test_follow_waits_for_hosts_that_save_in_their_grace_period() -> None:
    report: list[str] = []
    api = Unended(1.0, terminationGracePeriodSeconds=60)
    lines = follow_logs(api, "w", "default", LogQuery(), tell=report.append, silence_seconds=0.1)
    assert [line.text for line in lines] == ["the last word of pod-0", "the last word of pod-1"]
    assert report == []


def test_hints_name_the_cluster_and_the_namespace() -> None:
    where = " --cluster c --namespace team"
    with pytest.raises(UsageError) as many:
        list(read_logs(FakeApi([sized(199, 64)]), "w", "default", LogQuery(), where=where))
    assert many.value.hint == f"select fewer hosts: `xpk workload logs w{where} --slice N`"
    with pytest.raises(NotFoundError) as before:
        list(read_logs(FakeApi([sized(2, 1), labeled(0)]), "w", "default", LogQuery(), previous=True, where=where))
    assert f"`xpk workload logs w{where}` shows the newest" in before.value.hint
    for pods in ([], [waiting(0, **CREATING)]):
        with pytest.raises(XpkError) as none:
            list(read_logs(Begins([sized(2, 1), *pods]), "w", "default", LogQuery(), where=where))
        assert none.value.hint == f"`xpk workload status w{where}`"


class ComesLater(FakeApi):
    """A second host that starts while the first one is followed; all have written three lines."""

    def logs(self, pod: Obj, *, tail: int | None = None, **_: Any) -> Iterator[LogLine]:
        """Start the second host, or end the workload."""
        texts = [f"{pod['metadata']['uid']} line {number}" for number in range(3)]
        yield from (LogLine(datetime(2026, 1, 1, tzinfo=UTC), text) for text in texts[-tail if tail else 0 :])
        if pod["metadata"]["uid"] == "pod-0":
            self.apply(labeled(1))
        else:
            self.patch("JobSet", "w", {"status": {"conditions": [{"type": "Completed", "status": "True"}]}})


def test_later_hosts_are_followed_from_their_first_line() -> None:
    api = ComesLater([sized(2, 1), labeled(0)])
    seen = [line.text for line in follow_logs(api, "w", "default", LogQuery(tail=1))]
    assert seen == ["pod-0 line 2", "pod-1 line 0", "pod-1 line 1", "pod-1 line 2"]


def recreated(slice_id: int) -> Obj:
    """Return the pod of a slice whose Job JobSet has recreated, while others continue."""
    made = labeled(slice_id)
    made["metadata"] |= {"name": f"w-slice-job-{slice_id}-0-vwxyz", "uid": f"pod-{slice_id}-again"}
    made["metadata"]["creationTimestamp"] = at(30)
    made["metadata"]["labels"]["jobset.sigs.k8s.io/job-restart-attempt"] = "1"
    return made


class SliceRestarts(FakeApi):
    """The Job of slice 1 is recreated while the log of slice 0 continues."""

    def logs(self, pod: Obj, **_: Any) -> Iterator[LogLine]:
        """Yield one line, then replace the pod of slice 1, or end the workload."""
        yield LogLine(datetime(2026, 1, 1, tzinfo=UTC), pod["metadata"]["uid"])
        if pod["metadata"]["uid"] == "pod-1":
            self.delete("Pod", pod["metadata"]["name"], "default")
            self.apply(recreated(1))
        elif pod["metadata"]["uid"] == "pod-1-again":
            self.patch("JobSet", "w", {"status": {"conditions": [{"type": "Completed", "status": "True"}]}})


def test_the_pods_of_a_slice_that_was_recreated_are_followed() -> None:
    api = SliceRestarts([sized(2, 1), labeled(0), labeled(1)])
    seen = [line.text for line in follow_logs(api, "w", "default", LogQuery())]
    assert sorted(seen) == ["pod-0", "pod-1", "pod-1-again"]


def test_the_newest_pod_of_every_slice_is_read() -> None:
    api = SliceRestarts([sized(2, 1), labeled(0), recreated(1)])
    assert [line.text for line in read_logs(api, "w", "default", LogQuery())] == ["pod-0", "pod-1-again"]


class Chatty(FakeApi):
    """One host whose log has a few lines of its own, then `chatter` lines of Gloo, and two more."""

    chatter = 1000

    def logs(self, pod: Obj, *, tail: int | None = None, **_: Any) -> Iterator[LogLine]:
        """Return the last lines."""
        peers = "peer ranks. Expected number of connected peer ranks is : 7"
        gloo = [f"[Gloo] Rank {number % 8} is connected to 7 {peers}" for number in range(self.chatter - 2)]
        gloo += [
            "[Gloo] Rank [Gloo] Rank 3",
            f" is connected to 7 {peers} is connected to 7 {peers}",
        ]  # truncated lines
        texts = ["begin", "compile", *gloo, "step 1", "step 2"]
        for text in texts[-tail:] if tail else texts:
            yield LogLine(datetime(2026, 1, 1, tzinfo=UTC), text)
        self.patch("JobSet", "w", {"status": {"conditions": [{"type": "Completed", "status": "True"}]}})


@pytest.mark.parametrize("read", [read_logs, follow_logs])
@pytest.mark.parametrize(
    ("tail", "expected"),
    [
        (None, ["begin", "compile", "step 1", "step 2"]),
        (1, ["step 2"]),
        (3, ["compile", "step 1", "step 2"]),
        (50, ["begin", "compile", "step 1", "step 2"]),
    ],
)
def test_messages_of_gloo_are_omitted_and_not_counted(read: Any, tail: int | None, expected: list[str]) -> None:
    api = Chatty([sized(1, 1), labeled(0)])
    assert sorted(line.text for line in read(api, "w", "default", LogQuery(tail=tail))) == expected


def test_all_lines_are_shown_on_request() -> None:
    lines = read_logs(Chatty([sized(1, 1), labeled(0)]), "w", "default", LogQuery(tail=3, all_lines=True))
    assert [line.text.partition(" peer")[0] for line in lines] == [" is connected to 7", "step 1", "step 2"]
