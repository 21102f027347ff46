"""Usage of a Kubernetes cluster, from its objects at each reading and from the records of runs."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.jobs.report.runs import START, RunWriter
from xpk.api.base import Obj
from xpk.jobs.deletion import carry_out, plan_named
from xpk.jobs.output.roots import OutputRoots
from xpk.jobs.usage.deletion import DeletionRecorder
from xpk.jobs.usage.figures import Usage, usage_of
from xpk.jobs.usage.reading import FOLDER, Source, read
from xpk.model.specs import Target
from xpk.model.usage import MICROSECONDS
from xpk.testing import FakeApi

HOUR = 3600.0
LABELS = {"kueue.x-k8s.io/queue-name": "multislice-queue", "app.kubernetes.io/managed-by": "xpk"}
NODE_LABELS = {"cloud.google.com/gke-nodepool": "np-0", "xpk.dev/accelerator-type": "v5litepod-8"}
CHIPS = {"google.com/tpu": 4}


def at(hours: float) -> str:
    """Return the time this many hours after the start."""
    return datetime.fromtimestamp(START + hours * HOUR, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def jobset(output: str = "") -> Obj:
    pod = {"containers": [{"name": "host", "command": ["true"], "resources": {"limits": CHIPS}}]}
    job = {"parallelism": 2, "template": {"spec": pod}}
    annotations = {"xpk.dev/user": "ann", "xpk.dev/accelerator-type": "v5litepod-8", "xpk.dev/output-dir": output}
    return {
        "kind": "JobSet",
        "metadata": {
            "name": "w", "namespace": "team-red", "uid": "u", "creationTimestamp": at(1), "labels": LABELS,
            "annotations": annotations,
        },
        "spec": {"replicatedJobs": [{"name": "slice-job", "replicas": 1, "template": {"spec": job}}]},
        "status": {},
    }  # fmt: skip


def workload(**conditions: tuple[bool, str, float]) -> Obj:
    """Return Kueue's workload; each condition with its reason and the hours of its last change."""
    listed = [
        {"type": kind, "status": str(holds), "reason": reason, "message": "", "lastTransitionTime": at(hours)}
        for kind, (holds, reason, hours) in conditions.items()
    ]
    return {
        "kind": "Workload",
        "metadata": {
            "name": "jobset-w", "namespace": "team-red", "uid": "k", "creationTimestamp": at(1),
            "ownerReferences": [{"uid": "u", "name": "w"}],
        },
        "spec": {"active": True, "queueName": "multislice-queue"},
        "status": {"conditions": listed},
    }  # fmt: skip


RESERVED = (True, "QuotaReserved", 2.0)


def node(host: int, hours: float = 0.0) -> Obj:
    status = {"allocatable": {"google.com/tpu": "4"}, "conditions": [{"type": "Ready", "status": "True"}]}
    meta = {"name": f"n-{host}", "uid": f"n-{host}", "labels": NODE_LABELS, "creationTimestamp": at(hours)}
    return {"kind": "Node", "metadata": meta, "spec": {}, "status": status}


QUEUES: list[Obj] = [
    {"kind": "LocalQueue", "metadata": {"name": name, "namespace": "team-red"}, "spec": {"clusterQueue": "q"}}
    for name in ("multislice-queue", "red")
]


class Cluster:
    """A cluster whose time the test sets, and its ledger."""

    def __init__(self, root: Path) -> None:
        self.root, self.hours = root, 0.0
        self.api = FakeApi([*map(node, range(4)), *QUEUES])
        target = Target(emulated=False, sets_slice_environment=False, output_root=str(root), exclusive=True)
        self.source = Source(self.api, "prod", OutputRoots(lambda: target), root / "state", clock=self._now)

    def _now(self) -> int:
        return round((START + self.hours * HOUR) * MICROSECONDS)

    def put(self, *objects: Obj) -> None:
        for obj in objects:
            self.api.apply(obj)

    def usage(self, hours: float, *, since: float = 0.0, by: tuple[str, ...] = ("team", "cause")) -> Usage:
        """Return what `xpk usage` shows at a time."""
        self.hours = hours
        begin, end = (round((START + time * HOUR) * MICROSECONDS) for time in (since, hours))
        return usage_of(read(self.source, since=begin, until=end), "prod", begin, end, by)


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


def held(usage: Usage) -> dict[str, float]:
    return {str(row.cause): row.held_chip_hours for row in usage.rows if row.held_chip_hours}


def test_conditions_tell_how_long_a_workload_waited_started_and_ran(cluster: Cluster) -> None:
    cluster.put(jobset(), workload(QuotaReserved=RESERVED, PodsReady=(True, "Started", 2.5)))
    usage = cluster.usage(4)
    assert held(usage) == {"running": 1.5 * 8, "start": 0.5 * 8}
    assert {row.team for row in usage.rows} == {"red"} and usage.total.queued_chip_hours == 8
    assert usage.capacity.capacity_chip_hours == 4 * 16 and usage.capacity.free_chip_hours == 4 * 16 - 2 * 8
    assert usage.total.productive_chip_hours + usage.total.lost_chip_hours == usage.total.held_chip_hours
    assert usage.problems == () and usage.unrecorded_seconds == 0


def test_the_quota_of_another_tools_queue_is_used_by_its_local_queues(cluster: Cluster) -> None:
    """Their names may differ, and several LocalQueues may use one quota."""
    resource = {"name": "google.com/tpu", "nominalQuota": 16}
    group = {"coveredResources": ["google.com/tpu"], "flavors": [{"name": "f", "resources": [resource]}]}
    cluster.put({"kind": "ClusterQueue", "metadata": {"name": "q"}, "spec": {"resourceGroups": [group]}})
    cluster.put(jobset(), workload(QuotaReserved=RESERVED, PodsReady=(True, "Started", 2.0)))
    (quota,) = cluster.usage(4, since=2).quotas
    assert (quota.queue, quota.quota_chip_hours, quota.held_chip_hours) == ("q", 2 * 16, 2 * 8)
    assert quota.idle_quota_chip_hours == 2 * 8


def test_readings_continue_each_other(cluster: Cluster) -> None:
    cluster.put(jobset(), workload(QuotaReserved=RESERVED, PodsReady=(True, "Started", 2.5)))
    cluster.usage(3)
    cluster.usage(3.25)
    # Kueue has forgotten when the workload started: it was lost, and recovers.
    cluster.put(workload(QuotaReserved=RESERVED, PodsReady=(False, "WaitForRecovery", 3.5)))
    assert held(cluster.usage(4)) == {"running": 8.0, "start": 4.0, "down": 4.0}
    assert held(cluster.usage(4)) == {"running": 8.0, "start": 4.0, "down": 4.0}


def test_a_preemption_between_two_readings_is_read_from_conditions(cluster: Cluster) -> None:
    cluster.put(jobset(), workload(QuotaReserved=RESERVED, PodsReady=(True, "Started", 2.0)))
    cluster.usage(3)
    waits = (False, "Pending", 3.75)
    cluster.put(
        workload(QuotaReserved=waits, Evicted=(True, "Preempted", 3.5), PodsReady=(False, "WaitForStart", 3.75))
    )
    usage = cluster.usage(5, by=("workload",))
    assert usage.rows[0].workload == "team-red/w" and usage.rows[0].preemptions == 1
    assert usage.total.held_chip_hours == 1.75 * 8 and usage.total.preemption_chip_hours == 0.25 * 8
    assert usage.total.queued_chip_hours == 8 + 1.25 * 8


def test_starting_again_after_a_preemption_is_charged_to_it(cluster: Cluster) -> None:
    again = (False, "QuotaReserved", 4.0)
    cluster.put(jobset(), workload(QuotaReserved=(False, "Pending", 3.0), Evicted=(True, "Preempted", 2.0)))
    cluster.usage(3.5)
    reserved = (True, "QuotaReserved", 4.0)
    cluster.put(workload(QuotaReserved=reserved, PodsReady=(True, "Started", 4.5), Evicted=again, Preempted=again))
    usage = cluster.usage(5)
    assert usage.total.held_chip_hours == 2 * 8 and usage.total.preemption_chip_hours == 1.5 * 8


def test_a_preemption_that_only_events_show(cluster: Cluster) -> None:
    cluster.put(jobset(), workload(QuotaReserved=RESERVED, PodsReady=(True, "Started", 2.0)))
    cluster.usage(3)
    again = (True, "QuotaReserved", 5.0)
    cluster.put(workload(QuotaReserved=again, Evicted=(False, "QuotaReserved", 5.0), PodsReady=(True, "Started", 5.0)))
    assert cluster.usage(6).total.held_chip_hours == 2 * 8
    about = {"kind": "Workload", "name": "jobset-w", "namespace": "team-red", "uid": "k"}
    event = {
        "kind": "Event", "metadata": {"name": "e", "namespace": "team-red"}, "involvedObject": about,
        "reason": "EvictedDueToPreempted", "lastTimestamp": at(4), "count": 1,
    }  # fmt: skip
    other = Cluster(cluster.root / "other")
    other.put(jobset(), workload(QuotaReserved=RESERVED, PodsReady=(True, "Started", 2.0)))
    other.usage(3)
    other.put(
        workload(QuotaReserved=again, Evicted=(False, "QuotaReserved", 5.0), PodsReady=(True, "Started", 5.0)), event
    )
    assert other.usage(6).total.held_chip_hours == 3 * 8


def test_a_finished_workload_is_recorded_up_to_its_end(cluster: Cluster) -> None:
    done = (True, "Succeeded", 3.0)
    cluster.put(jobset(), workload(QuotaReserved=RESERVED, PodsReady=(True, "Started", 2.0), Finished=done))
    cluster.usage(4)
    for kind, name in (("JobSet", "w"), ("Workload", "jobset-w")):
        cluster.api.delete(kind, name, "team-red")
    usage = cluster.usage(5)
    assert usage.total.held_chip_hours == 8 and usage.problems == ()


def test_a_workload_that_another_tool_deleted_is_named(cluster: Cluster) -> None:
    cluster.put(jobset(), workload(QuotaReserved=RESERVED, PodsReady=(True, "Started", 2.0)))
    cluster.usage(3)
    for kind, name in (("JobSet", "w"), ("Workload", "jobset-w")):
        cluster.api.delete(kind, name, "team-red")
    usage = cluster.usage(5)
    assert usage.total.held_chip_hours == 8
    assert usage.problems == ("team-red/w ended at an unknown time: another tool deleted it after the last reading",)


def test_a_workload_that_xpk_deletes_is_recorded_up_to_then(cluster: Cluster) -> None:
    cluster.put(jobset(), workload(QuotaReserved=RESERVED, PodsReady=(True, "Started", 2.0)))
    cluster.usage(2.5)
    cluster.hours = 4
    recorder = DeletionRecorder(cluster.source, "team-red", pytest.fail)
    deletions = plan_named(cluster.api, ["w"], "team-red", cluster="prod")
    carry_out(cluster.api, deletions, "team-red", usage=recorder)
    cluster.api.delete("Workload", "jobset-w", "team-red")
    usage = cluster.usage(5)
    assert usage.total.held_chip_hours == pytest.approx(2 * 8) and usage.problems == ()


def test_the_records_of_a_run_tell_its_end_if_another_tool_deleted_it(cluster: Cluster) -> None:
    output = cluster.root / "team-red.w"
    run = RunWriter(output, slices=1, hosts=2, now=START + 2 * HOUR)
    run.train(0, 2000, step_seconds=3.0)
    run.write()
    cluster.put(jobset(str(output)), workload(QuotaReserved=RESERVED, PodsReady=(True, "Started", 2.0)))
    cluster.usage(2.5)
    for kind, name in (("JobSet", "w"), ("Workload", "jobset-w")):
        cluster.api.delete(kind, name, "team-red")
    seconds = run.now - (START + 2 * HOUR)
    for hours in (5, 6):
        assert cluster.usage(hours).total.held_chip_hours == pytest.approx(8 * seconds / HOUR, abs=0.01)


def test_states_from_before_the_time_that_a_reading_looks_back_are_kept(cluster: Cluster) -> None:
    output = cluster.root / "team-red.w"
    run = RunWriter(output, slices=1, hosts=2, now=START + 4 * HOUR)
    run.train(0, 600, step_seconds=3600.0)
    run.write()
    cluster.put(jobset(str(output)), workload(QuotaReserved=RESERVED, PodsReady=(False, "WaitForRecovery", 3.5)))
    cluster.usage(4)
    cluster.put(workload(QuotaReserved=RESERVED, PodsReady=(True, "Started", 4.0)))
    for days in (12, 24):
        cluster.usage(24 * days, since=24 * days - 1)
    usage = cluster.usage(24 * 24.5)
    causes = held(usage)
    assert causes["down"] == 8 * 0.5 and causes["idle"] >= 8 * 1.5 and causes["steps"] > 8 * 24 * 24
    assert usage.total.held_chip_hours == 8 * (24 * 24.5 - 2)


def test_slices_count_from_their_creation_until_the_last_reading_with_them(cluster: Cluster) -> None:
    cluster.usage(2)
    cluster.put(node(4, 2.5), node(5, 2.5))
    assert cluster.usage(3).capacity.capacity_chip_hours == 3 * 16 + 0.5 * 8
    cluster.api.delete("Node", "n-4")
    cluster.api.delete("Node", "n-5")
    assert cluster.usage(4).capacity.capacity_chip_hours == 4 * 16 + 0.5 * 8


def test_the_records_of_a_run_refine_its_time_and_outlive_its_output(cluster: Cluster) -> None:
    output = cluster.root / "team-red.w"
    run = RunWriter(output, slices=1, hosts=2, now=START + 2 * HOUR)
    run.train(0, 1000, step_seconds=3.0)
    run.write()
    run.done(1000)
    run.write()
    done = (True, "Succeeded", 3.0)
    cluster.put(jobset(str(output)))
    cluster.put(workload(QuotaReserved=RESERVED, PodsReady=(True, "Started", 2.0), Finished=done))
    usage = cluster.usage(4)
    causes = held(usage)
    assert causes["steps"] > 6 and {"init", "restore", "compile"} <= causes.keys() and "running" not in causes
    assert usage.total.held_chip_hours == 8
    for path in output.rglob("*"):
        path.unlink() if path.is_file() else None
    assert held(cluster.usage(4.5)) == causes


def test_a_run_that_was_never_seen_running_is_read_from_its_records(cluster: Cluster) -> None:
    output = cluster.root / "team-red.w"
    run = RunWriter(output, slices=1, hosts=2, now=START + 2 * HOUR)
    run.train(0, 1000, step_seconds=3.0)
    run.write()
    cluster.put(jobset(str(output)), workload(QuotaReserved=(True, "QuotaReserved", 4.0)))
    seconds = run.now - (START + 2 * HOUR)
    assert cluster.usage(5).total.held_chip_hours == pytest.approx(8 + 8 * seconds / HOUR, abs=0.01)


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda content: content[:-40], "it is cut off"),
        (lambda content: b"", "it is cut off"),
        (lambda content: content.replace(b'"chips":8', b'"chips":9'), "its checksum differs"),
        (lambda content: b'{"format":2,"sha256":"","records":[]}', "written by a newer version of xpk (format 2)"),
        (lambda content: b"[1, 2]}", "it is not a file of the ledger"),
        (lambda content: b"[" * 100_000, "it is cut off"),
    ],
)
def test_a_damaged_file_is_named_and_left_out(cluster: Cluster, damage: Any, why: str) -> None:
    cluster.put(jobset(), workload(QuotaReserved=RESERVED, PodsReady=(True, "Started", 2.0)))
    cluster.usage(3)
    (file,) = (cluster.root / FOLDER).rglob("*.json")
    file.write_bytes(damage(file.read_bytes()))
    (file.parent / ".unfinished.1").write_text("{")
    (problem,) = cluster.usage(4).problems
    assert problem.startswith(f"a usage record is left out: {why} (20") and str(cluster.root) in problem


def test_objects_of_other_tools_do_not_break_a_reading(cluster: Cluster) -> None:
    strange = jobset()
    strange["metadata"] |= {"uid": "s", "name": "strange"}
    strange["spec"]["replicatedJobs"][0]["replicas"] = "many"
    unsuspended = jobset()
    unsuspended["metadata"] |= {"uid": "x", "name": "plain", "labels": {}}
    cluster.put(strange, unsuspended)
    usage = cluster.usage(3, by=("workload",))
    assert [(row.workload, row.held_chip_hours) for row in usage.rows] == [("team-red/plain", 16.0)]


def test_records_are_valid_json_of_this_format(cluster: Cluster) -> None:
    cluster.put(jobset(), workload(QuotaReserved=RESERVED))
    cluster.usage(3)
    (file,) = (cluster.root / FOLDER / "prod" / "2027-01").iterdir()
    content = json.loads(file.read_bytes())
    assert content["format"] == 1 and {record["kind"] for record in content["records"]} == {"hold", "capacity"}
    assert replace(cluster.source, cluster="context:a/b").folder.url.endswith(f"{FOLDER}/context-a-b")
