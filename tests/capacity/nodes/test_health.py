"""Health of slices, and the wait for hosts at the end of `cluster create`."""

from __future__ import annotations

from typing import Any

import pytest

from tests.capacity.adapted.nodes import node
from tests.capacity.machine import Machine, spec
from xpk.api.base import Obj
from xpk.capacity.nodes import health
from xpk.capacity.nodes.health import SliceHealth
from xpk.capacity.nodes.inventory import cluster_info
from xpk.capacity.nodes.out_of_service import TAINT
from xpk.capacity.provider import ClusterInfo, SliceInfo
from xpk.model.errors import TimedOutError
from xpk.model.specs import ClusterSpec
from xpk.testing import FakeApi

SINCE = "2026-01-31T12:00:00Z"
UNREACHABLE = {
    "type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "lastTransitionTime": SINCE,
    "message": "Kubelet stopped posting node status.",
}  # fmt: skip
TPU = {"key": "google.com/tpu", "value": "present", "effect": "NoSchedule"}


def slice_of(changed: Obj | None = None, *, missing: bool = False) -> SliceHealth:
    """Return the state of a slice of two hosts, the second of which is changed or missing."""
    first = node("h0", "np-0", 4, taints=[TPU])
    second = node("h1", "np-0", 4, taints=[TPU])
    for key, value in (changed or {}).items():
        part: Any = second
        *path, last = key.split(".")
        for item in path:
            part = part[item]
        part[last] = value
    plugin = {"kind": "Pod", "metadata": {"name": "tpu-device-plugin-x", "namespace": "kube-system",
              "labels": {"k8s-app": "tpu-device-plugin"}}, "spec": {"nodeName": "h1", "containers": []},
              "status": {"phase": "Running", "containerStatuses": [
                  {"state": {"waiting": {"reason": "CrashLoopBackOff"}}}]}}  # fmt: skip
    api = FakeApi([first, *([] if missing else [second]), plugin])
    info = cluster_info(api, spec(num_slices=1), api.list("Node"), name="c", provider="gke", location="here")
    (result,) = health.health_of(api, info)
    return result


def test_a_healthy_slice() -> None:
    result = slice_of()
    assert (result.hosts_ready, result.hosts, result.chips_offered, result.chips) == (2, 2, 8, 8)
    assert (result.state, result.is_usable, result.troubles, result.accelerator_type) == (
        "Ready",
        True,
        (),
        "v5litepod-8",
    )


@pytest.mark.parametrize(
    ("changed", "state", "message", "up"),
    [
        ({"status.conditions": [UNREACHABLE]}, "NotReady",
         "NodeStatusUnknown: Kubelet stopped posting node status.", False),
        ({"status.allocatable": {}}, "ChipsMissing",
         "offers 0 of 4 google.com/tpu; tpu-device-plugin-x: CrashLoopBackOff", False),
        ({"spec.unschedulable": True}, "Cordoned", "run `kubectl uncordon h1`", True),
        ({"spec.taints": [TPU, {"key": "cloud.google.com/impending-node-termination", "effect": "NoSchedule"}]},
         "Terminating", "its machine is about to be terminated", True),
        ({"spec.taints": [TPU, {"key": "team", "value": "a", "effect": "NoExecute"}]}, "Tainted", "team=a:NoExecute",
         True),
    ],
)  # fmt: skip
def test_an_unschedulable_host_makes_its_slice_unschedulable(changed: Obj, state: str, message: str, up: bool) -> None:
    result = slice_of(changed)
    assert (result.state, result.is_usable, result.is_up) == (state, False, up)
    (trouble,) = result.troubles
    assert (trouble.node, trouble.message, trouble.blocks) == ("h1", message, True)
    assert trouble.since == (SINCE if state == "NotReady" else None)


@pytest.mark.parametrize(
    ("annotations", "reason", "message"),
    [
        ({"xpk.dev/fenced": "its container has ended"}, "Fenced",
         "its container has ended; `xpk cluster fence` releases it when its kubelet is back"),
        ({}, "Tainted", f"{TAINT}=nodeshutdown:NoExecute"),
    ],
)  # fmt: skip
def test_a_fenced_host_explains_its_state_and_release(annotations: Obj, reason: str, message: str) -> None:
    taint = {"key": TAINT, "value": "nodeshutdown", "effect": "NoExecute", "timeAdded": SINCE}
    health = slice_of({"spec.taints": [TPU, taint], "metadata.annotations": annotations})
    (trouble,) = health.troubles
    assert (health.state, trouble.reason, trouble.message, trouble.since) == (reason, reason, message, SINCE)


def test_hosts_that_are_not_ready_are_reported() -> None:
    result = slice_of(missing=True)
    assert (result.hosts_ready, result.hosts, result.chips_offered, result.state) == (1, 2, 4, "Missing")


def test_a_healthy_slice_with_scheduled_maintenance() -> None:
    ready = {"type": "Ready", "status": "True"}
    restarts = {"type": "FrequentKubeletRestart", "status": "True", "message": "5 times", "lastTransitionTime": SINCE}
    result = slice_of({"status.conditions": [ready, restarts]})
    assert result.is_usable and [(item.reason, item.blocks) for item in result.troubles] == [
        ("FrequentKubeletRestart", False)
    ]
    labels = node("h1", "np-0")["metadata"]["labels"]
    result = slice_of({"metadata.labels": labels | {"cloud.google.com/scheduled-maintenance-time": "1769860800"}})
    assert result.is_usable and result.troubles[0].message == "its host is terminated at 2026-01-31T12:00Z"
    result = slice_of({"metadata.labels": labels | {"cloud.google.com/active-node-maintenance": "ONGOING"}})
    assert result.state == "Maintenance"


def test_slices_without_nodes_are_listed() -> None:
    info = ClusterInfo(
        name="c", provider="gke", accelerator_type="v5litepod-16,v5litepod-8", num_slices=2, chips=24,
        hosts_per_slice=0, state="Incomplete", created="", location="",
        slices=(
            SliceInfo(node_pool="np-10", hosts=("a",) * 4, workload=None, accelerator_type="v5litepod-16"),
            SliceInfo(node_pool="np-2", hosts=(), workload=None, accelerator_type="v5litepod-8"),
        ),
    )  # fmt: skip
    later, failed = health.health_of(FakeApi(), info)
    assert (failed.node_pool, failed.state, failed.hosts, failed.chips) == ("np-10", "Missing", 4, 16)
    assert (later.is_usable, later.troubles[0].reason) == (True, "NotProvisioned"), "its nodes are created on request"


def test_nodes_that_emulate_several_hosts(machine: Machine) -> None:
    provider = machine.provider(spare_slices=1)
    provider.plan_create(spec()).carry_out(lambda title: None)
    result = health.health_of(machine.api("dev"), provider.describe("dev"))
    assert [(item.hosts_ready, item.chips_offered, item.spare) for item in result] == [
        (2, 8, False), (2, 8, False), (2, 8, True)]  # fmt: skip


def test_create_waits_for_hosts_and_names_them(machine: Machine) -> None:
    provider, report = machine.provider(), list[str]()
    plan = provider.plan_create(spec())
    for step in plan.steps[:-1]:
        step.act()
    late = machine.api("dev").objects["Node", "", "dev-worker2"]
    late["status"]["conditions"] = [UNREACHABLE]
    plan = provider.plan_create(spec())
    assert [step.title for step in plan.steps] == [health.TITLE], "a repeated create also waits for them"

    def live(states: Any) -> None:
        report.extend(states.values())
        if len(report) == 3:
            late["status"]["conditions"] = [{"type": "Ready", "status": "True"}]

    plan.carry_out(lambda title: None, live)
    assert len(report) == 3 and report[0].startswith(
        "1 of 2 slices, 0 s; dev-np-1: dev-worker2 NotReady NodeStatusUnknown"
    )
    assert provider.plan_create(spec()).steps == []


def test_hosts_that_do_not_become_ready_are_named(machine: Machine) -> None:
    provider = machine.provider()
    provider.plan_create(spec()).carry_out(lambda title: None)
    machine.api("dev").objects["Node", "", "dev-worker1"]["status"]["conditions"] = [UNREACHABLE]
    with pytest.raises(TimedOutError, match="1 of 2 slices are not ready after 900 s; dev-np-0: dev-worker1 NotReady"):
        provider.plan_create(spec()).carry_out(lambda title: None)


def test_health_does_not_need_a_spec() -> None:
    """Nodes whose labels do not name a type are counted as they are."""
    strange = node("h0", "np-0", 4)
    strange["metadata"]["labels"]["cloud.google.com/gke-tpu-topology"] = "3x5"
    api = FakeApi([strange])
    unknown: ClusterSpec | None = None
    info = cluster_info(api, unknown, api.list("Node"), name="c", provider="gke", location="here")
    (result,) = health.health_of(api, info)
    assert (result.accelerator_type, result.hosts, result.hosts_ready, result.is_usable) == ("unknown", 1, 1, True)
