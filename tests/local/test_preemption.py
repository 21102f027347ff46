"""Preemptions that queues of one cohort cause again and again: passes of the controllers on a store, without hosts."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.local.cases import cluster_queue, jobset, kueue, node, shared_objects
from xpk.api.base import Obj
from xpk.local import clock, controllers, preemption
from xpk.local import objects as o
from xpk.local.process import Host
from xpk.local.store import Store

LIMIT = 300  # passes: controllers that change something in each of them do not settle


class Cluster:
    """One slice of two hosts, and two queues with the quota of one host each that lend to each other."""

    def __init__(self, store: Store) -> None:
        self._store = store
        within = {"withinClusterQueue": "LowerPriority"}
        queues: dict[str, Obj] = {
            "lends": {**within, "reclaimWithinCohort": "Never"},
            "reclaims": {
                **within,
                "reclaimWithinCohort": "Any",
                "borrowWithinCohort": {"policy": "LowerPriority"},
            },
        }
        self.put(
            *(node(0, host) for host in range(2)),
            *shared_objects(),
            *(cluster_queue(name, 4, rules, cohortName="cohort") for name, rules in queues.items()),
            *(kueue("LocalQueue", name, spec={"clusterQueue": name}) for name in queues),
        )

    def put(self, *objects: Obj) -> None:
        """Create or change objects."""
        with self._store.transaction() as tx:
            for obj in objects:
                tx.put(obj)

    def submit(self, name: str, queue: str, priority: str, hosts: int) -> None:
        """Create a JobSet in a queue."""
        created = jobset(name, "true", slices=1, hosts=hosts, priority=priority)
        created["metadata"]["labels"][o.QUEUE_LABEL] = queue
        self.put(created)

    def settle(self, *, runs: bool = False) -> None:
        """Pass until nothing changes; all hosts run on whatever they are told, or none does."""
        running = Host("running", {"pid": 1, "startedAt": "2026-11-28T12:00:00Z"})
        for _ in range(LIMIT):
            with self._store.transaction() as tx:
                hosts = {pod["metadata"]["uid"]: running for pod in tx.list("Pod") if runs and not o.has_ended(pod)}
                controllers.reconcile(tx, hosts)
                if not tx.writes:
                    return
        raise AssertionError("the controllers do not settle")

    def workload(self, name: str) -> Obj:
        """Return the workload of a JobSet."""
        with self._store.transaction() as tx:
            return next(w for w in tx.list("Workload") if w["metadata"]["name"].startswith(f"jobset-{name}-"))

    def admitted(self) -> list[str]:
        """Return the names of the JobSets that have quota."""
        with self._store.transaction() as tx:
            return [j["metadata"]["name"] for j in tx.list("JobSet") if not j["spec"].get("suspend")]

    def events(self, reason: str) -> list[str]:
        """Return the messages of events."""
        with self._store.transaction() as tx:
            return [event["message"] for event in tx.list("Event") if event["reason"] == reason]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Store(tmp_path, create=True) as store:
        yield Cluster(store)


def test_a_loop_of_preemptions_ends_with_the_workload_that_has_a_right_to_its_quota(cluster: Cluster) -> None:
    """`strong` borrows, `entitled` reclaims, `large` of its own queue preempts it, and `strong` is first again."""
    cluster.submit("strong", "lends", "high", 2)
    cluster.settle()
    cluster.submit("large", "reclaims", "medium", 2)
    cluster.submit("entitled", "reclaims", "low", 1)
    cluster.settle()
    assert cluster.admitted() == ["entitled"]
    name = cluster.workload("entitled")["metadata"]["name"]
    assert cluster.events("PreemptionLoop") == [
        f"no longer preempts {name}: it did 5 times, each within a minute of its admission"
    ]


def test_a_deactivated_workload_is_no_longer_the_first_of_its_queue(cluster: Cluster) -> None:
    cluster.submit("weak", "reclaims", "low", 2)
    cluster.settle(runs=True)
    cluster.submit("suspended", "reclaims", "medium", 2)
    cluster.settle(runs=True)
    workload = cluster.workload("suspended")
    assert cluster.admitted() == [], "it waits for the hosts that it has preempted"
    cluster.put({**workload, "spec": {**workload["spec"], "active": False}})
    cluster.settle(runs=True)
    cluster.submit("strong", "reclaims", "high", 2)
    workload = cluster.workload("suspended")
    cluster.put({**workload, "spec": {**workload["spec"], "active": True}})
    cluster.settle()
    assert cluster.admitted() == ["strong"]
    assert len(cluster.events("Preempted")) == 1, "it was admitted before a stronger one, and then preempted"


def test_only_preemptions_soon_after_an_admission_count(tmp_path: Path) -> None:
    winner = kueue("Workload", "winner", spec={})
    winner["metadata"] |= {"namespace": "default", "uid": "1"}

    def preempt(store: Store, *, admitted: float) -> tuple[str, ...]:
        """Preempt a workload that was admitted so many seconds ago; return what the winner spares."""
        since = datetime.fromtimestamp(clock.time() - admitted, UTC).isoformat()
        reserved = {"type": "QuotaReserved", "status": "True", "lastTransitionTime": since}
        victim = {"metadata": {"name": "victim", "uid": "2"}, "status": {"conditions": [reserved]}}
        with store.transaction() as tx:
            preemption.record(tx, winner, victim)
        return preemption.spared_by(winner)

    with Store(tmp_path, create=True) as store:
        assert {preempt(store, admitted=age) for age in (0, 30, 55, 10, 61, 0, 0, 0, 0)} == {()}
        assert preempt(store, admitted=0) == ("2",)
