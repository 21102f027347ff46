"""Results of preflight checks, from a workload's status and its record."""

from __future__ import annotations

import json
from typing import Any

from tests.jobs.objects import Obj, jobset, pod
from xpk.jobs.preflight import read_preflight
from xpk.jobs.status.fields import Snapshot
from xpk.jobs.status.reader import read
from xpk.model.status import WorkloadStatus


def ended(slice_id: int, code: int, message: str = "") -> Obj:
    state = {"terminated": {"exitCode": code, "reason": "Error", "message": message}}
    return pod(slice_id, {"phase": "Failed", "containerStatuses": [{"name": "host", "state": state}]})


def status(*pods: Obj) -> WorkloadStatus:
    return read(jobset(), Snapshot(jobsets=[jobset()], pods=list(pods)))


def row(slice_id: int, check: str, problem: str = "", **more: Any) -> bytes:
    facts = {"slice": slice_id, "host": 0, "check": check, "passed": not problem, "problem": problem}
    return json.dumps({**facts, "value": 1.5, "unit": "s", "detail": "d", **more}).encode() + b"\n"


def test_hosts_have_their_checks_and_problems() -> None:
    record = row(0, "bf16") + row(1, "bf16", "chip 1: 1 of 4 values are wrong") + row(1, "disk")
    result = read_preflight(status(ended(0, 75), ended(1, 79)), record)
    assert not result.passed
    good, bad = result.hosts
    assert (good.label, good.passed, good.problem) == ("s0/h0", True, "")
    assert (bad.passed, bad.problem) == (False, "bf16: chip 1: 1 of 4 values are wrong")
    assert [check.check for check in bad.checks] == ["bf16", "disk"]


def test_all_hosts_must_have_passed() -> None:
    record = row(0, "bf16") + row(1, "bf16")
    assert read_preflight(status(ended(0, 0), ended(1, 0)), record).passed
    assert not read_preflight(status(ended(0, 0), ended(1, 0)), row(0, "bf16")).passed
    assert not read_preflight(status(ended(0, 0)), record).passed


def test_only_the_last_checks_of_a_host_count() -> None:
    """The workload was preempted, and checks other nodes."""
    before = row(0, "bf16", "chip 1: 1 of 4 values are wrong", time=1000.0) + row(1, "bf16", time=1000.0)
    record = before + row(0, "bf16", time=2000.5) + row(0, "disk", time=2000.5) + row(1, "bf16", time=2000.5)
    result = read_preflight(status(ended(0, 0), ended(1, 0)), record)
    assert result.passed
    assert [[check.check for check in host.checks] for host in result.hosts] == [["bf16", "disk"], ["bf16"]]


def test_a_host_that_ended_early_has_its_last_words() -> None:
    words = "preflight failed: dns: the coordinator's name 'x' did not resolve within 60 s"
    result = read_preflight(status(ended(0, 75), ended(1, 79, words)), b"")
    assert [(host.passed, host.problem) for host in result.hosts] == [
        (None, "not checked"),
        (False, "dns: the coordinator's name 'x' did not resolve within 60 s"),
    ]
    (_, crashed) = read_preflight(status(ended(0, 75), ended(1, 139)), b"").hosts
    assert crashed.problem == "ended with exit code 139 (SIGSEGV)"


def test_damaged_and_foreign_lines_are_ignored() -> None:
    record = (
        b'{"slice": 0}\nnonsense\n' + row(0, "bf16", value=float("nan"), detail=7) + b'{"slice": "x", "passed": 1}\n'
    )
    host = read_preflight(status(ended(0, 0), ended(1, 0)), record).hosts[0]
    assert [(check.check, check.value, check.passed) for check in host.checks] == [("bf16", None, True)]


def test_the_status_names_the_host_and_the_check() -> None:
    words = "preflight failed: int8: chip 0: 3 of 65,536 values are wrong"
    failed = jobset(conditions=[{"type": "Failed", "status": "True", "reason": "FailedJobs", "message": "m"}])
    pods = [ended(0, 75), ended(1, 79, words)]
    assert read(failed, Snapshot(jobsets=[failed], pods=pods)).reason == f"host s1/h0: {words}"
