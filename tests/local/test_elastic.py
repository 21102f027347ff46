"""Elastic slices on the local control plane: what the cases of tests/conformance do not show."""

from __future__ import annotations

import os
import signal

from tests.local.cases import elastic, jobset, node, pid, running
from tests.waiting import until
from xpk.api.base import Obj
from xpk.local import objects as o
from xpk.local.api import LocalApi

FOREVER = "trap 'exit 143' TERM; echo up; while :; do sleep 0.02; done"
PREFIX = "jobset.sigs.k8s.io/"


def of_slice(pods: list[Obj], index: int) -> set[str]:
    """Return the UIDs of a slice's pods."""
    return {pod["metadata"]["uid"] for pod in pods if o.label(pod, f"{PREFIX}job-index") == str(index)}


def evictions(api: LocalApi) -> list[str]:
    (workload,) = api.list("Workload")
    return [item["reason"] for item in workload["status"]["conditions"] if item["type"] == "Evicted"]


def age_loss(api: LocalApi, seconds: float) -> None:
    """Let this much time pass since hosts were lost, as the queue sees it."""
    (workload,) = api.list("Workload")
    conditions = [
        item | ({"lastTransitionTime": o.later(-seconds)} if item["type"] == "PodsReady" else {})
        for item in workload["status"]["conditions"]
    ]
    api.patch("Workload", workload["metadata"]["name"], {"status": {"conditions": conditions}})


def is_waiting(api: LocalApi, index: int) -> bool:
    """Return whether a slice has new pods, and no nodes for them."""
    pods = api.list("Pod", selector={f"{PREFIX}job-index": str(index)})
    return len(pods) == 2 and all(pod["status"]["phase"] == "Pending" for pod in pods)


def test_a_slice_without_nodes_waits_while_others_run_and_restart(api: LocalApi) -> None:
    api.create(elastic(jobset("a", FOREVER, max_restarts=1)))
    before = running(api, "a")
    api.delete("Node", "c-np-1-1")
    until(lambda: is_waiting(api, 1))
    assert of_slice(running(api, "a", 2), 0) == of_slice(before, 0)
    age_loss(api, seconds=60)
    first = min(running(api, "a", 2), key=lambda pod: str(pod["spec"]["hostname"]))
    os.kill(pid(first), signal.SIGKILL)
    old = {pod["metadata"]["uid"] for pod in before}
    until(lambda: old.isdisjoint(pod["metadata"]["uid"] for pod in running(api, "a", 2)))  # of either slice
    assert evictions(api) == []
    api.apply(node(1, 1))
    assert old.isdisjoint(pod["metadata"]["uid"] for pod in running(api, "a"))
    (status,) = api.get("JobSet", "a")["status"]["replicatedJobsStatus"]
    assert (status["jobRestarts"], status["jobRestartsCountTowardsMax"]) == ([1, 1], [1, 0])


def test_a_code_of_saved_hosts_is_a_failure_unless_the_slice_was_asked_to_end(api: LocalApi) -> None:
    """A request to end slice 0 is none to slice 1."""
    slow = "trap 'until [ -e end ]; do sleep 0.02; done; exit 143' TERM; echo up; while :; do sleep 0.02; done"
    saved = f'[ "$MEGASCALE_SLICE_ID" = 0 ] || {{ trap "exit 143" USR1; }}; {slow}'
    api.create(elastic(jobset("a", saved, max_restarts=0, grace=60)))
    pods = sorted(running(api, "a"), key=lambda pod: str(pod["spec"]["hostname"]))
    until(lambda: all(list(api.logs(pod)) for pod in pods))
    api.delete("Pod", pods[0]["metadata"]["name"])
    os.kill(pid(pods[3]), signal.SIGUSR1)
    until(lambda: api.get("JobSet", "a")["status"].get("terminalState") == "Failed")


def test_all_hosts_have_one_address_of_the_registry(api: LocalApi) -> None:
    """It outlives the address of slice 0, whose next pods may be on other nodes."""
    env: list[Obj] = [
        {"name": "XPK_JOB_ID", "valueFrom": {"fieldRef": {"fieldPath": f"metadata.labels['{PREFIX}jobset-uid']"}}},
        {"name": "XPK_SLICE_REGISTRY", "value": "a-slice-job-0-0.a:8479"},
    ]
    api.create(elastic(jobset("a", f"echo $XPK_SLICE_REGISTRY; {FOREVER}", env=env)))
    pods = running(api, "a")
    until(lambda: all(len(list(api.logs(pod))) == 2 for pod in pods))
    (address,) = {next(iter(api.logs(pod))).text for pod in pods}
    host, _, port = address.partition(":")
    assert port == "8479" and 1 <= int(host.split(".")[1]) < 16, "nodes have other addresses"
