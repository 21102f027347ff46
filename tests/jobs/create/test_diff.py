"""`workload diff` shows the user's changes and nothing that Kueue or JobSet wrote."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest

from tests.jobs.create.specs import TARGET, spec
from xpk.api.base import Obj
from xpk.jobs.create import diff as difference
from xpk.model.errors import ConflictError, NotFoundError
from xpk.render import render_workload
from xpk.testing import FakeApi

KUEUES = {
    "kueue.x-k8s.io/workload": "jobset-w-1",
    "autoscaling.x-k8s.io/consume-provisioning-request": "jobset-w-1-dws-prov-1",
    "autoscaling.x-k8s.io/provisioning-class-name": "queued-provisioning.gke.io",
}


class Defaulting(FakeApi):
    """A server that gives defaults, and holds back what is queued, as JobSet's and Kueue's webhooks do."""

    def create(self, obj: Obj, *, dry_run: bool = False) -> Obj:
        """See `ObjectApi.create`."""
        obj = copy.deepcopy(obj)
        obj["spec"]["suspend"] = True
        obj["spec"]["replicatedJobs"][0]["groupName"] = "default"
        return super().create(obj, dry_run=dry_run)


def admitted(api: FakeApi, **changes: Any) -> Obj:
    """A workload that runs: Kueue has written into it."""
    jobset = api.create(render_workload(spec(**changes))[-1])
    jobset["spec"]["suspend"] = False
    pod = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    pod["metadata"] |= {"creationTimestamp": None, "annotations": dict(KUEUES)}
    pod["metadata"]["labels"] |= {"kueue.x-k8s.io/podset": "slice-job"}
    pod["spec"]["nodeSelector"] |= {"cloud.google.com/gke-flavor": "there"}
    pod["spec"]["tolerations"].append({"key": "of-the-flavor", "operator": "Exists"})
    pod["spec"]["schedulingGates"] = [{"name": "kueue.x-k8s.io/topology"}]
    jobset["status"] = {"conditions": []}
    return jobset


def found(change: dict[str, Any], **before: Any) -> difference.Difference:
    api = Defaulting()
    have = admitted(api, **before)
    return difference.with_create(api, have, spec(**(before | change)))


def test_what_runs_is_equal_to_what_made_it() -> None:
    assert found({}) == difference.Difference("")
    assert found({"user": "somebody-else"}, user="me") == difference.Difference("")


@pytest.mark.parametrize(
    ("change", "field", "line"),
    [
        ({"num_slices": 2}, "spec.replicatedJobs[slice-job].replicas", "+    replicas: 2"),
        ({"priority": "high"}, "metadata.labels.kueue.x-k8s.io/priority-class", "priority-class: high"),
        ({"max_restarts": 3}, "spec.failurePolicy.maxRestarts", "+    maxRestarts: 3"),
        ({"image": "other"}, "containers[host].image", "image: other"),
        ({"env": {"A": "b"}}, "containers[host].env[A]", "- name: A"),
    ],
)
def test_what_is_asked_for_otherwise_is_found(change: dict[str, Any], field: str, line: str) -> None:
    difference = found(change)
    (only,) = difference.fields
    assert field in only["field"]
    assert line in difference.text
    assert difference.text.startswith("--- running/w\n+++ create/w\n")


def test_what_is_no_longer_asked_for_is_found_too() -> None:
    gone = found({"env": {}, "image_pull_secret": None}, env={"A": "b"}, image_pull_secret="key")
    assert {each["field"].rpartition("spec.")[2] for each in gone.fields} == {
        "imagePullSecrets",
        "containers[host].env[A]",
    }


def test_values_of_secrets_are_not_shown() -> None:
    before = {"HF_TOKEN": "old-one", "SAME_PASSWORD": "unchanged", "PLAIN": "seen", "DB_PASS": "old-pass"}
    after = {"HF_TOKEN": "new-one", "PLAIN": "seen-too", "DB_PASS": "new-pass"}
    changed = found({"env": before | after}, env=before)
    told = f"{changed.text}{changed.fields}"
    assert not any(word in told for word in ("old-one", "new-one", "unchanged", "old-pass", "new-pass"))
    assert "*** (before)" in changed.text and "*** (after)" in changed.text and "seen-too" in changed.text
    assert len(changed.fields) == 3


def test_secrets_inside_other_texts_are_not_shown() -> None:
    old = {"env": {"DATABASE": "postgres://me:old-one@db/x"}, "command": ("run", "--password", "old-one")}
    new = {"env": {"DATABASE": "postgres://me:new-one@db/x"}, "command": ("run", "--password", "new-one")}
    changed = found(new, **old)
    told = f"{changed.text}{changed.fields}"
    assert len(changed.fields) == 2 and "old-one" not in told and "new-one" not in told, told
    assert "postgres://me" not in told and "[redacted] (after)" in told and "@db/x (after)" in told


def test_as_many_calls_however_large_it_is() -> None:
    for slices in (1, 100):
        api = Defaulting()
        have = admitted(api, num_slices=slices)
        api.calls.clear()
        difference.with_create(api, have, spec(num_slices=slices))
        assert [verb for verb, _, _ in api.calls] == ["create"]
        assert len(api.objects) == 1


def test_a_name_that_is_taken_is_not_asked_about() -> None:
    api = Defaulting()
    have = admitted(api)
    for letter in "xyz":
        admitted(api, name=letter)
    assert difference.with_create(api, have, spec()).text == ""
    for letter in "abcdefg":
        admitted(api, name=letter)
    with pytest.raises(ConflictError, match="no name like 'w' is free"):
        difference.with_create(api, have, spec())


def test_two_workloads_differ_in_what_they_do() -> None:
    api = Defaulting()
    left, right = admitted(api, name="run", num_slices=2), admitted(api, name="run-2", num_slices=2)
    assert difference.of_two(left, right) == difference.Difference("")
    folder = replace(TARGET, output_root="/output/run/of_run-2/run-2")  # names of folders are no names of workloads
    pair = [admitted(Defaulting(), name=name, target=folder) for name in ("run", "run-2")]
    assert difference.of_two(*pair) == difference.Difference("")
    other = admitted(api, name="run-3", num_slices=2, command=("run-3",))
    (only,) = difference.of_two(left, other).fields
    assert "command" in only["field"] or "args" in only["field"]
    assert "run-3" in difference.of_two(left, other).text.split("\n", 2)[2]  # their own words are left alone


def test_a_workload_that_is_not_there_is_told_of_with_those_that_are() -> None:
    api = Defaulting()
    admitted(api)
    with pytest.raises(NotFoundError) as caught:
        difference.running(api, "ww", "default")
    assert caught.value.hint == "choose from w"
