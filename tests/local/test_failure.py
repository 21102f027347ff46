"""Hosts fail in every way; the JobSet restarts, or fails, according to its policy."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.local.cases import ended, ended_in_haste, hurry, jobset, node, pid, running, status
from tests.local.killing import kill_daemon
from tests.waiting import until
from xpk.api.base import Obj
from xpk.local import process
from xpk.local.api import LocalApi
from xpk.local.objects import later
from xpk_shared.supervisor.restarts import LONGEST_PAUSE

FOREVER = "trap 'echo got TERM; exit 143' TERM; echo up; while :; do sleep 0.02; done"


def condition(obj: Obj, kind: str) -> Any:
    return next((c for c in obj["status"].get("conditions", ()) if c["type"] == kind), {"reason": ""})


def restarts(api: LocalApi, name: str) -> int:
    return int(api.get("JobSet", name).get("status", {}).get("restarts", 0))


def events(api: LocalApi) -> list[str]:
    return [event["reason"] for event in api.list("Event")]


def test_killed_host_restarts_all(api: LocalApi) -> None:
    api.create(jobset("a", FOREVER, max_restarts=1))
    pods = running(api, "a")
    until(lambda: all(list(api.logs(p)) for p in pods))
    counts = {"name": "slice-job", "active": 2, "ready": 2, "succeeded": 0, "failed": 0, "suspended": 0}
    until(lambda: status(api, "a")["replicatedJobsStatus"] == [counts])
    os.kill(pid(pods[2]), signal.SIGKILL)
    again = running(api, "a", attempt=1)
    assert (status(api, "a")["restarts"], status(api, "a")["restartsCountTowardsMax"]) == (1, 1)
    assert {p["metadata"]["labels"]["jobset.sigs.k8s.io/restart-attempt"] for p in again} == {"1"}
    former = api.former_pods("default", {"jobset.sigs.k8s.io/jobset-name": "a"})
    assert {p["metadata"]["uid"] for p in former} == {p["metadata"]["uid"] for p in pods}
    ends = {p["spec"]["hostname"]: p["status"]["containerStatuses"][0]["state"]["terminated"] for p in former}
    killed = ends.pop(pods[2]["spec"]["hostname"])
    assert (killed["exitCode"], killed["signal"], killed["reason"]) == (137, 9, "Error")
    assert {end["exitCode"] for end in ends.values()} == {143}
    others = [p for p in former if p["spec"]["hostname"] in ends]
    assert [list(api.logs(p))[-1].text for p in others] == ["got TERM"] * 3
    until(lambda: condition(api.get("JobSet", "a"), "RestartingJobSet")["reason"] == "JobsReady")
    assert {"RestartJobSetFailurePolicyAction", "Started"} <= {*events(api)}
    os.kill(pid(again[0]), signal.SIGKILL)
    assert ended(api, "a") == "Failed"
    assert condition(api.get("JobSet", "a"), "Failed")["reason"] == "ReachedMaxRestarts"
    until(lambda: all(p["status"]["phase"] == "Failed" for p in api.list("Pod")))


@pytest.mark.parametrize("strategy", ["BlockingRecreate", "Recreate"])
def test_a_new_host_starts_only_after_the_old_one_ended(api: LocalApi, strategy: str) -> None:
    slow = "trap 'sleep 0.7; exit 143' TERM; while :; do sleep 0.02; done"
    api.create(jobset("a", slow, max_restarts=1, strategy=strategy))
    pods = running(api, "a")
    os.kill(pid(pods[0]), signal.SIGKILL)
    again = running(api, "a", attempt=1)
    former = api.former_pods("default", {})
    last = max(p["status"]["containerStatuses"][0]["state"]["terminated"]["finishedAt"] for p in former)
    first = min(p["status"]["containerStatuses"][0]["state"]["running"]["startedAt"] for p in again)
    assert len(former) == 4
    assert first > last


def test_no_slice_resumes_while_another_slice_is_terminating(api: LocalApi, tmp_path: Path) -> None:
    ends = f'[ "$MEGASCALE_SLICE_ID" = 0 ] || until [ -e {tmp_path}/may-end ]; do sleep 0.02; done; exit 143'
    waits = f"trap '{ends}' TERM; echo up; while :; do sleep 0.02; done"
    api.create(jobset("a", waits, hosts=1, queued=False, grace=60))
    pods = running(api, "a", 2)
    until(lambda: all(list(api.logs(pod)) for pod in pods))
    before = {pod["metadata"]["uid"] for pod in pods}
    api.patch("JobSet", "a", {"spec": {"suspend": True}})
    until(lambda: len(api.former_pods("default", {})) == 1)
    assert [condition(job, "Suspended")["status"] for job in api.list("Job")] == ["True"] * 2
    api.patch("JobSet", "a", {"spec": {"suspend": False}})
    until(lambda: condition(api.get("JobSet", "a"), "Suspended")["reason"] == "ResumeJobs")
    api.create(jobset("b", "true", slices=1, hosts=1, queued=False))
    assert ended(api, "b") == "Completed", "the control plane has had time to resume a slice"
    assert {pod["metadata"]["uid"] for pod in api.list("Pod", selector={"xpk.google.com/workload": "a"})} <= before
    (tmp_path / "may-end").touch()
    assert {pod["metadata"]["uid"] for pod in running(api, "a", 2)}.isdisjoint(before)


def test_repeated_failures_restart_with_backoff(api: LocalApi, folder: Path) -> None:
    api.create(jobset("a", "exit 1", slices=1, hosts=1, max_restarts=9))
    begin = time.monotonic()
    until(lambda: restarts(api, "a") == 3)
    assert time.monotonic() - begin >= 2  # of the second one; the first has no pause
    assert status(api, "a")["shortAttempts"] == 3
    api.patch("JobSet", "a", {"status": {"nextAttemptAt": later(LONGEST_PAUSE - 1)}})
    kill_daemon(folder)  # the pause is kept
    api.create(jobset("b", "true", slices=1, hosts=1))
    assert ended(api, "b") == "Completed", "the next daemon has had time to end the pause"
    assert (status(api, "a")["restarts"], api.list("Job", selector={"xpk.google.com/workload": "a"})) == (3, [])
    output = [event["message"] for event in api.list("Event") if event["reason"] == "BackOff"]
    assert output == [
        f"restart {n} waits for {s} s: the last {n} attempts ended within 5 s each" for n, s in [(2, 2), (3, 4)]
    ]
    hurry(api, "a")
    until(lambda: restarts(api, "a") >= 4)


def test_a_clock_that_is_set_back_prolongs_neither_a_pause_nor_a_grace_period(api: LocalApi, folder: Path) -> None:
    deaf = "trap '' TERM; echo up; while :; do sleep 0.02; done"
    fails = f'[ "$XPK_RESTART_ATTEMPT" = 3 ] && {{ {deaf}; }}; exit 1'
    api.create(jobset("a", fails, slices=1, hosts=1, grace=1, max_restarts=9))
    until(lambda: restarts(api, "a") == 3)
    api.patch("JobSet", "a", {"status": {"nextAttemptAt": later(3600)}})
    (pod,) = running(api, "a", 1, attempt=3)
    until(lambda: list(api.logs(pod)))
    api.delete("Pod", pod["metadata"]["name"])
    marker = folder / process.PODS / pod["metadata"]["uid"] / "terminated"
    until(marker.exists)
    os.utime(marker, (time.time() + 3600,) * 2)
    until(lambda: restarts(api, "a") == 4)


def test_a_child_has_the_grace_period_after_its_shell_died(api: LocalApi, tmp_path: Path) -> None:
    saver = (
        "import os, signal, sys, time\n"
        "def save(*_):\n    print('saving', flush=True); time.sleep(1); print('saved', flush=True); sys.exit(143)\n"
        "signal.signal(signal.SIGTERM, save); print('up', flush=True)\n"
        "while True: time.sleep(0.02)\n"
    )
    (tmp_path / "saver.py").write_text(saver)
    command = ["bash", "-c", f"python {tmp_path}/saver.py & setsid python {tmp_path}/saver.py & wait; echo end"]
    api.create(jobset("a", "", command=command, slices=1, hosts=1, grace=20))
    pod = running(api, "a", 1)[0]
    until(lambda: len(list(api.logs(pod))) == 2)
    begin = time.monotonic()
    api.delete("Pod", pod["metadata"]["name"])
    running(api, "a", 1, attempt=1)
    assert 1 <= time.monotonic() - begin < 15
    former = api.former_pods("default", {})[0]
    assert [line.text for line in api.logs(former)] == ["up"] * 2 + ["saving"] * 2 + ["saved"] * 2
    assert former["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 143


def test_a_child_that_ignores_sigterm_is_killed_after_the_grace_period(api: LocalApi) -> None:
    command = ["bash", "-c", "(trap '' TERM; echo up; while :; do sleep 0.02; done); echo end"]
    api.create(jobset("a", "", command=command, slices=1, hosts=1, grace=1))
    pod = running(api, "a", 1)[0]
    until(lambda: list(api.logs(pod)))
    begin = time.monotonic()
    api.delete("Pod", pod["metadata"]["name"])
    running(api, "a", 1, attempt=1)
    assert 1 <= time.monotonic() - begin < 15


def test_delete_without_grace(api: LocalApi) -> None:
    api.create(jobset("a", "trap '' TERM; echo up; while :; do sleep 0.02; done", grace=60))
    pods = running(api, "a")
    until(lambda: all(list(api.logs(pod)) for pod in pods))
    api.delete("JobSet", "a")
    api.create(jobset("b", "exit 0"))
    time.sleep(0.2)
    assert status(api, "b").get("terminalState") is None  # a's hosts still hold the slices
    for pod in api.list("Pod", selector={"jobset.sigs.k8s.io/jobset-name": "a"}):
        api.delete("Pod", pod["metadata"]["name"], grace_seconds=0)
    assert ended(api, "b") == "Completed"


def test_lost_node_evicts_and_is_not_counted(api: LocalApi) -> None:
    api.create(jobset("a", FOREVER, slices=1))
    pods = running(api, "a", 2)
    assert {p["spec"]["nodeName"] for p in pods} == {"c-np-0-0", "c-np-0-1"}
    api.delete("Node", "c-np-0-1")
    again = running(api, "a", 2, attempt=1)
    assert {p["spec"]["nodeName"] for p in again} == {"c-np-1-0", "c-np-1-1"}
    assert (status(api, "a")["restarts"], status(api, "a")["restartsCountTowardsMax"]) == (1, 0)
    former = api.former_pods("default", {})
    assert [p for p in former if condition(p, "DisruptionTarget")["reason"] == "DeletionByPodGC"]
    assert any("node c-np-0-1 no longer exists" in event["message"] for event in api.list("Event"))


def test_tainted_node_evicts(api: LocalApi) -> None:
    api.create(jobset("a", FOREVER, slices=1))
    running(api, "a", 2)
    taint = {"key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute"}
    api.patch("Node", "c-np-0-0", {"spec": {"taints": [taint]}})
    again = running(api, "a", 2, attempt=1)
    assert {p["spec"]["nodeName"] for p in again} == {"c-np-1-0", "c-np-1-1"}
    assert any("node c-np-0-0 has a NoExecute taint" in event["message"] for event in api.list("Event"))


def test_no_host_starts_on_a_node_with_a_taint_but_running_ones_stay(api: LocalApi) -> None:
    api.create(jobset("a", FOREVER, slices=1))
    before = running(api, "a", 2)
    taint = {"key": "xpk.dev/quarantined", "value": "true", "effect": "NoSchedule"}
    for name in ("c-np-0-0", "c-np-0-1"):
        api.patch("Node", name, {"spec": {"taints": [taint]}})
    assert [p["metadata"]["uid"] for p in running(api, "a", 2)] == [p["metadata"]["uid"] for p in before]
    api.evict(before[0]["metadata"]["name"])
    again = running(api, "a", 2, attempt=1)
    assert {p["spec"]["nodeName"] for p in again} == {"c-np-1-0", "c-np-1-1"}


def test_backoff_limit_replaces_one_host(api: LocalApi, tmp_path: Any) -> None:
    expected = jobset("a", f"mkdir {tmp_path}/$MEGASCALE_SLICE_ID-$TPU_WORKER_ID || exit 0; exit 1")
    expected["spec"]["replicatedJobs"][0]["template"]["spec"]["backoffLimit"] = 2
    api.create(expected)
    assert ended(api, "a") == "Completed"
    assert [(job["status"]["failed"], job["status"]["succeeded"]) for job in api.list("Job")] == [(2, 2), (2, 2)]
    assert status(api, "a")["restarts"] == 0
    ready = [(pod["status"]["phase"], condition(pod, "Ready")) for pod in api.list("Pod")]
    states = {(phase, now["status"], now["reason"]) for phase, now in ready}
    assert states == {("Failed", "False", "PodFailed"), ("Succeeded", "False", "PodCompleted")}


def test_ignored_failures_are_not_counted(api: LocalApi, tmp_path: Any) -> None:
    expected = jobset("a", f"mkdir {tmp_path}/$MEGASCALE_SLICE_ID-$TPU_WORKER_ID || exit 0; exit 7")
    rule = {"action": "Ignore", "onExitCodes": {"operator": "NotIn", "values": [0, 42]}}
    expected["spec"]["replicatedJobs"][0]["template"]["spec"]["podFailurePolicy"] = {"rules": [rule]}
    api.create(expected)
    assert ended(api, "a") == "Completed"
    assert [job["status"].get("failed") for job in api.list("Job")] == [0, 0]
    ends = {(event["type"], event["message"]) for event in api.list("Event") if event["reason"] == "Failed"}
    assert ends == {("Warning", "The host ended with exit code 7")}


def test_slices_of_several_kinds_are_numbered_together(api: LocalApi) -> None:
    both = jobset("a", FOREVER, hosts=1)
    (first,) = both["spec"]["replicatedJobs"]
    both["spec"]["replicatedJobs"].append({**first, "name": "other-job", "replicas": 1})
    api.create(both)
    jobs = until(lambda: jobs if len(jobs := api.list("Job")) == 3 else [])
    keys = ("replicatedjob-name", "job-index", "job-global-index", "global-replicas")
    numbers = sorted(tuple(job["metadata"]["labels"][f"jobset.sigs.k8s.io/{key}"] for key in keys) for job in jobs)
    assert numbers == [("other-job", "0", "2", "3"), ("slice-job", "0", "0", "3"), ("slice-job", "1", "1", "3")]


def test_a_fatal_exit_code_ends_the_slice_whatever_its_other_hosts_do(api: LocalApi) -> None:
    api.create(jobset("a", f"[ $TPU_WORKER_ID = 0 ] || {{ {FOREVER}; }}; exit 42", slices=1, max_restarts=3))
    assert ended(api, "a") == "Failed"
    until(lambda: condition(api.list("Job")[0], "Failed")["reason"])  # when its other host has ended
    (job,) = api.list("Job")
    for kind in ("FailureTarget", "Failed"):
        now = condition(job, kind)
        assert (now["status"], now["reason"]) == ("True", "PodFailurePolicy")
        failed = r"Container host for pod default/a-slice-job-0-0-\w{5} failed with exit code 42"
        assert re.fullmatch(f"{failed} matching FailJob rule at index 2", now["message"])
    assert status(api, "a").get("restarts", 0) == 0


def test_without_a_failure_policy_any_failure_is_final(api: LocalApi) -> None:
    expected = jobset("a", "exit 1")
    del expected["spec"]["failurePolicy"]
    api.create(expected)
    assert ended(api, "a") == "Failed"
    assert condition(api.get("JobSet", "a"), "Failed")["reason"] == "FailedJobs"
    failed = until(lambda: [job for job in api.list("Job") if condition(job, "Failed")["reason"]])
    assert {condition(job, "Failed")["reason"] for job in failed} == {"BackoffLimitExceeded"}


def test_logs_of_the_last_five_attempts_are_kept(api: LocalApi) -> None:
    api.create(jobset("a", "exit 1", max_restarts=7, slices=1, hosts=1))
    assert ended_in_haste(api, "a") == "Failed"
    former = api.former_pods("default", {})
    attempts = [p["metadata"]["labels"]["jobset.sigs.k8s.io/restart-attempt"] for p in former]
    assert attempts == ["2", "3", "4", "5", "6"]


def test_a_restart_after_a_request_to_end_is_not_counted(api: LocalApi) -> None:
    saves = '[ "$XPK_RESTART_ATTEMPT" = 1 ] || { echo asked to end > "$XPK_TERMINATION_LOG"; exit 143; }'
    api.create(jobset("a", saves, slices=1, hosts=1))
    assert ended(api, "a") == "Completed"
    assert "The host ended with exit code 143 (asked to end)" in [event["message"] for event in api.list("Event")]
    assert (status(api, "a")["restarts"], status(api, "a")["restartsCountTowardsMax"]) == (1, 0)


def test_hosts_that_exit_with_143_after_a_request_to_end_are_not_counted(api: LocalApi, tmp_path: Path) -> None:
    # The other host ends by itself, after the request and before the host that was asked.
    first = f"trap \"touch '{tmp_path}/told'; sleep 0.2; exit 143\" TERM; echo up; while :; do sleep 0.02; done"
    other = f"echo up; until [ -e '{tmp_path}/told' ]; do sleep 0.02; done; exit 143"
    saves = f'if [ "$TPU_WORKER_ID" = 0 ]; then {first}; else {other}; fi'
    api.create(jobset("a", f'[ "$XPK_RESTART_ATTEMPT" = 1 ] || {{ {saves}; }}', slices=1, grace=30))
    pods = running(api, "a", 2)
    until(lambda: all(list(api.logs(p)) for p in pods))
    slow = next(pod for pod in pods if pod["metadata"]["name"].startswith("a-slice-job-0-0"))
    api.delete("Pod", slow["metadata"]["name"])
    assert ended(api, "a") == "Completed"
    assert status(api, "a")["restartsCountTowardsMax"] == 0


def test_an_eviction_is_not_counted_even_if_the_host_has_to_be_killed(api: LocalApi) -> None:
    deaf = '[ "$XPK_RESTART_ATTEMPT" = 1 ] || { trap "" TERM; echo up; while :; do sleep 0.02; done; }'
    api.create(jobset("a", deaf, slices=1, hosts=1, grace=1))
    (pod,) = running(api, "a", 1)
    until(lambda: list(api.logs(pod)))
    api.evict(pod["metadata"]["name"])
    assert ended(api, "a") == "Completed"
    assert (status(api, "a")["restarts"], status(api, "a")["restartsCountTowardsMax"]) == (1, 0)


def test_a_frozen_host_declared_dead_has_no_grace_period(api: LocalApi, tmp_path: Path) -> None:
    declares = (
        f"until [ -e '{tmp_path}/go' ]; do sleep 0.02; done; echo lost slice 1 host 1 > $XPK_TERMINATION_LOG; exit 75"
    )
    script = f'[ "$XPK_RESTART_ATTEMPT" = 1 ] || {{ [ "$MEGASCALE_SLICE_ID" = 1 ] || {{ {declares}; }}; {FOREVER}; }}'
    api.create(jobset("a", script, grace=60, max_restarts=1))
    frozen = next(pod for pod in running(api, "a") if pod["spec"]["hostname"] == "a-slice-job-1-1")
    api.apply(node(2, 0))
    api.create(jobset("other", FOREVER, slices=1, hosts=1, queued=False))
    (other,) = running(api, "other", 1)
    os.kill(pid(frozen), signal.SIGSTOP)
    (tmp_path / "go").touch()
    begin = time.monotonic()
    assert ended(api, "a") == "Completed"
    assert time.monotonic() - begin < 20
    assert (status(api, "a")["restarts"], status(api, "a")["restartsCountTowardsMax"]) == (1, 1)
    assert running(api, "other", 1)[0]["metadata"]["uid"] == other["metadata"]["uid"], "only its own attempt ends"
