"""A status without hosts: the same, from fewer pods."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.jobs.objects import ADMITTED, NOW, ROOTS, RUNNING, at, jobset, pod
from tests.jobs.status import elastic_objects
from tests.jobs.status.elastic_objects import slice_pod
from xpk.api.base import In, NotIn, Obj, is_selected
from xpk.api.paths import selecting
from xpk.jobs.status.reader import find_all, inspect
from xpk.model.status import Phase
from xpk.testing import FakeApi

SUCCEEDED = {
    "phase": "Succeeded",
    "containerStatuses": [{"state": {"terminated": {"exitCode": 0, "startedAt": NOW, "finishedAt": NOW}}}],
}
FAILED = {
    "phase": "Failed",
    "containerStatuses": [{"state": {"terminated": {"exitCode": 3, "startedAt": NOW, "finishedAt": NOW}}}],
}


class CountingApi(FakeApi):
    """An API server that counts the pods that it sends."""

    pods = 0

    def list(self, kind: str, *args: Any, **more: Any) -> list[Obj]:
        """Count pods of a list."""
        objs = super().list(kind, *args, **more)
        self.pods += len(objs) if kind == "Pod" else 0
        return objs


def ready(slices: int, **status: Any) -> Obj:
    """Return a JobSet whose status counts some slices as ready."""
    counts = {"name": "slice-job", "ready": slices, "succeeded": 0, "active": 2, "failed": 0, "suspended": 0}
    return jobset(replicatedJobsStatus=[counts], **status)


def elastic(minimum: int, slices: int, *, ready: int, **status: Any) -> Obj:
    """Return a JobSet of elastic slices whose status counts some of them as ready."""
    counts = {"name": "slice-job", "ready": ready, "succeeded": 0, "active": slices, "failed": 0, "suspended": 0}
    return elastic_objects.elastic(minimum, slices, replicatedJobsStatus=[counts], **status)


def api_of(mine: Obj, *pods: Obj, name: str = "w", namespace: str = "default") -> CountingApi:
    """Return an API server with a workload and its pods."""
    labels = {"jobset.sigs.k8s.io/jobset-name": name}
    objects: list[Obj] = [{"kind": "JobSet", **mine}, {"kind": "Workload", **ADMITTED}]
    for item in pods:
        meta = {**item["metadata"], "namespace": namespace, "labels": {**item["metadata"]["labels"], **labels}}
        objects.append({"kind": "Pod", **item, "metadata": meta})
    return CountingApi(objects)


ENDED = {"conditions": [{"type": "Completed", "status": "True", "lastTransitionTime": NOW}]}
BROKEN: dict[str, Any] = {"conditions": [{"type": "Failed", "status": "True", "lastTransitionTime": NOW}]}


@pytest.mark.parametrize(
    ("mine", "pods", "read"),
    [
        (ready(2), (pod(0, RUNNING), pod(1, RUNNING)), 0),
        (ready(2), (pod(0, RUNNING), pod(1, SUCCEEDED)), 1),
        (ready(1), (pod(0, RUNNING), pod(1, {"phase": "Pending"})), 2),
        (ready(2), (pod(0, RUNNING), pod(1, FAILED)), 2),  # the status is older than the pods
        (ready(1, restarts=1), (pod(0, RUNNING), pod(1, FAILED)), 2),
        (ready(0, **BROKEN), (pod(0, RUNNING), pod(1, FAILED)), 1),
        (ready(0, **ENDED), (pod(0, SUCCEEDED), pod(1, SUCCEEDED)), 0),
        (jobset(), (pod(0, RUNNING), pod(1, RUNNING)), 2),  # without a count
        (ready(0), (), 0),
    ],
)
def test_the_status_without_hosts_is_the_same(mine: Obj, pods: tuple[Obj, ...], read: int) -> None:
    api = api_of(mine, *pods)
    (full,) = find_all(api)
    api.pods = 0
    (brief,) = find_all(api, brief=True)
    assert api.pods == read
    up = brief.num_hosts_up if mine["status"].get("conditions") == BROKEN["conditions"] else full.num_hosts_up
    assert replace(brief, hosts=()) == replace(full, hosts=(), num_hosts_up=up)
    named, _ = inspect(api, "w", "default", ROOTS, brief=True)
    assert (named.phase, named.reason, named.num_hosts_up) == (full.phase, full.reason, up)


@pytest.mark.parametrize(
    ("mine", "pods", "read", "phase", "up"),
    [
        (elastic(2, 3, ready=3), (RUNNING, RUNNING, RUNNING), 0, Phase.RUNNING, "all 3 hosts running"),
        (elastic(2, 3, ready=2), (RUNNING, RUNNING, FAILED), 3, Phase.RUNNING, "2 of 3 slices running"),
        (elastic(2, 3, ready=3), (RUNNING, RUNNING, FAILED), 3, Phase.RUNNING, "2 of 3 slices running"),
        (
            elastic(2, 3, ready=1), (RUNNING, FAILED, FAILED), 3, Phase.RESTARTING,
            "waiting for slices: 1 of 3 active, requires 2",
        ),
    ],
)  # fmt: skip
def test_of_elastic_slices_pods_are_read_unless_all_hosts_run(
    mine: Obj, pods: tuple[Obj, ...], read: int, phase: Phase, up: str
) -> None:
    api = api_of(mine, *(slice_pod(number, state) for number, state in enumerate(pods)))
    (full,) = find_all(api)
    api.pods = 0
    (brief,) = find_all(api, brief=True)
    assert (api.pods, brief.phase, brief.reason.partition(": s2/")[0]) == (read, phase, up)
    assert replace(brief, hosts=()) == replace(full, hosts=())


@pytest.mark.parametrize("former", [FAILED, SUCCEEDED])
def test_a_former_pod_of_an_elastic_slice_is_not_its_host(former: Obj) -> None:
    gone = slice_pod(1, former)
    gone["metadata"]["deletionTimestamp"] = NOW
    hosts = (slice_pod(0, RUNNING), gone, slice_pod(1, RUNNING, attempt=1, created=at(5)))
    api = api_of(elastic(1, 2, ready=2), *hosts)
    (full,), (brief,) = find_all(api), find_all(api, brief=True)
    assert brief.reason == "all 2 hosts running" and brief.num_hosts_up == 2
    assert replace(brief, hosts=()) == replace(full, hosts=())


@pytest.mark.parametrize("made", [elastic(1, 2, ready=0, **BROKEN), elastic_objects.waiting(**BROKEN)])
def test_the_cause_of_a_failure_is_not_the_former_pod_of_a_slice(made: Obj) -> None:
    former, last = slice_pod(1, FAILED), slice_pod(1, RUNNING, attempt=1, created=at(5))
    ended = {"terminated": {"exitCode": 4, "startedAt": NOW, "finishedAt": at(9)}}
    cause = slice_pod(0, {"phase": "Failed", "containerStatuses": [{"state": ended}]})
    api = api_of(made, cause, former, last)
    (full,), (brief,) = find_all(api), find_all(api, brief=True)
    assert brief.reason == full.reason and brief.reason.startswith("host s0/h0")


def test_a_workload_of_the_same_name_in_another_namespace_keeps_its_pods() -> None:
    api = api_of(ready(2, **ENDED), pod(0, SUCCEEDED), pod(1, SUCCEEDED))
    other = ready(1)
    other["metadata"] |= {"namespace": "ml", "uid": "u2"}
    waits = pod(0, {"phase": "Pending"})
    labels = {"jobset.sigs.k8s.io/jobset-uid": "u2", "jobset.sigs.k8s.io/jobset-name": "w"}
    waits["metadata"] |= {"namespace": "ml", "uid": "p2", "labels": labels}
    api.create({"kind": "JobSet", **other})
    api.create({"kind": "Pod", **waits})
    phases = {status.namespace: (status.phase, len(status.hosts)) for status in find_all(api, None, brief=True)}
    assert phases == {"default": (Phase.SUCCEEDED, 2), "ml": (Phase.STARTING, 1)}


def test_a_selector_excludes_values() -> None:
    obj: Obj = {"metadata": {"labels": {"a": "1"}}, "status": {"phase": "Running"}}
    assert is_selected(obj, {"a": NotIn(("2", "3")), "b": NotIn(("1",))})
    assert not is_selected(obj, None, {"status.phase": NotIn(("Pending", "Running"))})
    assert selecting({"a": NotIn(("2", "3")), "b": "1"}) == {"labelSelector": "a!=2,a!=3,b=1"}
    assert is_selected(obj, {"a": In(("1", "2"))}) and not is_selected(obj, {"a": In(("2", "3"))})
    assert selecting({"a": In(("1", "2"))}) == {"labelSelector": "a in (1,2)"}
    assert selecting({"a": NotIn(())}) == selecting(None) == {}
