"""Conformance cases of `ObjectApi` as functions of an API, which also run on Kubernetes.

Each takes a writable API and a namespace of its own. Objects used here run no process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from xpk.api.base import Obj, ObjectApi
from xpk.model.errors import ConflictError, MissingToolError, NotFoundError, UsageError

CASES: list[Callable[[ObjectApi, str], None]] = []


def case(function: Callable[[ObjectApi, str], None]) -> Callable[[ObjectApi, str], None]:
    """Add a function to the cases."""
    CASES.append(function)
    return function


def queue(name: str, namespace: str, cluster_queue: str = "one", **labels: str) -> Obj:
    """Return a LocalQueue, the simplest object that both sides accept."""
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "LocalQueue",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": {"clusterQueue": cluster_queue},
    }


@case
def create_sets_an_identity(api: ObjectApi, namespace: str) -> None:
    made = api.create(queue("a", namespace))
    assert made["metadata"].keys() >= {"uid", "creationTimestamp", "resourceVersion", "generation"}
    result = api.get("LocalQueue", "a", namespace)
    assert result["metadata"]["uid"] == made["metadata"]["uid"]
    assert result["spec"]["clusterQueue"] == "one"  # a real server adds defaults


@case
def create_rejects_existing_objects(api: ObjectApi, namespace: str) -> None:
    api.create(queue("a", namespace))
    with pytest.raises(ConflictError):
        api.create(queue("a", namespace))
    with pytest.raises(ConflictError):
        api.create(queue("a", namespace), dry_run=True)


@case
def dry_run_stores_nothing(api: ObjectApi, namespace: str) -> None:
    api.create(queue("a", namespace), dry_run=True)
    assert api.apply(queue("b", namespace), dry_run=True)["metadata"]["name"] == "b"
    assert api.list("LocalQueue", namespace) == []
    api.apply(queue("a", namespace))
    assert api.apply(queue("a", namespace, x="1"), dry_run=True)["metadata"]["labels"] == {"x": "1"}
    assert "x" not in api.get("LocalQueue", "a", namespace)["metadata"].get("labels", {})


@case
def apply_returns_the_stored_object(api: ObjectApi, namespace: str) -> None:
    made = api.apply(queue("a", namespace, x="1"))
    assert made["metadata"]["uid"] == api.get("LocalQueue", "a", namespace)["metadata"]["uid"]
    for value in ("1", "2"):
        applied = api.apply(queue("a", namespace, x=value))
        assert (applied["metadata"]["uid"], applied["metadata"]["labels"]) == (made["metadata"]["uid"], {"x": value})
        assert api.get("LocalQueue", "a", namespace)["metadata"]["labels"]["x"] == value


@case
def apply_removes_its_own_fields_and_keeps_those_of_others(api: ObjectApi, namespace: str) -> None:
    api.apply(queue("a", namespace, mine="1", also="1"))
    api.patch("LocalQueue", "a", {"metadata": {"labels": {"theirs": "1"}}}, namespace)
    api.apply(queue("a", namespace, mine="2"))
    assert api.get("LocalQueue", "a", namespace)["metadata"]["labels"] == {"mine": "2", "theirs": "1"}


@case
def patch_merges_and_null_removes(api: ObjectApi, namespace: str) -> None:
    api.create(queue("a", namespace, x="1", y="1"))
    patched = api.patch("LocalQueue", "a", {"metadata": {"labels": {"x": None, "z": "1"}}}, namespace)
    assert patched["metadata"]["labels"] == {"y": "1", "z": "1"}


@case
def stale_writes_are_rejected(api: ObjectApi, namespace: str) -> None:
    old = api.create(queue("a", namespace))["metadata"]["resourceVersion"]
    api.patch("LocalQueue", "a", {"metadata": {"labels": {"x": "1"}}}, namespace)
    with pytest.raises(ConflictError):
        api.patch("LocalQueue", "a", {"metadata": {"resourceVersion": old, "labels": {"x": "2"}}}, namespace)


@case
def list_selects_by_label_and_namespace(api: ObjectApi, namespace: str) -> None:
    for name, color in (("c", "red"), ("a", "red"), ("b", "blue")):
        api.create(queue(name, namespace, color=color))
    assert [obj["metadata"]["name"] for obj in api.list("LocalQueue", namespace)] == ["a", "b", "c"]
    reds = api.list("LocalQueue", namespace, {"color": "red"})
    assert [obj["metadata"]["name"] for obj in reds] == ["a", "c"]
    assert api.list("LocalQueue", f"{namespace}-other") == []
    assert len([obj for obj in api.list("LocalQueue", None) if obj["metadata"]["namespace"] == namespace]) == 3


@case
def missing_objects_are_not_found(api: ObjectApi, namespace: str) -> None:
    with pytest.raises(NotFoundError):
        api.get("LocalQueue", "none", namespace)
    with pytest.raises(NotFoundError):
        api.patch("LocalQueue", "none", {"metadata": {"labels": {"x": "1"}}}, namespace)
    with pytest.raises(NotFoundError):
        api.delete("LocalQueue", "none", namespace)
    with pytest.raises(MissingToolError):
        api.list("NoSuchKind", namespace)


@case
def delete_removes(api: ObjectApi, namespace: str) -> None:
    api.create(queue("a", namespace))
    api.delete("LocalQueue", "a", namespace)
    assert api.list("LocalQueue", namespace) == []


@case
def watch_yields_existing_objects_and_changes(api: ObjectApi, namespace: str) -> None:
    api.create(queue("a", namespace, seen="yes"))

    def work() -> None:
        api.create(queue("hidden", namespace))
        api.create(queue("b", namespace, seen="yes"))
        api.patch("LocalQueue", "a", {"metadata": {"labels": {"x": "1"}}}, namespace)
        api.delete("LocalQueue", "a", namespace)

    seen = []
    thread = threading.Thread(target=work)
    for change, obj in api.watch("LocalQueue", namespace, {"seen": "yes"}, timeout=10):
        seen.append((change, obj["metadata"]["name"]))
        if len(seen) == 1:
            thread.start()
        if change == "DELETED":
            break
    thread.join()
    assert [item for item in seen if item[0] != "MODIFIED"] == [("ADDED", "a"), ("ADDED", "b"), ("DELETED", "a")]
    assert ("MODIFIED", "a") in seen


@case
def watch_ends_in_time(api: ObjectApi, namespace: str) -> None:
    assert list(api.watch("LocalQueue", namespace, timeout=0.1)) == []


@case
def unknown_kinds_and_fields_are_rejected(api: ObjectApi, namespace: str) -> None:
    wrong = queue("a", namespace)
    wrong["spec"]["clusterQueue"] = 7
    with pytest.raises(UsageError):
        api.create(wrong)


@case
def an_event_about_a_node_can_be_created(api: ObjectApi, namespace: str) -> None:
    about = {"kind": "Node", "apiVersion": "v1", "name": f"node-of-{namespace}"}
    meta = {"name": f"{namespace}.1", "namespace": "default"}
    event = {"apiVersion": "v1", "kind": "Event", "metadata": meta, "involvedObject": about, "reason": "Quarantined"}
    api.create(event | {"message": "why", "type": "Warning"})
    events = api.list("Event", "default", fields={"reason": "Quarantined"})
    assert [one["message"] for one in events if one["involvedObject"]["name"] == about["name"]] == ["why"]
