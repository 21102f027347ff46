"""Estimated starts of workloads on a cluster."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from tests.jobs.objects import jobset
from tests.jobs.simulation.queues import cluster, cluster_queue, workload
from xpk.api.base import Obj, ObjectApi, Objs
from xpk.jobs.output.roots import OutputRoots
from xpk.jobs.simulation.live import with_start
from xpk.jobs.simulation.scenario import Objects
from xpk.jobs.status.fields import Snapshot
from xpk.jobs.status.reader import read
from xpk.model.errors import AuthorizationError
from xpk.model.specs import Target
from xpk.model.status import Phase, WorkloadStatus

ROOTS = OutputRoots(lambda: Target(emulated=False, sets_slice_environment=False, output_root=""))


class Stored:
    """An API of fixed objects, of which some kinds may not be listed."""

    def __init__(self, objects: Objects, denied: tuple[str, ...] = ()) -> None:
        self._denied = denied
        self._objects: dict[str, Objs] = {
            "ClusterQueue": objects.cluster_queues, "LocalQueue": objects.local_queues, "Workload": objects.workloads,
        }  # fmt: skip

    def list(self, kind: str, namespace: str | None) -> Objs:
        if kind in self._denied:
            raise AuthorizationError(f"permission denied: {kind}")
        return self._objects.get(kind, [])


def status(**fields: Any) -> WorkloadStatus:
    waiting = read(jobset(suspend=True), Snapshot(jobsets=[]))
    values = {"name": "next", "phase": Phase.QUEUED, "position": 1, "cluster_queue": "cluster-queue", **fields}
    return replace(waiting, **values)


def started(objects: Objects, *denied: str, **fields: Any) -> WorkloadStatus:
    return with_start(cast(ObjectApi, Stored(objects, denied)), status(**fields), ROOTS)


def test_only_a_workload_that_waits_has_an_estimate() -> None:
    objects = cluster(workload("next", 1))
    start = started(objects).start
    assert start and start.expected and not start.reason
    assert started(objects, phase=Phase.RUNNING).start is None
    assert started(objects, position=None).start is None
    assert started(objects, "JobSet", "ResourceFlavor", "Cohort").start is not None


def test_users_who_may_not_list_all_workloads_see_no_estimate() -> None:
    assert started(cluster(workload("next", 1)), "Workload").start is None


def test_objects_that_cannot_be_read_give_no_estimate() -> None:
    broken: Obj = {"metadata": {"name": "odd"}, "spec": {"resourceGroups": [{"flavors": [{"resources": [{}]}]}]}}
    assert started(cluster(workload("next", 1), more=(broken,))).start is None


def test_a_queue_that_is_not_simulated_and_a_long_queue_are_named() -> None:
    objects = cluster(workload("next", 1), more=(cluster_queue("odd", 1, stopPolicy="Hold"),))
    start = started(objects).start
    assert start and start.reason == "queue 'cluster-queue' is not simulated: it shares a cohort with 'odd'"
    many = cluster(*(workload(f"w{number}", 1) for number in range(101)), workload("next", 1))
    start = started(many).start
    assert start and start.reason == "102 workloads are queued; `xpk queue simulate` estimates their starts"
