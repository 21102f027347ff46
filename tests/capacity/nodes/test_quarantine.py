"""Quarantine on the nodes of a cluster: taint, annotations, events and stored evidence."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tests.capacity.adapted.nodes import node
from xpk.api.base import Obj
from xpk.capacity.nodes import quarantine as marks
from xpk.capacity.nodes.conditions import evidence_of_conditions
from xpk.capacity.nodes.health import slice_health
from xpk.capacity.quarantine.eviction import evict_workloads
from xpk.capacity.quarantine.listing import list_nodes, nodes_of_slices, slice_of
from xpk.model.errors import Modified, NotFoundError
from xpk.model.evidence import Evidence, EvidenceKind
from xpk.testing import FakeApi

NOW = datetime(2026, 11, 24, 12, tzinfo=UTC)
OTHER = {"key": "google.com/tpu", "value": "present", "effect": "NoSchedule"}


def cluster() -> FakeApi:
    """Return a cluster of a slice of two nodes, a slice of one, and a node without chips."""
    api = FakeApi()
    for name, pool in (("n0", "np-0"), ("n1", "np-0"), ("n2", "np-1")):
        api.create(node(name, pool, 4, taints=[OTHER]))
    api.create(node("control-plane"))
    return api


def crash(name: str, number: int, *, hours: float = 0.0) -> Evidence:
    time = (NOW - timedelta(hours=hours)).isoformat()
    return Evidence(node=name, kind=EvidenceKind.CHIPS, time=time, source="lm", number=str(number), message="slow")


def taints(api: FakeApi, name: str) -> list[str]:
    return [item["key"] for item in api.get("Node", name)["spec"].get("taints") or []]


def put_into_quarantine(api: FakeApi, name: str) -> None:
    _, members = slice_of(nodes_of_slices(api), name)
    marks.quarantine(api, members, name, "2 signal", NOW)


def test_all_nodes_of_the_slice_get_a_taint_a_reason_and_an_event() -> None:
    api = cluster()
    put_into_quarantine(api, "n1")
    assert [taints(api, name) for name in ("n0", "n1", "n2")] == [[OTHER["key"], marks.TAINT]] * 2 + [[OTHER["key"]]]
    effects = {item["effect"] for item in api.get("Node", "n1")["spec"]["taints"]}
    assert effects == {"NoSchedule"}, "running pods stay"
    quarantine = marks.quarantine_of(api.get("Node", "n1"))
    assert quarantine == marks.Quarantine(reason="2 signal", since="2026-11-24T12:00:00Z")
    events = {event["involvedObject"]["name"]: event["message"] for event in api.list("Event")}
    assert events["n1"] == "Quarantined slice np-0: 2 signal"
    assert events["n0"] == "Quarantined slice np-0: in the slice of n1: 2 signal"


def test_checks_count_from_the_last_failure_and_from_the_quarantine() -> None:
    api = cluster()
    put_into_quarantine(api, "n1")

    def record(*, passed: bool) -> int:
        _, members = slice_of(nodes_of_slices(api), "n0")
        return marks.record_check(api, members, passed=passed)

    assert [record(passed=passed) for passed in (True, False, True, True)] == [1, 0, 1, 2]
    quarantine = marks.quarantine_of(api.get("Node", "n0"))
    assert quarantine and (quarantine.passes, quarantine.since) == (2, "2026-11-24T12:00:00Z")
    assert taints(api, "n1") == [OTHER["key"], marks.TAINT]
    api.patch("Node", "n0", {"metadata": {"annotations": {"xpk.dev/preflight-passes": "many"}}})
    assert marks.passes_of(slice_of(nodes_of_slices(api), "n0")[1]) == 0, "a damaged count is none"
    put_into_quarantine(api, "n1")
    assert record(passed=True) == 1
    _, members = slice_of(nodes_of_slices(api), "n0")
    marks.release(api, members, NOW)
    assert "xpk.dev/preflight-passes" not in api.get("Node", "n1")["metadata"]["annotations"]


def test_a_quarantined_slice_is_not_healthy_and_names_the_next_command() -> None:
    api = cluster()
    put_into_quarantine(api, "n1")
    _, members = slice_of(nodes_of_slices(api), "n0")
    health = slice_health("np-0", None, members)
    assert health.state == "Quarantined" and not health.is_usable
    messages = {one.node: one.message for one in health.troubles if one.reason == "Quarantined"}
    assert messages["n1"] == "2 signal; `xpk node return n1` returns it to service"


def test_a_return_removes_the_taint_and_earlier_evidence_counts_no_more() -> None:
    api = cluster()
    put_into_quarantine(api, "n1")
    _, members = slice_of(nodes_of_slices(api), "n1")
    assert marks.keep_evidence(api, members[1], [crash("n1", 0)], NOW)
    marks.release(api, slice_of(nodes_of_slices(api), "n0")[1], NOW + timedelta(hours=1))
    assert taints(api, "n0") == taints(api, "n1") == [OTHER["key"]]
    returned = api.get("Node", "n1")
    assert marks.kept_evidence(returned) == []
    late = crash("n1", 1, hours=-2)
    assert marks.relevant(returned, [crash("n1", 0), late]) == [late]


def test_taints_that_others_add_meanwhile_are_kept() -> None:
    api = cluster()
    _, members = slice_of(nodes_of_slices(api), "n2")
    api.patch("Node", "n2", {"spec": {"taints": [OTHER, {"key": "new", "effect": "NoSchedule"}]}})
    marks.quarantine(api, members, "n2", "2 signal", NOW)
    assert taints(api, "n2") == [OTHER["key"], "new", marks.TAINT]


def test_a_node_that_others_change_all_the_time_is_an_error() -> None:
    class Restless(FakeApi):
        def get(self, kind: str, name: str, namespace: str = "default") -> Obj:
            obj = super().get(kind, name, namespace)
            self.patch(kind, name, {"metadata": {"labels": {"beat": obj["metadata"]["resourceVersion"]}}}, namespace)
            return obj

    api = Restless()
    api.create(node("n2", "np-1", 4))
    with pytest.raises(Modified):
        marks.quarantine(api, nodes_of_slices(api), "n2", "2 signal", NOW)


def test_a_new_node_of_a_quarantined_slice_is_quarantined_too() -> None:
    api = cluster()
    put_into_quarantine(api, "n1")
    api.create(node("n3", "np-0", 4))
    marks.complete(api, nodes_of_slices(api), NOW)
    quarantine = marks.quarantine_of(api.get("Node", "n3"))
    assert quarantine and quarantine.reason == "in the slice of n1: 2 signal"
    assert marks.quarantine_of(api.get("Node", "n2")) is None


def test_a_slice_that_another_client_returns_right_now_is_not_quarantined_again() -> None:
    api = cluster()
    put_into_quarantine(api, "n1")
    first = [item for item in nodes_of_slices(api) if item["metadata"]["name"] == "n0"]
    marks.release(api, first, NOW + timedelta(hours=1))
    marks.complete(api, nodes_of_slices(api), NOW + timedelta(hours=1))
    assert taints(api, "n0") == [OTHER["key"]], "the return continues with the next node"
    put_into_quarantine(api, "n0")
    marks.quarantine(api, first, "n0", "again", NOW + timedelta(hours=2))
    api.patch("Node", "n1", {"spec": {"taints": [OTHER]}})
    marks.complete(api, nodes_of_slices(api), NOW + timedelta(hours=2))
    assert marks.TAINT in taints(api, "n1"), "it was returned before the slice was quarantined"


def test_a_check_that_ends_after_the_return_does_not_quarantine_the_node_again() -> None:
    api = cluster()
    put_into_quarantine(api, "n2")
    _, members = slice_of(nodes_of_slices(api), "n2")
    marks.release(api, members, NOW)
    marks.record_check(api, members, passed=False)
    assert taints(api, "n2") == [OTHER["key"]]
    assert "xpk.dev/quarantine-reason" not in api.get("Node", "n2")["metadata"]["annotations"]


def test_evidence_is_stored_once_and_labels_the_node() -> None:
    api = cluster()
    assert marks.keep_evidence(api, api.get("Node", "n0"), [crash("n0", 0)], NOW)
    assert not marks.keep_evidence(api, api.get("Node", "n0"), [crash("n0", 0)], NOW)
    assert [one["metadata"]["name"] for one in api.list("Node", selector={"xpk.dev/evidence": "true"})] == ["n0"]
    assert marks.keep_evidence(api, api.get("Node", "n0"), [], NOW)
    assert api.list("Node", selector={"xpk.dev/evidence": "true"}) == []


def test_the_list_has_quarantined_nodes_first_then_the_highest_score() -> None:
    api = cluster()
    put_into_quarantine(api, "n2")
    nodes = nodes_of_slices(api)
    infos = list_nodes(api, nodes, [crash("n1", 0), crash("n1", 1)], NOW)
    rows = [(info.node, info.state, info.score) for info in infos]
    assert rows == [("n2", "Quarantined", 0.0), ("n1", "Suspect", 1.2), ("n0", "InService", 0.0)]


def test_conditions_count_as_long_as_they_last() -> None:
    api = cluster()
    condition = {"type": "KernelDeadlock", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    api.patch("Node", "n0", {"status": {"conditions": [condition]}})
    (one,) = evidence_of_conditions(nodes_of_slices(api), NOW)
    assert (one.node, one.kind, one.time) == ("n0", EvidenceKind.PROBLEM, "2026-11-24T12:00:00Z")


def test_only_hosts_of_workloads_are_evicted() -> None:
    api = cluster()

    def pod(name: str, on: str, labels: Obj, phase: str = "Running") -> None:
        meta = {"name": name, "namespace": "ml", "labels": labels}
        api.create({"kind": "Pod", "metadata": meta, "spec": {"nodeName": on}, "status": {"phase": phase}})

    own = {"jobset.sigs.k8s.io/jobset-name": "lm"}
    pod("host", "n0", own)
    pod("ended", "n0", own, "Succeeded")
    pod("agent", "n0", {})
    pod("elsewhere", "n2", own)
    assert evict_workloads(api, ["n0", "n1"]) == ["ml/host"]


def test_an_unknown_node_gets_the_closest_names() -> None:
    with pytest.raises(NotFoundError, match="no slice has a node 'n9'") as caught:
        slice_of(nodes_of_slices(cluster()), "n9")
    assert "n0" in caught.value.hint
    with pytest.raises(NotFoundError) as of_slice:
        slice_of(nodes_of_slices(cluster()), "np-0")
    assert of_slice.value.hint == "'np-0' is a slice: choose from n0, n1"
    with pytest.raises(NotFoundError):
        slice_of(nodes_of_slices(cluster()), "control-plane")
