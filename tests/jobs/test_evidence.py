"""Evidence against nodes from workloads."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

import pytest

from tests.jobs.objects import NOW, ROOTS, Obj, at, event, exited, jobset, pod, restarted
from xpk.jobs.evidence import evidence_of_workload, evidence_of_workloads, failure_kind
from xpk.jobs.status import reader
from xpk.model.evidence import Evidence, EvidenceKind, to_text
from xpk.testing import FakeApi

RUNNING = {"phase": "Running", "containerStatuses": [{"state": {"running": {"startedAt": at(20)}}}]}


@pytest.mark.parametrize(
    ("code", "cause", "kind"),
    [
        (76, "ended with exit code 76 (hung)", EvidenceKind.HANG),
        (None, "host s0/h1 did not answer; restarted in place", EvidenceKind.HANG),
        (77, "ended with exit code 77", EvidenceKind.COPIES),
        (79, "preflight failed: bf16: chip 1: 1 of 65,536 values are wrong", EvidenceKind.PREFLIGHT),
        (139, "ended with exit code 139 (SIGSEGV)", EvidenceKind.SIGNAL),
        (134, "ended with exit code 134 (SIGABRT)", EvidenceKind.SIGNAL),
        (1, "ended with exit code 1 (open(/dev/accel0): Device or resource busy)", EvidenceKind.DEVICE),
        (1, "ended with exit code 1 (RuntimeError: Unable to initialize backend 'tpu': TPU initialization failed)",
         EvidenceKind.DEVICE),
        (134, "NVRM: Xid 79", EvidenceKind.DEVICE),
        (1, "expected 4 chips, chip 2 not found", EvidenceKind.DEVICE),
        (1, "INTERNAL: Uncorrectable HBM error on core 1", EvidenceKind.DEVICE),
        (1, "FileNotFoundError: file not found", None),
        (137, "ended with exit code 137 (SIGKILL)", None),
        (143, "ended with exit code 143 (SIGTERM)", None),
        (75, "ended with exit code 75 (lost a peer)", None),
        (42, "ended with exit code 42 (fatal error)", None),
        (1, "ended with exit code 1", None),
        (None, "was on node n0, which was lost or drained", None),
    ],
)  # fmt: skip
def test_only_failures_for_which_a_host_may_be_responsible_are_evidence(
    code: int | None, cause: str, kind: EvidenceKind | None
) -> None:
    assert failure_kind(code, cause) == kind


def cluster(*events: Obj, output: Path | None = None) -> FakeApi:
    """Return an API server with a workload of two slices on the nodes n0 and n1, restarted once."""
    annotations = {"xpk.dev/output-dir": str(output)} if output else {}
    api = FakeApi()
    run = jobset(annotations=annotations, restarts=1) | {"kind": "JobSet", "apiVersion": "jobset.x-k8s.io/v1alpha2"}
    pods = [pod(number, RUNNING, node=f"n{number}") for number in range(2)]
    for one in pods:
        one["metadata"]["labels"] |= {
            "jobset.sigs.k8s.io/restart-attempt": "1", "jobset.sigs.k8s.io/jobset-name": "w",
        }  # fmt: skip
    for obj in (run, *({"kind": "Pod", **one} for one in pods), *({"kind": "Event", **one} for one in events)):
        api.create(obj)
    return api


def scheduled(slice_id: int, on: str, seconds: int) -> Obj:
    name = f"w-slice-job-{slice_id}-0-abcde"
    return event("Pod", name, "Scheduled", f"Successfully assigned default/{name} to {on}", seconds)


def test_a_failure_is_evidence_against_the_node_on_which_the_host_was() -> None:
    api = cluster(scheduled(1, "n9", 2), exited(1, 139, 10), restarted(1, 11), scheduled(1, "n1", 19))
    (one,) = evidence_of_workload(api, "w", "default", ROOTS)
    assert (one.node, one.kind, one.place, one.hosts) == ("n9", EvidenceKind.SIGNAL, "s1/h0", 2)
    assert one.source == f"w@{NOW}" and "exit code 139 (SIGSEGV)" in one.message
    assert evidence_of_workloads(api, ROOTS) == [one], "reading again gives the same evidence"


def test_a_failure_on_an_unknown_node_is_no_evidence() -> None:
    api = cluster(exited(1, 139, 10), restarted(1, 11), scheduled(1, "n1", 19))
    assert evidence_of_workload(api, "w", "default", ROOTS) == []


def test_of_two_copies_neither_is_certainly_wrong() -> None:
    api = cluster(scheduled(1, "n9", 2), exited(1, 77, 10), restarted(1, 11))
    (one,) = evidence_of_workload(api, "w", "default", ROOTS)
    assert (one.kind, one.share) == (EvidenceKind.COPIES, 0.5)


def test_slow_chips_count_once_for_each_attempt(tmp_path: Path) -> None:
    slow = {"host": "slice 1 host 0", "reason": "chip", "own": 0.0105, "median": 0.0064}
    rows = [
        {"event": "pace", "attempt": attempt, "time": 1769860850 + number, "slow": named}
        for number, (attempt, named) in enumerate(
            [(0, [slow]), (0, [slow]), (1, [slow | {"conclusive": False}]), (2, [slow]), (3, ["nonsense"]), (3, None)]
        )
    ]
    (tmp_path / "events").mkdir()
    lines = [*map(json.dumps, rows), "{", "null"]
    (tmp_path / "events" / "s0-h0.jsonl").write_text("\n".join(lines), encoding="utf-8")
    evidence = evidence_of_workload(cluster(output=tmp_path), "w", "default", ROOTS)
    assert [(one.node, one.kind, one.number) for one in evidence] == [
        ("n1", EvidenceKind.CHIPS, "attempt 0"), ("n1", EvidenceKind.CHIPS, "attempt 2"),
    ]  # fmt: skip
    assert evidence[0].message.startswith("w: s1/h0 has slow chips: 0.0105 s for the same products, 0.0064 s")


def test_the_status_names_hosts_on_nodes_with_evidence() -> None:
    api = cluster()
    one = Evidence(
        node="n1", kind=EvidenceKind.PROBLEM, time="2999-01-01T00:00:00Z", source="node", number="1", message="m"
    )
    marks = {"xpk.dev/evidence": to_text([one], datetime.fromisoformat(NOW))}
    meta = {"name": "n1", "labels": {"xpk.dev/evidence": "true"}, "annotations": marks}
    api.create({"kind": "Node", "metadata": meta, "spec": {}, "status": {}})
    api.create({"kind": "Node", "metadata": {"name": "n0"}, "spec": {}, "status": {}})
    for brief in (False, True):
        status, _ = reader.inspect(api, "w", "default", ROOTS, brief=brief)
        assert [(one.slice, one.host, one.node, one.score) for one in status.suspects] == [(1, 0, "n1", 1.0)]
