"""The store as an API server: the cases that every one must pass, and its own guarantees."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.local.cases import ended_in_haste, jobset, node, set_up
from tests.local.conformance import CASES
from tests.waiting import until
from xpk.api.base import ObjectApi
from xpk.local import clock
from xpk.local.api import LocalApi
from xpk.local.cluster import create_cluster, delete_cluster
from xpk.local.environment import expand
from xpk.local.objects import merge_applied, merge_patch, new_uid, quantity
from xpk.local.process import locked
from xpk.local.shim import stamp, write
from xpk.local.store import CHANGES_KEPT, Store, Transaction
from xpk.model.errors import ConflictError, UsageError

JSON = st.recursive(
    st.integers(0, 3) | st.text("ab", max_size=1),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
)
OBJECTS = st.dictionaries(st.sampled_from("abc"), JSON, max_size=3)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalApi]:
    folder = tmp_path_factory.mktemp("clusters") / "shared"
    yield create_cluster(folder)
    delete_cluster(folder)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_conformance(shared: LocalApi, case: Callable[[ObjectApi, str], None]) -> None:
    case(shared, case.__name__.replace("_", "-"))


@given(OBJECTS, OBJECTS)
def test_applying_an_unchanged_object_changes_nothing(live: Any, requested: Any) -> None:
    once = merge_applied(live, {}, requested)
    assert merge_applied(once, requested, requested) == once


@given(OBJECTS, OBJECTS)
def test_apply_without_other_managers_gives_the_requested_object(before: Any, requested: Any) -> None:
    assert merge_applied(merge_applied({}, {}, before), before, requested) == requested


@given(OBJECTS, OBJECTS)
def test_patch_is_idempotent(target: Any, patch: Any) -> None:
    once = merge_patch(target, patch)
    assert merge_patch(once, patch) == once


@given(st.text("$()ab", max_size=12))
def test_variable_expansion_keeps_unknown_variables(text: str) -> None:
    assert expand(text.replace("$", "$$"), {"a": "x"}) == text
    if "$$" not in text:
        assert expand(text, {}) == text


def test_uids_sort_by_time() -> None:
    uids = [new_uid() for _ in range(2000)]
    assert uids == sorted(uids)
    assert len(set(uids)) == 2000


def test_quantities() -> None:
    assert [quantity(text) for text in ("4", 4, "500m", "1Ki", "2G")] == [4, 4, 0.5, 1024, 2e9]
    with pytest.raises(UsageError):
        quantity("many")


def changed(path: str, value: object) -> Any:
    obj: Any = jobset("a", "true")
    *parents, last = [int(key) if key.isdigit() else key for key in path.split(".")]
    place = obj
    for key in parents:
        place = place[key]
    place[last] = value
    return obj


JOB = "spec.replicatedJobs.0.template.spec"
POD = f"{JOB}.template.spec"


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        ("spec.startupPolicy", {}, "JobSet.spec.startupPolicy is not supported by the local control plane"),
        (f"{POD}.volumes", [], "JobSet.spec.replicatedJobs[0].template.spec.template.spec.volumes is not supported"),
        (f"{POD}.containers.0.livenessProbe", {}, "containers[0].livenessProbe is not supported"),
        (f"{JOB}.activeDeadlineSeconds", 5, "template.spec.activeDeadlineSeconds is not supported"),
        ("spec.failurePolicy.restartStrategy", "InPlaceRestart", "(use BlockingRecreate or Recreate)"),
        ("spec.suspend", "yes", "JobSet.spec.suspend must be true or false"),
        ("spec.replicatedJobs", [], "JobSet.spec.replicatedJobs is required"),
        ("spec.replicatedJobs", {}, "JobSet.spec.replicatedJobs must be a list"),
        ("spec.coordinator.jobIndex", 2, "names a pod that this JobSet does not have"),
        ("spec.failurePolicy.rules.0.onJobFailureMessagePatterns", ["("], "is not a regular expression"),
        (f"{JOB}.completions", 3, "completions must equal parallelism"),
        (f"{POD}.containers.0.command", [], "containers[0].command is required"),
        (f"{POD}.containers.0.resources.limits", {"cpu": "many"}, "'many' is not a quantity"),
        (
            f"{POD}.containers.0.env.0",
            {"name": "X", "valueFrom": {"secretKeyRef": {}}},
            "secretKeyRef is not supported",
        ),
        ("metadata.name", "Demo", "must be lowercase letters"),
        ("metadata.name", "1demo", "start with a letter"),
        ("metadata.name", "x" * 48, "JobSet.metadata.name is 5 characters too long"),
        ("spec.network.subdomain", "x" * 60, "must fit into 63 characters"),
        (
            f"{POD}.containers.0.env.0",
            {"name": "X", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIPs"}}},
            "hostIPs is not",
        ),
        ("metadata.labels", {"x": 1}, "JobSet.metadata.labels.x must be text"),
        ("apiVersion", "v1", "JobSet.apiVersion must be jobset.x-k8s.io/v1alpha2"),
    ],
)
def test_unsupported_fields_are_rejected_by_path(folder: Any, path: str, value: object, problem: str) -> None:
    api = create_cluster(folder)
    for dry_run in (True, False):
        with pytest.raises(UsageError) as raised:
            api.create(changed(path, value), dry_run=dry_run)
        assert problem in raised.value.message
    assert api.list("Node") == []


def test_all_problems_are_reported_together(api: LocalApi) -> None:
    requested = jobset("a", "true")
    requested["spec"] |= {"startupPolicy": {}, "managedBy": "me", "suspend": 1}
    with pytest.raises(UsageError) as raised:
        api.apply(requested)
    assert len(raised.value.problems) == 3


@pytest.mark.parametrize(
    ("quota", "spec", "problem"),
    [
        ({"lendingLimit": 9}, {"cohortName": "all"}, "lendingLimit of google.com/tpu is over its nominalQuota"),
        ({"borrowingLimit": 1}, {}, "limits of google.com/tpu need a cohortName"),
        ({"nominalQuota": -1}, {}, "quota of google.com/tpu cannot be negative"),
        ({"nominalQuota": "many"}, {}, "'many' is not a quantity"),
        ({}, {"preemption": {"borrowWithinCohort": {"policy": "LowerPriority"}}}, "needs a reclaimWithinCohort"),
        ({}, {"fairSharing": {"weight": 2}}, "ClusterQueue.spec.fairSharing is not supported"),
    ],
)
def test_queues_that_kueue_rejects(
    api: LocalApi, quota: dict[str, object], spec: dict[str, object], problem: str
) -> None:
    entry = {"name": "google.com/tpu", "nominalQuota": 8, **quota}
    flavor = {"name": "flavor", "resources": [entry]}
    groups = [{"coveredResources": ["google.com/tpu"], "flavors": [flavor]}]
    queue = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ClusterQueue", "metadata": {"name": "red"}}
    with pytest.raises(UsageError) as raised:
        api.apply(queue | {"spec": {"resourceGroups": groups, **spec}})
    assert problem in raised.value.message


def test_immutable_fields_of_a_jobset(api: LocalApi) -> None:
    api.delete("LocalQueue", "multislice-queue")
    made = api.apply(jobset("a", "true"))
    assert api.apply(jobset("a", "true"))["spec"] == made["spec"]
    assert api.apply(jobset("a", "true", ttl=5))["spec"]["ttlSecondsAfterFinished"] == 5
    assert api.get("JobSet", "a")["spec"]["suspend"] is True
    for dry_run in (True, False):
        with pytest.raises(UsageError, match=r"JobSet\.spec\.replicatedJobs is immutable"):
            api.apply(jobset("a", "false"), dry_run=dry_run)
    with pytest.raises(UsageError, match=r"JobSet\.spec\.failurePolicy is immutable"):
        api.patch("JobSet", "a", {"spec": {"failurePolicy": {"maxRestarts": 9}}})
    generation = api.get("JobSet", "a")["metadata"]["generation"]
    api.patch("JobSet", "a", {"metadata": {"annotations": {"x": "1"}}})
    assert api.get("JobSet", "a")["metadata"]["generation"] == generation
    with pytest.raises(ConflictError):
        api.create(jobset("a", "true"))
    with pytest.raises(UsageError, match="a Pod can only be created by the control plane"):
        api.create({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}})


def test_an_expired_watch_restarts(api: LocalApi, folder: Path) -> None:
    watch = api.watch("Node", timeout=5)
    assert len(list(itertools.islice(watch, 4))) == 4
    api.delete("Node", "c-np-0-0")
    for number in range(5):
        api.apply(node(7, number))
    with Store(folder) as store, store.transaction() as tx:
        for number in range(CHANGES_KEPT + 100):
            tx.put({"kind": "Event", "metadata": {"name": "filler", "namespace": "default"}, "number": number})
    seen = list(itertools.islice(watch, 9))
    assert (seen[0][0], seen[0][1]["metadata"]["name"]) == ("DELETED", "c-np-0-0")
    assert {o["metadata"]["name"] for c, o in seen if c == "ADDED"} == {f"c-np-7-{number}" for number in range(5)}
    with Store(folder) as store:
        assert store.changes("Node", 1) is None


def test_watch_of_a_whole_run(api: LocalApi) -> None:
    api.create(jobset("a", "true"))
    states = []
    for _, obj in api.watch("JobSet", timeout=10):
        states.append(obj.get("status", {}).get("terminalState"))
        if states[-1]:
            break
    assert states[-1] == "Completed"


class Past:
    """The machine's clock some hours ago."""

    def __init__(self, hours: float) -> None:
        self._nanoseconds = int(hours * 3600e9)

    def time_ns(self) -> int:
        return time.time_ns() - self._nanoseconds

    def random_bytes(self, count: int) -> bytes:
        return os.urandom(count)


def test_events_of_deleted_objects_are_forgotten_after_an_hour(tmp_path: Path) -> None:
    with Store(tmp_path, create=True) as store:
        kept, deleted, recent = (jobset(name, "true") for name in ("kept", "deleted", "recent"))
        for obj, hours in ((kept, 2.0), (deleted, 2.0), (recent, 0.5)):
            with clock.replaced(Past(hours)), store.transaction() as tx:
                tx.put(obj)
                tx.event(obj, "Created", "created")
        with store.transaction() as tx:
            tx.remove(deleted)
            tx.remove(recent)
            tx.event(kept, "Resumed", "resumed")
            about = [event["involvedObject"]["name"] for event in tx.list("Event")]
        assert sorted(about) == ["kept", "kept", "recent"]


def test_events_are_bounded(api: LocalApi) -> None:
    api.create(jobset("a", "exit 1", max_restarts=30, slices=1, hosts=1))
    assert ended_in_haste(api, "a") == "Failed"
    events = api.list("Event")
    reason = events[0]["reason"]
    assert api.list("Event", fields={"reason": reason}) == [item for item in events if item["reason"] == reason]
    assert api.list("Event", fields={"involvedObject.kind": "Nothing"}) == []
    assert 100 < len(events) <= 200
    assert any(event["reason"] == "ReachedMaxRestarts" for event in events)


def test_deletion_leaves_nothing(api: LocalApi, folder: Any) -> None:
    api.create(jobset("a", "exec sleep 600", max_restarts=1))
    until(lambda: len([p for p in api.list("Pod") if p["status"]["phase"] == "Running"]) == 4)
    api.delete("JobSet", "a", grace_seconds=0)
    until(lambda: not api.list("Pod") and not api.list("Job") and not list((folder / "pods").iterdir()))
    assert api.former_pods("default", {}) == []
    set_up(api)


def test_an_exception_rolls_back_a_transaction(api: LocalApi, folder: Path) -> None:
    def broken(tx: Transaction) -> None:
        tx.put({"kind": "Node", "metadata": {"name": "half"}, "spec": {}})
        tx.remove(tx.list("Node")[0])
        raise RuntimeError("in the middle")

    before = [item["metadata"]["name"] for item in api.list("Node")]
    with Store(folder) as store, pytest.raises(RuntimeError, match="in the middle"), store.transaction() as tx:
        broken(tx)
    assert [item["metadata"]["name"] for item in api.list("Node")] == before


def test_exec_has_the_environment_of_a_host_that_has_just_been_forked(tmp_path: Path) -> None:
    pod = {"metadata": {"uid": "u", "name": "w-0"}}
    folder = tmp_path / "pods" / "u"
    folder.mkdir(parents=True)
    write(str(folder), "spec.json", {"command": ["sleep"], "environment": {"RANK": "1"}, "folder": str(tmp_path)})
    write(str(folder), "start.json", {"startedAt": stamp(), "pid": os.getpid()})  # as it still has another environment
    argv = ("/bin/sh", "-c", 'echo "$RANK" > told')
    with pytest.raises(ConflictError, match="the host of pod 'w-0' is not running"):
        LocalApi(tmp_path).exec(pod, argv)
    with locked(folder / "lock"):
        assert LocalApi(tmp_path).exec(pod, argv) == 0
    assert (tmp_path / "told").read_text() == "1\n"
