"""`workload diff` shows the user's changes, without fields that Kueue or JobSet wrote."""

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
    """A server that sets defaults and suspends queued workloads, like JobSet's and Kueue's webhooks."""

    def create(self, obj: Obj, *, dry_run: bool = False) -> Obj:
        """See `ObjectApi.create`."""
        obj = copy.deepcopy(obj)
        obj["spec"]["suspend"] = True
        obj["spec"]["replicatedJobs"][0]["groupName"] = "default"
        return super().create(obj, dry_run=dry_run)


def admitted(api: FakeApi, **changes: Any) -> Obj:
    """Return a running workload, into which Kueue has written."""
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


def test_a_workload_has_no_diff_to_its_own_options() -> None:
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
def test_changed_options_are_in_the_diff(change: dict[str, Any], field: str, line: str) -> None:
    difference = found(change)
    (only,) = difference.fields
    assert field in only["field"]
    assert line in difference.text
    assert difference.text.startswith("--- running/w\n+++ create/w\n")


def test_removed_options_are_in_the_diff() -> None:
    gone = found({"env": {}, "image_pull_secret": None}, env={"A": "b"}, image_pull_secret="key")
    assert {item["field"].rpartition("spec.")[2] for item in gone.fields} == {
        "imagePullSecrets",
        "containers[host].env[A]",
    }


def test_values_of_secrets_are_not_shown() -> None:
    before = {"HF_TOKEN": "old-one", "SAME_PASSWORD": "unchanged", "PLAIN": "seen", "DB_PASS": "old-pass"}
    after = {"HF_TOKEN": "new-one", "PLAIN": "seen-too", "DB_PASS": "new-pass"}
    changed = found({"env": before | after}, env=before)
    message = f"{changed.text}{changed.fields}"
    assert not any(word in message for word in ("old-one", "new-one", "unchanged", "old-pass", "new-pass"))
    assert "*** (before)" in changed.text and "*** (after)" in changed.text and "seen-too" in changed.text
    assert len(changed.fields) == 3


def test_secrets_inside_other_texts_are_not_shown() -> None:
    old = {"env": {"DATABASE": "postgres://me:old-one@db/x"}, "command": ("run", "--password", "old-one")}
    new = {"env": {"DATABASE": "postgres://me:new-one@db/x"}, "command": ("run", "--password", "new-one")}
    changed = found(new, **old)
    message = f"{changed.text}{changed.fields}"
    assert len(changed.fields) == 2 and "old-one" not in message and "new-one" not in message, message
    assert "postgres://me" not in message and "[redacted] (after)" in message and "@db/x (after)" in message


def test_the_number_of_calls_does_not_depend_on_the_size() -> None:
    for slices in (1, 100):
        api = Defaulting()
        have = admitted(api, num_slices=slices)
        api.calls.clear()
        difference.with_create(api, have, spec(num_slices=slices))
        assert [verb for verb, _, _ in api.calls] == ["create"]
        assert len(api.objects) == 1


def test_diff_does_not_check_whether_the_name_exists() -> None:
    api = Defaulting()
    have = admitted(api)
    for letter in "xyz":
        admitted(api, name=letter)
    assert difference.with_create(api, have, spec()).text == ""
    for letter in "abcdefg":
        admitted(api, name=letter)
    with pytest.raises(ConflictError, match="no name like 'w' is free"):
        difference.with_create(api, have, spec())


def test_two_workloads_are_compared() -> None:
    api = Defaulting()
    left, right = admitted(api, name="run", num_slices=2), admitted(api, name="run-2", num_slices=2)
    assert difference.of_two(left, right) == difference.Difference("")
    folder = replace(TARGET, output_root="/output/run/of_run-2/run-2")  # names of folders are not names of workloads
    pair = [admitted(Defaulting(), name=name, target=folder) for name in ("run", "run-2")]
    assert difference.of_two(*pair) == difference.Difference("")
    other = admitted(api, name="run-3", num_slices=2, command=("run-3",))
    (only,) = difference.of_two(left, other).fields
    assert "command" in only["field"] or "args" in only["field"]
    assert "run-3" in difference.of_two(left, other).text.split("\n", 2)[2]  # the user's own words are not changed


def test_the_error_for_a_missing_workload_names_the_closest() -> None:
    api = Defaulting()
    admitted(api)
    with pytest.raises(NotFoundError) as caught:
        difference.running(api, "ww", "default")
    assert caught.value.hint == "did you mean 'w'?"
