"""Slice objects of the emulator: the states that GKE documents, and the checks of Kueue's slice controller."""

from __future__ import annotations

from typing import Any

import pytest

from tools.gke_emulator.nodes import PARTITIONS, as_cube
from tools.gke_emulator.slice_checks import SliceChecks, hosts_of, slice_name
from tools.gke_emulator.slices import FINALIZER, RETRY, Invalid, SliceController, check_slice, state_of
from xpk.testing import FakeApi

CUBE = "cloud.google.com/gke-tpu-partition-4x4x4"
SLICE = "cloud.google.com/gke-tpu-slice"


def cube(number: int) -> list[dict[str, Any]]:
    """Return the nodes of a cube."""
    nodes = []
    for index in range(16):
        labels = {"cloud.google.com/gke-tpu-topology": "4x4x4", "cloud.google.com/reservation-name": "r"}
        ready = {"conditions": [{"type": "Ready", "status": "True"}]}
        meta = {"name": f"c{number}-{index:02}", "labels": labels}
        node = {"apiVersion": "v1", "kind": "Node", "metadata": meta, "status": ready}
        nodes.append(as_cube(node, f"pools/c{number}", index))
    return nodes


def partition(number: int) -> str:
    """Return the partition of a whole cube."""
    return str(cube(number)[0]["metadata"]["labels"][f"{CUBE}-id"])


def slice_of(*cubes: int, topology: str, name: str = "s", **annotations: str) -> dict[str, Any]:
    """Return a Slice of cubes."""
    return {
        "apiVersion": "accelerator.gke.io/v1beta1",
        "kind": "Slice",
        "metadata": {"name": name, "annotations": annotations},
        "spec": {"type": "tpu7x", "topology": topology, "partitionIds": [partition(number) for number in cubes]},
    }


def states(api: FakeApi, steps: int, name: str = "s") -> list[str]:
    """Return the state of a Slice after each step of the controller."""
    controller, states = SliceController(api), []
    for _ in range(steps):
        controller.step()
        states.append(state_of(api.get("Slice", name)))
    return states


def ready(api: FakeApi, name: str = "s") -> dict[str, Any]:
    """Return the condition of a Slice."""
    (condition,) = api.get("Slice", name)["status"]["conditions"]
    return dict(condition)


def test_partitions_of_a_cube_contain_each_other() -> None:
    nodes = cube(0)
    for topology, hosts in PARTITIONS.items():
        ids = [node["metadata"]["labels"][f"cloud.google.com/gke-tpu-partition-{topology}-id"] for node in nodes]
        assert len(set(ids)) == 16 // hosts and all(ids.count(item) == hosts for item in ids)
    assert "cloud.google.com/gke-tpu-topology" not in nodes[0]["metadata"]["labels"], "no slice is formed yet"


def test_a_slice_is_formed_from_cubes_and_labels_their_nodes() -> None:
    api = FakeApi([*cube(0), *cube(1), *cube(2), slice_of(0, 1, topology="4x4x8")])
    assert states(api, 4) == ["SliceNotCreated", "ACTIVATING", "ACTIVE", "ACTIVE"]
    assert api.get("Slice", "s")["metadata"]["finalizers"] == [FINALIZER]
    labeled = {node["metadata"]["name"] for node in api.list("Node") if node["metadata"]["labels"].get(SLICE) == "s"}
    assert labeled == {node["metadata"]["name"] for node in [*cube(0), *cube(1)]}
    assert api.get("Node", "c0-00")["metadata"]["labels"]["cloud.google.com/gke-tpu-topology"] == "4x4x8"
    api.delete("Slice", "s")
    SliceController(api).step()
    assert not any(node["metadata"]["labels"].get(SLICE) for node in api.list("Node"))


def test_a_deleted_slice_is_dismantled_before_it_goes() -> None:
    api = FakeApi([*cube(0), slice_of(0, topology="4x4x4")])
    states(api, 3)
    api.patch("Slice", "s", {"metadata": {"deletionTimestamp": "2026-01-31T12:00:00Z"}})
    assert states(api, 2) == ["DEACTIVATING", "INCOMPLETE"]
    SliceController(api).step()
    assert not api.get("Slice", "s")["metadata"]["finalizers"]
    assert not any(node["metadata"]["labels"].get(SLICE) for node in api.list("Node"))


@pytest.mark.parametrize(("state", "expected"), [("DEGRADED", "ACTIVE_DEGRADED"), ("UNHEALTHY", "FAILED")])
def test_the_state_of_a_partition_decides(state: str, expected: str) -> None:
    api = FakeApi([*cube(0), slice_of(0, topology="4x4x4")])
    api.patch("Node", "c0-03", {"metadata": {"labels": {f"{CUBE}-state": state}}})
    assert states(api, 3)[-1] == expected
    assert ready(api)["status"] == str(expected == "ACTIVE_DEGRADED") and partition(0) in ready(api)["message"]


def test_creation_fails_for_the_documented_causes() -> None:
    api = FakeApi([*cube(0), *cube(1)])
    for name, obj, cause in (
        ("count", slice_of(0, topology="4x4x8", name="count"), "needs 2 partitions, got 1"),
        ("gone", slice_of(7, topology="4x4x4", name="gone"), "have no nodes"),
    ):
        api.create(obj)
        assert states(api, 2, name)[-1] == "SliceCreationFailed" and cause in ready(api, name)["message"]
    api.create(slice_of(0, topology="4x4x4", name="first"))
    states(api, 3, "first")
    api.create(slice_of(0, 1, topology="4x4x8", name="second", **{RETRY: "true"}))
    assert states(api, 2, "second")[-1] == "SliceCreationFailed"
    assert "is used by slice first" in ready(api, "second")["message"]
    api.delete("Slice", "first")
    assert states(api, 4, "second")[-1] == "ACTIVE", "the annotation makes the controller try again"


def test_cubes_of_two_blocks_do_not_form_a_slice() -> None:
    api = FakeApi([*cube(0), *cube(1), slice_of(0, 1, topology="4x4x8")])
    for index in range(16):
        api.patch("Node", f"c1-{index:02}", {"metadata": {"labels": {"cloud.google.com/gce-topology-block": "other"}}})
    assert states(api, 3)[-1] == "FAILED" and "same reservation block" in ready(api)["message"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"topology": "4x8x4"}, "non-decreasing order"),
        ({"topology": "4x4x6"}, "multiple of four"),
        ({"topology": "16x24x28"}, "more than 9216 chips"),
        ({"type": "v6e"}, "supported values: tpu7x"),
    ],
)
def test_invalid_slices_are_rejected(changes: dict[str, str], words: str) -> None:
    obj = slice_of(0, topology="4x4x4")
    with pytest.raises(Invalid, match=words):
        check_slice({**obj, "spec": {**obj["spec"], **changes}})
    with pytest.raises(Invalid, match="at most 49 characters"):
        check_slice({**obj, "metadata": {"name": "s" * 50}})
    check_slice(slice_of(0, topology="2x2x2"))


def test_long_names_of_slices_are_shortened() -> None:
    assert slice_name("default", "jobset-w-1a2b3", "slice-job", 0) == "default-jobset-w-1a2b3-slice-job-0"
    one, two = (slice_name("default", f"jobset-{'w' * 40}-1a2b3", "slice-job", index) for index in (0, 1))
    assert len(one) == len(two) == 49 and one != two


def test_hosts_of_kueues_assignments() -> None:
    values = [
        {"domainCount": 2, "valuesPerLevel": [{"individual": {"prefix": "c0-", "suffix": "x", "roots": ["1", "2"]}}]},
        {"domainCount": 1, "valuesPerLevel": [{"universal": "c1-3"}]},
    ]
    assert hosts_of({"levels": ["kubernetes.io/hostname"], "slices": values}) == ["c0-1x", "c0-2x", "c1-3"]


CHECK = {
    "apiVersion": "kueue.x-k8s.io/v1beta2",
    "kind": "AdmissionCheck",
    "metadata": {"name": "ss-kueue-operator"},
    "spec": {"controllerName": "accelerator.gke.io/slice"},
}


def workload(*cubes: int, topology: str, num_slices: int = 1) -> dict[str, Any]:
    """Return a workload of Kueue that has quota and waits for slices of cubes."""
    hosts = [node["metadata"]["name"] for number in cubes for node in cube(number)]
    assignment = {
        "levels": ["kubernetes.io/hostname"],
        "slices": [{"domainCount": len(hosts), "valuesPerLevel": [{"individual": {"roots": hosts}}]}],
    }
    template = {
        "metadata": {"annotations": {"cloud.google.com/gke-tpu-slice-topology": topology}},
        "spec": {"nodeSelector": {"cloud.google.com/gke-tpu-accelerator": "tpu7x"}, "containers": []},
    }
    pods = {"name": "slice-job", "count": len(hosts), "template": template}
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Workload",
        "metadata": {"name": "jobset-w-1a2b3", "namespace": "default"},
        "spec": {"podSets": [{**pods, "topologyRequest": {"subGroupCount": num_slices}}]},
        "status": {
            "conditions": [{"type": "QuotaReserved", "status": "True"}],
            "admission": {"podSetAssignments": [{"name": "slice-job", "topologyAssignment": assignment}]},
            "admissionChecks": [{"name": "ss-kueue-operator", "state": "Pending", "message": ""}],
        },
    }


def test_a_workload_is_admitted_once_all_its_slices_are_formed() -> None:
    api = FakeApi([*cube(0), *cube(1), CHECK, workload(0, 1, topology="4x4x4", num_slices=2)])
    checks, controller = SliceChecks(api), SliceController(api)
    checks.step()
    assert [obj["spec"]["partitionIds"] for obj in api.list("Slice", None)] == [[partition(0)], [partition(1)]]
    (check,) = api.get("Workload", "jobset-w-1a2b3")["status"]["admissionChecks"]
    assert (check["state"], check["message"]) == ("Pending", "Slices are in states: 2 CREATED")
    for _ in range(3):
        controller.step()
    checks.step()
    (check,) = api.get("Workload", "jobset-w-1a2b3")["status"]["admissionChecks"]
    assert (check["state"], check["message"]) == ("Ready", "Slices are in states: 2 ACTIVE")
    assert check["podSetUpdates"][0]["nodeSelector"] == {"cloud.google.com/gke-tpu-topology": "4x4x4"}
    api.patch("Workload", "jobset-w-1a2b3/status", {"status": {"admission": None}})
    checks.step()
    assert api.list("Slice", None) == [], "an evicted workload keeps no slices"


def test_a_failed_slice_evicts_the_workload() -> None:
    api = FakeApi([*cube(0), *cube(1), CHECK, workload(0, 1, topology="4x4x8")])
    api.patch("Node", "c1-00", {"metadata": {"labels": {f"{CUBE}-state": "UNHEALTHY"}}})
    checks, controller = SliceChecks(api), SliceController(api)
    checks.step()
    for _ in range(3):
        controller.step()
    checks.step()
    (check,) = api.get("Workload", "jobset-w-1a2b3")["status"]["admissionChecks"]
    assert check["state"] == "Retry" and check["requeueAfterSeconds"] > 0
    assert check["message"] == f"Slices are in states: 1 FAILED. Errors: partition {partition(1)} is UNHEALTHY"
    assert api.list("Slice", None) == []
