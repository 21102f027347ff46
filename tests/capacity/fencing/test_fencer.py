"""Rounds of fencing. The drill with a real node is in e2e/test_kind_recovery.py."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from tests.capacity.fencing.nodes import START, Site, report, short
from xpk.api.base import Obj
from xpk.capacity.fencing.budget import Budget
from xpk.capacity.fencing.machines import Machine, MachineState
from xpk.capacity.nodes.out_of_service import TAINT, fenced_at, reason_of
from xpk.testing import FakeApi


def test_a_node_without_its_machine_is_fenced_once_and_its_pods_are_deleted() -> None:
    site = Site()
    hosts = [site.add_host(index, on=f"n{index}") for index in range(2)]
    assert site.actions() == []
    site.end_machine("n1")
    (action,) = site.fencer().run()
    assert (action.action, action.node, action.slice) == ("fence", "n1", "np-1")
    assert (action.reason, action.pods) == ("its container has ended", (f"default/{hosts[1]}",))
    assert site.taints("n1") == [TAINT] and site.taints("n0") == site.taints("n2") == []
    assert site.pods() == [hosts[0]]
    assert fenced_at(site.api.get("Node", "n1")) == START
    site.pass_time(60)
    assert site.actions() == []


def test_pods_are_marked_failed_before_deletion_so_that_jobs_count_them() -> None:
    statuses: list[Obj] = []
    site = Site(api=FakeApi(react=lambda kind, obj: statuses.append(obj) if kind == "Pod" else None))
    site.add_host(0, on="n0", status={"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]})
    site.end_machine("n0")
    site.actions()
    status = statuses[-1]["status"]
    assert (status["phase"], status["reason"]) == ("Failed", "NodeFenced")
    assert {item["type"]: item["status"] for item in status["conditions"]} == {
        "Ready": "True", "DisruptionTarget": "True",
    }  # fmt: skip
    assert status["message"] == "node n0 was fenced: its container has ended"


@pytest.mark.parametrize(
    "fields",
    [
        {"metadata": {"ownerReferences": [{"kind": "DaemonSet", "name": "kindnet", "uid": "d"}]}},
        {"metadata": {"annotations": {"kubernetes.io/config.mirror": "1"}}},
        {"spec": {"tolerations": [{"operator": "Exists"}]}},
        {"spec": {"tolerations": [{"key": TAINT, "operator": "Exists", "effect": "NoExecute"}]}},
        {"spec": {"tolerations": [{"key": TAINT, "value": "nodeshutdown"}]}},
    ],
)
def test_pods_of_daemonsets_are_kept(fields: dict[str, Any]) -> None:
    site = Site()
    meta = {"name": "agent", "namespace": "kube-system", **fields.get("metadata", {})}
    spec = {"nodeName": "n0", **fields.get("spec", {})}
    site.api.create({"kind": "Pod", "metadata": meta, "spec": spec, "status": {"phase": "Running"}})
    site.add_host(0, on="n0")
    site.end_machine("n0")
    assert site.actions() == [("fence", "n0")] and site.pods() == ["agent"]


@pytest.mark.parametrize(
    "toleration",
    [
        {"key": "google.com/tpu", "operator": "Exists"},
        {"key": TAINT, "value": "other"},
        {"key": TAINT, "operator": "Exists", "effect": "NoSchedule"},
        {"operator": "Equal", "value": "nodeshutdown"},
    ],
)
def test_pods_that_tolerate_only_other_taints_are_deleted(toleration: Obj) -> None:
    site = Site()
    host = site.add_host(0, on="n0")
    site.api.patch("Pod", host, {"spec": {"tolerations": [toleration]}})
    site.end_machine("n0")
    assert site.actions() == [("fence", "n0")] and site.pods() == []


def test_a_dry_run_changes_nothing() -> None:
    site = Site()
    host = site.add_host(0, on="n0")
    site.end_machine("n0")
    site.api.calls.clear()
    (action,) = site.fencer().run(dry_run=True)
    assert (action.action, action.pods) == ("fence", (f"default/{host}",))
    assert {verb for verb, _, _ in site.api.calls} == {"list"}


def test_a_node_with_a_running_machine_is_never_fenced() -> None:
    site = Site()
    site.add_host(0, on="n0")
    site.add_host(1, on="n1")
    site.lose("n0")
    site.api.create(report("lm", "lm-slice-job-1-0-abcde", START + timedelta(seconds=30)))
    site.pass_time(600)
    assert site.actions(site.fencer(vouches=True)) == []


def test_a_node_that_reports_after_its_machine_stopped_is_not_fenced() -> None:
    site = Site()
    site.end_machine("n0")  # another provider reports another machine with that name
    site.quiet.clear()
    site.pass_time(10)
    assert site.actions() == []
    site.machines["n0"] = Machine(MachineState.GONE, "its container was removed")  # at an unknown time
    assert site.actions() == []
    site.quiet.add("n0")
    site.pass_time(11)
    assert site.actions() == []
    site.pass_time(1)
    assert site.actions() == [("fence", "n0")]


def test_only_nodes_of_slices_are_fenced() -> None:
    site = Site()
    site.end_machine("control-plane")
    assert site.actions() == [] and site.asked == ["n0", "n1", "n2"]


def test_machines_are_queried_only_while_their_nodes_are_silent() -> None:
    site = Site()
    fencer = site.fencer(quiet_seconds=12.0)
    site.end_machine("n1")
    assert site.actions(fencer) == [] and site.asked == []
    site.pass_time(12)
    assert site.actions(fencer) == [("fence", "n1")] and site.asked == ["n1"]


def test_the_budget_defers_and_the_next_period_continues() -> None:
    site, budget = Site(), Budget(1, 60.0)
    for index in range(3):
        site.end_machine(f"n{index}")
    assert site.actions(site.fencer(budget)) == [("fence", "n0"), ("defer", "n1"), ("defer", "n2")]
    site.pass_time(59)
    assert site.actions(site.fencer(budget)) == [("defer", "n1"), ("defer", "n2")]
    site.pass_time(1)
    assert site.actions(site.fencer(budget)) == [("fence", "n1"), ("defer", "n2")]


def test_the_budget_is_a_tenth_of_all_nodes_in_a_large_cluster() -> None:
    site = Site(20)
    for index in range(4):
        site.end_machine(f"n{index}")
    assert [action for action, _ in site.actions()] == ["fence"] * 2 + ["defer"] * 2


def test_the_default_budget_is_one_slice() -> None:
    site = Site(3)
    for index in range(2):
        copy = site.api.get("Node", "n0")
        site.api.create({**copy, "metadata": {"name": f"m{index}", "labels": copy["metadata"]["labels"]}})
    for name in ("n0", "n1", "n2", "m0", "m1"):
        site.end_machine(name)
    assert [action for action, _ in site.actions()] == ["fence"] * 3 + ["defer"] * 2


def test_a_node_is_released_when_its_kubelet_returns_and_still_counts() -> None:
    site, budget = Site(), Budget(1, 600.0)
    site.end_machine("n0")
    assert site.actions(site.fencer(budget)) == [("fence", "n0")]
    site.machines["n0"] = Machine(MachineState.RUNNING, "its container is running")
    site.pass_time(5)  # its condition has not changed yet: only the lease shows it
    assert site.actions(site.fencer(budget)) == []
    site.start_machine("n0")
    site.pass_time(5)
    assert site.actions(site.fencer(budget)) == [("release", "n0")]
    assert site.taints("n0") == [] and reason_of(site.api.get("Node", "n0")) is None
    site.end_machine("n1")
    assert site.actions(site.fencer(budget)) == [("defer", "n1")]


def test_taints_of_other_tools_are_kept() -> None:
    site = Site()
    other = {"key": "google.com/tpu", "value": "present", "effect": "NoSchedule"}
    site.api.patch("Node", "n0", {"spec": {"taints": [other]}})
    site.api.patch("Node", "n1", {"spec": {"taints": [{"key": TAINT, "value": "nodeshutdown", "effect": "NoExecute"}]}})
    site.end_machine("n0")
    site.end_machine("n1")
    assert site.actions() == [("fence", "n0")], "n1 was fenced by its owner"
    assert site.taints("n0") == ["google.com/tpu", TAINT]
    site.start_machine("n0")
    site.start_machine("n1")
    site.pass_time(5)
    assert site.actions() == [("release", "n0")]
    assert site.taints("n0") == ["google.com/tpu"] and site.taints("n1") == [TAINT]


def test_pods_left_by_an_interrupted_round_are_deleted_by_the_next() -> None:
    site = Site()
    site.end_machine("n0")
    assert site.actions() == [("fence", "n0")]
    site.add_host(0, on="n0")
    site.pass_time(5)
    assert site.actions() == [("clear", "n0")] and site.pods() == []


def test_pods_on_a_fenced_node_whose_machine_runs_again_are_left_to_its_kubelet() -> None:
    site = Site()
    site.end_machine("n0")
    assert site.actions() == [("fence", "n0")]
    host = site.add_host(0, on="n0")
    site.machines["n0"] = Machine(MachineState.RUNNING, "its container is running")
    site.pass_time(5)
    assert site.actions() == [] and site.pods() == [host], "its kubelet has not reported yet"


def test_a_concurrently_modified_node_is_left_to_the_next_round() -> None:
    class Busy(FakeApi):
        """An API server on which the node controller modifies the object first, once."""

        def list(self, kind: str, *arguments: Any, **options: Any) -> list[Obj]:
            objects = super().list(kind, *arguments, **options)
            if kind == "Node" and not self.objects[("Node", "", "n0")]["spec"].get("unschedulable"):
                self.patch("Node", "n0", {"spec": {"unschedulable": True}})
            return objects

    site = Site(api=Busy())
    site.api.patch("Node", "n0", {"spec": {"unschedulable": None}})
    site.add_host(0, on="n0")
    site.end_machine("n0")
    assert site.actions() == [] and len(site.pods()) == 1
    assert site.actions() == [("fence", "n0")] and site.pods() == []


def reported(site: Site, *, named: bool) -> None:
    """End the host on n1 because it lost a peer, named in its message or only in its Job's event."""
    time = (START + timedelta(seconds=25)).isoformat()
    if named:
        ended = {"exitCode": 75, "message": "lost slice 0 host 0", "finishedAt": time}
        state = [{"name": "host", "state": {"terminated": ended}}]
        site.api.patch("Pod", "lm-slice-job-1-0-abcde", {"status": {"phase": "Failed", "containerStatuses": state}})
    else:
        site.api.delete("Pod", "lm-slice-job-1-0-abcde")
        site.api.create(report("lm", "lm-slice-job-1-0-abcde", START + timedelta(seconds=25)))


@pytest.fixture
def lost() -> Site:
    """Return a cluster with unknown machines and an unreachable node n0."""
    site = Site()
    site.machines = {f"n{index}": Machine(MachineState.UNKNOWN, "no answer") for index in range(3)}
    site.add_host(0, on="n0")
    site.add_host(1, on="n1")
    site.lose("n0")
    site.pass_time(45)
    return site


@pytest.mark.parametrize("named", [True, False])
def test_an_unreachable_node_reported_by_peers_is_fenced_on_a_fenced_cluster(lost: Site, named: bool) -> None:
    assert lost.actions(lost.fencer(vouches=True)) == [], "without a report"
    reported(lost, named=named)
    assert lost.actions(lost.fencer(vouches=False)) == []
    (action,) = lost.fencer(vouches=True).run()
    assert short([action]) == [("fence", "n0")]
    assert action.reason == "unreachable, and its peers report lm-slice-job-0-0-abcde lost"
    assert "lm-slice-job-0-0-abcde" not in lost.pods()


def test_a_report_older_than_the_last_heartbeat_does_not_count(lost: Site) -> None:
    lost.api.create(report("lm", "lm-slice-job-1-0-abcde", START - timedelta(seconds=1)))
    assert lost.actions(lost.fencer(vouches=True)) == []


@pytest.mark.parametrize(("seconds", "actions"), [(25, [("fence", "n0")]), (-1, [])])
def test_the_pod_of_a_peer_that_lost_one_reports_it_without_a_name(
    lost: Site, seconds: int, actions: list[tuple[str, str]]
) -> None:
    ended = {"exitCode": 75, "finishedAt": (START + timedelta(seconds=seconds)).isoformat()}
    state = {"containerStatuses": [{"name": "host", "state": {"terminated": ended}}]}
    lost.api.patch("Pod", "lm-slice-job-1-0-abcde", {"status": {"phase": "Failed", **state}})
    assert lost.actions(lost.fencer(vouches=True)) == actions


def test_a_node_that_never_had_a_lease_is_not_fenced_by_reports(lost: Site) -> None:
    reported(lost, named=True)
    lost.api.delete("Lease", "n0", "kube-node-lease")
    assert lost.actions(lost.fencer(vouches=True)) == []


def test_an_ambiguous_report_does_not_count(lost: Site) -> None:
    lost.add_host(2, on="n2")
    lost.lose("n2")
    reported(lost, named=False)
    assert lost.actions(lost.fencer(vouches=True)) == []


@pytest.mark.parametrize(
    "change",
    [
        {"metadata": {"annotations": {"kueue.x-k8s.io/safe-to-forcefully-delete": None}}},
        {"metadata": {"labels": {"jobset.sigs.k8s.io/jobset-name": None}}},
    ],
)
def test_only_hosts_whose_nodes_may_be_fenced_count(lost: Site, change: Obj) -> None:
    reported(lost, named=True)
    lost.api.patch("Pod", "lm-slice-job-0-0-abcde", change)
    assert lost.actions(lost.fencer(vouches=True)) == []


def test_a_report_about_another_host_does_not_count(lost: Site) -> None:
    time = (START + timedelta(seconds=25)).isoformat()
    ended = {"exitCode": 75, "message": "lost slice 2 host 0", "finishedAt": time}
    state = {"containerStatuses": [{"name": "host", "state": {"terminated": ended}}]}
    lost.api.patch("Pod", "lm-slice-job-1-0-abcde", {"status": state})
    assert lost.actions(lost.fencer(vouches=True)) == []


def test_a_responsive_node_is_not_fenced_by_reports(lost: Site) -> None:
    reported(lost, named=True)
    lost.api.patch("Node", "n0", {"status": {"conditions": [{"type": "Ready", "status": "True"}]}})
    assert lost.actions(lost.fencer(vouches=True)) == []
