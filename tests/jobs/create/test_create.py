"""Requests to the API server before a workload is created, and the error if it does not fit."""

from __future__ import annotations

import base64
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.jobs.create.specs import SHAPE, TARGET, spec
from xpk.api.base import Obj, ObjectApi
from xpk.jobs.create import create
from xpk.jobs.create.create import check_free, create_workload, read_queue
from xpk.jobs.status.reader import find_all
from xpk.model.errors import (
    AuthorizationError,
    CapacityError,
    ConflictError,
    Modified,
    NameTaken,
    NotFoundError,
    UsageError,
)
from xpk.model.specs import ClusterSpec, QueueSpec, SliceQuota, WorkloadSpec
from xpk.render import render_peer_secret, render_queue, render_queues, render_workload
from xpk.testing import FakeApi


def check_fits(api: ObjectApi, wanted: WorkloadSpec, *, cluster: str) -> None:
    queue = read_queue(api, wanted.queue, wanted.namespace, cluster=cluster)
    create.check_fits(api, queue, wanted, cluster=cluster)


def queues(**slices: int) -> list[Obj]:
    """Return LocalQueues with these names, each with a ClusterQueue of this number of slices."""
    result = []
    for name, count in slices.items():
        for obj in render_queues(ClusterSpec(name="c", shape=SHAPE, num_slices=count)):
            if obj["kind"] == "ClusterQueue":
                obj["metadata"]["name"] = f"{name}-cluster"
            elif obj["kind"] == "LocalQueue":
                obj["metadata"]["name"], obj["spec"]["clusterQueue"] = name, f"{name}-cluster"
            result.append(obj)
    return result


@pytest.mark.parametrize(
    ("wanted", "hint"),
    [
        ({"num_slices": 3, "queue": "small"}, "use --num-slices 2 or --queue large"),
        ({"num_slices": 1, "queue": "empty"}, "use --queue large"),
        ({"num_slices": 9, "queue": "small"}, "use --num-slices 2"),
        ({"num_slices": 9, "queue": "empty"}, "`xpk cluster describe c` shows what it has"),
    ],
)
def test_errors_suggest_sizes_that_fit(wanted: dict[str, Any], hint: str) -> None:
    api = FakeApi(queues(large=4, small=2, empty=0))
    with pytest.raises(CapacityError) as raised:
        check_fits(api, spec(**wanted), cluster="c")
    assert raised.value.hint == hint
    assert f"queue '{wanted['queue']}' of cluster 'c' has {16 if wanted['queue'] == 'small' else 0} in all" in str(
        raised.value
    )


@pytest.mark.parametrize(
    ("controller", "is_refused"), [("kueue.x-k8s.io/multikueue", True), ("example.com/check", False), ("", False)]
)
def test_a_queue_of_multikueue_is_refused_because_its_hosts_would_lack_their_secret(
    controller: str, is_refused: bool
) -> None:
    objects = queues(far=2)
    (queue,) = (obj for obj in objects if obj["kind"] == "ClusterQueue")
    queue["spec"]["admissionChecksStrategy"] = {"admissionChecks": [{"name": "dispatch"}]}
    meta = {"name": "dispatch"}
    check = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "AdmissionCheck", "metadata": meta}
    api = FakeApi([*objects, *([check | {"spec": {"controllerName": controller}}] if controller else [])])
    with pytest.raises(UsageError, match="queue 'far' of cluster 'c' dispatches") if is_refused else nullcontext():
        check_fits(api, spec(num_slices=1, queue="far"), cluster="c")


def test_quotas_are_read_in_kueues_formats() -> None:
    objects = queues(large=250)
    entry = objects[1]["spec"]["resourceGroups"][0]["flavors"][0]["resources"][0]
    assert entry["nominalQuota"] == 2000
    entry["nominalQuota"] = "2k"
    api = FakeApi(objects)
    check_fits(api, spec(num_slices=250, queue="large"), cluster="c")
    with pytest.raises(CapacityError, match="has 2000 in all"):
        check_fits(api, spec(num_slices=251, queue="large"), cluster="c")


def test_borrowing_is_left_to_kueue() -> None:
    objects = queues(small=1)
    objects[1]["spec"]["cohortName"] = "all"
    check_fits(FakeApi(objects), spec(num_slices=5, queue="small"), cluster="c")


def test_lendable_quota_counts_up_to_the_borrowing_limit() -> None:
    red, blue = (
        QueueSpec(name=name, namespaces=("default",), quotas=(quota,))
        for name, quota in (
            ("red", SliceQuota(shape=SHAPE, num_slices=1, lending_limit=0)),
            ("blue", SliceQuota(shape=SHAPE, num_slices=1, borrowing_limit=1)),
        )
    )
    whole = render_queues(ClusterSpec(name="c", shape=SHAPE, num_slices=4), promised={SHAPE.name: 2})
    api = FakeApi([*whole, *render_queue(red), *render_queue(blue)])
    for queue, most in (("multislice-queue", 3), ("red", 4), ("blue", 2)):
        check_fits(api, spec(num_slices=most, queue=queue), cluster="c")
        with pytest.raises(CapacityError, match=f"has {8 * most} in all"):
            check_fits(api, spec(num_slices=most + 1, queue=queue), cluster="c")


def test_the_default_queue_is_the_clusters_own_or_the_only_one() -> None:
    api = FakeApi(queues(red=1))
    assert read_queue(api, None, "default", cluster="c").name == "red"
    api = FakeApi(queues(red=1, blue=1))
    with pytest.raises(NotFoundError) as raised:
        read_queue(api, None, "default", cluster="c")
    assert raised.value.hint == "choose from blue, red"
    assert read_queue(FakeApi(queues(red=1, **{"multislice-queue": 1})), None, "default", cluster="c").name == (
        "multislice-queue"
    )


def test_the_error_for_a_missing_queue_lists_the_existing_ones() -> None:
    with pytest.raises(NotFoundError) as raised:
        check_fits(FakeApi(queues(large=1, small=1)), spec(), cluster="c")
    assert raised.value.hint == "choose from large, small"


def test_a_create_makes_few_requests() -> None:
    api = FakeApi(queues(large=1))
    wanted = spec(queue="large")
    check_fits(api, wanted, cluster="c")
    check_free(api, wanted, cluster="c")
    create_workload(api, wanted, cluster="c")
    assert [verb for verb, _, _ in api.calls] == ["get", "list", "get", "create", "create"]


def test_listing_makes_the_same_number_of_requests_for_any_number_of_workloads() -> None:
    def asked(count: int) -> list[tuple[str, str, str]]:
        jobsets = [obj for index in range(count) for obj in render_workload(spec(name=f"w{index}"))]
        for jobset in jobsets:
            jobset["metadata"] |= {"uid": jobset["metadata"]["name"], "creationTimestamp": "2026-01-31T12:00:00Z"}
        api = FakeApi([*queues(large=1), *jobsets])
        assert len(find_all(api)) == count
        return api.calls

    assert asked(50) == asked(1)
    assert {verb for verb, _, _ in asked(1)} == {"list"}


def test_an_existing_name_is_reported_with_its_namespace() -> None:
    """Without it, the command would delete another workload."""
    wanted = spec(namespace="team-a")
    api = FakeApi([render_workload(wanted)[-1]])
    with pytest.raises(ConflictError) as error:
        check_free(api, wanted, cluster="c")
    assert "`xpk workload delete w --cluster c --namespace team-a` first" in error.value.hint


def test_a_priority_above_the_limit_of_the_queue_is_rejected() -> None:
    quota = SliceQuota(shape=SHAPE, num_slices=4)
    limited = QueueSpec(name="red", namespaces=("default",), quotas=(quota,), max_priority="medium")
    api = FakeApi([*queues(), *render_queue(limited)])
    check_fits(api, spec(queue="red", priority="medium"), cluster="c")
    with pytest.raises(
        CapacityError, match="'high' is too high: queue 'red' accepts priorities up to medium"
    ) as raised:
        check_fits(api, spec(queue="red", priority="high"), cluster="c")
    assert raised.value.hint.startswith("use --priority medium")


def secret_of(api: FakeApi) -> Obj:
    return api.get("Secret", "xpk-peers.w")


def test_a_workloads_secret_is_created_last_and_deleted_with_it() -> None:
    api = FakeApi()
    create_workload(api, spec(), cluster="c")
    assert [(verb, kind) for verb, kind, _ in api.calls] == [("create", "JobSet"), ("create", "Secret")]
    (owner,) = secret_of(api)["metadata"]["ownerReferences"]
    assert owner["uid"] == api.get("JobSet", "w")["metadata"]["uid"]
    value = base64.b64decode(secret_of(api)["data"]["secret"])
    assert len(value) == 64 and value.decode() not in str(api.get("JobSet", "w"))


def test_a_leftover_secret_of_an_earlier_workload_is_replaced() -> None:
    api = FakeApi([*render_peer_secret(spec())])
    before = secret_of(api)["data"]
    create_workload(api, spec(), cluster="c")
    assert secret_of(api)["data"] != before and secret_of(api)["metadata"]["ownerReferences"]


def test_a_network_policy_exists_before_any_host_can_start() -> None:
    api = FakeApi()
    create_workload(api, spec(network_policy=True), cluster="c")
    assert [kind for verb, kind, _ in api.calls if verb == "create"] == ["JobSet", "NetworkPolicy", "Secret"]
    policy = api.get("NetworkPolicy", "xpk-hosts.w")
    (owner,) = policy["metadata"]["ownerReferences"]
    assert owner["uid"] == api.get("JobSet", "w")["metadata"]["uid"]
    pods = {"matchLabels": {"jobset.sigs.k8s.io/jobset-name": "w"}}
    assert policy["spec"] == {
        "podSelector": pods,
        "policyTypes": ["Ingress"],
        "ingress": [{"from": [{"podSelector": pods}]}],
    }


def test_a_network_policy_of_another_tool_is_not_changed() -> None:
    policy = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "xpk-hosts.w", "namespace": "default"},
    }
    api = FakeApi([policy])
    with pytest.raises(ConflictError, match=r"NetworkPolicy 'xpk-hosts\.w' already exists .* not created by xpk"):
        create_workload(api, spec(network_policy=True), cluster="c")
    assert "spec" not in api.get("NetworkPolicy", "xpk-hosts.w")
    with pytest.raises(NotFoundError):
        api.get("JobSet", "w")


@pytest.mark.parametrize("option", ["network_policy", "read_only_root"])
def test_protection_that_processes_of_this_machine_cannot_have_is_rejected(option: str) -> None:
    here = spec(target=replace(TARGET, on_this_machine=True), **{option: True})
    (problem,) = here.problems()
    assert problem.startswith(f"--{option.replace('_', '-')} requires a Kubernetes cluster")


class CutOff(FakeApi):
    """An API server whose client is killed in the middle, or may not create Secrets."""

    error: BaseException | None = None

    def create(self, obj: Obj, *, dry_run: bool = False) -> Obj:
        """See `ObjectApi.create`."""
        if obj["kind"] == "Secret" and self.error and not dry_run:
            raise self.error
        return super().create(obj, dry_run=dry_run)


def age(api: FakeApi, seconds: int) -> None:
    """Change the creation time of the JobSet to this long ago."""
    created = (datetime.now(UTC) - timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")
    api.patch("JobSet", "w", {"metadata": {"creationTimestamp": created}})


def test_objects_of_a_concurrent_command_are_not_deleted() -> None:
    api = CutOff([render_workload(spec())[-1]])
    age(api, 90)
    api.error = AuthorizationError("user 'ann' may not create secrets in namespace 'default'")
    with pytest.raises(AuthorizationError, match="may not create secrets"):
        create_workload(api, spec(), cluster="c")
    assert api.get("JobSet", "w")


class Refusing(FakeApi):
    """An API server that refuses to create objects of a kind with a conflict."""

    def __init__(self, kind: str, error: ConflictError) -> None:
        super().__init__()
        self.kind, self.error = kind, error

    def create(self, obj: Obj, *, dry_run: bool = False) -> Obj:
        """See `ObjectApi.create`."""
        if obj["kind"] == self.kind:
            raise self.error
        return super().create(obj, dry_run=dry_run)


@pytest.mark.parametrize("kind", ["JobSet", "Secret"])
@pytest.mark.parametrize(
    "error",
    [
        ConflictError("the namespace of JobSet 'w' is being deleted"),
        Modified("JobSet 'w' was modified concurrently: Operation cannot be fulfilled on resourcequotas 'q'"),
    ],
)
def test_another_conflict_than_an_existing_name_is_reported_as_it_is(kind: str, error: ConflictError) -> None:
    api = Refusing(kind, error)
    with pytest.raises(type(error)) as raised:
        create_workload(api, spec(), cluster="c")
    assert raised.value is error
    assert api.list("JobSet") == []


def test_a_name_that_is_freed_meanwhile_is_reported_as_taken() -> None:
    taken = NameTaken("JobSet 'w' already exists", hint="choose another name, or delete it first")
    with pytest.raises(NameTaken, match="already exists"):
        create_workload(Refusing("JobSet", taken), spec(), cluster="c")


def test_an_existing_name_is_rejected_on_local_clusters() -> None:
    api, here = FakeApi(), spec(target=replace(TARGET, on_this_machine=True))
    create_workload(api, here, cluster="c")
    with pytest.raises(ConflictError, match="already exists with the same settings"):
        create_workload(api, here, cluster="c")


def test_a_secret_of_another_tool_is_not_changed() -> None:
    (secret,) = render_peer_secret(spec())
    api = FakeApi([{**secret, "metadata": {**secret["metadata"], "labels": {}}}])
    with pytest.raises(ConflictError, match=r"Secret 'xpk-peers\.w' already exists .* not created by xpk"):
        create_workload(api, spec(), cluster="c")
    assert secret_of(api)["data"] == secret["data"]
    with pytest.raises(NotFoundError):
        api.get("JobSet", "w")


def test_an_interrupted_create_is_completed_by_the_next() -> None:
    api = CutOff()
    api.error = SystemExit("killed")
    api.delete = lambda *_, **__: None  # type: ignore[method-assign]
    with pytest.raises(SystemExit):
        create_workload(api, spec(), cluster="c")
    api.error, uid = None, api.get("JobSet", "w")["metadata"]["uid"]
    with pytest.raises(ConflictError, match="with other settings"):
        create_workload(api, spec(num_slices=2), cluster="c")
    age(api, 30)
    with pytest.raises(ConflictError, match="already exists without its Secret"):
        create_workload(api, spec(), cluster="c")
    age(api, 90)
    create_workload(api, spec(), cluster="c")
    assert secret_of(api)["metadata"]["ownerReferences"][0]["uid"] == uid
    with pytest.raises(ConflictError, match="already exists with the same settings"):
        create_workload(api, spec(), cluster="c")
    assert secret_of(api)["metadata"]["ownerReferences"][0]["uid"] == uid


def test_without_permission_to_create_secrets_no_workload_remains() -> None:
    api = CutOff()
    api.error = AuthorizationError("user 'ann' may not create secrets in namespace 'default'")
    with pytest.raises(AuthorizationError, match="may not create secrets"):
        create_workload(api, spec(), cluster="c")
    assert api.objects == {}
