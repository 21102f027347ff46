"""Workloads that need all slices, of which single ones get new pods, on the local control plane."""

from __future__ import annotations

import os
import signal
from typing import Any

from tests.local.cases import elastic, jobset, node, pid, running, status
from tests.waiting import until
from xpk.api.base import Obj
from xpk.local import objects as o
from xpk.local.api import LocalApi
from xpk_shared.supervisor.names import SLICE_ATTEMPT

PREFIX = "jobset.sigs.k8s.io/"
FOREVER = "trap 'exit 143' TERM; while :; do sleep 0.02; done"


def field(name: str, label: str) -> Obj:
    """Return a variable with a label of JobSet."""
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": f"metadata.labels['{PREFIX}{label}']"}}}


def waiting(script: str, **more: Any) -> Obj:
    """Return a JobSet whose slices wait for a slice that gets new pods."""
    env: list[Obj] = [field("XPK_JOB_ID", "jobset-uid"), field(SLICE_ATTEMPT, "job-restart-attempt")]
    return elastic(jobset("a", script, env=[*env, {"name": "MASTER_ADDR", "value": "a-slice-job-0-0.a"}], **more))


def line_of(api: LocalApi, pod: Obj) -> dict[str, str]:
    """Return the words of a host's first line by name."""
    text = until(lambda: next((line.text for line in api.logs(pod)), ""))
    return {name: value for name, _, value in (word.partition("=") for word in text.split())}


def test_the_coordinators_address_outlives_its_pods(api: LocalApi) -> None:
    """Hosts do not resolve names again, and the next pods of slice 0 may be on other nodes."""
    said = ("XPK_COORDINATOR_ADDRESS", "TPU_WORKER_HOSTNAMES", "MASTER_ADDR", SLICE_ATTEMPT)
    script = f"echo {' '.join(f'{name}=${name}' for name in said)} ARGUMENT=$0; {FOREVER}"
    made = waiting(script, max_restarts=1, command=["sh", "-c", script, "a-slice-job-0-0.a.default.svc"])
    api.create(made)
    pods = sorted(running(api, "a"), key=lambda pod: str(pod["spec"]["hostname"]))
    lines = [line_of(api, pod) for pod in pods]
    (own,) = {line["MASTER_ADDR"] for line in lines}
    assert own.startswith("127.") and 1 <= int(own.split(".")[1]) < 16, "nodes have other addresses"
    assert {line["XPK_COORDINATOR_ADDRESS"].rpartition(":")[0] for line in lines} == {own}
    assert {line["ARGUMENT"] for line in lines} == {own}
    ips = [pod["status"]["podIP"] for pod in pods]
    names = [line["TPU_WORKER_HOSTNAMES"] for line in lines]
    assert names == 2 * [f"{own},{ips[1]}"] + 2 * [f"{ips[2]},{ips[3]}"]
    api.apply(node(2, 0))
    api.apply(node(2, 1))
    api.delete("Node", pods[0]["spec"]["nodeName"])
    until(lambda: status(api, "a")["replicatedJobsStatus"][0].get("jobRestarts") == [1, 0])
    after = sorted(running(api, "a"), key=lambda pod: str(pod["spec"]["hostname"]))
    assert [pod["metadata"]["uid"] for pod in after[2:]] == [pod["metadata"]["uid"] for pod in pods[2:]]
    assert after[0]["status"]["podIP"] != ips[0], "the slice is on other nodes"
    line = line_of(api, after[0])
    assert (line["MASTER_ADDR"], line[SLICE_ATTEMPT]) == (own, "1")


def test_a_workload_that_needs_a_lost_slice_is_queued_again_soon(api: LocalApi) -> None:
    api.create(waiting(FOREVER))
    running(api, "a")
    api.delete("Node", "c-np-1-1")

    def is_queued() -> bool:
        (workload,) = api.list("Workload")
        return o.is_true(workload, "Evicted")

    until(is_queued, seconds=30)
    assert not [pod for pod in api.list("Pod") if pod["status"]["phase"] == "Running" and not o.is_terminating(pod)]


def test_a_request_to_end_one_slice_reaches_the_hosts_of_others(api: LocalApi) -> None:
    """They may save and end with it, which is not a failure of theirs."""
    slow = "trap 'until [ -e end ]; do sleep 0.02; done; exit 143' TERM; echo up; while :; do sleep 0.02; done"
    saved = f'[ "$MEGASCALE_SLICE_ID" = 0 ] || {{ trap "exit 143" USR1; }}; {slow}'
    api.create(waiting(saved, grace=60))
    pods = sorted(running(api, "a"), key=lambda pod: str(pod["spec"]["hostname"]))
    until(lambda: all(list(api.logs(pod)) for pod in pods))
    api.delete("Pod", pods[0]["metadata"]["name"])
    os.kill(pid(pods[3]), signal.SIGUSR1)
    until(lambda: status(api, "a")["replicatedJobsStatus"][0].get("jobRestarts") == [0, 1])
    assert "jobRestartsCountTowardsMax" not in status(api, "a")["replicatedJobsStatus"][0]
